"""Structured Streaming at its best settings, doing what the channel's reducer does."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession

from benchmarks import reducers
from benchmarks.pace import pace
from headrace.config import load
from headrace.kafka import properties
from headrace.spark.factory import spark_settings

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.sides import Request, Result
    from headrace.config import Config


def connector() -> str:
    """Return the coordinate of Spark's own source for Kafka."""
    line = ".".join(pyspark.__version__.split(".")[:2])
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{line}.0"


class StructuredStreaming:
    """Reads whole topics with a query of its own for each round, in one Spark session.

    The session has the settings that Headrace gives its own: adaptive execution off, as many
    shuffle partitions as cores, no pages.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._configs: dict[str, Config] = {
            name: load(Path(path)) for name, path in settings["configs"].items()
        }
        self._session = _session(next(iter(self._configs.values())))

    def round(self, request: Request) -> Result:
        """Read the configuration's topic from its beginning up to ``ends``."""
        config = self._configs[request["config"]]
        reducers.reset(counting=request["counting"])
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            query = _query(self._session, config, request["batch"], folder)
            try:
                query.processAllAvailable()
            finally:
                query.stop()
        sizes = [row for p in query.recentProgress if (row := p["numInputRows"]) > 0]
        if sum(sizes) != sum(request["ends"].values()):
            raise AssertionError(f"of {request['ends']}: {sum(sizes)} rows")
        return pace(reducers.NOTES.begun, sizes) | {"counted": reducers.NOTES.counted}

    def close(self) -> None:
        """End Spark."""
        self._session.stop()


def _session(config: Config) -> SparkSession:
    settings = spark_settings(config.spark)
    os.environ.update(settings.environment())
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.effective().items():
        conf.set(name, value)
    conf.set("spark.jars.packages", connector())
    # as many as a round has micro-batches: their sizes are read from there
    conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    builder: Any = SparkSession.builder
    session: SparkSession = builder.config(conf=conf).getOrCreate()
    return session


def _query(session: SparkSession, config: Config, batch: int, folder: str) -> StreamingQuery:
    """Start a query that begins the next micro-batch as soon as it has done the last one."""
    channel = config.channels["bench"]
    prefetch = int(channel.buffer.max_bytes * properties.PREFETCH_SHARE)
    ours = properties.source({}, channel.group, prefetch)
    options = {
        "kafka.bootstrap.servers": ",".join(config.kafka.bootstrap_servers),
        "kafka.fetch.max.bytes": str(ours["fetch.max.bytes"]),
        "kafka.max.partition.fetch.bytes": str(ours["fetch.message.max.bytes"]),
        "subscribe": channel.topics[0],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(batch),
    }
    frame = session.readStream.format("kafka").options(**options).load()
    writer = frame.writeStream.foreachBatch(_count)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()


def _count(frame: DataFrame, _number: int) -> None:
    reducers.NOTES.begun.append(time.perf_counter())
    result = reducers.counts(frame)
    if result is not None:
        result.write.format("noop").mode("overwrite").save()
