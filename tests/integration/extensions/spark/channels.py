"""A channel that feeds a Spark processor by hand."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.spark.engine import SparkEngine
from headrace.processors.contract import BatchResponse, ChannelContext
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.telemetry.metrics import Metrics
from headrace.testing.records import FakeAssignment, make_batch

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.core.tables import Decode
    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.contract import Sink
    from headrace.sinks.micro_batch import MicroBatch

ADVANCE = BatchResponse.advance()
SECONDS = 100


class Channel:
    """The part of a channel that drives the processor, with a Delta table as its sink."""

    def __init__(
        self,
        runtime: SparkRuntime,
        folder: Path,
        reducer: Reducer | str,
        decode: Decode | None = None,
        *,
        job_timeout: float | None = None,
        sink: Sink[Any] | None = None,
    ) -> None:
        self.folder = folder
        self.metrics = Metrics()
        self.processor = MicroBatchProcessor(
            SparkEngine(runtime, reducer, decode),
            sink or DeltaSink(folder),
            job_timeout=job_timeout,
        )
        self.processor.open(ChannelContext("channel", "group", self.metrics))
        self.assignments = [FakeAssignment(TopicPartition("t", number)) for number in range(4)]

    def send(
        self, partition: int, values: list[bytes | None], start: int = 0, attempt: int = 1
    ) -> Future[BatchResponse]:
        """Hand out one batch."""
        assignment = self.assignments[partition]
        batch = make_batch(values, assignment=assignment, start=start, attempt=attempt)
        return self.processor.on_next_batch(batch)

    def offsets(self) -> list[int | None]:
        """Return what the sink has stored."""
        return [self.processor.stored_offset(assignment) for assignment in self.assignments]

    def rows(self) -> list[dict[str, Any]]:
        """Read the table."""
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        rows: list[dict[str, Any]] = DeltaTable(self.folder).to_pyarrow_table().to_pylist()
        return rows

    def close(self) -> None:
        """Close the processor."""
        self.processor.close(Deadline.after(20))


def places(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Keep each record's place."""
    assert batch.records > 0
    return df.select("partition", "offset")


def count(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Count by partition, as decoded JSON."""
    assert batch.channel == "channel"
    return df.groupBy(df["_kafka.partition"].alias("partition")).agg({"id": "count"})


def _sleep(frames: Any) -> Any:
    import time  # noqa: PLC0415 - runs in a Python worker

    for frame in frames:
        time.sleep(600)
        yield frame


def slow(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Take ten minutes for partition 1, and no time without it."""
    result = places(df, batch)
    has_1 = any(part.partition == 1 for part in batch.ranges)
    return result.mapInArrow(_sleep, result.schema) if has_1 else result


def _merged(ch: Channel, runtime: SparkRuntime, *partitions: int) -> list[Future[BatchResponse]]:
    """Send batches so that they run in one job; return when its tasks run."""
    with ch.processor._open._changed:
        futures = [ch.send(number, [b"v"]) for number in partitions]
    _wait_for_tasks(runtime)
    return futures


def _wait_for_tasks(runtime: SparkRuntime) -> None:
    """Block until a task runs."""
    tracker = runtime.context.statusTracker()
    deadline = Deadline.after(SECONDS)
    while not any(
        stage is not None and stage.numActiveTasks > 0
        for stage in map(tracker.getStageInfo, tracker.getActiveStageIds())
    ):
        assert not deadline.expired


def _kill_when_busy(runtime: SparkRuntime) -> None:
    pid = runtime.pid
    assert pid is not None
    _wait_for_tasks(runtime)
    os.kill(pid, signal.SIGKILL)
