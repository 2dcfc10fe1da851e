from __future__ import annotations

import gc
import weakref
from queue import SimpleQueue
from typing import Any, cast
from unittest.mock import MagicMock, call

import pytest

from headrace.core.errors import JobCancelledError
from headrace.extensions.spark import engine as engine_module
from headrace.extensions.spark.engine import SparkJobs
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import Share, SparkSettings

_PATIENCE = 10.0


def test_cyclic_references_of_a_job_are_freed_with_it() -> None:
    """An object of the JVM's in a cycle does not wait for the next automatic collection."""
    jobs = SparkJobs("spark-main", MagicMock(generation=1))
    before = gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        with jobs.admitted():
            with jobs.job("job-1", None):
                knot = weakref.ref(_Knot())
            assert knot() is not None
        assert knot() is None
    finally:
        gc.set_threshold(*before)


def test_a_job_after_the_close_is_refused() -> None:
    """The batches are withdrawn, and the session is not used."""
    runtime = MagicMock(generation=1)
    jobs = SparkJobs("spark-main", runtime)
    jobs.close()
    with pytest.raises(JobCancelledError, match="spark-main stops"), jobs.job("job-1", None):
        pass
    runtime.new_session.assert_not_called()


def test_the_close_cancels_the_job_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the cancelled job is no failure of its batches."""
    cancelled = SimpleQueue[str]()
    monkeypatch.setattr(SparkJobs, "_cancel_in_spark", lambda _, group: cancelled.put(group))
    monkeypatch.setattr(engine_module, "ArrowToSpark", lambda session: session)
    jobs = SparkJobs("spark-main", MagicMock(generation=1))

    def closed_meanwhile() -> None:
        with jobs.job("job-1", None):
            jobs.close()
            assert cancelled.get(timeout=_PATIENCE) == "job-1"
            raise OSError("what a cancelled job ends with")

    with pytest.raises(JobCancelledError, match="was cancelled"):
        closed_meanwhile()


class _Knot:
    """Refers to itself, as what py4j makes of an object and its methods does."""

    def __init__(self) -> None:
        self.itself = self


def test_a_session_that_could_not_be_made_is_made_for_the_next_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the one of the JVM before it is taken, though the lane has heard of the new one."""
    runtime = MagicMock(generation=1)
    monkeypatch.setattr(engine_module, "ArrowToSpark", lambda session: session)
    lane = SparkJobs("lane", runtime)
    runtime.new_session.side_effect = ["first", RuntimeError("busy"), "third"]
    with lane.job("one", None) as (way_in, _):
        assert cast("Any", way_in) == "first"

    runtime.generation = 2
    with pytest.raises(RuntimeError, match="busy"), lane.job("two", None):
        pass

    with lane.job("three", None) as (way_in, _):
        assert cast("Any", way_in) == "third"


@pytest.mark.parametrize(
    ("chosen", "found", "wanted"),
    [({}, "2", "1"), ({}, "77", "77"), ({"spark.sql.shuffle.partitions": "2"}, "2", "2")],
)
def test_shuffles_follow_a_lanes_share(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], found: str, wanted: str
) -> None:
    """A job next to another lane's has fewer tasks, unless the user chose their number."""
    session = _Session({"spark.sql.shuffle.partitions": found})
    runtime = SparkRuntime(SparkSettings("local[2]", chosen, channels=2))
    runtime.slots.resize(2, 2)
    monkeypatch.setattr(SparkRuntime, "new_session", lambda _: session)
    monkeypatch.setattr(SparkRuntime, "context", MagicMock())
    monkeypatch.setattr(SparkRuntime, "cores", 2)
    monkeypatch.setattr(engine_module, "ArrowToSpark", lambda session: session)
    lanes = [SparkJobs(name, runtime) for name in ("one", "two")]
    for lane in lanes:
        runtime.slots.enter(lane)

    with lanes[1].job("first", None) as (_, share):
        assert share == Share(1, is_limit=True)

    assert session.values == {"spark.sql.shuffle.partitions": wanted}


class _Session:
    """Has settings, as one of Spark's."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values
        self.conf = self
        self.get = values.__getitem__
        self.set = values.__setitem__


def test_a_lane_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane's jobs run in the pool that is named after it, also in the next JVM."""
    runtime = MagicMock()
    monkeypatch.setattr(engine_module, "ArrowToSpark", lambda session: session)
    lane = SparkJobs("spark-main", runtime)

    for generation in (1, 2):
        runtime.generation, runtime.context = generation, MagicMock()
        with lane.job(f"job-{generation}", None):
            assert runtime.context.setLocalProperty.mock_calls == [
                call("spark.scheduler.pool", "spark-main")
            ]
