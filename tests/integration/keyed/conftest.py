"""Sites on the shared servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.brokers import Broker
from tests.integration.daemon.rig import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def broker(bootstrap_servers: str) -> Broker:
    """An operator's hand on the shared broker."""
    return Broker(bootstrap_servers)


@pytest.fixture
def site(broker: Broker, zookeeper_hosts: str, tmp_path: Path) -> Iterator[Site]:
    """A topic with two partitions, a group and a folder of the test's own."""
    site = Site(broker, zookeeper_hosts, tmp_path)
    yield site
    site.close()
