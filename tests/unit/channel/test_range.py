"""What a channel does when the broker no longer has, or never had, the records it wants."""

from __future__ import annotations

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import OffsetOutOfRangeError
from headrace.core.records import TopicPartition
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.recorder import PATIENCE, Recorder

P0 = TopicPartition("events", 0)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with the topic ``events`` of one partition with ten records."""
    made = InMemoryBroker()
    made.create_topic("events")
    made.produce(P0, *[b"%d" % number for number in range(10)])
    return made


def committed(broker: InMemoryBroker, offset: int) -> bool:
    """Wait for a commit of the group."""
    return broker.wait_committed("group", P0, offset, Deadline.after(PATIENCE))


def drop_ahead(broker: InMemoryBroker, low: int) -> None:
    """Let the broker have records up to ``low`` and drop all of them, in one moment."""
    with broker._changed:
        broker.skip(P0, low - broker._logs[P0].end)
        broker.expire(P0, low)


def test_what_is_at_hand_outlives_its_deletion(broker: InMemoryBroker) -> None:
    """Records fetched before the broker dropped them are delivered, the gap passed and counted."""
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, batch={"max_records": 4, "linger": 0})
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1)
        drop_ahead(broker, 20)
        recorder.wait(lambda: recorder.errors() == [OffsetOutOfRangeError])
        for number in range(3):
            recorder.wait(lambda number=number: len(recorder.futures) > number)  # type: ignore[misc]
            recorder.futures[number].set_result(BatchResponse.advance())
        assert committed(broker, 20)
        broker.produce(P0, b"next")
        recorder.wait(lambda: len(recorder.futures) == 4)
        recorder.futures[3].set_result(BatchResponse.advance())
        assert committed(broker, 21)
    assert recorder.delivered() == [(0, 4, 1), (4, 8, 1), (8, 20, 1), (20, 21, 1)]
    lost = {
        sample.labels["reason"]: sample.value
        for metric in channel._metrics.skipped.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.value
    }
    assert lost == {"out_of_range": 10}


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_gap_at_the_end_is_committed(broker: InMemoryBroker, policy: str) -> None:
    """Where everything behind the position is gone, the lag still ends."""
    broker.store("group").commit({P0: StoredOffset(3, 0)}, Deadline.after(PATIENCE))
    drop_ahead(broker, 30)
    with running(in_memory_channel(Recorder(), broker, offset_out_of_range=policy)):
        assert committed(broker, 30)


def test_a_refetch_begins_behind_what_is_at_hand(broker: InMemoryBroker) -> None:
    """An out-of-range report that turns out to be outdated costs no record."""
    recorder = Recorder()
    recorder.answer = recorder.later
    with running(in_memory_channel(recorder, broker)) as channel:
        recorder.wait(lambda: len(recorder.futures) == 1)
        source = channel._runtime.fetcher._source
        owned = channel._runtime.manager.all()[0]
        with broker._changed:
            source._out.add(P0)  # type: ignore[attr-defined]
            broker.produce(P0, *[b"more"] * 1500)
        channel._runtime.fetcher.seek(owned)
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.wait(lambda: len(recorder.futures) == 2)
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[1].set_result(BatchResponse.advance())
        assert committed(broker, 1510)
    starts = [call[0] for call in recorder.delivered()]
    ends = [call[1] for call in recorder.delivered()]
    assert starts[1:] == ends[:-1]


def test_a_log_that_was_cut_short_is_read_again_from_the_position(
    broker: InMemoryBroker,
) -> None:
    """Records read ahead that the broker no longer knows are dropped; nothing is passed over."""
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, batch={"max_records": 4, "linger": 0})
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) == 1)
        buffer = channel._runtime.manager.all()[0].progress.buffer
        with broker._changed:
            log = broker._logs[P0]
            log.records, log.end = log.records[:6], 6
            broker._changed.notify_all()
        deadline = Deadline.after(PATIENCE)
        while buffer.records != 2:
            assert not deadline.expired
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[0].set_result(BatchResponse.advance())
        assert committed(broker, 6)
    assert recorder.delivered() == [(0, 4, 1), (4, 6, 1)]
    assert recorder.errors() == []
