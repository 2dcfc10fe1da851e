"""Clients of a channel with state, made when its processor is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.kafka import KafkaRecordSource, KafkaTopicCatalog, ResultTransactions
from headrace.kafka.columnar import ColumnarRecordSource
from headrace.kafka.columnar.producer import ColumnProducer
from headrace.kafka.errors import LibraryMissingError
from headrace.kafka.transaction_log import holder_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import RecordSource

#: Bytes of a changelog that are fetched ahead while it is restored.
_PREFETCH = 32 << 20


@dataclass(frozen=True, slots=True)
class ChannelClients:
    """Makes the clients of a group, with the properties of its cluster."""

    properties: Mapping[str, Any]
    group: str

    def catalog(self) -> KafkaTopicCatalog:
        """Return what knows the topics, and where they end.

        A transaction that is committed is marked in the changelog a moment later than where the
        offset is: what is restored ends after it, where logs end, and is waited for.
        """
        return KafkaTopicCatalog(
            {**self.properties, "isolation.level": "read_uncommitted"}, self.group
        )

    def changelog_source(self) -> RecordSource:
        """Return what reads a changelog: in columns where that is compiled, which is faster."""
        committed = {**self.properties, "isolation.level": "read_committed"}
        try:
            return ColumnarRecordSource(committed, self.group, _PREFETCH)
        except LibraryMissingError:
            return KafkaRecordSource(committed, self.group, _PREFETCH)

    def holder(self, partition: TopicPartition) -> str:
        """Return what holds back the end of a partition."""
        return holder_of(self.properties, partition)

    def transactions(self, member: str) -> ResultTransactions:
        """Return what commits outputs, states and offsets for a member."""
        return ResultTransactions(self.properties, self.group, member, columns=ColumnProducer)
