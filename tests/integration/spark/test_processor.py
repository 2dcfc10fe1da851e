from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headrace.clock import Deadline
from headrace.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    ImportPathError,
    UndecodableRecordError,
)
from headrace.metrics import Metrics
from headrace.processors.contract import ChannelContext
from headrace.processors.responses import BatchResponse
from headrace.processors.spark import SparkProcessor
from headrace.records import TopicPartition
from headrace.spark.decode import Decode, Decoding, OnUndecodable
from headrace.spark.engine import SparkEngine
from headrace.spark.failures import ReducerError
from headrace.spark.sinks.delta import DeltaSink
from headrace.testing.records import FakeAssignment, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.reducer import Reducer
    from headrace.spark.runtime import SparkRuntime

ADVANCE = BatchResponse.advance()
SECONDS = 100


class Channel:
    """What a channel does with the processor, with a Delta table as its sink."""

    def __init__(
        self,
        runtime: SparkRuntime,
        folder: Path,
        reducer: Reducer | str,
        decode: Decode | None = None,
        job_timeout: float | None = None,
    ) -> None:
        self.folder = folder
        self.metrics = Metrics()
        self.processor = SparkProcessor(
            SparkEngine(runtime, reducer, DeltaSink(folder), decode), job_timeout=job_timeout
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


@pytest.fixture
def channel(spark_runtime: SparkRuntime, tmp_path: Path) -> Iterator[Callable[..., Channel]]:
    """Open a channel with a reducer, and close it at the end."""
    opened: list[Channel] = []

    def open_one(reducer: Reducer | str, **options: Any) -> Channel:
        opened.append(Channel(spark_runtime, tmp_path / "table", reducer, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


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


def test_records_reach_the_table_with_their_offsets(channel: Callable[..., Channel]) -> None:
    """Every record of several partitions is in the table once, and the offsets are behind them."""
    ch = channel(places)
    futures = [ch.send(number, [b"v"] * 50, start) for start in (0, 50) for number in range(3)]

    assert [future.result(SECONDS) for future in futures] == [ADVANCE] * 6
    assert ch.offsets() == [100, 100, 100, None]
    found = sorted((row["partition"], row["offset"]) for row in ch.rows())
    assert found == [(number, offset) for number in range(3) for offset in range(100)]


def test_undecodable_records_fail_their_batch_only(channel: Callable[..., Channel]) -> None:
    """The batch with the bad record fails and names it; the others of the job are stored."""
    ch = channel(count, decode=Decode(Decoding.JSON, "id INT"))
    good = ch.send(0, [b'{"id": 1}', None])
    bad = ch.send(1, [b'{"id": 1}', b"rubbish"], start=10)

    assert good.result(SECONDS) == ADVANCE
    error = bad.exception(SECONDS)
    assert isinstance(error, UndecodableRecordError)
    assert (error.partition, error.offset) == (TopicPartition("t", 1), 11)
    assert ch.offsets()[:2] == [2, None]
    assert ch.rows() == [{"partition": 0, "count(id)": 1}]


def test_undecodable_records_are_skipped_and_counted(channel: Callable[..., Channel]) -> None:
    """With skip the batch is stored without the bad records, which the metric counts."""
    decode = Decode(Decoding.JSON, "id INT", OnUndecodable.SKIP)
    ch = channel(count, decode=decode)

    assert ch.send(0, [b'{"id": 1}', b"rubbish", b""]).result(SECONDS) == ADVANCE

    assert ch.rows() == [{"partition": 0, "count(id)": 1}]
    assert ch.metrics.skipped.labels("channel", "t", "undecodable")._value.get() == 2


def test_none_moves_the_offsets(channel: Callable[..., Channel]) -> None:
    """A reducer that returns None stores offsets only, once there is a table to keep them."""

    def sometimes(df: DataFrame, batch: MicroBatch) -> DataFrame | None:
        return places(df, batch) if batch.ranges[0].start == 0 else None

    ch = channel(sometimes)

    assert ch.send(0, [b"v"]).result(SECONDS) == ADVANCE
    assert ch.send(0, [b"v"], start=1).result(SECONDS) == ADVANCE

    assert ch.offsets()[0] == 2
    assert len(ch.rows()) == 1


def test_what_the_reducer_raises_is_what_the_channel_gets(channel: Callable[..., Channel]) -> None:
    """Python's own errors arrive as they are, Spark's as a ReducerError with Spark's words."""

    def fail(df: DataFrame, batch: MicroBatch) -> DataFrame:
        match batch.ranges[0].partition:
            case 0:
                raise KeyError("mine")
            case 1:
                return df.select("no_such_column")
            case 2:
                return df.selectExpr("1 / 0 as x", "raise_error('row reached')")
            case _:
                return "no frame"  # type: ignore[return-value]

    ch = channel(fail)
    errors = [ch.send(number, [b"v"], attempt=2).exception(SECONDS) for number in range(4)]

    assert isinstance(errors[0], KeyError)
    assert isinstance(errors[1], ReducerError)
    assert "no_such_column" in str(errors[1])
    assert isinstance(errors[2], ReducerError)
    assert "JVM stacktrace" not in str(errors[2])
    assert isinstance(errors[3], TypeError)
    assert "must return a DataFrame" in str(errors[3])
    assert ch.rows() == []


def test_a_reducers_exit_does_not_end_the_lane(channel: Callable[..., Channel]) -> None:
    """sys.exit() in a reducer fails its batch, and the next batch is processed."""

    def leave(df: DataFrame, batch: MicroBatch) -> DataFrame:
        if batch.ranges[0].partition == 0:
            raise SystemExit(1)
        return places(df, batch)

    ch = channel(leave)

    assert isinstance(ch.send(0, [b"v"]).exception(SECONDS), SystemExit)
    assert ch.send(1, [b"v"]).result(SECONDS) == ADVANCE


def test_a_withdrawn_batch_cancels_its_job(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """Cancelling one future ends a job that would take ten minutes; the rest of it is stored."""
    ch = channel(slow)
    withdrawn, kept = _merged(ch, spark_runtime, 1, 0)

    assert withdrawn.cancel()

    assert kept.result(SECONDS) == ADVANCE
    assert ch.offsets()[:2] == [1, None]


def test_a_job_past_its_deadline_times_out(channel: Callable[..., Channel]) -> None:
    """The job is cancelled, and only the batch that is slow alone has timed out."""
    ch = channel(slow, job_timeout=5.0)
    ok, late = ch.send(0, [b"v"]), ch.send(1, [b"v"])

    assert ok.result(SECONDS) == ADVANCE
    assert isinstance(late.exception(SECONDS), BatchTimeoutError)
    assert ch.offsets()[:2] == [1, None]


def test_close_cancels_what_runs(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """Closing ends a job that would take ten minutes, and answers its batch."""
    ch = channel(slow)
    future = ch.send(1, [b"v"])
    _wait_for_tasks(spark_runtime)

    ch.close()

    assert isinstance(future.exception(0), BatchCancelledError)


def test_a_killed_jvm_is_rebuilt_and_the_batch_replayed(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """SIGKILL of the JVM under a job costs time only: every record is stored once."""
    kills: list[int] = []

    def kill_once(df: DataFrame, batch: MicroBatch) -> DataFrame:
        result = places(df, batch)
        if batch.ranges[0].start == 0 or kills:
            return result
        assert spark_runtime.pid is not None
        kills.append(spark_runtime.pid)
        threading.Thread(target=_kill_when_busy, args=[spark_runtime]).start()
        return result.mapInArrow(_sleep, result.schema)

    ch = channel(kill_once)
    generation = spark_runtime.generation
    assert ch.send(0, [b"v"] * 10).result(SECONDS) == ADVANCE

    futures = [ch.send(0, [b"v"] * 10, start=10), ch.send(1, [b"v"] * 10, start=10)]

    assert [future.result(SECONDS) for future in futures] == [ADVANCE] * 2
    assert spark_runtime.generation == generation + 1
    assert spark_runtime.pid not in kills
    found = sorted((row["partition"], row["offset"]) for row in ch.rows())
    assert found == [(0, n) for n in range(20)] + [(1, n) for n in range(10, 20)]


_JOBS = """
from pyspark.sql.functions import udf
from made_up_jobs.words import word

@udf("string")
def say(offset):
    return word(offset)

def reduce(df, batch):
    return df.select("partition", "offset", say("offset").alias("said"))
"""


@pytest.fixture
def write_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a package whose UDF says a word, as deployed anew; return its reducer's path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(word: str) -> str:
        package = tmp_path / "made_up_jobs"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "words.py").write_text(f"def word(n):\n    return '{word}' * (n + 1)\n")
        (package / "jobs.py").write_text(_JOBS)
        for name in [name for name in sys.modules if name.startswith("made_up_jobs")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return "made_up_jobs.jobs:reduce"

    return write


def test_a_udf_runs_in_workers_that_cannot_import_it(
    channel: Callable[..., Channel], write_package: Callable[[str], str]
) -> None:
    """The reducer's package, helper modules included, reaches the workers by value."""
    ch = channel(write_package("ho"))

    assert ch.send(0, [b"v", b"v"]).result(SECONDS) == ADVANCE

    assert sorted(row["said"] for row in ch.rows()) == ["ho", "hoho"]


def test_reused_workers_run_the_code_that_was_loaded_last(
    channel: Callable[..., Channel], write_package: Callable[[str], str]
) -> None:
    """A package that is changed and loaded again takes effect in workers that ran the old one."""
    before = channel(write_package("ho"))
    assert before.send(0, [b"v"]).result(SECONDS) == ADVANCE
    before.close()

    after = channel(write_package("hey"))
    assert after.send(0, [b"v"], start=1).result(SECONDS) == ADVANCE

    assert sorted(row["said"] for row in after.rows()) == ["heyhey", "ho"]


def test_a_udf_survives_the_death_of_the_jvm(
    channel: Callable[..., Channel],
    spark_runtime: SparkRuntime,
    write_package: Callable[[str], str],
) -> None:
    """A UDF that a module made for the old JVM is made again for the new one."""
    ch = channel(write_package("ho"))
    assert ch.send(0, [b"v"]).result(SECONDS) == ADVANCE

    assert spark_runtime.pid is not None
    os.kill(spark_runtime.pid, signal.SIGKILL)

    assert ch.send(0, [b"v"], start=1).result(SECONDS) == ADVANCE
    assert sorted(row["said"] for row in ch.rows()) == ["ho", "hoho"]


def test_channels_share_a_runtime_that_dies(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """Each channel replays its own micro-batch, and one new JVM is built for all of them."""
    meet = threading.Barrier(2)
    seen: list[int] = []

    def die_together(df: DataFrame, batch: MicroBatch) -> DataFrame:
        result = places(df, batch)
        number = batch.ranges[0].partition
        if number in seen:
            return result
        seen.append(number)
        meet.wait(SECONDS)
        if number == 0:
            assert spark_runtime.pid is not None
            os.kill(spark_runtime.pid, signal.SIGKILL)
        return result.mapInArrow(_sleep, result.schema)

    one, other = channel(die_together), channel(die_together)
    generation = spark_runtime.generation

    futures = [one.send(0, [b"v"]), other.send(1, [b"v"])]

    assert [future.result(SECONDS) for future in futures] == [ADVANCE] * 2
    assert spark_runtime.generation == generation + 1
    assert sorted(row["partition"] for row in one.rows()) == [0, 1]


def test_a_session_stopped_by_the_reducer_is_rebuilt(channel: Callable[..., Channel]) -> None:
    """A reducer that stops the session fails its batch, and the next batch is processed."""

    def stop(df: DataFrame, batch: MicroBatch) -> DataFrame:
        if batch.ranges[0].partition == 0 and not stops:
            stops.append(1)
            df.sparkSession.stop()
        return places(df, batch)

    stops: list[int] = []
    ch = channel(stop)

    assert ch.send(0, [b"v"]).result(SECONDS) == ADVANCE
    assert ch.send(1, [b"v"]).result(SECONDS) == ADVANCE


def test_a_reducer_that_cannot_be_imported_stops_the_start(
    channel: Callable[..., Channel],
) -> None:
    """A wrong path is found before Spark and the sink are touched."""
    with pytest.raises(ImportPathError, match="no module 'not_there_at_all'"):
        channel("not_there_at_all:reduce")


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
