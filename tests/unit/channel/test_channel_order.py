"""A whole channel: what must not happen after, before or besides something else."""

from __future__ import annotations

import gc
import sys
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING
from weakref import WeakSet

from headrace.channel.partition import RunningCallback
from headrace.channel.scheduler import Scheduler
from headrace.channel.states import ChannelState, PartitionState
from headrace.core.clock import Deadline
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.processors.simple import CommitFirstProcessor, SimpleOptions
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from headrace.channel.partition import OwnedPartition
    from headrace.core.records import Batch
    from headrace.testing import FakeClock


def test_a_gap_is_not_committed_after_a_revert_to_before_it(broker: InMemoryBroker) -> None:
    """Markers passed while a batch was out do not count once reading went back."""
    broker.produce(P0, *values(5))
    recorder = Recorder(lambda _: BatchResponse.continue_())
    with running(in_memory_channel(recorder, broker, workers=1)):
        recorder.wait(lambda: len(recorder.delivered()) == 1)
        recorder.answer = recorder.later
        broker.produce(P0, *values(5))
        recorder.wait(lambda: len(recorder.futures) == 1)
        broker.skip(P0, 1)
        recorder.answer = lambda _: BatchResponse.continue_()
        # The one worker hears of the gap before it comes to the second of these.
        broker.produce(P1, b"x")
        recorder.wait(lambda: len(recorder.delivered(1)) == 1)
        broker.produce(P1, b"x")
        recorder.wait(lambda: len(recorder.delivered(1)) == 2)
        recorder.answer = recorder.later
        recorder.futures[0].set_result(BatchResponse.revert())
        recorder.wait(lambda: len(recorder.futures) == 2)
        stored = [offset.offset for partition, offset in broker.commits if partition == P0]
        assert stored == [0]
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[1].set_result(BatchResponse.advance())
        assert committed(broker, P0, 11)


def _has_delivered(recorder: Recorder, count: int) -> bool:
    return len(recorder.delivered(1)) == count


def test_a_gap_that_later_batches_passed_takes_no_commit_back(broker: InMemoryBroker) -> None:
    """Markers between two batches that are out lie before what is committed once both are done."""
    recorder = Recorder()

    def answer(batch: Batch) -> object:
        return recorder.later(batch) if batch.partition == P0 else BatchResponse.advance()

    def pass_turns() -> None:
        """Let the one worker do what P0 needs: it comes to the second of these after that."""
        for more in (len(recorder.delivered(1)) + 1, len(recorder.delivered(1)) + 2):
            broker.produce(P1, b"x")
            recorder.wait(partial(_has_delivered, recorder, more))

    recorder.answer = answer

    broker.produce(P0, *values(5))
    made = in_memory_channel(recorder, broker, workers=1, max_in_flight=2, commit_interval="1h")
    with running(made):
        recorder.wait(lambda: len(recorder.futures) == 1)
        broker.skip(P0, 1)
        pass_turns()
        broker.produce(P0, *values(5))
        recorder.wait(lambda: len(recorder.futures) == 2)
        recorder.futures[1].set_result(BatchResponse.advance())
        recorder.futures[0].set_result(BatchResponse.advance())
        pass_turns()
    assert broker.committed("group", P0) == StoredOffset(11, 1)


def test_an_answer_to_no_batch_takes_no_gap_back(
    monkeypatch: pytest.MonkeyPatch, broker: InMemoryBroker
) -> None:
    """A processor that advances at its end says nothing new: the gap stays passed."""
    recorder = Recorder()
    monkeypatch.setattr(recorder, "on_stream_termination", lambda _: BatchResponse.advance())
    with running(in_memory_channel(recorder, broker)):
        broker.produce(P0, *values(5))
        assert committed(broker, P0, 5)
        broker.skip(P0, 1)
        assert committed(broker, P0, 6)
    stored = [offset.offset for partition, offset in broker.commits if partition == P0]
    assert stored == [0, 5, 6]


def test_a_batch_that_is_not_covered_is_not_told_as_processed(broker: InMemoryBroker) -> None:
    """A commit inside a batch says nothing about the rest of it."""
    broker.produce(P0, *values(5))
    answers = [BatchResponse.advance(offset=2), BatchResponse.advance()]
    recorder = Recorder(lambda _: answers.pop(0))
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 5)
        recorder.wait(lambda: "processed" in recorder.names())
    assert [call for call in recorder.calls[0] if call[0] == "processed"] == [("processed", 5)]
    assert recorder.batches[-1].start == 2


def test_commit_first_processes_no_record_before_its_time(broker: InMemoryBroker) -> None:
    """With a delay, a batch that is partly ripe is cut before it is committed."""
    seen: list[int] = []

    def function(batch: Batch) -> None:
        seen.extend(record.timestamp()[1] for record in batch.records)

    broker.produce(P0, *values(3))
    processor = CommitFirstProcessor(function, SimpleOptions(delay=1.0))
    with running(in_memory_channel(processor, broker)):
        assert committed(broker, P0, 3)
    assert len(seen) == 3


def test_no_callback_follows_the_termination(
    monkeypatch: pytest.MonkeyPatch, broker: InMemoryBroker
) -> None:
    """A commit that fails after on_stream_termination is not reported to the processor."""
    broker.produce(P0, *values(5))
    recorder = Recorder(lambda _: BatchResponse.continue_())

    def last_advance(_: object) -> BatchResponse:
        broker.down = True
        recorder.calls[0].append(("terminated",))
        return BatchResponse.advance()

    monkeypatch.setattr(recorder, "on_stream_termination", last_advance)
    channel = in_memory_channel(recorder, broker)
    channel.start(Deadline.after(PATIENCE))
    recorder.wait(lambda: len(recorder.delivered()) == 1)
    report = channel.stop(Deadline.after(0.5))
    assert recorder.names()[-1] == "terminated"
    assert any("commit of offset 5" in thing for thing in report.left)


def test_a_processor_that_cannot_close_does_not_stop_the_stop(
    monkeypatch: pytest.MonkeyPatch, broker: InMemoryBroker
) -> None:
    """The channel ends as STOPPED, and the report says what could not be closed."""

    def close(_: Deadline) -> None:
        raise OSError("no")

    recorder = Recorder()
    monkeypatch.setattr(recorder, "close", close)
    channel = in_memory_channel(recorder, broker)
    channel.start(Deadline.after(PATIENCE))
    assert channel.stop(Deadline.after(PATIENCE)).left == ("processor: close failed with OSError",)
    assert channel.state is ChannelState.STOPPED


def test_the_scheduler_forgets_ended_partitions_and_outdated_times(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """Ended partitions and outdated due times do not accumulate."""
    scheduler = Scheduler(clock)
    live = own()
    for turn in range(2000):
        live.retries.not_before = clock.monotonic() + 1000 + turn
        scheduler.touch(live)
    assert sys.getrefcount(live) < 200
    partitions: WeakSet[OwnedPartition] = WeakSet()
    for number in range(100):
        ended = own(number)
        partitions.add(ended)
        scheduler.touch(ended)
        ended.life.state = PartitionState.LOST
        while (taken := scheduler.take(0)) is not None:
            scheduler.give_back(taken, taken.hold.holder)
        scheduler.touch(ended)
    del ended, taken
    gc.collect()
    assert set(partitions) == set()


def test_a_callback_that_came_back_is_not_seized(
    clock: FakeClock, own: Callable[..., OwnedPartition]
) -> None:
    """A watchdog that looked a moment too early takes nothing from the worker."""
    scheduler = Scheduler(clock)
    owned = own()
    scheduler.touch(owned)
    assert scheduler.take(0) is owned
    running_now = owned.hold.callback = RunningCallback(5.0, get_ident())
    assert not scheduler.seize(owned, RunningCallback(4.0, get_ident()))
    owned.hold.callback = None
    assert not scheduler.seize(owned, running_now)
    assert scheduler.take(0) is None
