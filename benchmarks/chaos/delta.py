"""A Delta table as a sink under attack: what its members run on each batch, and what it has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark user knows

from benchmarks.chaos.world import MEMBER
from headrace.extensions.delta.reader import read_rows
from headrace.extensions.delta.table import LogFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.sinks.micro_batch import MicroBatch

_COLUMNS = ("topic", "partition", "offset", "number", "member")


def reduce(df: DataFrame, batch: MicroBatch) -> DataFrame:  # noqa: ARG001 - the contract's second argument
    """Return each record with its place and who brought it."""
    number = F.col("value").cast("string").cast("long").alias("number")
    member = F.lit(os.environ[MEMBER]).alias("member")
    return df.select("topic", "partition", "offset", number, member)


def is_table(directory: Path) -> bool:
    """Whether there is a table already."""
    return LogFiles(directory).has_entries()


def rows(directory: Path) -> Iterator[tuple[str, int, int, str]]:
    """Yield partition, offset, number and member of each row, in no order."""
    for row in read_rows(directory, _COLUMNS).to_pylist():
        place = f"{row['topic']}-{row['partition']}"
        yield place, row["offset"], row["number"], row["member"]
