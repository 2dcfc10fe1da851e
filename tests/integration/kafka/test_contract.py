from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.devstack.server import LOOPBACK, free_port
from headrace.kafka import KafkaOffsetStore, KafkaRecordSource, KafkaTopicCatalog
from headrace.kafka.columnar import ColumnarRecordSource
from headrace.kafka.columnar.library import load
from headrace.kafka.errors import LibraryMissingError
from tests.brokers import Broker
from tests.contracts.kafka import KafkaContract, UnreachableContract

if TYPE_CHECKING:
    from headrace.kafka.ports import OffsetStore, RecordSource, TopicCatalog
    from tests.contracts.kafka_world import World

PREFETCH = 16 << 20


class RealWorld(Broker):
    """The adapters on a broker."""

    def source(self) -> RecordSource:
        """Return a source on a consumer of its own."""
        return KafkaRecordSource(self._properties, "group", PREFETCH)

    def store(self, group: str) -> OffsetStore:
        """Return a store on a consumer of its own."""
        return KafkaOffsetStore(self._properties, group)

    def catalog(self) -> TopicCatalog:
        """Return a catalog on clients of its own."""
        return KafkaTopicCatalog(self._properties, "group")


@pytest.fixture(scope="module")
def shared(bootstrap_servers: str) -> RealWorld:
    """One producer and one admin client for all tests."""
    return RealWorld(bootstrap_servers)


class TestKafka(KafkaContract):
    """The contract on a real broker."""

    @pytest.fixture
    def world(self, shared: RealWorld) -> World:
        """Return the local broker."""
        return shared


class ColumnarWorld(RealWorld):
    """The same, with records in columns."""

    def source(self) -> RecordSource:
        """Return a source on a consumer of its own."""
        return ColumnarRecordSource(self._properties, "group", PREFETCH)


class TestKafkaInColumns(KafkaContract):
    """The contract on a real broker, with records in columns."""

    @pytest.fixture
    def world(self, bootstrap_servers: str) -> World:
        """Return the local broker; skip where there is no library."""
        try:
            load()
        except LibraryMissingError as missing:
            pytest.skip(str(missing))
        return ColumnarWorld(bootstrap_servers)


class TestUnreachableKafka(UnreachableContract):
    """The contract where nothing listens."""

    @pytest.fixture
    def world(self) -> World:
        """Return a broker at a port of nobody's."""
        return RealWorld(f"{LOOPBACK}:{free_port()}")
