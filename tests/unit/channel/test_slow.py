"""Reports of callbacks and batches that hang."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from headrace.processors import BatchResponse
from headrace.testing import in_memory_channel, running
from tests.unit.channel.in_memory import P0, committed, eventually, filled_broker
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.core.records import Batch


def _of(logs: Iterable[Mapping[str, Any]], event: str) -> list[Mapping[str, Any]]:
    return [entry for entry in list(logs) if entry["event"] == event]


def test_a_hanging_callback_is_told_once_with_its_calls() -> None:
    """Before it is given up the log has the stack and what the partition does; only once."""
    broker, release = filled_broker(), Event()

    def hang_here(batch: Batch) -> BatchResponse:
        if batch.partition == P0:
            release.wait(PATIENCE)
        return BatchResponse.advance()

    channel = in_memory_channel(Recorder(hang_here), broker, batch_timeout="600ms")
    try:
        with capture_logs() as logs, running(channel):
            eventually(lambda: bool(_of(logs, "worker_abandoned")))
            release.set()
    finally:
        release.set()
    told = [entry["event"] for entry in logs if entry["event"].startswith("worker_")]
    assert told == ["worker_stuck", "worker_abandoned"]
    (stuck,) = _of(logs, "worker_stuck")
    assert (stuck["topic"], stuck["partition"]) == P0
    assert stuck["state"] == "running"
    assert stuck["callback_seconds"] >= 0.3  # rounded
    assert any(call.endswith(" hang_here") for call in stuck["calls"])
    (abandoned,) = _of(logs, "worker_abandoned")
    assert abandoned.keys() == {*stuck.keys(), "seconds"}
    assert any(call.endswith(" hang_here") for call in abandoned["calls"])
    (dump,) = _of(logs, "stack_dump")
    assert dump["reason"] == "worker_stuck"
    names = {entry["thread"] for entry in _of(logs, "thread_stack")}
    assert {"MainThread", "member-watchdog"} < names


def test_each_unanswered_batch_is_reported_once() -> None:
    """An open future is reported before it times out, and again at the next attempt."""
    broker = filled_broker()
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, batch_timeout="200ms")
    with capture_logs() as logs, running(channel):
        recorder.wait(lambda: len(recorder.futures) >= 5)
        recorder.answer = lambda _: BatchResponse.advance()
        assert committed(broker, P0, 10)
    told = _of(logs, "batch_stuck")
    # two partitions, each with a batch that timed out at least once
    assert 2 <= len(told) <= len(recorder.futures)
    assert all(entry["outstanding_batches"] >= 1 for entry in told)
    assert all(entry["seconds"] <= 0.3 for entry in told)
    # all threads once, however much hangs
    assert len(_of(logs, "stack_dump")) == 1


def test_a_batch_answered_in_time_is_not_reported() -> None:
    """A channel at work reports nothing."""
    broker = filled_broker()
    with capture_logs() as logs, running(in_memory_channel(Recorder(), broker)):
        assert committed(broker, P0, 10)
    assert not _of(logs, "worker_stuck")
    assert not _of(logs, "batch_stuck")
