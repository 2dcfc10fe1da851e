"""Planning on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from headrace.core.clock import Deadline
from headrace.core.record_runs import OffsetRun
from headrace.core.records import TopicPartition
from headrace.devstack.server import LOOPBACK, free_port
from headrace.kafka import KafkaRangeSource, ranges
from headrace.testing.records import FakeRecord
from tests.brokers import WAIT, Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.kafka.ports import Fetched


@pytest.fixture(scope="module")
def broker(bootstrap_servers: str) -> Broker:
    """An operator's hand on the shared broker."""
    return Broker(bootstrap_servers)


@pytest.fixture
def source(broker: Broker) -> Iterator[KafkaRangeSource]:
    """A source that is closed with the test."""
    made = KafkaRangeSource({"bootstrap.servers": broker.address}, "group")
    yield made
    made.close()


@pytest.fixture
def partition(broker: Broker) -> TopicPartition:
    """A partition of a topic of the test's own."""
    return TopicPartition(broker.create_topic(), 0)


def until(source: KafkaRangeSource, found: Callable[[Fetched], bool]) -> Fetched:
    """Return the first fetch that has what is wanted."""
    deadline = Deadline.after(WAIT)
    while not found(fetched := source.fetch(0.05)):
        assert not deadline.expired
    return fetched


def planned(source: KafkaRangeSource) -> OffsetRun:
    """Return the next run."""
    ((_, run),) = until(source, lambda fetched: bool(fetched.chunks)).chunks
    assert isinstance(run, OffsetRun)
    return run


def test_existing_records_are_planned_in_steps(
    broker: Broker,
    source: KafkaRangeSource,
    partition: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No run is longer than a step, each follows the last one, and the end is told behind them."""
    monkeypatch.setattr(ranges, "MOST_OFFSETS", 3)
    broker.produce(partition, *[b"x"] * 5)
    source.assign({partition: 1})
    found = [planned(source), planned(source)]
    assert [(run.start, run.next_offset) for run in found] == [(1, 4), (4, 5)]
    assert until(source, lambda fetched: bool(fetched.ends)).ends == [(partition, 5)]
    assert source.high_watermark(partition) == 5
    broker.produce(partition, b"x")
    assert planned(source).start == 5


def test_records_are_as_large_as_a_sample(
    broker: Broker, source: KafkaRangeSource, partition: TopicPartition
) -> None:
    """Keys, values and headers count."""
    record = FakeRecord(key_=b"12345", value_=b"x" * 90, headers_=[("abc", b"de"), ("", None)])
    broker.produce(partition, record, record)
    source.assign({partition: 0})
    assert planned(source).each == 100


def test_a_position_that_the_broker_has_not_is_told_once(
    broker: Broker, source: KafkaRangeSource, partition: TopicPartition
) -> None:
    """Before the first record and behind the end; a seek ends it."""
    broker.produce(partition, *[b"x"] * 5)
    broker.delete_before(partition, 3)
    for position in (2, 6):
        source.seek({partition: position})
        assert until(source, lambda f: bool(f.out_of_range)).out_of_range == [partition]
        assert source.fetch(0.1).out_of_range == []
    source.seek({partition: 3})
    assert planned(source).start == 3


def test_open_transactions_are_waited_for(
    broker: Broker, source: KafkaRangeSource, partition: TopicPartition
) -> None:
    """Open records are not planned; a position among them is in range all the same."""
    broker.produce(partition, b"x")
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": uuid4().hex, "log_level": 0}
    )
    producer.init_transactions(WAIT)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(partition.topic, b"open", partition=0)
    assert producer.flush(WAIT) == 0
    source.assign({partition: 0})
    assert planned(source).next_offset == 1
    source.seek({partition: 2})
    assert until(source, lambda f: bool(f.ends or f.out_of_range)).ends == [(partition, 2)]
    producer.commit_transaction(WAIT)
    assert (run := planned(source)).start == 2
    assert run.next_offset >= 4


def test_nothing_is_planned_while_paused(
    broker: Broker, source: KafkaRangeSource, partition: TopicPartition
) -> None:
    """A resumed partition goes on where it was."""
    broker.produce(partition, b"x")
    source.assign({partition: 0})
    source.pause([partition])
    assert source.fetch(0.05).chunks == []
    assert source.fetch(0.05).chunks == []
    source.resume([partition])
    assert planned(source).start == 0
    source.unassign([partition])
    broker.produce(partition, b"x")
    assert source.fetch(0.1).chunks == []


def test_a_silent_broker_is_an_error_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source says so and goes on asking."""
    monkeypatch.setattr(ranges, "ANSWER_TIMEOUT", 0.5)
    source = KafkaRangeSource({"bootstrap.servers": f"{LOOPBACK}:{free_port()}"}, "group")
    source.assign({TopicPartition("t", 0): 0})
    fetched = until(source, lambda f: bool(f.errors))
    assert not fetched.chunks
    assert not fetched.out_of_range
    source.close()
