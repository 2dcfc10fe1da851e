"""The reducer of the Spark comparison, and what it notes as it is called."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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


def marked(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Return each record with a mark behind its value."""
    NOTES.begun.append(time.perf_counter())
    NOTES.sizes.append(batch.records)
    return df.select("key", marked_value())


def marked_value() -> Column:
    """Return what a marked record has as its value."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - tables of Arrow need no Spark

    return f.concat(f.col("value").cast("string"), f.lit("!")).alias("value")


def marked_table(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return the same of a table of Arrow."""
    NOTES.begun.append(time.perf_counter())
    NOTES.sizes.append(batch.records)
    values = pc.binary_join_element_wise(table["value"], b"!", b"")
    return pa.table({"key": table["key"], "value": values})


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
