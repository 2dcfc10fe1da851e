"""The processor of a topology's channel: one with state, whose topics by key it opens first."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.core.clock import Deadline
from headrace.extensions.keyed.runtime.processor import KeyedProcessor
from headrace.extensions.keyed.runtime.state_topics import START_TIMEOUT
from headrace.extensions.keyed.topics import open_by_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config.models.processor import TopicByKey
    from headrace.core.records import Assignment
    from headrace.extensions.streams.runtime.fold import TopologyFold
    from headrace.processors.contract import BatchResponse, ChannelContext


class StreamsProcessor(KeyedProcessor):
    """Runs a part of a topology.

    ``by_key`` are the topics that it makes: of its changes of key, and of tables.
    """

    def __init__(
        self, *parts: Any, fold: TopologyFold, by_key: Sequence[TopicByKey], **others: Any
    ) -> None:
        super().__init__(*parts, **others)
        self._fold = fold
        self._by_key = by_key

    @override
    def open(self, context: ChannelContext) -> None:
        with closing(self.parts.catalog()) as catalog:
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
        super().open(context)

    @override
    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        answer = super().on_stream_termination(assignment)
        self._fold.forget(assignment.partition.partition)
        return answer

    @override
    def on_partition_lost(self, assignment: Assignment) -> None:
        super().on_partition_lost(assignment)
        self._fold.forget(assignment.partition.partition)
