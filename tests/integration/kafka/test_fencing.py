from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import KafkaOffsetStore
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.fencing import GroupPartition, fence_producers
from headrace.kafka.result_transactions import sink_group
from tests.brokers import Broker
from tests.doubts import leave_in_doubt
from tests.kafka_sinks import KafkaPlace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = 30.0

#: Seconds for an answer that must not come: a broker on loopback has read an offset many times.
_SOON = 2.0

#: Leaves a transaction open, says so, and waits to be killed.
_OPEN = """
import sys, threading
from confluent_kafka import Consumer, Producer, TopicPartition
servers, transactional_id, group, topic = sys.argv[1:]
metadata = Consumer({"bootstrap.servers": servers, "group.id": group}).consumer_group_metadata()
producer = Producer({"bootstrap.servers": servers, "transactional.id": transactional_id})
producer.init_transactions(30)
producer.begin_transaction()
producer.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], metadata, 30)
print("open", flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def broker(bootstrap_servers: str) -> Broker:
    """One producer and one admin client for all tests."""
    return Broker(bootstrap_servers)


class Group:
    """A group whose offset of partition 0 is 5; a topic of its own has two partitions."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = f"group.{uuid4().hex[:12]}"
        self.topic = broker.create_topic(2)
        self.partition = TopicPartition(self.topic, 0)
        self.properties = {"bootstrap.servers": broker.address, "log_level": 0}
        self.id = f"headrace.{self.name}.m.1"
        self.store = KafkaOffsetStore(self.properties, self.name)
        broker.commit(self.name, self.partition, 5)

    def offset(self, number: int = 0, wait: float = WAIT) -> int | None:
        """Return the group's offset."""
        found = self.store.read(TopicPartition(self.topic, number), Deadline.after(wait))
        return None if found is None else found.offset

    def producer(self, transactional_id: str, offset: int, number: int = 0) -> Producer:
        """Return a producer with an open transaction that has one offset."""
        producer = Producer({**self.properties, "transactional.id": transactional_id})
        producer.init_transactions(WAIT)
        self.send(producer, offset, number)
        return producer

    def send(self, producer: Producer, offset: int, number: int = 0) -> None:
        """Open a transaction that has one offset."""
        with Consumer({"group.id": self.name, "log_level": 0}) as consumer:
            metadata = consumer.consumer_group_metadata()
        entries = [ClientPartition(self.topic, number, offset)]
        producer.begin_transaction()
        producer.send_offsets_to_transaction(entries, metadata, WAIT)

    def fence(self, number: int = 0) -> None:
        """Shut the id's producer out."""
        place = GroupPartition(self.name, TopicPartition(self.topic, number))
        fence_producers(self.properties, [self.id], Deadline.after(WAIT), place)


@pytest.fixture
def group(broker: Broker) -> Iterator[Group]:
    """A group of a test's own."""
    group = Group(broker)
    yield group
    group.store.close()


def test_an_offset_that_a_broker_left_in_doubt_is_cleared(group: Group) -> None:
    """Beginning anew is not enough; with an aborted transaction the offset from before is read."""
    leave_in_doubt(group.broker.address, group.id, group.name, group.partition, 9)
    fence_producers(group.properties, [group.id], Deadline.after(WAIT))
    with pytest.raises(OffsetStoreError, check=lambda error: error.timed_out):
        group.offset(wait=_SOON)
    assert group.store.answers(group.partition, Deadline.after(WAIT))
    group.fence(number=1)
    assert group.offset() == 5
    assert group.offset(1) is None


def test_metadata_without_a_zero_byte_do_not_keep_an_offset_from_being_read(group: Group) -> None:
    """Java's clients write none, and ours reads on behind them; the offset counts."""
    for length in range(86, 90):
        leave_in_doubt(
            group.broker.address,
            group.id,
            group.name,
            group.partition,
            length,
            metadata="m" * length,
        )
        group.producer(group.id, 1, number=1).commit_transaction(WAIT)
        assert group.offset() == length


def test_a_commit_of_the_same_producer_ends_the_doubt_as_well(group: Group) -> None:
    """One that goes on needs nobody: what the brokers had decided is then as it was decided."""
    leave_in_doubt(group.broker.address, group.id, group.name, group.partition, 9)
    group.producer(group.id, 3, number=1).commit_transaction(WAIT)
    assert [group.offset(number) for number in (0, 1)] == [9, 3]


def test_an_offset_that_a_sink_left_in_doubt_is_cleared(broker: Broker) -> None:
    """The store of a channel with a Kafka sink clears the group of the sink."""
    with closing(KafkaPlace(broker)) as place, closing(place.results()) as results:
        assert results.commit([place.share(0, 0, 10, "tx.1")]) == []
        partition, group = TopicPartition(place.source, 0), sink_group(place.group)
        leave_in_doubt(broker.address, "tx.2", group, partition, 20)
        with pytest.raises(OffsetStoreError, check=lambda error: error.timed_out):
            results.stored(place.identity(0))
        store = KafkaOffsetStore(place.properties, place.group, produced_in=group)
        with closing(store):
            store.fence(["tx.2"], partition, Deadline.after(WAIT))
        assert results.stored(place.identity(0)) == 10


def test_an_open_transaction_of_a_killed_process_is_undone(group: Group) -> None:
    """The open offset is never read; the one from before is, and at once."""
    about = [group.broker.address, group.id, group.name, group.topic]
    with subprocess.Popen(
        [sys.executable, "-c", _OPEN, *about], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.kill()
    with pytest.raises(OffsetStoreError, check=lambda error: error.timed_out):
        group.offset(wait=_SOON)
    group.fence()
    assert group.offset() == 5


def test_a_committed_offset_survives_fencing(group: Group) -> None:
    """The aborted transaction takes nothing back of what the same id stored before."""
    producer = group.producer(group.id, 7)
    producer.commit_transaction(WAIT)
    for _ in range(2):
        group.fence()
        assert group.offset() == 7
    with pytest.raises(KafkaException, match="fenced"):
        group.send(producer, 8)
    assert group.offset() == 7


def test_others_transactions_go_on(group: Group) -> None:
    """One of another id, open in the same group meanwhile, is neither ended nor lost."""
    other = group.producer("other", 3, number=1)
    group.fence()
    assert group.offset() == 5
    with pytest.raises(OffsetStoreError, check=lambda error: error.timed_out):
        group.offset(1, wait=_SOON)
    other.commit_transaction(WAIT)
    assert group.offset(1) == 3


@pytest.mark.slow
def test_a_deleted_topic_does_not_hinder_fencing(group: Group) -> None:
    """The brokers take no offset of it, and clear the group all the same."""
    leave_in_doubt(group.broker.address, group.id, group.name, group.partition, 9)
    place = GroupPartition(group.name, TopicPartition("no-such-topic", 0))
    fence_producers(group.properties, [group.id], Deadline.after(10.0), place)
    assert group.offset() == 5


def test_fencing_without_brokers_is_an_error(group: Group) -> None:
    """The error names the producer and says that its partitions wait."""
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    place = GroupPartition(group.name, group.partition)
    with pytest.raises(OffsetStoreError, match=rf"'{group.id}' cannot be fenced.*wait"):
        fence_producers(nowhere, [group.id], Deadline.after(1.0), place)
    with closing(KafkaOffsetStore(nowhere, group.name, quiet=True)) as store:
        assert not store.answers(group.partition, Deadline.after(0.5))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_takeover_killed_at_every_effect_is_finished_as_a_commit_by_the_next(
    broker: Broker, tmp_path: Path
) -> None:
    """The decided commit is read after each kill; a finishing transaction is aborted if killed."""
    command = [sys.executable, "-m", "tests.integration.kafka.killed_finishing"]
    done = subprocess.run(
        [*command, broker.address, broker.create_topic(), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # before and after each of: two producers begun, four calls and three of their transactions
    assert int(done.stdout) >= 18
