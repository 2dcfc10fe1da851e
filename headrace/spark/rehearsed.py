"""What a rehearsal of a reducer is given and gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.spark.micro_batch import MicroBatch, OffsetRange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from headrace.records import TopicPartition

#: The name of the channel that a reducer sees in a rehearsal.
CHANNEL = "rehearsal"


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a reducer made of the records. ``rows`` is None where it returned None.

    ``outputs`` has the rows by name where it returned several results, None where it did not.
    ``skipped`` has the offsets of undecodable records that were left out, by partition.
    """

    rows: pa.Table | None
    skipped: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    outputs: Mapping[str, pa.Table | None] | None = None


def rehearsed_batch(table: pa.Table, attempt: int = 1) -> MicroBatch:
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
