"""The Spark processor when its JVM dies, and the code its workers run."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import (
    ImportPathError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch

from tests.integration.extensions.spark.channels import (
    ADVANCE,
    SECONDS,
    Channel,
    _kill_when_busy,
    _sleep,
    places,
)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_jvm_out_of_memory_is_rebuilt_and_the_batch_replayed(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """A job that takes more than the heap ends the JVM, and each record is stored once."""
    pids: list[int | None] = []

    def greedy_once(df: DataFrame, batch: MicroBatch) -> DataFrame:
        result = places(df, batch)
        if batch.ranges[0].start == 0 or len(pids) > 1:
            return result
        pids.append(spark_runtime.pid)
        # 16 GB in one array, of which Java allows more than any test's heap has
        return result.where("size(sequence(offset, offset + 2000000000)) > 0")

    ch = channel(greedy_once)
    assert ch.send(0, [b"v"] * 10).result(SECONDS) == ADVANCE
    pids.append(spark_runtime.pid)

    assert ch.send(0, [b"v"] * 10, start=10).result(SECONDS) == ADVANCE

    assert spark_runtime.pid not in pids
    found = sorted((row["partition"], row["offset"]) for row in ch.rows())
    assert found == [(0, n) for n in range(20)]


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
