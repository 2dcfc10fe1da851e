"""Fill, harm and inspect a real broker, beyond what Headrace itself does to it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.kafka.clients import producer as producer_properties
from headrace.kafka.errors import OffsetStoreError
from headrace.testing.records import TIMESTAMP, FakeRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from confluent_kafka import Message

    from headrace.core.records import TopicPartition as Partition
    from headrace.kafka.ports import OffsetStore, StoredOffset

WAIT = 30.0

#: Seconds for one read of an offset: a request to a coordinator that died may be asked again.
_ONE_READ = 10.0

#: Room for a record of 1 MB and what is around it, the client's own default being just below.
#: Idempotent: otherwise a request that is sent again may come behind the next one.
_PRODUCER = {"message.max.bytes": 2_000_000, "linger.ms": 0, "enable.idempotence": True}

#: What a broker answers while the group's coordinator is being chosen, or is another one now.
_COORDINATOR_MOVES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A group's offset as the broker has it."""

    offset: int
    metadata: str


class Broker:
    """One broker, seen by an operator. Every call blocks until it is done."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.address = bootstrap_servers
        self._properties: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
        }
        self._admin = AdminClient(self._properties)
        self._producer = Producer(producer_properties({**self._properties, **_PRODUCER}))
        self._known: set[Partition] = set()

    def create_topic(self, partitions: int = 1, name: str | None = None) -> str:
        """Create a topic, by default one whose name nobody else uses; return the name."""
        return self._create(NewTopic(name or _new_name(), partitions, 1))

    def create_lasting_topic(self, partitions: int = 1) -> str:
        """Create a topic that keeps its records, however old their times are.

        A broker looks at others half a minute after its start, and then each five minutes.
        """
        return self._create(NewTopic(_new_name(), partitions, 1, config={"retention.ms": "-1"}))

    def create_compacted_topic(self, partitions: int = 1) -> str:
        """Create a topic that is compacted as soon as there is something to compact."""
        config = {
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
        }
        return self._create(NewTopic(_new_name(), partitions, 1, config=config))

    def _create(self, topic: NewTopic) -> str:
        chosen, partitions = topic.topic, topic.num_partitions
        _done(self._admin.create_topics([topic]).values())
        assert wait_for(lambda: self._is_led(self._admin, chosen, partitions), Deadline.after(WAIT))
        return chosen

    @staticmethod
    def _is_led(client: AdminClient | Producer, topic: str, partitions: int) -> bool:
        """Whether a client is told of a topic's partitions and their leaders."""
        found = client.list_topics(topic, timeout=WAIT).topics[topic].partitions
        return len(found) >= partitions and all(each.leader >= 0 for each in found.values())

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have ``total`` partitions."""
        _done(self._admin.create_partitions([NewPartitions(topic, total)]).values())
        # the controller has them; the brokers hear of it a moment later
        seen = wait_for(lambda: self._partitions(topic) == total, Deadline.after(WAIT))
        assert seen, f"{topic} has {self._partitions(topic)} partitions"

    def _partitions(self, topic: str) -> int:
        return len(self._admin.list_topics(topic, timeout=WAIT).topics[topic].partitions)

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._admin.list_topics(timeout=WAIT).topics)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        _done(self._admin.delete_topics([topic]).values())

    def delete_groups(self, *groups: str) -> None:
        """Delete groups without members, with all of their offsets."""
        _done(self._admin.delete_consumer_groups(list(groups)).values())

    @contextmanager
    def configured(self, name: str, value: str) -> Iterator[None]:
        """Run the broker itself with another value of a property for a while."""
        with configured(self.address, name, value):
            yield

    def produce(self, partition: Partition, *values: bytes | FakeRecord | None) -> None:
        """Append records; a FakeRecord brings its key and headers."""
        if partition not in self._known:
            # the admin client's metadata are not the producer's: what that one does not know yet
            # it may refuse
            assert wait_for(
                lambda: self._is_led(self._producer, partition.topic, partition.partition + 1),
                Deadline.after(WAIT),
            )
            self._known.add(partition)
        self._send(self._producer, partition, *values)

    def transact(
        self, partition: Partition, *values: bytes | FakeRecord | None, commit: bool = True
    ) -> None:
        """Append records in one transaction, then commit or abort it."""
        settings = {**self._properties, **_PRODUCER, "transactional.id": uuid4().hex}
        producer = Producer(producer_properties(settings))
        producer.init_transactions(WAIT)
        producer.begin_transaction()
        self._send(producer, partition, *values)
        if commit:
            producer.commit_transaction(WAIT)
        else:
            producer.abort_transaction(WAIT)

    @staticmethod
    def _send(producer: Producer, partition: Partition, *values: bytes | FakeRecord | None) -> None:
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            record = value if isinstance(value, FakeRecord) else FakeRecord(value_=value)
            producer.produce(
                partition.topic,
                record.value(),
                record.key(),
                partition=partition.partition,
                # one left as it was made is of now, or the broker's retention would drop it
                timestamp=0 if record.timestamp_ == TIMESTAMP else record.timestamp_,
                headers=list(record.headers() or []),
                on_delivery=on_delivery,
            )
        assert (producer.flush(WAIT), failures) == (0, [])

    def read(self, partition: Partition, count: int) -> list[Message]:
        """Return the first records of a partition."""
        consumer = Consumer({**self._properties, "group.id": "reader", "auto.commit.enable": False})
        consumer.assign([TopicPartition(partition.topic, partition.partition, 0)])
        found: list[Message] = []
        deadline = Deadline.after(WAIT)
        while len(found) < count and not deadline.expired:
            found += consumer.consume(count - len(found), 0.2)
        consumer.close()
        assert len(found) == count, f"{partition} has only {len(found)} records"
        return found

    def end(self, partition: Partition) -> int:
        """Return the end of a partition."""
        consumer = Consumer({**self._properties, "group.id": "reader"})
        try:
            where = TopicPartition(partition.topic, partition.partition)
            _, high = consumer.get_watermark_offsets(where, WAIT)
            return int(high)
        finally:
            consumer.close()

    def delete_before(self, partition: Partition, offset: int) -> None:
        """Drop the records before ``offset``, as retention does."""
        where = TopicPartition(partition.topic, partition.partition, offset)
        _done(self._admin.delete_records([where]).values())

    def commit(self, group: str, partition: Partition, offset: int, metadata: str = "") -> None:
        """Commit for a group as some other program would.

        A coordinator that is just being chosen is asked again.
        """
        where = TopicPartition(partition.topic, partition.partition, offset, metadata=metadata)
        deadline = Deadline.after(WAIT)
        while True:
            try:
                with Consumer({**self._properties, "group.id": group}) as consumer:
                    consumer.commit(offsets=[where], asynchronous=False)
            except KafkaException as error:
                if deadline.expired or error.args[0].code() not in _COORDINATOR_MOVES:
                    raise
            else:
                return

    def committed(self, group: str, *partitions: Partition) -> list[Stored | None]:
        """Return a group's offsets."""
        with Consumer({**self._properties, "group.id": group}) as consumer:
            asked = [TopicPartition(p.topic, p.partition) for p in partitions]
            found = consumer.committed(asked, timeout=WAIT)
        return [None if f.offset < 0 else Stored(f.offset, f.metadata or "") for f in found]


def _new_name() -> str:
    return f"topic.{uuid4().hex[:12]}"


def stored_offset(store: OffsetStore, partition: Partition) -> StoredOffset | None:
    """Read a group's offset; a coordinator that is just being chosen is asked again."""
    deadline = Deadline.after(WAIT)
    while True:
        try:
            return store.read(partition, Deadline.after(deadline.at_most(_ONE_READ)))
        except OffsetStoreError:
            if deadline.expired:
                raise


def _done(futures: Iterable[Future[object]]) -> None:
    for future in futures:
        future.result(WAIT)


@contextmanager
def configured(address: str, name: str, value: str) -> Iterator[None]:
    """Run the one broker at an address with another value of a property for a while.

    One process of the tests at a time: they share the broker, and would put back each other's.
    """
    with _alone(name):
        yield from _configured(address, name, value)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Keep other processes of this user from a property of brokers meanwhile."""
    path = Path(tempfile.gettempdir(), f"headrace-tests-{os.getuid()}-{name}.lock")
    with path.open("a", encoding="utf-8") as file:

        def is_locked() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        assert wait_for(is_locked, Deadline.after(2 * WAIT)), f"{path} stays locked"
        yield


def _configured(address: str, name: str, value: str) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    (number,) = admin.list_topics(timeout=WAIT).brokers

    def known() -> str:
        (found,) = admin.describe_configs(
            [ConfigResource(ResourceType.BROKER, str(number))]
        ).values()
        return str(found.result(WAIT)[name].value)

    def change(operation: AlterConfigOpType, wanted: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, str(number), incremental_configs=[entry])
        _done(admin.incremental_alter_configs([resource]).values())
        assert wait_for(lambda: known() == wanted, Deadline.after(WAIT))

    before = known()
    change(AlterConfigOpType.SET, value)
    try:
        yield
    finally:
        change(AlterConfigOpType.DELETE, before)
