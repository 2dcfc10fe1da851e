"""A whole channel when something fails: batches, callbacks, offsets, commits."""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from headrace.channel.partition import RunningCallback
from headrace.channel.states import ChannelState
from headrace.channel.supervision import ABANDONED_WINDOW, CallbackWatchdog
from headrace.core.clock import Deadline
from headrace.core.errors import (
    BatchTimeoutError,
    HeadraceError,
    InvalidResponseError,
    OffsetOutOfRangeError,
    SinkConflictError,
)
from headrace.core.records import TopicPartition
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeClock, InMemoryBroker, in_memory_channel, running
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.core.records import Batch
    from headrace.processors.contract import ChannelContext

from tests.unit.channel.in_memory import P0, P1, committed, eventually, values

FAILURES = [ValueError("no"), SystemExit(3), KeyboardInterrupt(), MemoryError()]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failed_batch_comes_again_and_others_go_on(
    broker: InMemoryBroker, error: BaseException
) -> None:
    """An exception of on_next_batch is reported once, and the same batch comes again."""
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    failed = Event()

    def answer(batch: Batch) -> BatchResponse:
        if batch.partition == P0 and not failed.is_set():
            failed.set()
            raise error
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
        assert committed(broker, P1, 5)
    assert recorder.delivered(0) == [(0, 5, 1), (0, 5, 2)]
    assert recorder.errors(0) == [type(error)]
    assert recorder.errors(1) == []


def test_a_failed_future_comes_again(broker: InMemoryBroker) -> None:
    """A future's exception is a failure of its batch; the batch behind it is withdrawn."""
    broker.produce(P0, *values(20))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, max_in_flight=2)):
        recorder.wait(lambda: len(recorder.futures) == 2)
        recorder.futures[0].set_exception(ValueError("no"))
        recorder.wait(lambda: len(recorder.futures) == 4)
        assert recorder.futures[1].cancelled()
        for future in recorder.futures[2:]:
            future.set_result(BatchResponse.advance())
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1), (0, 10, 2), (10, 20, 1)]


def test_none_is_an_error_and_never_a_skip(broker: InMemoryBroker) -> None:
    """A processor that forgets to answer gets the batch again."""
    broker.produce(P0, *values(5))
    answers: list[object] = [None, BatchResponse.advance()]
    recorder = Recorder(lambda _: answers.pop(0))
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
    assert recorder.errors() == [InvalidResponseError]
    assert recorder.delivered() == [(0, 5, 1), (0, 5, 2)]


def test_an_impossible_commit_is_an_error(broker: InMemoryBroker) -> None:
    """Committing what was not delivered is refused and the batch comes again."""
    broker.produce(P0, *values(5))
    answers = [BatchResponse.advance(commit_to=6), BatchResponse.advance()]
    recorder = Recorder(lambda _: answers.pop(0))
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
    assert recorder.errors() == [InvalidResponseError]


def test_on_exception_may_skip_a_batch(broker: InMemoryBroker) -> None:
    """An explicit advance as the answer to an error passes over the batch and commits that."""
    broker.produce(P0, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        if batch.start == 0:
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer, on_error=lambda _: BatchResponse.advance())
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1)]
    assert "processed" in recorder.names()


@pytest.mark.parametrize("callback", ["assigned", "processed", "idle", "pause", "resume"])
def test_an_error_in_any_other_callback_is_told_and_harms_nothing(
    broker: InMemoryBroker, callback: str
) -> None:
    """on_exception hears of it, and both partitions go on to the end."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.raising[callback] = ValueError(callback)
    channel = in_memory_channel(recorder, broker, idle_time="10ms")
    with running(channel):
        recorder.wait(lambda: {"idle"} <= set(recorder.names(0)) & set(recorder.names(1)))
        channel.pause(by="test")
        recorder.wait(lambda: "pause" in recorder.names(0) and "pause" in recorder.names(1))
        channel.resume(by="test")
        recorder.wait(lambda: "resume" in recorder.names(0) and "resume" in recorder.names(1))
        broker.produce(P0, b"more")
        broker.produce(P1, b"more")
        assert committed(broker, P0, 6)
        assert committed(broker, P1, 1)
    assert recorder.errors(0) + recorder.errors(1) == [ValueError]


@pytest.mark.parametrize("callback", ["exception", "terminated"])
def test_errors_in_the_last_resorts_are_logged_and_the_channel_stops_in_order(
    broker: InMemoryBroker, callback: str
) -> None:
    """on_exception failing falls back to the policy; termination failing still releases."""
    broker.produce(P0, *values(5))
    answers: list[object] = [None, BatchResponse.advance()]
    recorder = Recorder(lambda _: answers.pop(0))
    recorder.raising[callback] = ValueError(callback)
    channel = in_memory_channel(recorder, broker)
    channel.start(Deadline.after(PATIENCE))
    assert committed(broker, P0, 5)
    assert channel.stop(Deadline.after(PATIENCE)).clean


def test_a_future_that_is_never_completed_times_out(broker: InMemoryBroker) -> None:
    """The batch is withdrawn, reported as BatchTimeoutError, and delivered again."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker, batch_timeout="50ms")):
        recorder.wait(lambda: len(recorder.futures) >= 2)
        recorder.answer = lambda _: BatchResponse.advance()
        assert committed(broker, P0, 5)
    assert recorder.errors()[0] is BatchTimeoutError
    assert recorder.futures[0].cancelled()


def test_a_hung_callback_stops_no_other_partition(broker: InMemoryBroker) -> None:
    """With the only worker hung, its thread is replaced and its partition is lost, then retaken."""
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    hang, release = Event(), Event()

    def answer(batch: Batch) -> BatchResponse:
        if batch.partition == P0 and not hang.is_set():
            hang.set()
            release.wait(PATIENCE)
        return BatchResponse.advance()

    recorder = Recorder(answer)
    channel = in_memory_channel(recorder, broker, workers=1, batch_timeout="50ms")
    try:
        with running(channel):
            recorder.wait(hang.is_set)
            assert committed(broker, P1, 5)
            recorder.wait(lambda: "lost" in recorder.names(0))
            release.set()
            assert broker.committed("group", P0) == StoredOffset(0, 1)
    finally:
        release.set()
    assert channel.failure is None


def test_too_many_hung_callbacks_fail_the_channel(broker: InMemoryBroker) -> None:
    """After max_abandoned threads the process has to be restarted, and the reason names where."""
    broker.create_topic("events", 4)
    for number in range(4):
        broker.produce(TopicPartition("events", number), b"x")
    release = Event()

    def answer(_: Batch) -> BatchResponse:
        release.wait(PATIENCE)
        return BatchResponse.advance()

    channel = in_memory_channel(Recorder(answer), broker, workers=4, batch_timeout="50ms")
    channel.start(Deadline.after(PATIENCE))
    try:
        deadline = Deadline.after(PATIENCE)
        while channel.failure is None and not deadline.expired:
            release.wait(0.01)
        assert "the process has to be restarted" in str(channel.failure)
        assert channel.state is ChannelState.FAILED
    finally:
        release.set()
        channel.stop(Deadline.after(PATIENCE))


def test_hung_callbacks_count_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number far apart are none; three within a day have the process restarted."""
    monkeypatch.setattr("headrace.channel.supervision.HangReports", MagicMock())
    monkeypatch.setattr(
        "headrace.channel.supervision.snapshot_of", lambda *_: SimpleNamespace(facts=dict)
    )
    clock, owned = FakeClock(), MagicMock(partition=P0)
    failures: SimpleQueue[BaseException] = SimpleQueue()
    watchdog = CallbackWatchdog(
        batch_timeout=lambda: 60.0,
        partitions=lambda: [owned],
        scheduler=MagicMock(),
        workers=MagicMock(),
        fail=failures.put,
        metrics=Metrics(),
        channel="main",
        clock=clock,
    )

    def hang(seconds_later: float) -> None:
        clock.advance(seconds_later)
        owned.hold.callback.since = clock.monotonic() - 100.0
        watchdog.check_callbacks(clock.monotonic())

    for _ in range(10):
        hang(ABANDONED_WINDOW / 2 + 1)
    assert failures.empty()
    hang(1)
    assert "the process has to be restarted" in str(failures.get_nowait())


def test_a_standstill_of_the_machine_is_no_hung_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the watchdog could not look either, callbacks could not run; afterwards time counts."""
    monkeypatch.setattr(
        "headrace.channel.supervision.snapshot_of", lambda *_: SimpleNamespace(facts=dict)
    )
    clock, looks, scheduler = FakeClock(), SimpleQueue[None](), MagicMock()
    callback = RunningCallback(clock.monotonic(), 0)
    owned = MagicMock(partition=P0)
    owned.hold.callback, owned.progress.outstanding = callback, []

    def partitions() -> list[MagicMock]:
        looks.put(None)
        return [owned]

    watchdog = CallbackWatchdog(
        batch_timeout=lambda: 0.05,
        partitions=partitions,
        scheduler=scheduler,
        workers=MagicMock(),
        fail=MagicMock(),
        metrics=Metrics(),
        channel="main",
        clock=clock,
    )
    with capture_logs() as lines:
        watchdog.start()
        looks.get(timeout=PATIENCE)
        clock.advance(3600.0)
        for _ in range(looks.qsize() + 4):
            looks.get(timeout=PATIENCE)
        scheduler.seize.assert_not_called()
        assert lines == []

        def seized() -> bool:
            clock.advance(0.01)
            return bool(scheduler.seize.called)

        eventually(seized)
        scheduler.seize.assert_called_with(owned, callback)
        assert watchdog.stop(Deadline.after(PATIENCE))
    assert "worker_stuck" in [line["event"] for line in lines]


def test_skip_passes_over_a_batch_after_its_attempts(broker: InMemoryBroker) -> None:
    """failing: skip: retry.attempts deliveries, then on, and the offset is committed."""
    broker.produce(P0, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        if batch.start == 0:
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    policy: dict[str, Any] = {
        "retry": {"attempts": 3, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "skip"},
    }
    with running(in_memory_channel(recorder, broker, **policy)):
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (0, 10, 2), (0, 10, 3), (10, 20, 1)]
    assert ("passed over", 0, 10) in recorder.calls[0]


def test_a_batch_that_the_sink_cannot_pass_over_is_not_skipped(broker: InMemoryBroker) -> None:
    """The batch is tried again, because a sink whose offset stays would undo a skip."""
    broker.produce(P0, *values(5))

    def answer(batch: Batch) -> BatchResponse:
        if batch.attempt < 3:
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    recorder.raising["passed over"] = OSError("sink is down")
    policy: dict[str, Any] = {
        "retry": {"attempts": 2, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "skip"},
    }
    with running(in_memory_channel(recorder, broker, **policy)):
        assert committed(broker, P0, 5)
    assert recorder.delivered() == [(0, 5, 1), (0, 5, 2), (0, 5, 3)]


def test_a_batch_that_the_sink_has_already_is_passed_over_with_it(broker: InMemoryBroker) -> None:
    """Reading continues at the sink's offset when that is past the batch to be skipped."""
    broker.produce(P0, *values(20))

    def answer(batch: Batch) -> BatchResponse:
        if batch.start == 0:
            recorder.stored[0] = 10
            raise ValueError("poison")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    recorder.raising["passed over"] = SinkConflictError(P0, 0, 10)
    policy: dict[str, Any] = {
        "retry": {"attempts": 2, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "skip"},
    }
    with running(in_memory_channel(recorder, broker, **policy)):
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (0, 10, 2), (10, 20, 1)]


def test_stop_fails_the_channel_after_its_attempts(broker: InMemoryBroker) -> None:
    """After retry.attempts it fails with the error, and commits nothing of the batch."""
    broker.produce(P0, *values(5))

    def answer(_: Batch) -> BatchResponse:
        raise ValueError("poison")

    recorder = Recorder(answer)
    policy: dict[str, Any] = {"retry": {"attempts": 2, "backoff": "1ms", "max_backoff": "1ms"}}
    channel = in_memory_channel(recorder, broker, **policy)
    with running(channel):
        deadline = Deadline.after(PATIENCE)
        while channel.failure is None and not deadline.expired:
            Event().wait(0.005)
    assert isinstance(channel.failure, ValueError)
    assert broker.committed("group", P0) == StoredOffset(0, 1)
    assert recorder.delivered() == [(0, 5, 1), (0, 5, 2)]


class Failing(Recorder):
    """Keeps what it may have its channel do."""

    def open(self, context: ChannelContext) -> None:
        """Keep the context."""
        self.context = context


def test_a_processor_can_end_its_channel(broker: InMemoryBroker) -> None:
    """The channel fails with the processor's error, and the open batch is not committed."""
    broker.produce(P0, *values(5))
    out: Future[BatchResponse] = Future()
    recorder = Failing(lambda _: out)
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        eventually(lambda: bool(recorder.delivered()))
        recorder.context.fail(HeadraceError("threads hang"))
        assert str(channel.failure) == "threads hang"
    assert broker.committed("group", P0) == StoredOffset(0, 1)


def test_a_sink_conflict_goes_on_where_the_sink_stands(broker: InMemoryBroker) -> None:
    """The position follows the sink's stored offset, and so does the group's commit."""
    broker.produce(P0, *values(20))
    recorder = Recorder()

    def answer(batch: Batch) -> BatchResponse:
        if not recorder.stored:
            recorder.stored[0] = 14
            raise SinkConflictError(batch.partition, batch.start, 14)
        # the commit behind this batch would take the place of one that is not made yet
        assert committed(broker, P0, 14)
        return BatchResponse.advance()

    recorder.answer = answer
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 20)
    assert recorder.delivered() == [(0, 10, 1), (14, 20, 1)]


@pytest.mark.parametrize(("policy", "first"), [("earliest", (50, 60, 1)), ("latest", None)])
def test_an_offset_out_of_range_is_told_and_reset(
    broker: InMemoryBroker, policy: str, first: tuple[int, int, int] | None
) -> None:
    """Retention overtook the group: the policy decides where reading goes on."""
    broker.produce(P0, *values(60))
    broker.expire(P0, 50)
    broker.store("group").commit({P0: StoredOffset(5, 0)}, Deadline.after(PATIENCE))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, offset_out_of_range=policy)):
        recorder.wait(lambda: OffsetOutOfRangeError in recorder.errors())
        broker.produce(P0, b"new")
        assert committed(broker, P0, 61)
    assert recorder.delivered()[0] == (first or (60, 61, 1))


def test_a_processor_may_choose_where_to_go_on_after_out_of_range(
    broker: InMemoryBroker,
) -> None:
    """An offset in the answer to OffsetOutOfRangeError has precedence over the policy."""
    broker.produce(P0, *values(60))
    broker.expire(P0, 50)
    broker.store("group").commit({P0: StoredOffset(5, 0)}, Deadline.after(PATIENCE))
    recorder = Recorder(on_error=lambda _: BatchResponse.continue_(offset=55))
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 60)
    assert recorder.delivered() == [(55, 60, 1)]


def test_commit_failures_are_told_and_tried_again(broker: InMemoryBroker) -> None:
    """A refused commit is told to the processor; the next interval stores it."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, commit_interval="20ms")
    with running(channel):
        assert committed(broker, P0, 5)
        broker.down = True
        broker.produce(P0, b"x")
        broker.down = False
        assert committed(broker, P0, 6)
