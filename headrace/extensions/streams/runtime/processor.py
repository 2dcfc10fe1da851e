"""The processor of a topology's channel: one with state, whose topics by key it opens first."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.extensions.keyed.runtime.processor import KeyedProcessor
from headrace.extensions.keyed.runtime.state_topics import START_TIMEOUT
from headrace.extensions.keyed.topics import open_by_key
from headrace.extensions.streams.runtime.shared import SharedReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.config import ChannelConfig
    from headrace.config.models.processor import TopicByKey
    from headrace.core.records import Assignment
    from headrace.extensions.streams.runtime.fold import TopologyFold
    from headrace.extensions.streams.runtime.shared import SharedTables
    from headrace.kafka.ports import TopicCatalog
    from headrace.processors.contract import BatchResponse, ChannelContext


#: Seconds that the reader of shared tables has to end where the start fails.
_STOP_TIMEOUT = 5.0


class StreamsProcessor(KeyedProcessor):
    """Runs a part of a topology.

    ``by_key`` are the topics that it makes: of its changes of key, and of tables. ``formers`` are
    changelogs of what the part may have been called before. ``shared`` tables are read before it
    opens.
    """

    def __init__(
        self,
        *parts: Any,
        fold: TopologyFold,
        by_key: Sequence[TopicByKey],
        formers: Mapping[str, str],
        shared: SharedTables,
        **others: Any,
    ) -> None:
        super().__init__(*parts, **others)
        self._fold = fold
        self._by_key = by_key
        self._formers = formers
        self._shared = shared
        self._shared_reader: SharedReader | None = None

    @override
    def open(self, context: ChannelContext) -> None:
        with closing(self.parts.catalog()) as catalog:
            require_no_former(
                catalog,
                self.current.channel,
                self.parts.sink.changelog,
                self._formers,
                Deadline.after(START_TIMEOUT, context.clock),
            )
            for topic in self._by_key:
                open_by_key(
                    catalog,
                    topic.name,
                    topic.sources,
                    Deadline.after(START_TIMEOUT, context.clock),
                    create=topic.create,
                    replication_factor=topic.replication_factor,
                    partitions=topic.partitions,
                    settings=topic.settings,
                )
        try:
            self._read_shared(context)
            super().open(context)
        except BaseException:
            self._stop_reading(Deadline.after(_STOP_TIMEOUT, context.clock))
            raise

    @override
    def close(self, deadline: Deadline) -> None:
        super().close(deadline)
        self._stop_reading(deadline)

    def _read_shared(self, context: ChannelContext) -> None:
        if not self._shared.topics:
            return
        self._shared_reader = SharedReader(
            context.channel, self._shared, self.parts.source, context.clock, context.fail
        )
        with closing(self.parts.catalog()) as catalog:
            self._shared_reader.load(catalog, Deadline.after(START_TIMEOUT, context.clock))

    def _stop_reading(self, deadline: Deadline) -> None:
        reader, self._shared_reader = self._shared_reader, None
        if reader is not None and reader.is_started:
            reader.stop(deadline)

    @override
    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        answer = super().on_stream_termination(assignment)
        self._fold.forget(assignment.partition.partition)
        return answer

    @override
    def on_partition_lost(self, assignment: Assignment) -> None:
        super().on_partition_lost(assignment)
        self._fold.forget(assignment.partition.partition)


def require_no_former(
    catalog: TopicCatalog,
    channel: ChannelConfig,
    changelog: str,
    formers: Mapping[str, str],
    deadline: Deadline,
) -> None:
    """Return unless a part begins with nothing while one that it was called before has state.

    ``formers`` are such parts by their changelogs. Blocks.

    Raises:
        StartError: one of these exists, and the part's own ``changelog`` does not.
        KafkaUnavailableError: no broker answered.
    """
    found = catalog.describe([changelog, *formers], deadline)
    if changelog in found or not found:
        return
    topic = min(found)
    raise StartError(
        f"group {channel.group}: parts of a topology are called by the first topic that they read, "
        f"which is {channel.topics[0]} now, and {topic} has the state of part {formers[topic]}, "
        "from before it read that: both would count. Begin from nothing by another group of the "
        f"topology, or with this one by deleting {topic}"
    )
