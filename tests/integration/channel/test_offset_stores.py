"""The offset stores on real servers: the contract, and commits that are executed late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import KafkaOffsetStore, TransactionalOffsetStore
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.brokers import Broker
from tests.contracts.members import GROUP, PRODUCER
from tests.contracts.offsets import MANY, OffsetStoreContract, World, Zombies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.kafka.ports import OffsetStore


class RealWorld:
    """A group on real servers, below a chroot and on a topic of its own.

    The broker knows the group under the topic's name: groups of other tests do not meet it.
    """

    def __init__(self, broker: Broker, zookeeper_hosts: str, zombies: Zombies) -> None:
        self.zombies = zombies
        self._properties = {"bootstrap.servers": broker.address}
        self._topic = broker.create_topic(MANY)
        self._settings = ZooKeeperSettings(
            zookeeper_hosts, chroot=f"/{self._topic}", session_timeout=10
        )
        self._sessions: dict[str, ZooKeeperSession] = {}
        self.hand = self._open("")

    def _open(self, name: str) -> ZooKeeperSession:
        self._sessions[name] = ZooKeeperSession(self._settings)
        self._sessions[name].start()
        return self._sessions[name]

    def registry(self, name: str) -> ZooKeeperRegistry:
        """Return a registry on a session of its own."""
        prefix = f"{PRODUCER}{self._topic}.{name}" if self.zombies is Zombies.SHUT_OUT else None
        return ZooKeeperRegistry(self._open(name), GROUP, name, transactional_prefix=prefix)

    def store(self, registry: ZooKeeperRegistry) -> OffsetStore:
        """Return a store of the kind that treats zombies so."""
        match self.zombies:
            case Zombies.REFUSED:
                return ZooKeeperOffsetStore(self._sessions[registry.member], GROUP)
            case Zombies.SHUT_OUT:
                return TransactionalOffsetStore(self._properties, self._topic)
            case Zombies.RECOGNISED:
                return KafkaOffsetStore(self._properties, self._topic)

    def partition(self, number: int) -> TopicPartition:
        """Return a partition."""
        return TopicPartition(self._topic, number)

    def close(self) -> None:
        """Close all sessions."""
        for session in self._sessions.values():
            assert session.close(Deadline.after(5))


class TestOffsetsOnServers(OffsetStoreContract):
    """The contract on a real broker and a real ZooKeeper."""

    @pytest.fixture(params=list(Zombies), ids=lambda zombies: zombies.value)
    def world(
        self, request: pytest.FixtureRequest, bootstrap_servers: str, zookeeper_hosts: str
    ) -> Iterator[World]:
        """Return a group on the local servers."""
        world = RealWorld(Broker(bootstrap_servers), zookeeper_hosts, request.param)
        yield world
        world.close()
