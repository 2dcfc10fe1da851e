"""Servers that the tests of this folder may harm, shared by the tests of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.devstack import KafkaBroker
from tests.brokers import Broker
from tests.integration.channel.rig import Group
from tests.integration.outages.ensemble import Ensemble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def broker(bootstrap_servers: str) -> Broker:
    """An operator's hand on the shared broker, which no test here harms."""
    return Broker(bootstrap_servers)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that tests may freeze, kill, and cut the logs of; each leaves it running."""
    server = KafkaBroker(tmp_path_factory.mktemp("kafka"), short_lived=True)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three ZooKeeper servers; each test leaves them whole."""
    ensemble = Ensemble(tmp_path_factory.mktemp("ensemble"))
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.stop()


@pytest.fixture
def make_group(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Group]]:
    """Make a group of members at certain ZooKeeper servers, whose topic has so many partitions."""
    made: list[Group] = []

    def make(
        hosts: str, partitions: int = 1, session_timeout: float = 10.0, at: Broker = broker
    ) -> Group:
        topic = at.create_topic(partitions)
        made.append(Group(at, hosts, tmp_path, topic, session_timeout=session_timeout))
        return made[-1]

    yield make
    for group in made:
        group.close()
