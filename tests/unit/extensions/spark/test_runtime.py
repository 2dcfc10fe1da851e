"""Building a session, and giving that up when the process stops."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import JobCancelledError, StartError
from headrace.extensions.spark.engine import SparkJobs
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import SparkSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 10.0


class _Opening:
    """Stands for the start of a JVM: the first one succeeds, others hang until let go."""

    def __init__(self, runtime: SparkRuntime) -> None:
        self.runtime = runtime
        self.count = 0
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, attempt: object) -> None:
        del attempt
        self.count += 1
        if self.count > 1:
            self.hangs.set()
            self.let_go.wait(PATIENCE)
            return
        session: Any = MagicMock()
        self.runtime._session = session  # instead of a JVM


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave alone the session that other tests of the process may have."""
    monkeypatch.setattr("headrace.extensions.spark.runtime.forget_session", lambda: None)
    monkeypatch.setattr(
        "headrace.extensions.spark.runtime.SparkContext._active_spark_context", None
    )


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Opening]:
    """A runtime with a session, and what stands for the JVM's start."""
    runtime = SparkRuntime(SparkSettings(start_timeout=PATIENCE))
    opening = _Opening(runtime)
    monkeypatch.setattr(runtime, "_open_session", opening)
    runtime.start()
    yield opening
    opening.let_go.set()


def _aside(call: Callable[[], object]) -> Future[object]:
    outcome: Future[object] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def test_a_stop_gives_up_a_session_that_takes_another_ones_place(opening: _Opening) -> None:
    """The caller that replaces it fails at once, and the former session is not built again."""
    runtime = opening.runtime
    outcome = _aside(lambda: runtime.replace(runtime.settings, Deadline.after(PATIENCE)))
    assert opening.hangs.wait(PATIENCE)
    runtime.retire()
    with pytest.raises(StartError, match="the process stops"):
        outcome.result(PATIENCE)
    assert opening.count == 2
    runtime.rebuild(runtime.generation)
    with pytest.raises(StartError, match="the process stops"):
        runtime.start()
    assert opening.count == 2


def test_a_stop_gives_up_the_rebuild_after_a_death(opening: _Opening) -> None:
    """The lane that rebuilds it goes on without one, and no error is made of it."""
    runtime = opening.runtime
    outcome = _aside(lambda: runtime.rebuild(runtime.generation))
    assert opening.hangs.wait(PATIENCE)
    runtime.retire()
    assert outcome.result(PATIENCE) is None
    assert not runtime.is_usable()


def test_jobs_without_a_session_are_cancelled_by_a_stop(opening: _Opening) -> None:
    """A lane that waited at the gate withdraws its batches; Spark is not called dead."""
    runtime = opening.runtime
    outcome = _aside(lambda: runtime.replace(runtime.settings, Deadline.after(PATIENCE)))
    assert opening.hangs.wait(PATIENCE)
    jobs = SparkJobs("spark-main", runtime)

    def run_once() -> None:
        with jobs.admitted(), jobs.job("job", None):
            pass

    turn = _aside(run_once)
    runtime.retire()
    assert isinstance(turn.exception(PATIENCE), JobCancelledError)
    assert isinstance(outcome.exception(PATIENCE), StartError)


class _LateJvm:
    """Stand for a JVM that is up only after its caller gave up."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.closed = threading.Event()

    def __call__(self, properties: object) -> _LateJvm:
        del properties
        self.up.wait(PATIENCE)
        return self

    def close(self, seconds: float) -> None:
        del seconds
        self.closed.set()


def test_a_session_that_takes_too_long_says_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the time-out and its field, not Java; the late JVM is ended."""
    jvm = _LateJvm()
    monkeypatch.setattr("headrace.extensions.spark.runtime.Jvm", jvm)
    runtime = SparkRuntime(SparkSettings("local[1]", start_timeout=0.01))
    with pytest.raises(StartError, match=r"spark\.start_timeout; .* it waited for the JVM") as told:
        runtime.start()
    assert "Java" not in str(told.value)
    jvm.up.set()
    assert jvm.closed.wait(PATIENCE)
    assert runtime.pid is None


def test_a_session_that_works_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not given up after the time-out while its JVM uses the processor."""
    ready, looks = threading.Event(), count()

    def work() -> int:
        look = next(looks)
        if look == 5:
            ready.set()
        return look

    monkeypatch.setattr("headrace.extensions.spark.runtime.children_at_work", work)
    monkeypatch.setattr("headrace.extensions.spark.runtime.FAR", 100_000)
    runtime = SparkRuntime(SparkSettings(start_timeout=0.02))
    monkeypatch.setattr(runtime, "_open_session", lambda _: ready.wait(PATIENCE))
    runtime.start()
    assert runtime.generation == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_java_is_blamed_only_where_there_is_none(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a Java installed, the error names it and where to read the cause."""

    def fail(_: object) -> None:
        raise OSError("no gateway")

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if is_there:
        java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("headrace.extensions.spark.runtime.Jvm", fail)
    with pytest.raises(StartError, match="no gateway") as told:
        SparkRuntime(SparkSettings("local[1]")).start()
    missing = "Java 17 or later must be on the PATH or in JAVA_HOME" in str(told.value)
    assert missing is not is_there
    assert (str(java) in str(told.value)) is is_there


def test_a_runtime_that_built_nothing_leaves_others_their_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stop without a start has pyspark forget nothing of what another one built."""
    forget = MagicMock()
    monkeypatch.setattr("headrace.extensions.spark.runtime.forget_session", forget)
    SparkRuntime(SparkSettings("local[1]")).stop(Deadline.after(PATIENCE))
    forget.assert_not_called()
