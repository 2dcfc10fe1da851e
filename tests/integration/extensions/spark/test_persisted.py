"""Data that reducers persist: let go after the commit, unless it was persisted before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.extensions.spark.channels import ADVANCE, SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch
    from tests.integration.extensions.spark.channels import Channel


def persistent(runtime: SparkRuntime) -> set[int]:
    """Return the numbers of RDDs that Spark keeps."""
    context: Any = runtime.context
    return set(context._jsc.getPersistentRDDs())


def by_cache(df: DataFrame) -> DataFrame:
    """Cache what is asked for twice, as a reducer does."""
    cached = df.selectExpr("cast(value as string) AS value").cache()
    cached.count()
    return cached


def by_persist(df: DataFrame) -> DataFrame:
    """Persist a derived table, and a table of nothing of the micro-batch."""
    df.sparkSession.range(3).persist().count()
    persisted = df.groupBy("value").count().persist()
    persisted.collect()
    return persisted.selectExpr("cast(value as string) AS value")


def by_rdd(df: DataFrame) -> DataFrame:
    """Persist an RDD."""
    df.rdd.map(lambda row: row.offset).cache().count()
    return df.selectExpr("cast(value as string) AS value")


def by_query(df: DataFrame) -> DataFrame:
    """Cache by a command, of which no DataFrame knows."""
    df.createOrReplaceTempView("of_a_micro_batch")
    df.sparkSession.sql("CACHE TABLE of_a_micro_batch")
    return df.sparkSession.sql("SELECT cast(value as string) AS value FROM of_a_micro_batch")


def by_lazy_query(df: DataFrame) -> DataFrame:
    """Cache by a command what nothing computes before the sink does."""
    df.createOrReplaceTempView("lazily")
    df.sparkSession.sql("CACHE LAZY TABLE lazily")
    return df.sparkSession.sql("SELECT cast(value as string) AS value FROM lazily")


def by_lazy_checkpoint(df: DataFrame) -> DataFrame:
    """Cut the plan off where the sink computes it first."""
    return df.selectExpr("cast(value as string) AS value").localCheckpoint(eager=False)


def by_library(df: DataFrame) -> DataFrame:
    """Cache by a call of the JVM, as libraries in Scala do; the sink computes it."""
    cached = df.selectExpr("cast(value as string) AS value")
    cached._jdf.cache()
    return cached


def by_threads(df: DataFrame) -> DataFrame:
    """Cache on threads of the reducer's own."""
    cached = df.selectExpr("cast(value as string) AS value")
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: cached.cache().count()).result(SECONDS)
    return cached


@pytest.mark.parametrize(
    "persisting",
    [
        by_cache,
        by_persist,
        by_rdd,
        by_query,
        by_lazy_query,
        by_lazy_checkpoint,
        by_library,
        by_threads,
    ],
)
def test_persisted_data_is_let_go_after_the_commit(
    spark_runtime: SparkRuntime,
    channel: Callable[..., Channel],
    persisting: Callable[[DataFrame], DataFrame],
) -> None:
    """Each micro-batch leaves nothing of what it persisted, however it was persisted."""

    def reduce(df: DataFrame, _: MicroBatch) -> DataFrame:
        return persisting(df)

    before, opened = persistent(spark_runtime), channel(reduce)
    for start in range(3):
        assert opened.send(0, [b"v"], start).result(SECONDS) == ADVANCE
        assert persistent(spark_runtime) == before


def test_persisted_data_of_a_failed_reducer_is_let_go(
    spark_runtime: SparkRuntime, channel: Callable[..., Channel]
) -> None:
    """Data is let go whether the reducer raises after persisting it or its job fails."""

    def raising(df: DataFrame, _: MicroBatch) -> DataFrame:
        by_cache(df)
        raise ValueError("no")

    def failing(df: DataFrame, _: MicroBatch) -> DataFrame:
        return by_cache(df).selectExpr("raise_error('no') AS value")

    before = persistent(spark_runtime)
    for reduce in (raising, failing):
        with pytest.raises(Exception, match="no"):
            channel(reduce).send(0, [b"v"]).result(SECONDS)
        assert persistent(spark_runtime) == before


def test_data_that_was_persisted_before_stays(
    spark_runtime: SparkRuntime, channel: Callable[..., Channel]
) -> None:
    """A cached table that the reducer reads and caches again is still cached afterwards."""
    table = spark_runtime.session.range(100).selectExpr("cast(id as string) AS value").cache()
    assert table.count() == 100
    kept = persistent(spark_runtime)

    def reduce(df: DataFrame, _: MicroBatch) -> DataFrame:
        table.cache()
        return by_cache(df).join(table, "value")

    try:
        assert channel(reduce).send(0, [b"7"]).result(SECONDS) == ADVANCE
        assert persistent(spark_runtime) == kept
        assert table.storageLevel.useMemory
    finally:
        table.unpersist()
