"""Readings in a format of their own: a function on tables of Arrow, run in Spark's workers."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

if TYPE_CHECKING:
    from headrace.spark import MicroBatch

NAMES = ["meter", "at", "celsius"]
TYPES = {"meter": pa.string(), "at": pa.timestamp("s", tz="UTC"), "celsius": pa.float64()}


def warm(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return the readings above 20 degrees of the part that this task has, with their source."""
    del batch
    lines = b"\n".join(table["value"].to_pylist())
    readings = csv.read_csv(
        io.BytesIO(lines),
        read_options=csv.ReadOptions(column_names=NAMES),
        convert_options=csv.ConvertOptions(column_types=TYPES),
    )
    known = readings.append_column("offset", table["offset"].combine_chunks())
    return known.filter(pc.greater(known["celsius"], 20.0))
