"""The container's reducer: how many records each micro-batch has of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark import MicroBatch


def by_key(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Count records by key."""
    counted = df.groupBy(df["key"].cast("string").alias("key")).count()
    return counted.selectExpr("*", f"'{batch.id}' AS batch")
