from __future__ import annotations

import pytest

from headrace.testing import InMemorySession, InMemoryZooKeeper
from tests.contracts.session import SessionContract


class TestInMemorySession(SessionContract):
    """The contract in memory."""

    @pytest.fixture
    def zookeeper(self) -> InMemoryZooKeeper:
        """Return an empty tree."""
        return InMemoryZooKeeper()

    @pytest.fixture
    def session(self, zookeeper: InMemoryZooKeeper) -> InMemorySession:
        """Return a session."""
        return zookeeper.session()

    @pytest.fixture
    def other(self, zookeeper: InMemoryZooKeeper) -> InMemorySession:
        """Return another session."""
        return zookeeper.session()
