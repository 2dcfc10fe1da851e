"""Structured Streaming at its best settings, doing what the channel's reducer does."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf
from pyspark.sql import DataFrame, SparkSession

from benchmarks import reducers
from benchmarks.pace import pace
from headrace.config import load
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.jars import cached, connector_set
from headrace.devstack.wait import wait_for
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.spark.arrow_to_spark import reading
from headrace.extensions.spark.settings import spark_settings
from headrace.kafka import clients
from headrace.sinks import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.sides import Request, Result
    from headrace.config import Config

    #: Stores a micro-batch's result under its number.
    Write: TypeAlias = Callable[[int, DataFrame], None]

    #: What is done with a micro-batch; None where there is nothing to store.
    Reduce: TypeAlias = Callable[[DataFrame], DataFrame | None]


#: Seconds that a round of steady input may take.
_PATIENCE = 200.0


@dataclass(frozen=True, slots=True)
class Input:
    """What a query reads, in micro-batches of so many records; None where it has none."""

    config: Config
    topic: str
    batch: int | None


class StructuredStreaming:
    """Reads whole topics with a query of its own for each round, in one Spark session.

    The session has the settings that Headrace gives its own: adaptive execution off, as many
    shuffle partitions as cores, no pages. And its source those that Headrace has by reference,
    unless ``tuned`` is False.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._configs: dict[str, Config] = {
            name: load(Path(path)) for name, path in settings["configs"].items()
        }
        self._tuned = settings.get("tuned", True)
        self._session = session(next(iter(self._configs.values())))

    def round(self, request: Request) -> Result:
        """Read the topic from its beginning up to ``ends``, or so many ``records``."""
        config = self._configs[request["config"]]
        reducers.reset(counting=request["counting"])
        reduce = reducers.counts if "ends" in request else reducers.times
        writing: AbstractContextManager[Write]
        writing = _table(request["table"]) if "table" in request else nullcontext(_nowhere)
        with writing as write, tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            read = frame(self._session, _of_round(config, request), tuned=self._tuned)
            query = _query(read, folder, write, reduce)
            try:
                if "ends" in request:
                    query.processAllAvailable()
                else:
                    deadline = Deadline.after(_PATIENCE)
                    wait_for(lambda: sum(_sizes(query)) >= request["records"], deadline)
            finally:
                query.stop()
        sizes = _sizes(query)
        expected = sum(request["ends"].values()) if "ends" in request else request["records"]
        if sum(sizes) != expected:
            raise AssertionError(f"of {expected}: {sum(sizes)} rows")
        if "ends" not in request:  # it began with an empty micro-batch if it was there first
            return {}
        return pace(reducers.NOTES.begun, sizes) | {"counted": reducers.NOTES.counted}

    def close(self) -> None:
        """End Spark."""
        self._session.stop()


def session(config: Config) -> SparkSession:
    """Return a session as Headrace would make it, with Spark's own source for Kafka."""
    settings = spark_settings(config.spark)
    os.environ.update(settings.environment())
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.effective().items():
        conf.set(name, value)
    conf.set("spark.jars", ",".join(map(str, cached(connector_set()))))
    # as many as a round has micro-batches: their sizes are read from there
    conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    builder: Any = SparkSession.builder
    made: SparkSession = builder.config(conf=conf).getOrCreate()
    return made


def _of_round(config: Config, request: Request) -> Input:
    channel = config.channels["bench"]
    topic = request.get("topic", channel.topics[0])
    return Input(config, topic, request["batch"])


def _sizes(query: StreamingQuery) -> list[int]:
    return [rows for p in query.recentProgress if (rows := p["numInputRows"]) > 0]


def frame(session: SparkSession, source: Input, *, tuned: bool) -> DataFrame:
    """Return what Spark's source gives of a topic from its beginning on."""
    config, channel = source.config, source.config.channels["bench"]
    prefetch = int(channel.buffer.max_bytes * clients.PREFETCH_SHARE)
    ours = clients.source({}, channel.group, prefetch)
    options = {
        "kafka.bootstrap.servers": ",".join(config.kafka.bootstrap_servers),
        "kafka.fetch.max.bytes": str(ours["fetch.max.bytes"]),
        "kafka.max.partition.fetch.bytes": str(ours["fetch.message.max.bytes"]),
        **(reading(channel.batch.max_records) if tuned else {}),
        "subscribe": source.topic,
        "startingOffsets": "earliest",
        **({} if source.batch is None else {"maxOffsetsPerTrigger": str(source.batch)}),
    }
    return session.readStream.format("kafka").options(**options).load()


def _query(frame: DataFrame, folder: str, write: Write, reduce: Reduce) -> StreamingQuery:
    """Start a query that begins the next micro-batch as soon as it has done the last one."""

    def store(frame: DataFrame, number: int) -> None:
        _store(frame, number, reduce, write)

    writer = frame.writeStream.foreachBatch(store)
    return writer.option("checkpointLocation", f"{folder}/checkpoint").start()


def _store(frame: DataFrame, number: int, reduce: Reduce, write: Write) -> None:
    reducers.NOTES.begun.append(time.perf_counter())
    result = reduce(frame)
    if result is not None:
        write(number, result)


def _nowhere(_number: int, result: DataFrame) -> None:
    result.write.format("noop").mode("overwrite").save()


@contextmanager
def _table(path: str) -> Iterator[Write]:
    """Write to a Delta table as our own sink does: files aside, one commit with the batch's id."""
    sink = DeltaSink(path)
    sink.open()
    query = TopicPartition("query", 0)

    def write(number: int, result: DataFrame) -> None:
        staged = sink.stage(MicroBatch(f"batch-{number}", "query", ()), result)
        sink.commit(staged, [PartitionCommit("query", query, number, number + 1)])

    try:
        yield write
    finally:
        sink.close()
