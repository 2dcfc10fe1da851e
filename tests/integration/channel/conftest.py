"""Groups on the shared servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.brokers import Broker
from tests.integration.channel.rig import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def broker(bootstrap_servers: str) -> Broker:
    """An operator's hand on the shared broker."""
    return Broker(bootstrap_servers)


@pytest.fixture
def make_group(
    broker: Broker, zookeeper_hosts: str, tmp_path: Path
) -> Iterator[Callable[..., Group]]:
    """Make a group whose topic has so many partitions."""
    made: list[Group] = []

    def make(partitions: int = 1, session_timeout: float = 10.0) -> Group:
        topic = broker.create_topic(partitions)
        made.append(
            Group(broker, zookeeper_hosts, tmp_path, topic, session_timeout=session_timeout)
        )
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.fixture
def group(make_group: Callable[..., Group]) -> Group:
    """A group whose topic has one partition."""
    return make_group()
