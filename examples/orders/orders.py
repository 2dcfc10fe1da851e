"""The latest state of each order: a function on tables of Arrow, without Spark."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

if TYPE_CHECKING:
    from headrace.spark import MicroBatch

#: What the values hold; other fields are passed over.
SCHEMA = pa.schema([("order", pa.int64()), ("state", pa.string()), ("cents", pa.int64())])


def latest(table: pa.Table, batch: MicroBatch) -> pa.Table | None:
    """Keep the last row of each order; the sink puts it in the place of what it had before."""
    del batch
    known = table.filter(pc.is_valid(table["value"]))
    if known.num_rows == 0:
        return None
    rows = decoded(known["value"]).append_column("offset", known["offset"])
    return (
        rows.group_by("order", use_threads=False)
        .aggregate([("state", "last"), ("cents", "last"), ("offset", "last")])
        .rename_columns(["order", "state", "cents", "offset"])
    )


def decoded(values: pa.ChunkedArray) -> pa.Table:
    """Return the columns of values that hold one JSON object each."""
    options = json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    lines = io.BytesIO(b"\n".join(values.to_pylist()))
    return json.read_json(lines, parse_options=options)
