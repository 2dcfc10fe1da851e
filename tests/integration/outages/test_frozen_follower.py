"""A member whose own ZooKeeper server stops, while the others count its session."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.znodes import GroupPaths
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.zookeeper.session import reading
from tests.integration.coordinators.process import TOPIC
from tests.integration.coordinators.test_takeover import WAIT, Group, Member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.devstack.zookeeper import ZooKeeperServer
    from tests.integration.outages.ensemble import Ensemble

SESSION = 6.0
"""Seconds: twelve of the servers' ticks, so that they end a session close to its time-out."""


class FreezingRegistry(ZooKeeperRegistry):
    """Freezes the member's server as soon as it has acknowledged one certain heartbeat."""

    server: ZooKeeperServer
    last_heartbeat: int
    frozen: Event

    def heartbeat(self) -> None:
        """Give the heartbeat, and freeze the server after the last one."""
        super().heartbeat()
        self.last_heartbeat -= 1
        if self.last_heartbeat == 0:
            self.server.pause(Deadline.after(WAIT))
            self.frozen.set()


@pytest.fixture
def follower(ensemble: Ensemble) -> Iterator[ZooKeeperServer]:
    """Return the server that the member is connected to; it goes on at the end."""
    yield ensemble.servers[0]
    ensemble.servers[0].resume()
    ensemble.whole()


@pytest.mark.slow
@pytest.mark.parametrize("heartbeats", [1, 2, 7, 8])
def test_the_lease_ends_before_the_session_behind_a_frozen_follower(
    ensemble: Ensemble, follower: ZooKeeperServer, heartbeats: int
) -> None:
    """When the leader has ended the session, which frees the partitions, no lease is left."""
    frozen = Event()

    def registry(*arguments: object) -> ZooKeeperRegistry:
        made = FreezingRegistry(*arguments)  # type: ignore[arg-type]
        made.server, made.last_heartbeat, made.frozen = follower, heartbeats, frozen
        return made

    group = Group(follower.address, SESSION)
    owner = GroupPaths("group").owner(TopicPartition(TOPIC, 0))
    member = Member(group, "a", registry)
    group.wait(lambda: bool(member.held))
    lease = member.held[0].lease
    with reading(replace(group.settings, hosts=ensemble.main_hosts)) as others:
        assert frozen.wait(WAIT)
        assert lease.valid()
        assert others.get_many([owner]) != [None]
        assert wait_for(lambda: others.get_many([owner]) == [None], Deadline.after(WAIT))
        assert not lease.valid()
    follower.resume()
    member.stop()
