"""Flights by carrier and hour: plain PySpark on typed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark import MicroBatch


def by_hour(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Count a micro-batch's flights and sum up their delays; readers of the table add the rows."""
    return (
        df.where("dep_delay IS NOT NULL")
        .groupBy("carrier", f.date_trunc("hour", "_kafka.timestamp").alias("hour"))
        .agg(
            f.count("*").alias("flights"),
            f.sum("dep_delay").alias("delay"),
            f.max("dep_delay").alias("worst"),
        )
        .withColumn("micro_batch", f.lit(batch.id))
    )
