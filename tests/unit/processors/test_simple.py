"""SimpleKafkaProcessor: what it hands over, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.processors import BatchResponse, ChannelContext
from headrace.processors.simple import (
    CommitFirstProcessor,
    Deliver,
    SimpleKafkaProcessor,
    SimpleOptions,
)
from headrace.telemetry.metrics import Metrics
from headrace.testing import (
    FakeClock,
    FakeRecord,
    InMemoryBroker,
    in_memory_channel,
    make_batch,
    running,
)

if TYPE_CHECKING:
    from headrace.core.records import Batch, Record

P0 = TopicPartition("events", 0)
RECORD = SimpleOptions(Deliver.RECORD)


def opened(
    processor: SimpleKafkaProcessor, clock: FakeClock | None = None, metrics: Metrics | None = None
) -> SimpleKafkaProcessor:
    """Open a processor as a channel does."""
    context = ChannelContext("channel", "group", metrics or Metrics(), clock or FakeClock())
    processor.open(context)
    return processor


def test_a_batch_goes_to_the_function_and_is_advanced() -> None:
    """The function gets the batch itself, once."""
    got: list[Batch] = []
    batch = make_batch([b"a", b"b"])
    assert opened(SimpleKafkaProcessor(got.append)).on_next_batch(batch) == BatchResponse.advance()
    assert got == [batch]


def test_records_go_one_by_one_in_order() -> None:
    """With deliver: record each record is a call."""
    got: list[Record] = []
    batch = make_batch([b"a", b"b", None])
    processor = opened(SimpleKafkaProcessor(got.append, RECORD))
    assert processor.on_next_batch(batch) == BatchResponse.advance()
    assert got == list(batch.records)


def test_a_failing_record_is_isolated_at_its_real_offset() -> None:
    """Records before it are committed; it comes again alone, though offsets have gaps."""

    def function(record: Record) -> None:
        if record.value() == b"bad":
            raise ValueError("bad")

    records = [FakeRecord(offset_=3), FakeRecord(offset_=7, value_=b"bad"), FakeRecord(offset_=9)]
    processor = opened(SimpleKafkaProcessor(function, RECORD))
    answer = processor.on_next_batch(make_batch(records, start=3))
    assert answer == BatchResponse.advance(offset=7, max_records=1)
    answer = processor.on_next_batch(make_batch(records[1:], start=7))
    assert answer == BatchResponse.revert(offset=7, max_records=1)
    with pytest.raises(ValueError, match="bad"):
        processor.on_next_batch(make_batch(records[1:2], start=7))


def test_a_failing_batch_function_fails_the_batch() -> None:
    """The error goes to the channel's policy and nothing is advanced."""

    def function(_: Batch) -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        opened(SimpleKafkaProcessor(function)).on_next_batch(make_batch([b"a"]))


def test_the_read_rate_spreads_batches_over_time() -> None:
    """Ten records at five a second make the partition wait two seconds, the next one four."""
    clock = FakeClock()
    processor = opened(
        SimpleKafkaProcessor(lambda _: None, SimpleOptions(max_read_rate=5.0)), clock
    )
    batch = make_batch([b"x"] * 10)
    assert processor.on_next_batch(batch) == BatchResponse.advance(wait=2.0)
    assert processor.on_next_batch(batch) == BatchResponse.advance(wait=4.0)
    clock.advance(60)
    assert processor.on_next_batch(batch) == BatchResponse.advance(wait=2.0)


def at(*seconds: float) -> list[FakeRecord]:
    """Return records with these timestamps and rising offsets from 1 on."""
    return [
        FakeRecord(offset_=index, timestamp_=int(second * 1000))
        for index, second in enumerate(seconds, start=1)
    ]


@pytest.mark.parametrize(
    ("deliver", "answer", "seen"),
    [
        (Deliver.RECORD, BatchResponse.advance(offset=2, wait=5.0), 1),
        (Deliver.BATCH, BatchResponse.revert(offset=1, max_records=1), 0),
    ],
)
def test_young_records_wait_until_they_are_old_enough(
    deliver: Deliver, answer: BatchResponse, seen: int
) -> None:
    """Only the ripe front of a batch is processed; the rest comes when its time has come."""
    got: list[Any] = []
    options = SimpleOptions(deliver, delay=10.0)
    processor = opened(SimpleKafkaProcessor(got.append, options), FakeClock(1000.0))
    assert processor.on_next_batch(make_batch(at(990, 995, 999), start=1)) == answer
    assert len(got) == seen


def test_a_batch_that_is_all_young_waits_for_its_first_record() -> None:
    """No record is processed or skipped."""
    options = SimpleOptions(delay=10.0)
    processor = opened(SimpleKafkaProcessor(lambda _: None, options), FakeClock(1000.0))
    answer = processor.on_next_batch(make_batch(at(997, 998), start=1))
    assert answer == BatchResponse.revert(offset=1, wait=7.0)


@pytest.mark.parametrize("deliver", list(Deliver))
def test_commit_first_works_after_the_commit_and_counts_what_it_drops(deliver: Deliver) -> None:
    """At most once: the answer comes before the work, and a failure only counts."""
    got: list[object] = []

    def function(item: object) -> None:
        got.append(item)
        raise ValueError("lost")

    metrics = Metrics()
    processor = opened(CommitFirstProcessor(function, SimpleOptions(deliver)), metrics=metrics)
    batch = make_batch([b"a", b"b"])
    assert processor.on_next_batch(batch) == BatchResponse.advance()
    assert got == []
    processor.on_batch_processed(batch)
    assert len(got) == (1 if deliver is Deliver.BATCH else 2)
    labels = {"channel": "channel", "topic": "events", "reason": "failing"}
    assert metrics.registry.get_sample_value("headrace_skipped_records_total", labels) == 2


def test_a_poisoned_record_is_skipped_alone() -> None:
    """With policy skip every other record is processed once, and the end is committed."""
    got: list[bytes | None] = []

    def function(record: Record) -> None:
        if record.value() == b"3":
            raise ValueError("poison")
        got.append(record.value())

    broker = InMemoryBroker()
    broker.create_topic("events")
    broker.produce(P0, *(b"%d" % number for number in range(8)))
    policy: dict[str, Any] = {
        "retry": {"attempts": 2, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "skip"},
    }
    channel = in_memory_channel(SimpleKafkaProcessor(function, RECORD), broker, **policy)
    with running(channel):
        assert broker.wait_committed("group", P0, 8, Deadline.after(10))
    assert got == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]
