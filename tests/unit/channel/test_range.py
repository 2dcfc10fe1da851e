"""Start offsets for which the broker has no records any more, or none yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import OffsetOutOfRangeError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.ports import Fetched, StoredOffset
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.doubles import KnownLeaderSource, NotedCatalog, ReportingSource
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel

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
    log = broker.log(P0)
    assert log is not None
    with broker.at_once():
        broker.skip(P0, low - log.end)
        broker.expire(P0, low)


def test_records_fetched_before_their_deletion_are_delivered(broker: InMemoryBroker) -> None:
    """The gap behind them is passed, and counted."""
    recorder, metrics = Recorder(), Metrics()
    recorder.answer = recorder.later
    batch = {"max_records": 4, "linger": 0}
    with running(in_memory_channel(recorder, broker, metrics=metrics, batch=batch)):
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
        for metric in metrics.skipped.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.value
    }
    assert lost == {"out_of_range": 10}


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_gap_at_the_end_is_committed(broker: InMemoryBroker, policy: str) -> None:
    """The lag ends when all records after the position are gone."""
    broker.store("group").commit({P0: StoredOffset(3, 0)}, Deadline.after(PATIENCE))
    drop_ahead(broker, 30)
    with running(in_memory_channel(Recorder(), broker, offset_out_of_range=policy)):
        assert committed(broker, 30)


def test_a_refetch_begins_behind_what_was_read_ahead(broker: InMemoryBroker) -> None:
    """An out-of-range report that turns out to be outdated costs no record."""
    recorder = Recorder()
    recorder.answer = recorder.later
    source, catalog = ReportingSource(broker), NotedCatalog(broker)
    with running(
        in_memory_channel(recorder, broker, record_source=source, topic_catalog=catalog)
    ) as channel:
        recorder.wait(lambda: len(recorder.futures) == 1)
        broker.produce(P0, *[b"more"] * 500)
        assert wait_for(lambda: buffered(channel) >= 500, Deadline.after(PATIENCE))
        catalog.asked.clear()
        source.report(Fetched(out_of_range=[P0]))
        assert wait_for(lambda: catalog.asked, Deadline.after(PATIENCE))
        broker.produce(P0, *[b"more"] * 1000)
        recorder.futures[0].set_result(BatchResponse.advance())
        recorder.wait(lambda: len(recorder.futures) == 2)
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[1].set_result(BatchResponse.advance())
        assert committed(broker, 1510)
    offsets = [record.offset() for batch in recorder.batches for record in batch.records]
    assert offsets == list(range(1510))


def buffered(channel: InboundKafkaChannel) -> int:
    """Return how many records the only partition has read ahead."""
    (reading,) = channel.partitions()
    return reading.buffered_records


def test_a_log_that_was_cut_short_is_read_again_from_the_position(
    broker: InMemoryBroker,
) -> None:
    """Records read ahead that the broker no longer knows are dropped; nothing is passed over."""
    recorder = Recorder()
    recorder.answer = recorder.later
    source, batch = KnownLeaderSource(broker), {"max_records": 4, "linger": 0}
    with running(in_memory_channel(recorder, broker, record_source=source, batch=batch)) as channel:
        recorder.wait(lambda: len(recorder.futures) == 1)
        broker.truncate(P0, 6)
        assert wait_for(lambda: buffered(channel) == 2, Deadline.after(PATIENCE))
        recorder.answer = lambda _: BatchResponse.advance()
        recorder.futures[0].set_result(BatchResponse.advance())
        assert committed(broker, 6)
    assert recorder.delivered() == [(0, 4, 1), (4, 6, 1)]
    assert recorder.errors() == []
