"""A reducer, as examples/headrace.yaml names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark import MicroBatch


def by_carrier(df: DataFrame, batch: MicroBatch) -> DataFrame | None:
    """Keep one row for each flight that has a delay."""
    del batch
    return df.where("dep_delay IS NOT NULL").select("row", "carrier", "hour", "dep_delay")
