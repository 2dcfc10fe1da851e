"""Where a group's partitions stand in Kafka and in the sink, as far as the brokers tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.clock import Deadline
from headrace.errors import HeadraceError
from headrace.records import TopicPartition, all_partitions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.clock import Clock
    from headrace.kafka.ports import StoredOffset
    from headrace.offsets.reading import Cluster, PartitionOffsets, Reader

#: Seconds for all partitions together: those without a leader must not add up.
WHOLE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Positions:
    """Partitions that exist, and their offsets. ``problems`` says of which there are none."""

    counts: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, PartitionOffsets] = field(default_factory=dict)
    problems: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions of all topics that exist."""
        return all_partitions(self.counts)


class PositionReader:
    """Asks for the positions of one group. Every call blocks."""

    def __init__(self, reader: Reader, group: str, clock: Clock) -> None:
        self._reader = reader
        self._group = group
        self._clock = clock

    def read(self, topics: Collection[str]) -> Positions:
        """Return where all partitions of the topics that exist stand.

        A partition whose leader does not answer holds up no other for long, and is no error.

        Raises:
            KafkaUnavailableError, OffsetStoreError: no broker answered, or the group's did not.
        """
        deadline = Deadline.after(WHOLE_TIMEOUT, self._clock)
        cluster = self._reader.cluster(topics)
        counts = {name: info.partitions for name, info in cluster.topics.items()}
        partitions = Positions(counts).partitions
        stored = self._reader.of_group(partitions) if partitions else {}
        offsets: dict[TopicPartition, PartitionOffsets] = {}
        problems: dict[TopicPartition, str] = {}
        for partition in partitions:
            try:
                offsets[partition] = self._one(partition, cluster, stored, deadline)
            except HeadraceError as error:
                problems[partition] = str(error)
        return Positions(counts, offsets, problems)

    def _one(
        self,
        partition: TopicPartition,
        cluster: Cluster,
        stored: Mapping[TopicPartition, StoredOffset],
        deadline: Deadline,
    ) -> PartitionOffsets:
        if deadline.expired:
            raise HeadraceError(f"{partition}: not asked, the others took {WHOLE_TIMEOUT:g} s")
        return self._reader.around(stored.get(partition), partition, cluster, self._group)
