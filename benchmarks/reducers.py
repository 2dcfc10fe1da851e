"""The reducer of the Spark comparison, and what it notes as it is called."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark import MicroBatch


@dataclass(slots=True)
class Notes:
    """When each micro-batch began, in seconds, and how many records it has.

    With ``counting``, the counts are added up instead of being written to nowhere.
    """

    begun: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    counting: bool = False
    counted: int = 0


#: Of the round that runs in this process.
NOTES = Notes()


def reset(*, counting: bool) -> None:
    """Begin a new round."""
    NOTES.begun.clear()
    NOTES.sizes.clear()
    NOTES.counting, NOTES.counted = counting, 0


def count_by_key(df: DataFrame, batch: MicroBatch) -> DataFrame | None:
    """Count the records of each key."""
    NOTES.begun.append(time.perf_counter())
    NOTES.sizes.append(batch.records)
    return counts(df)


def timestamps(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Return the time of each record."""
    NOTES.begun.append(time.perf_counter())
    NOTES.sizes.append(batch.records)
    return times(df)


def times(df: DataFrame) -> DataFrame:
    """Return the time of each record, and which one it is."""
    return df.select("partition", "offset", "timestamp")


def counts(df: DataFrame) -> DataFrame | None:
    """Return the count by key, or add it up and return nothing where that is asked for."""
    result = df.groupBy("key").count()
    if not NOTES.counting:
        return result
    NOTES.counted += result.agg({"count": "sum"}).collect()[0][0]
    return None
