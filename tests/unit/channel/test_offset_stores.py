from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.core.records import TopicPartition
from headrace.testing import InMemoryBroker, InMemoryRegistry, InMemoryZooKeeper
from tests.contracts.members import GROUP, PRODUCER
from tests.contracts.offsets import MANY, OffsetStoreContract, World, Zombies

if TYPE_CHECKING:
    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
    from headrace.kafka.ports import OffsetStore


class InMemoryWorld:
    """A group whose members, nodes and offsets are in memory."""

    def __init__(self, zombies: Zombies) -> None:
        self.zombies = zombies
        self._broker = InMemoryBroker()
        self._zookeeper = InMemoryZooKeeper()
        self.hand = self._zookeeper.session()
        self._broker.create_topic("events", MANY)

    def registry(self, name: str) -> ZooKeeperRegistry:
        """Return a registry on a session of its own."""
        prefix = PRODUCER + name if self.zombies is Zombies.SHUT_OUT else None
        return InMemoryRegistry(self._zookeeper, GROUP, name, transactional_prefix=prefix)

    def store(self, registry: ZooKeeperRegistry) -> OffsetStore:
        """Return a store of the kind that treats zombies so."""
        assert isinstance(registry, InMemoryRegistry)
        if self.zombies is Zombies.REFUSED:
            return ZooKeeperOffsetStore(registry.session, GROUP)
        return self._broker.store(GROUP)

    def partition(self, number: int) -> TopicPartition:
        """Return a partition."""
        return TopicPartition("events", number)


class TestOffsetsInMemory(OffsetStoreContract):
    """The contract on the doubles, and on the nodes of a ZooKeeper in memory."""

    @pytest.fixture(params=list(Zombies), ids=lambda zombies: zombies.value)
    def world(self, request: pytest.FixtureRequest) -> World:
        """Return a group in memory."""
        return InMemoryWorld(request.param)
