"""The micro-batch that one Spark job runs on, told to the reducer as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from headrace.core.records import Batch


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The part of one partition that a micro-batch holds.

    ``start`` is the position it continues from and ``next_offset`` the one after it; ``records``
    may be fewer than their difference, because compaction and transaction markers leave gaps.
    ``identity`` is what a sink keeps the partition's offset under, empty in a dry run.
    """

    topic: str
    partition: int
    start: int
    next_offset: int
    records: int
    identity: str = ""

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the partition as the key that the rest of Headrace uses."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One Spark job's share of a channel: the batches of one or more partitions.

    ``id`` is unique to this run of the job: running the same ranges again makes a new one. The
    ranges stand in the order in which their first batches arrived, one for each partition.
    ``attempt`` counts deliveries of a batch that failed before; such a batch runs alone.
    """

    id: str
    channel: str
    ranges: tuple[OffsetRange, ...]
    attempt: int = 1

    @property
    def records(self) -> int:
        """Return how many records the micro-batch holds."""
        return sum(part.records for part in self.ranges)


def ranges_of(batches: Iterable[Batch]) -> tuple[OffsetRange, ...]:
    """Return one range per partition; the batches of one partition follow upon one another."""
    ranges: dict[TopicPartition, OffsetRange] = {}
    for batch in batches:
        key = batch.partition
        before = ranges.get(key)
        if before is not None and before.next_offset != batch.start:
            raise ValueError(f"{key}: {batch.start} does not follow {before.next_offset}")
        ranges[key] = OffsetRange(
            key.topic,
            key.partition,
            batch.start if before is None else before.start,
            batch.next_offset,
            len(batch) + (0 if before is None else before.records),
            batch.assignment.identity,
        )
    return tuple(ranges.values())


#: The name of the channel that a reducer sees in a dry run.
CHANNEL = "dryrun"


@dataclass(frozen=True, slots=True)
class DryRunBatch:
    """The output that a reducer made of the records. ``rows`` is None where it returned None.

    ``outputs`` has the rows by name where it returned several results, None where it did not.
    ``skipped`` has the offsets of undecodable records that were left out, by partition.
    """

    rows: pa.Table | None
    skipped: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    outputs: Mapping[str, pa.Table | None] | None = None


def dry_run_batch(table: pa.Table, attempt: int = 1) -> MicroBatch:
    """Return what the reducer is told of a table with the columns of every micro-batch."""
    ranges = table.group_by(["topic", "partition"], use_threads=False).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    return MicroBatch(
        CHANNEL,
        CHANNEL,
        tuple(
            OffsetRange(
                row["topic"],
                row["partition"],
                row["offset_min"],
                row["offset_max"] + 1,
                row["offset_count"],
            )
            for row in ranges.to_pylist()
        ),
        attempt,
    )
