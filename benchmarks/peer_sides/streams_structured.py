"""Structured Streaming with windows and a watermark: counts by key and window, at least once."""

from __future__ import annotations

import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.functions import col, struct, to_json, unix_millis, window

from benchmarks.peer_sides.wire import Request, Wire
from benchmarks.structured_streaming import Input, frame, session
from headrace.config import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Windows as in ``streams_work``.
_WINDOWS = {"tumbling": ("1 minute",), "hopping": ("5 minutes", "1 minute")}

#: Records of a micro-batch, as the channels of a topology have in four partitions.
_MICRO_BATCH = 100_000


def _counts(records: DataFrame, kind: str) -> DataFrame:
    """Return a record for each count that changed, with the names that topologies give it."""
    windows = window("timestamp", *_WINDOWS[kind])
    counted = records.withWatermark("timestamp", "30 seconds").groupBy("key", windows).count()
    begin = unix_millis("window.start").alias("begin")
    return counted.select("key", to_json(struct(begin, col("count").alias("n"))).alias("value"))


def _read(wire: Wire, request: Request, spark: SparkSession) -> None:
    """Read once; what is measured are the micro-batches that had records."""
    config = load(Path(request.settings["config"]))
    records = frame(spark, Input(config, request.topic, _MICRO_BATCH), tuned=True)
    with tempfile.TemporaryDirectory(dir=request.settings["directory"]) as folder:
        query = (
            _counts(records, request.settings["kind"])
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", request.servers)
            .option("topic", request.settings["output"])
            .option("checkpointLocation", folder)
            .outputMode("update")
            .start()
        )
        wire.tell("assigned")
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        done = [found for found in query.recentProgress if found["numInputRows"]]
        wire.tell(
            "complete",
            records=sum(found["numInputRows"] for found in done),
            from_first=sum(found["durationMs"]["triggerExecution"] for found in done) / 1000,
        )
        wire.wait()


def main() -> None:
    """Serve rounds in one session."""
    wire = Wire()
    requests = wire.requests()
    first = next(requests)
    Path(first.settings["directory"]).mkdir(parents=True, exist_ok=True)
    spark = session(load(Path(first.settings["config"])))
    try:
        for request in chain([first], requests):
            _read(wire, request, spark)
            wire.tell("stopped")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
