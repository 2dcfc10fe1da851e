"""A channel whose Python functions hang, beside others of the same session."""

from __future__ import annotations

import sys
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import BatchTimeoutError
from headrace.devstack.wait import wait_for
from tests.integration.extensions.spark.channels import ADVANCE, SECONDS, Channel, places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Micro-batches of the other channel; enough to see how long they take.
_ROUNDS = 30


@pytest.fixture
def channels(spark_runtime: SparkRuntime, tmp_path: Path) -> Iterator[Callable[..., Channel]]:
    """Open channels, each with a table of its own, and close them at the end."""
    opened: list[Channel] = []

    def open_one(reducer: Reducer, **options: Any) -> Channel:
        folder = tmp_path / f"table-{len(opened)}"
        opened.append(Channel(spark_runtime, folder, reducer, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def _hanging(folder: Path, *, computes: bool = True, shuffles: bool = False) -> Reducer:
    """Return a reducer whose tasks never end, each of which leaves a file named by its process.

    They wait, or keep a core busy and the interpreter's lock.
    """
    place = str(folder)

    def hang(_: Any) -> Any:
        import os  # noqa: PLC0415 - runs in a Python worker
        import re  # noqa: PLC0415
        import time  # noqa: PLC0415

        os.close(os.open(f"{place}/{os.getpid()}", os.O_CREAT | os.O_EXCL))
        if computes:
            re.match(r"(a+)+$", "a" * 60 + "b")  # for years
        time.sleep(3600)
        yield

    def reduce(df: DataFrame, batch: MicroBatch) -> DataFrame:
        result = places(df, batch)
        if shuffles:
            result = result.groupBy("partition", "offset").count().drop("count")
        return result.mapInArrow(hang, result.schema)

    return reduce


def _in_python(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Keep each record's place, by way of a Python worker."""
    result = places(df, batch)
    return result.mapInArrow(_same, result.schema)


def _same(frames: Any) -> Any:
    yield from frames


def _hung(folder: Path, count: int) -> list[int]:
    """Return the processes that hang, once there are so many."""
    assert wait_for(lambda: len([*folder.iterdir()]) >= count, Deadline.after(SECONDS))
    return [int(each.name) for each in folder.iterdir()]


def _goes_on(ch: Channel, start: int) -> list[float]:
    """Commit round after round through a channel; return how long each took, in seconds."""
    taken = []
    for offset in range(start, start + 4 * _ROUNDS, 4):
        begin = perf_counter()
        assert ch.send(0, [b"v"] * 4, start=offset).result(SECONDS) == ADVANCE
        taken.append(perf_counter() - begin)
    assert ch.offsets()[0] == start + 4 * _ROUNDS
    return taken


def _said(taken: list[float]) -> str:
    return f"p50 {median(taken) * 1000:.0f} ms, p99 {quantiles(taken, n=100)[98] * 1000:.0f} ms"


@pytest.mark.parametrize(
    "how", [{"computes": False}, {"shuffles": True}], ids=["waits", "computes behind a shuffle"]
)
def test_other_channels_go_on_beside_one_that_hangs(
    channels: Callable[..., Channel], tmp_path: Path, how: dict[str, bool]
) -> None:
    """It has as many tasks as there are cores; how long the other one's batches take is printed."""
    folder = tmp_path / "hung"
    folder.mkdir()
    other = channels(_in_python)
    hanging = channels(_hanging(folder, **how))
    _goes_on(other, 0)
    alone = _goes_on(other, 4 * _ROUNDS)
    future = hanging.send(0, [b"v"] * 40)
    workers = _hung(folder, 2)

    beside = _goes_on(other, 8 * _ROUNDS)

    assert not future.done()
    assert len(workers) == 2
    assert all(psutil.pid_exists(worker) for worker in workers)
    said = f"{how}, {_ROUNDS} micro-batches: alone {_said(alone)}; beside a hang {_said(beside)}"
    sys.stdout.write(f"\n{said}\n")
    hanging.processor.on_partition_lost(hanging.assignments[0])
    assert wait_for(lambda: not any(map(psutil.pid_exists, workers)), Deadline.after(SECONDS))


def test_a_third_channel_goes_on_beside_two_that_hang(
    channels: Callable[..., Channel], tmp_path: Path
) -> None:
    """Each of them leaves one slot at least to every other."""
    folders = [tmp_path / "one", tmp_path / "two"]
    other = channels(_in_python)
    futures = []
    for folder in folders:
        folder.mkdir()
        futures.append(channels(_hanging(folder)).send(0, [b"v"] * 4))
        _hung(folder, 1)

    _goes_on(other, 0)

    assert not any(future.done() for future in futures)


def test_a_hanging_batch_is_ended_at_its_limit(
    channels: Callable[..., Channel], tmp_path: Path
) -> None:
    """The batch has timed out, its Python workers are gone, and so is what they held."""
    folder = tmp_path / "hung"
    folder.mkdir()
    other = channels(_in_python)
    future = channels(_hanging(folder), job_timeout=10.0).send(0, [b"v"] * 4)
    workers = _hung(folder, 2)

    _goes_on(other, 0)

    assert isinstance(future.exception(SECONDS), BatchTimeoutError)
    assert wait_for(lambda: not any(map(psutil.pid_exists, workers)), Deadline.after(SECONDS))
