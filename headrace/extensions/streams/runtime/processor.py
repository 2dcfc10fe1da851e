"""The processor of a topology's channel: one with state, whose topics by key it opens first."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.core.clock import Deadline
from headrace.extensions.keyed.runtime.processor import KeyedProcessor
from headrace.extensions.keyed.runtime.state_topics import START_TIMEOUT
from headrace.extensions.keyed.topics import create_topic, open_by_key
from headrace.kafka.catalog import NewTopic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.core.records import Assignment
    from headrace.extensions.streams.runtime.fold import TopologyFold
    from headrace.processors.contract import BatchResponse, ChannelContext


#: Settings of a topic by which rows go to a table: a week is by the clock, not by records' times.
TABLE_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * 3600 * 1000),
    "message.timestamp.type": "LogAppendTime",
}


class StreamsProcessor(KeyedProcessor):
    """Runs a part of a topology.

    ``by_key`` are the topics of its changes of key, each with those that it is made of; ``tables``
    those by which rows go to tables.
    """

    def __init__(
        self,
        *parts: Any,
        fold: TopologyFold,
        by_key: Mapping[str, Sequence[str]],
        tables: Sequence[str],
        **others: Any,
    ) -> None:
        super().__init__(*parts, **others)
        self._fold = fold
        self._by_key = by_key
        self._tables = tables

    @override
    def open(self, context: ChannelContext) -> None:
        internal = self.current.settings.internal
        with closing(self.parts.catalog()) as catalog:
            for topic, sources in self._by_key.items():
                open_by_key(
                    catalog,
                    topic,
                    sources,
                    Deadline.after(START_TIMEOUT, context.clock),
                    create=internal.create,
                    replication_factor=internal.replication_factor,
                    partitions=internal.partitions,
                )
            for topic in self._tables:
                deadline = Deadline.after(START_TIMEOUT, context.clock)
                found = catalog.describe([topic, *sources], deadline)
                if topic in found or not internal.create:
                    continue
                count = max(info.partitions for info in found.values())
                wanted = NewTopic(topic, count, TABLE_SETTINGS, internal.replication_factor)
                create_topic(catalog, wanted, deadline)
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
