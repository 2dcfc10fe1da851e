"""Leaving single records out of a running channel."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.errors import Refusal, SinkConflictError
from headrace.core.records import TopicPartition, offset_of
from headrace.kafka.ports import Fetched
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.refusals import raises_refused
from tests.unit.channel.doubles import ReportingSource
from tests.unit.channel.in_memory import P0, P1, committed, eventually, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Assignment, Batch

#: A failure holds its partition back for longer than any test lasts.
STUCK = {"backoff": "1h", "max_backoff": "1h"}


def _poisoned(batch: Batch) -> BatchResponse:
    if any(record.value() == b"poison" for record in batch.records):
        raise ValueError("cannot be processed")
    return BatchResponse.advance()


def _backs_off(channel: InboundKafkaChannel) -> None:
    eventually(lambda: any(each.state == "backing_off" for each in channel.partitions()))


def _has_failed(channel: InboundKafkaChannel) -> None:
    """Wait until a batch has failed: looks for a start position are counted as attempts too."""
    eventually(
        lambda: any(
            each.attempts and each.batch_offset is not None for each in channel.partitions()
        )
    )


def _delivered(recorder: Recorder) -> list[list[int]]:
    return [[offset_of(record) for record in batch.records] for batch in recorder.batches]


def _counted(metrics: Metrics) -> float | None:
    labels = {"channel": "member", "topic": "events", "reason": "operator"}
    return metrics.registry.get_sample_value("headrace_skipped_records_total", labels)


def test_a_poison_record_is_left_out_while_its_batch_backs_off(broker: InMemoryBroker) -> None:
    """The rest of the batch is delivered at once, from the same start; it is logged and counted."""
    broker.produce(P0, b"0", b"1", b"poison", b"3")
    metrics, recorder = Metrics(), Recorder(_poisoned)
    channel = in_memory_channel(recorder, broker, metrics=metrics, retry=STUCK)
    with capture_logs() as lines, running(channel):
        _backs_off(channel)
        skip = channel.skip(P0, 2, reason="no JSON", by="ann")
        assert channel.skips == [skip]
        assert committed(broker, P0, 4)
        eventually(lambda: channel.skips == [])
    assert _delivered(recorder) == [[0, 1, 2, 3], [0, 1, 3]]
    assert {(batch.start, batch.next_offset) for batch in recorder.batches} == {(0, 4)}
    assert _counted(metrics) == 1
    asked, done = [line for line in lines if line["event"] in {"skip_requested", "skip_applied"}]
    assert (asked["offset"], asked["by"]) == (2, "ann")
    assert (done["offset"], done["reason"]) == (2, "no JSON")


def test_a_batch_of_nothing_else_is_passed_over_in_the_sink_too(broker: InMemoryBroker) -> None:
    """The sink's offset and the commit move past the record without a delivery."""
    broker.produce(P0, b"poison")
    recorder = Recorder(_poisoned)
    channel = in_memory_channel(recorder, broker, retry=STUCK)
    with running(channel):
        _backs_off(channel)
        channel.skip(P0, 0, reason="no JSON", by="ann")
        assert committed(broker, P0, 1)
        broker.produce(P0, b"fine")
        assert committed(broker, P0, 2)
    assert _delivered(recorder) == [[0], [1]]
    assert ("passed over", 0, 1) in recorder.calls[0]


def test_later_records_wait_until_the_sink_has_moved(broker: InMemoryBroker) -> None:
    """No batch begins after a skipped record before the sink has moved past it."""
    broker.produce(P0, *values(10), b"poison", *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, max_in_flight=3, batch={"max_records": 1})
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 3)
        channel.skip(P0, 10, reason="no JSON", by="ann", force=True)
        for number in range(10):
            recorder.wait(lambda: len(recorder.futures) > number)  # noqa: B023 - waited for here
            recorder.futures[number].set_result(BatchResponse.advance())
        recorder.wait(lambda: ("passed over", 10, 11) in recorder.calls[0])
        recorder.wait(lambda: len(recorder.futures) == 13)
        names = [call[:2] for call in recorder.calls[0] if call[0] in {"batch", "passed over"}]
        assert names.index(("passed over", 10)) < names.index(("batch", 11))
        recorder.answer = lambda _: BatchResponse.advance()
        for future in recorder.futures[10:]:
            future.set_result(BatchResponse.advance())


def test_a_sink_that_cannot_move_has_it_tried_again(broker: InMemoryBroker) -> None:
    """A failure of the sink costs a back-off, and the record is left out all the same."""
    broker.produce(P0, b"poison")
    recorder = Recorder(_poisoned)
    recorder.raising["passed over"] = SinkConflictError(P0, 0, 5)
    channel = in_memory_channel(recorder, broker)
    with running(channel):
        _has_failed(channel)
        channel.skip(P0, 0, reason="no JSON", by="ann")
        assert committed(broker, P0, 1)
    assert recorder.calls[0].count(("passed over", 0, 1)) == 2


@pytest.mark.parametrize("stored", [1, 3])
def test_reading_follows_a_sink_with_another_offset(broker: InMemoryBroker, stored: int) -> None:
    """The position moves to the sink's offset, so the record is not tried for ever."""
    broker.produce(P0, b"0", b"1", b"poison", b"3")
    recorder = Recorder(_poisoned)
    quick = {"backoff": "1ms", "max_backoff": "1ms"}
    channel = in_memory_channel(recorder, broker, retry=quick, batch={"max_records": 1})
    with running(channel), capture_logs() as lines:
        _has_failed(channel)
        recorder.raising["passed over"] = SinkConflictError(P0, 2, stored)
        recorder.stored[0] = stored
        channel.skip(P0, 2, reason="no JSON", by="ann")
        assert committed(broker, P0, 4)
    moves = [line for line in lines if line["event"] == "position_reset_to_sink"]
    assert [(move["position"], move["stored"]) for move in moves] == [(2, stored)]
    assert _delivered(recorder)[-1] == [3]
    assert _delivered(recorder).count([1]) == (2 if stored == 1 else 1)


def test_a_skip_that_comes_late_is_told_from_one_in_time(broker: InMemoryBroker) -> None:
    """No record is counted as skipped when its batch succeeds after all."""
    broker.produce(P0, b"0", b"1")
    metrics, recorder = Metrics(), Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, metrics=metrics)
    with capture_logs() as lines, running(channel):
        recorder.wait(lambda: bool(recorder.futures))
        channel.skip(P0, 1, reason="too slow", by="ann")
        recorder.futures[0].set_result(BatchResponse.advance())
        eventually(lambda: channel.skips == [])
    assert not _counted(metrics)
    assert "skip_too_late" in [line["event"] for line in lines]


def test_a_skip_of_an_unavailable_record_is_refused(broker: InMemoryBroker) -> None:
    """A committed, future or foreign record raises an error of its own, with a next step."""
    broker.produce(P0, *values(3))
    channel = in_memory_channel(Recorder(), broker)
    with raises_refused(Refusal.NOT_RUNNING):
        channel.skip(P0, 0, reason="-", by="ann")
    with running(channel):
        assert committed(broker, P0, 3)
        eventually(lambda: all(each.high_watermark is not None for each in channel.partitions()))
        with raises_refused(Refusal.COMMITTED_ALREADY, match="3 is committed"):
            channel.skip(P0, 2, reason="-", by="ann")
        with raises_refused(Refusal.NO_SUCH_OFFSET, match="ends at 0"):
            channel.skip(P1, 7, reason="-", by="ann")
        with raises_refused(Refusal.NOT_HELD):
            channel.skip(TopicPartition("events", 9), 0, reason="-", by="ann")
    assert channel.skips == []


def test_only_a_record_of_the_batch_that_fails_is_skipped(broker: InMemoryBroker) -> None:
    """A record after the failing batch is refused in flight and in back-off, unless forced."""
    broker.produce(P0, b"0", b"1", b"poison", b"3", *values(4))
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, retry=STUCK, batch={"max_records": 4})
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1)
        (out,) = [each for each in channel.partitions() if each.partition == 0]
        assert (out.position, out.batch_offset, out.batch_end) == (4, 0, 4)
        expected = "fails has the records 0 to 3; 4 is none of them"
        with raises_refused(Refusal.NOT_IN_BATCH, match=expected):
            channel.skip(P0, 4, reason="the position", by="ann")
        recorder.answer = _poisoned
        recorder.futures[0].set_exception(ValueError("bad"))
        _backs_off(channel)
        (waits,) = [each for each in channel.partitions() if each.partition == 0]
        assert (waits.position, waits.batch_offset, waits.batch_end) == (0, 0, 4)
        with raises_refused(Refusal.NOT_IN_BATCH, match=expected):
            channel.skip(P0, 4, reason="the position", by="ann")
        with raises_refused(Refusal.NOT_IN_BATCH, match="no batch is out, and none has failed"):
            channel.skip(P1, 0, reason="nothing", by="ann")
        channel.skip(P0, 2, reason="no JSON", by="ann")
        assert committed(broker, P0, 8)
        assert {each.batch_offset for each in channel.partitions()} == {None}


def test_a_failed_batch_is_known_when_the_buffer_is_dropped(
    broker: InMemoryBroker,
) -> None:
    """The batch is read again, and waits as it did."""
    broker.produce(P0, b"0", b"1", b"poison", b"3", *values(4))
    recorder = Recorder(_poisoned)
    source, batch = ReportingSource(broker), {"max_records": 4}
    channel = in_memory_channel(recorder, broker, record_source=source, retry=STUCK, batch=batch)
    with running(channel):
        _backs_off(channel)
        # the log lost its end behind what was read
        source.report(Fetched(truncated=[(P0, 8)]))
        eventually(lambda: any(each.buffered_records == 8 for each in channel.partitions()))
        (waits,) = [each for each in channel.partitions() if each.partition == 0]
        assert (waits.attempts, waits.batch_offset, waits.batch_end) == (1, 0, 4)
        with raises_refused(Refusal.NOT_IN_BATCH, match="fails has the records 0 to 3; 4 is none"):
            channel.skip(P0, 4, reason="behind it", by="ann")
        channel.skip(P0, 2, reason="no JSON", by="ann")
        assert committed(broker, P0, 8)
        assert {each.batch_offset for each in channel.partitions()} == {None}
    assert _delivered(recorder)[:2] == [[0, 1, 2, 3], [0, 1, 3]]


def test_the_batch_that_fails_begins_with_a_record_and_not_with_a_gap(
    broker: InMemoryBroker,
) -> None:
    """The offset of the batch is that of its first record, not the position before a gap."""
    broker.skip(P0, 3)
    broker.produce(P0, b"poison")
    channel = in_memory_channel(Recorder(_poisoned), broker, retry=STUCK)
    with running(channel):
        _backs_off(channel)
        (waits,) = [each for each in channel.partitions() if each.partition == 0]
        assert (waits.position, waits.batch_offset, waits.batch_end) == (0, 3, 4)


class SlowStart(Recorder):
    """Takes its time to say where the first partition begins that it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: SimpleQueue[TopicPartition] = SimpleQueue()
        self.gate = Event()

    def stored_offset(self, assignment: Assignment) -> int | None:
        """Note the partition, and answer once the gate is open."""
        self.asked.put(assignment.partition)
        assert self.gate.wait(PATIENCE)
        return super().stored_offset(assignment)


def test_a_skip_is_refused_before_the_start_of_its_partition(broker: InMemoryBroker) -> None:
    """While it is being taken over it is not known whose log it is; the skip is not lost."""
    recorder = SlowStart()
    for partition in (P0, P1):
        broker.produce(partition, b"poison")
    channel = in_memory_channel(recorder, broker, workers=1)
    with running(channel):
        # by the only worker, so that the other partition has not had a turn
        other = P1 if recorder.asked.get(timeout=PATIENCE) == P0 else P0
        eventually(lambda: len(channel.partitions()) == 2)
        with raises_refused(Refusal.NOT_HELD, match="only being taken over"):
            channel.skip(other, 0, reason="bad", by="ann")
        recorder.gate.set()
        assert committed(broker, other, 1)


def test_a_batch_that_fails_behind_its_skip_comes_again_at_once(broker: InMemoryBroker) -> None:
    """The skip came while the batch was out: no back-off is waited for."""
    broker.produce(P0, b"poison")
    recorder = Recorder()
    recorder.answer = lambda b: recorder.later(b) if b.partition == P0 else BatchResponse.advance()
    channel = in_memory_channel(recorder, broker, retry=STUCK, workers=1)
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1 and "assigned" in recorder.names(1))
        channel.skip(P0, 0, reason="bad", by="ann")
        broker.produce(P1, b"fine")
        # by the only worker, so that its turn with the skip is over
        recorder.wait(lambda: len(recorder.delivered(1)) == 1)
        recorder.futures[0].set_exception(ValueError("bad"))
        assert committed(broker, P0, 1)
