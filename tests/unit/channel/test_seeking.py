"""Moving the partitions of a paused channel."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.errors import Refusal
from headrace.core.positions import At, Earliest, Latest, Replay, ShiftBy, Target, To
from headrace.core.records import TopicPartition
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.refusals import raises_refused
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.channel.events import SeekResult
    from headrace.core.records import Assignment, Batch


class Movable(Recorder):
    """A processor with a sink whose offsets can be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[tuple[int, int, str]] = []
        self.refuses: Exception | None = None

    def move_offset(self, assignment: Assignment, offset: int, note: str) -> None:
        """Note it."""
        if self.refuses is not None:
            raise self.refuses
        number = assignment.partition.partition
        self.moved.append((self.stored[number], offset, note))
        self.stored[number] = offset


def _paused(channel: InboundKafkaChannel, broker: InMemoryBroker) -> None:
    """Pause where ten records of the first partition are committed."""
    assert committed(broker, P0, 10)
    channel.pause(by="test")
    assert channel.wait_paused(Deadline.after(PATIENCE))


def _seek(
    channel: InboundKafkaChannel,
    offset: int,
    partition: TopicPartition = P0,
    replay: Replay | None = Replay.APPEND,
) -> SeekResult:
    deadline = Deadline.after(PATIENCE)
    return channel.seek(partition, offset, by="ann", deadline=deadline, replay=replay)


def test_a_paused_partition_goes_on_where_it_is_sent(broker: InMemoryBroker) -> None:
    """Back and forth: committed before the call returns, and delivered from there on resume."""
    broker.produce(P0, *values(10))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker)
    with capture_logs() as lines, running(channel):
        _paused(channel, broker)
        assert (_seek(channel, 9).before, _seek(channel, 4).before) == (10, 9)
        assert committed(broker, P0, 4)
        assert {each.state for each in channel.partitions()} == {"paused"}
        assert recorder.delivered() == [(0, 10, 1)]
        channel.resume(by="test")
        assert committed(broker, P0, 10)
    assert recorder.delivered() == [(0, 10, 1), (4, 10, 1)]
    moves = [(m["before"], m["position"]) for m in lines if m["event"] == "seek_applied"]
    assert moves == [(10, 9), (9, 4)]


def test_a_seek_needs_a_paused_partition(broker: InMemoryBroker) -> None:
    """A seek is refused while records could be delivered, and for a partition that is not held."""
    broker.produce(P0, *values(10))
    channel = in_memory_channel(Recorder(), broker)
    with running(channel):
        assert committed(broker, P0, 10)
        with raises_refused(Refusal.NOT_PAUSED, match="waiting"):
            _seek(channel, 3)
        channel.pause(by="test", partition=P1)
        assert channel.wait_paused(Deadline.after(PATIENCE))
        with raises_refused(Refusal.NOT_PAUSED):
            _seek(channel, 3)
        assert _seek(channel, 0, P1).offset == 0
        with raises_refused(Refusal.NOT_HELD):
            _seek(channel, 0, TopicPartition("events", 9))
    assert committed(broker, P0, 10)


def test_a_pause_that_is_not_true_yet_lets_nothing_be_moved(broker: InMemoryBroker) -> None:
    """A partition with an open batch is not paused yet, for any caller of the pause."""
    broker.produce(P0, *values(10))
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        recorder.wait(lambda: bool(recorder.futures))
        channel.pause(by="test")
        with raises_refused(Refusal.NOT_PAUSED):
            _seek(channel, 3)
        recorder.futures[0].set_result(BatchResponse.advance())


def test_an_offset_that_the_log_does_not_have_is_refused(broker: InMemoryBroker) -> None:
    """The message has what there is; nothing moves."""
    broker.produce(P0, *values(10))
    channel = in_memory_channel(Recorder(), broker)
    with running(channel):
        _paused(channel, broker)
        with raises_refused(Refusal.NO_SUCH_OFFSET, match="from 0 to 10, not 11"):
            _seek(channel, 11)
        assert [each.position for each in channel.partitions()] == [10, 0]


def test_the_sinks_offset_moves_first_and_says_who(broker: InMemoryBroker) -> None:
    """A sink that keeps offsets is sent there as well, with a note for its history."""
    broker.produce(P0, *values(10))
    processor = Movable()
    processor.stored[0] = 10
    channel = in_memory_channel(processor, broker)
    with running(channel):
        _paused(channel, broker)
        _seek(channel, 4)
    assert processor.moved == [(10, 4, "seek by ann")]


@pytest.mark.parametrize(
    ("replay", "said"),
    [(None, "is not said; seek with replay append"), (Replay.REPLACE, "takes a stopped channel")],
)
def test_a_seek_back_needs_a_choice_about_output(
    broker: InMemoryBroker, replay: Replay | None, said: str
) -> None:
    """A seek back is refused without a choice, or with one for stopped channels; forward is not."""
    broker.produce(P0, *values(10))
    processor = Movable()
    processor.stored[0] = 8
    channel = in_memory_channel(processor, broker)
    with running(channel):
        _paused(channel, broker)
        with raises_refused(Refusal.REPLAY, match=said):
            _seek(channel, 4, replay=replay)
        assert [each.position for each in channel.partitions()] == [10, 0]
        _seek(channel, 9, replay=replay)
    assert processor.moved == [(8, 9, "seek by ann")]


def test_a_sink_that_does_not_move_keeps_everything_where_it_is(broker: InMemoryBroker) -> None:
    """The sink's error refuses the seek, and position and commit stay."""
    broker.produce(P0, *values(10))
    processor = Movable()
    processor.stored[0] = 10
    processor.refuses = OSError("the disk is full")
    channel = in_memory_channel(processor, broker)
    with running(channel):
        _paused(channel, broker)
        with raises_refused(Refusal.SINK_OFFSETS, match="the disk is full"):
            _seek(channel, 4)
        assert [each.position for each in channel.partitions()] == [10, 0]


def test_a_processor_that_keeps_offsets_out_of_reach_is_named(broker: InMemoryBroker) -> None:
    """A seek is refused when a start would go by offsets that cannot be moved."""
    broker.produce(P0, *values(10))
    recorder = Recorder()
    recorder.stored[0] = 10
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        _paused(channel, broker)
        with raises_refused(Refusal.SINK_OFFSETS, match="Recorder keeps offsets of its own"):
            _seek(channel, 4)


def test_a_seek_that_takes_too_long_is_told(broker: InMemoryBroker) -> None:
    """A sink that hangs costs the caller its deadline and no more, and the error says so."""
    broker.produce(P0, *values(10))
    processor, gate = Movable(), Event()
    processor.stored[0] = 10
    channel = in_memory_channel(processor, broker)
    with running(channel):
        _paused(channel, broker)
        processor.move_offset = lambda *_: gate.wait(PATIENCE)  # type: ignore[method-assign,assignment]
        with raises_refused(Refusal.UNFINISHED):
            channel.seek(P0, 4, by="ann", deadline=Deadline.after(0.05), replay=Replay.APPEND)
        gate.set()


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (Earliest(), 0),
        (Latest(), 10),
        (To(7), 7),
        (To(99), 10),
        (ShiftBy(-3), 7),
        (ShiftBy(-30), 0),
        (At(10**15), 10),
    ],
    ids=str,
)
def test_targets_are_found_within_the_log(
    broker: InMemoryBroker, target: Target, offset: int
) -> None:
    """Each form of a target means an offset that the log has."""
    broker.produce(P0, *values(10))
    channel = in_memory_channel(Recorder(), broker)
    with running(channel):
        _paused(channel, broker)
        assert channel.find(target, P0, Deadline.after(PATIENCE)) == offset


def test_batches_of_before_a_seek_are_not_delivered_after_it(broker: InMemoryBroker) -> None:
    """Buffered records are dropped, and delivery continues at the new offset."""
    broker.produce(P0, *values(10))
    gate, recorder = Event(), Recorder()

    def slow(_: Batch) -> BatchResponse:
        gate.wait(PATIENCE)
        return BatchResponse.advance()

    recorder.answer = slow
    channel = in_memory_channel(recorder, broker, batch={"max_records": 2})
    with running(channel):
        recorder.wait(lambda: bool(recorder.batches))
        channel.pause(by="test")
        gate.set()
        assert channel.wait_paused(Deadline.after(PATIENCE))
        _seek(channel, 8)
        channel.resume(by="test")
        assert committed(broker, P0, 10)
    assert recorder.delivered() == [(0, 2, 1), (8, 10, 1)]
