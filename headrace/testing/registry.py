"""A member's access to a group that lives in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.clock import SYSTEM_CLOCK, Clock
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry

if TYPE_CHECKING:
    from headrace.testing.zookeeper import InMemorySession, InMemoryZooKeeper


class InMemoryRegistry(ZooKeeperRegistry):
    """The real registry on a session in memory, which a test suspends or expires at will.

    Members of one group share the ``InMemoryZooKeeper``; by default each has its own session.
    """

    def __init__(
        self,
        zookeeper: InMemoryZooKeeper,
        group: str = "group",
        member: str = "member",
        *,
        session: InMemorySession | None = None,
        transactional_prefix: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.session = zookeeper.session() if session is None else session
        super().__init__(
            self.session, group, member, transactional_prefix=transactional_prefix, clock=clock
        )
