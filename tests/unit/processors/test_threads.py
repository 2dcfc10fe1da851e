"""The threads of a channel's micro-batches: when they end, and that one that hangs is named."""

from __future__ import annotations

from threading import Event
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.errors import EngineDiedError
from headrace.core.supervision import LoopThread
from headrace.devstack.wait import wait_for
from tests.unit.processors.spark_bench import ADVANCE, Bench

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATIENCE = 10.0


def _events(logs: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [entry for entry in list(logs) if entry["event"] == name]


def test_a_thread_ends_with_the_call_under_way() -> None:
    """It makes no other once it was stopped, and says whether it ended in time."""
    calls, begun, over = list[str](), Event(), Event()

    def run_once() -> bool:
        calls.append("call")
        begun.set()
        return over.wait(_PATIENCE)

    thread = LoopThread("spark-main", run_once)
    assert thread.joined(Deadline.after(0))
    thread.start()
    assert begun.wait(_PATIENCE)
    thread.request_stop()
    assert not thread.joined(Deadline.after(0))
    over.set()
    assert thread.joined(Deadline.after(_PATIENCE))
    assert calls == ["call"]


def test_a_thread_that_drains_ends_with_its_work() -> None:
    """Work that came before the stop is done, also when the last call had found none."""
    work, looked, stopped = list[str](), Event(), Event()

    def run_once() -> bool:
        if not looked.is_set():
            looked.set()
            stopped.wait(_PATIENCE)
            return False
        return bool(work and work.pop())

    thread = LoopThread("sink-main", run_once, drains=True)
    thread.start()
    assert looked.wait(_PATIENCE)
    work += ["one", "two"]
    thread.request_stop()
    stopped.set()
    assert thread.joined(Deadline.after(_PATIENCE))
    assert work == []


def test_an_error_does_not_end_a_thread() -> None:
    """It is logged with the thread's name, and the next call comes."""
    again, errors = Event(), [ValueError("unexpected")]

    def run_once() -> bool:
        if errors:
            raise errors.pop()
        again.set()
        return False

    thread = LoopThread("spark-main", run_once)
    with capture_logs() as logs:
        thread.start()
        assert again.wait(_PATIENCE)
        thread.request_stop()
        assert thread.joined(Deadline.after(_PATIENCE))
    (failed,) = _events(logs, "lane_failed")
    assert failed["lane"] == "spark-main"


def test_a_lane_that_hangs_says_where() -> None:
    """Half-way to its deadline the log has the lane's stack and its micro-batch, once.

    Also in the commit of a micro-batch that the lane runs and commits by itself.
    """

    def hang_in_the_commit() -> None:
        assert wait_for(lambda: _events(logs, "lane_stuck"), Deadline.after(_PATIENCE))

    bench = Bench(job_timeout=0.1)
    bench.engine.seconds = 0.1
    bench.engine.script = [EngineDiedError("gone")]
    bench.sink.script = [hang_in_the_commit]
    with capture_logs() as logs:
        answer = bench.send(0)
        bench.run_once()
    assert answer.result(0) == ADVANCE
    (report,) = _events(logs, "lane_stuck")
    job = bench.engine.jobs[-1].id
    assert (report["lane"], report["group"], report["seconds"]) == ("spark-channel", job, 0.1)
    assert (report["channel"], report["micro_batch"]) == ("channel", job)
    assert any(call.endswith(" hang_in_the_commit") for call in report["calls"])


def test_a_lane_that_ends_in_time_says_nothing() -> None:
    """The report is called off with the end of the turn."""
    bench = Bench(job_timeout=3600.0)
    bench.engine.seconds = 3600.0
    with capture_logs() as logs:
        answers = [bench.staged(number) for number in range(3)]
        bench.commit()
    assert [answer.result(0) for answer in answers] == [ADVANCE] * 3
    assert _events(logs, "lane_stuck") == []
    assert wait_for(
        lambda: "spark-channel-report" not in {thread.name for thread in enumerate_threads()},
        Deadline.after(_PATIENCE),
    )
