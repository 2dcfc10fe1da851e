"""Calls in Spark's workers: what the driver makes of the files that tasks leave."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from headrace.core.call_watch import MOST_ENDS, CallWatch
from headrace.core.errors import JobTimeoutError
from headrace.extensions.spark import worker_calls
from headrace.extensions.spark.worker_calls import WorkerCalls
from tests.unit.extensions.keyed.test_hanging import forever

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What Spark says where the worker of the third task ended.
ENDED = (
    "Job aborted due to stage failure: Task 2 in stage 5.0 failed 1 times, most recent failure: "
    "Lost task 2.0 in stage 5.0 (TID 7): org.apache.spark.SparkException: Python worker exited "
    "unexpectedly (crashed)"
)


@pytest.fixture
def watch() -> Iterator[CallWatch]:
    """The driver's watch, without a file of its own."""
    made = CallWatch()
    made.open("c", print)
    yield made
    made.close()


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """The third task of a job, as a worker sees it."""
    found = MagicMock()
    found.get.return_value.partitionId.return_value = 2
    monkeypatch.setattr(worker_calls, "TaskContext", found)
    return found


def hang_in_call(watch: CallWatch, place: bytes = b"") -> None:
    """Be in a call that does not return."""
    with watch.job():
        watch.call(3, b"b", place)
        forever()


def in_worker(calls: WorkerCalls) -> CallWatch:
    """Return what a worker gets."""
    sent: Any = pickle.loads(pickle.dumps(calls))
    assert isinstance(sent, CallWatch)
    return sent


def test_a_worker_interrupts_a_call_before_its_job_is_past_its_time(
    watch: CallWatch, tmp_path: Path
) -> None:
    """The error names the call; the driver records it for the next workers."""
    calls = WorkerCalls(watch, tmp_path)
    calls.begin_job(0.4)
    place = "offset 5 of events-3"
    sent = in_worker(calls)
    with pytest.raises(JobTimeoutError, match=r"0\.2 s") as raised:
        hang_in_call(sent, place.encode())
    with capture_logs() as logs:
        assert raised.value.call is not None
        calls.note_interrupted(raised.value.call)
    assert [line["event"] for line in logs] == ["call_interrupted"]
    assert in_worker(calls).has_hung(3, b"b", place)


@pytest.mark.usefixtures("task")
def test_a_call_that_a_job_ended_in_for_its_time_is_known(watch: CallWatch, tmp_path: Path) -> None:
    """The worker's file has what nothing could interrupt; what just began does not count."""
    calls = WorkerCalls(watch, tmp_path)
    calls.begin_job(0.0)
    sent = in_worker(calls)
    with sent.job():
        list(zip(sent.each([(b"b", 3)]), [None], strict=False))
        sent.call(3, b"b")
        (found,) = calls.overdue()
        assert (found.partition, found.key) == (3, b"b")
        watch.limit(1000.0)
        assert calls.overdue() == []
    assert watch.is_known(3, b"b")
    watch.limit(0.0)
    assert calls.overdue() == []


@pytest.mark.usefixtures("task")
def test_a_record_that_ends_worker_after_worker_is_set_aside(
    watch: CallWatch, tmp_path: Path
) -> None:
    """Each end is logged with its key, that of no other task is."""
    calls, place = WorkerCalls(watch, tmp_path), "offset 5 of events-3"
    for _ in range(MOST_ENDS):
        assert not in_worker(calls).has_hung(3, b"b", place)
        calls.begin_job(100.0)
        sent = in_worker(calls)
        job = sent.job()
        job.__enter__()
        sent.call(3, b"b", place.encode())
        with capture_logs() as logs:
            assert calls.ended(ENDED.replace("ask 2", "ask 1")) is None
            call = calls.ended(ENDED)
        assert call is not None
        assert str(call) == "key 'b' of partition 3, offset 5 of events-3"
        (line,) = logs
        assert (line["event"], line["key"]) == ("worker_ended_in_call", "b")
        with sent.job():
            """Let the watch of this turn end."""
    assert in_worker(calls).has_hung(3, b"b", place)


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize("text", ["java.io.IOException: Task 2 in stage 5.0: no space", ""])
def test_other_failures_name_no_call(watch: CallWatch, tmp_path: Path, text: str) -> None:
    """A task that Spark ended with its job says nothing of the call it was in."""
    calls = WorkerCalls(watch, tmp_path)
    sent = in_worker(calls)
    with sent.job():
        sent.call(3, b"b")
        assert calls.ended(text) is None
    assert not watch.is_known(3, b"b")


def test_calls_without_a_folder_are_interrupted_all_the_same(watch: CallWatch) -> None:
    """Calls are interrupted without a folder, as with workers on another machine."""
    calls = WorkerCalls(watch, None)
    calls.begin_job(0.2)
    sent = in_worker(calls)
    with pytest.raises(JobTimeoutError):
        hang_in_call(sent)
    assert calls.overdue() == []
    assert calls.ended(ENDED) is None
