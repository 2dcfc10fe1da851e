from __future__ import annotations

import gc
import weakref
from queue import Empty, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock, call

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.devstack.waiting import wait_for
from headrace.spark import engine as lane_module
from headrace.spark.engine import Lane
from headrace.spark.runtime import SparkRuntime
from headrace.spark.settings import Share, SparkSettings
from headrace.telemetry.logs import Bound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATIENCE = 10.0


def _next(jobs: SimpleQueue[str]) -> str | None:
    try:
        return jobs.get(timeout=0.02)
    except Empty:
        return None


def _reports(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [entry for entry in list(logs) if entry["event"] == "lane_stuck"]


def test_a_lane_that_hangs_says_where() -> None:
    """Half-way to its deadline the log has the lane's stack and its micro-batch, once."""
    release, jobs, done = Event(), SimpleQueue[str](), Event()

    def hang_in_the_commit() -> None:
        release.wait(_PATIENCE)

    def run_once() -> None:
        job = _next(jobs)
        if job is not None:
            with Bound(channel="main", micro_batch="m1"), lane.job(job, 0.1):
                pass
            hang_in_the_commit()
            done.set()

    lane = Lane("spark-main", MagicMock(generation=1), run_once)
    with capture_logs() as logs:
        lane.start()
        jobs.put("job-1")
        assert wait_for(lambda: bool(_reports(logs)), Deadline.after(_PATIENCE))
        release.set()
        assert done.wait(_PATIENCE)
        assert lane.stop(Deadline.after(_PATIENCE))
    (report,) = _reports(logs)
    assert (report["lane"], report["group"], report["seconds"]) == ("spark-main", "job-1", 0.1)
    assert (report["channel"], report["micro_batch"]) == ("main", "m1")
    assert any(call.endswith(" hang_in_the_commit") for call in report["calls"])


def test_a_lane_that_ends_in_time_says_nothing() -> None:
    """The report is called off with the end of the turn."""
    jobs, done = SimpleQueue[str](), SimpleQueue[str]()

    def run_once() -> None:
        job = _next(jobs)
        if job is not None:
            with lane.job(job, 60.0):
                done.put(job)

    lane = Lane("spark-main", MagicMock(generation=1), run_once)
    with capture_logs() as logs:
        lane.start()
        for number in range(3):
            jobs.put(f"job-{number}")
        assert [done.get(timeout=_PATIENCE) for _ in range(3)] == ["job-0", "job-1", "job-2"]
        assert lane.stop(Deadline.after(_PATIENCE))
    assert _reports(logs) == []
    assert lane._report._timer is None


def test_what_a_job_left_in_a_cycle_is_let_go_with_its_turn() -> None:
    """An object of the JVM's that only the collector can free does not wait for its next look."""
    jobs, left = SimpleQueue[str](), SimpleQueue["weakref.ref[_Knot]"]()

    def run_once() -> None:
        job = _next(jobs)
        if job is not None:
            with lane.job(job, None):
                left.put(weakref.ref(_Knot()))

    lane = Lane("spark-main", MagicMock(generation=1), run_once)
    before = gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        lane.start()
        jobs.put("job-1")
        knot = left.get(timeout=_PATIENCE)
        assert wait_for(lambda: knot() is None, Deadline.after(_PATIENCE))
    finally:
        gc.set_threshold(*before)
        assert lane.stop(Deadline.after(_PATIENCE))


class _Knot:
    """Refers to itself, as what py4j makes of an object and its methods does."""

    def __init__(self) -> None:
        self.itself = self


def test_a_session_that_could_not_be_made_is_made_for_the_next_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the one of the JVM before it is taken, though the lane has heard of the new one."""
    runtime = MagicMock(generation=1)
    monkeypatch.setattr(lane_module, "ArrowToSpark", lambda session: session)
    lane = Lane("lane", runtime, lambda: None)
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
    """Beside another lane's job the next one has fewer tasks, unless somebody chose how many."""
    session = _Session({"spark.sql.shuffle.partitions": found})
    runtime = SparkRuntime(SparkSettings("local[2]", chosen, channels=2))
    runtime.slots.resize(2, 2)
    monkeypatch.setattr(SparkRuntime, "new_session", lambda _: session)
    monkeypatch.setattr(SparkRuntime, "context", MagicMock())
    monkeypatch.setattr(SparkRuntime, "cores", 2)
    monkeypatch.setattr(lane_module, "ArrowToSpark", lambda session: session)
    lanes = [Lane(name, runtime, lambda: None) for name in ("one", "two")]
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
    """Its jobs are in the pool that is named after it, those of the next JVM too."""
    runtime = MagicMock()
    monkeypatch.setattr(lane_module, "ArrowToSpark", lambda session: session)
    lane = Lane("spark-main", runtime, lambda: None)

    for generation in (1, 2):
        runtime.generation, runtime.context = generation, MagicMock()
        with lane.job(f"job-{generation}", None):
            assert runtime.context.setLocalProperty.mock_calls == [
                call("spark.scheduler.pool", "spark-main")
            ]
