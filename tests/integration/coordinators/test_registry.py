from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import Deadline
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.contracts.members import GROUP, World
from tests.contracts.registry import RegistryContract
from tests.sessions import expire

if TYPE_CHECKING:
    from collections.abc import Iterator


class ZooKeeperWorld:
    """A group below a chroot of its own."""

    def __init__(self, hosts: str) -> None:
        self._settings = ZooKeeperSettings(hosts, chroot=f"/{uuid4().hex}", session_timeout=6)
        self._sessions: dict[int, ZooKeeperSession] = {}
        self.hand = self._open()

    def _open(self) -> ZooKeeperSession:
        session = ZooKeeperSession(self._settings)
        session.start()
        self._sessions[id(session)] = session
        return session

    def member(self, name: str, *, transactional_prefix: str | None = None) -> ZooKeeperRegistry:
        """Return the access of a member."""
        return ZooKeeperRegistry(
            self._open(), GROUP, name, transactional_prefix=transactional_prefix
        )

    def end_session(self, registry: ZooKeeperRegistry) -> None:
        """Expire a member's session."""
        assert isinstance(registry, ZooKeeperRegistry)
        session = registry.session
        assert isinstance(session, ZooKeeperSession)
        expire(session)

    def close(self) -> None:
        """Close all sessions."""
        for session in self._sessions.values():
            assert session.close(Deadline.after(5))


class TestZooKeeperRegistry(RegistryContract):
    """The contract on a real ZooKeeper."""

    @pytest.fixture
    def world(self, zookeeper_hosts: str) -> Iterator[World]:
        """Return a group on the local ZooKeeper."""
        world = ZooKeeperWorld(zookeeper_hosts)
        yield world
        world.close()
