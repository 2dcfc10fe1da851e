"""What the demo's daemons run on each micro-batch: one row for each flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.sinks.micro_batch import MicroBatch

#: What is decoded from the JSON; a flight has more fields than these.
SCHEMA = (
    "row LONG, carrier STRING, origin STRING, dest STRING, year INT, month INT, day INT, hour INT, "
    "dep_delay DOUBLE, arr_delay DOUBLE, tailnum STRING"
)

#: The table's columns, in order.
COLUMNS = tuple(field.split()[0] for field in SCHEMA.split(", "))


def reduce(df: DataFrame, batch: MicroBatch) -> DataFrame:  # noqa: ARG001 - the contract's second argument
    """Return the flights as the table holds them."""
    return df.select(*COLUMNS)
