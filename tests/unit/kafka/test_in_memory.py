from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.kafka.ports import OffsetStore, RecordSource, StoredOffset, TopicCatalog
from headrace.testing.broker import InMemoryBroker
from tests.contracts.kafka import KafkaContract, UnreachableContract

if TYPE_CHECKING:
    from headrace.core.records import TopicPartition
    from headrace.testing.records import FakeRecord
    from tests.contracts.kafka_world import World


class InMemoryWorld:
    """The doubles on a broker in memory."""

    def __init__(self) -> None:
        self.broker = InMemoryBroker()

    def create_topic(self, partitions: int = 1, name: str | None = None) -> str:
        """Create a topic."""
        chosen = name or uuid4().hex
        self.broker.create_topic(chosen, partitions)
        return chosen

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self.broker.delete_topic(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have more partitions."""
        self.broker.create_topic(topic, total)

    def produce(self, partition: TopicPartition, *values: bytes | FakeRecord | None) -> None:
        """Append records."""
        self.broker.produce(partition, *values)

    def transact(
        self, partition: TopicPartition, *values: bytes | FakeRecord | None, commit: bool = True
    ) -> None:
        """Append records and a marker; what is aborted, no reader sees."""
        if commit:
            self.broker.produce(partition, *values)
        else:
            self.broker.skip(partition, len(values))
        self.broker.skip(partition, 1)

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Drop records."""
        self.broker.expire(partition, offset)

    def commit(
        self, group: str, partition: TopicPartition, offset: int, metadata: str = ""
    ) -> None:
        """Commit without an epoch: the double keeps no other metadata."""
        del metadata
        self.broker.commit(group, {partition: StoredOffset(offset, 0)})

    def source(self) -> RecordSource:
        """Return a source."""
        return self.broker.source()

    def store(self, group: str) -> OffsetStore:
        """Return a store."""
        return self.broker.store(group)

    def catalog(self) -> TopicCatalog:
        """Return a catalog."""
        return self.broker.catalog()


class TestInMemoryBroker(KafkaContract):
    """The contract in memory."""

    @pytest.fixture
    def world(self) -> World:
        """Return a broker in memory."""
        return InMemoryWorld()


class TestInMemoryBrokerDown(UnreachableContract):
    """The contract on a broker in memory that is down."""

    @pytest.fixture
    def world(self) -> World:
        """Return a broker that is down."""
        world = InMemoryWorld()
        world.broker.down = True
        return world
