"""The contract of every registry for the members of a group, whatever keeps its nodes."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

import pytest

from headrace.coordinators.errors import MemberExistsError, MembershipLostError
from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.coordinators.znodes import GroupPaths, producer_prefix
from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
    from headrace.zookeeper.protocol import Session

GROUP = "orders"
PATHS = GroupPaths(GROUP)
PRODUCER = producer_prefix(GROUP)
INFO = MemberInfo(topics=frozenset({"t.with.dots"}))
P0 = TopicPartition("t.with.dots", 0)
P1 = TopicPartition("t.with.dots", 1)


class World(Protocol):
    """A store with members, and a hand that reaches into it."""

    @property
    def hand(self) -> Session:
        """A session beside the members'."""
        ...

    def member(self, name: str, *, transactional_prefix: str | None = None) -> ZooKeeperRegistry:
        """Return the access of a member that has a session of its own, in ``GROUP``."""
        ...

    def end_session(self, registry: ZooKeeperRegistry) -> None:
        """End the session of a member as its process's end would."""
        ...


class MembersContract:
    """Subclasses provide the fixture ``world``."""

    @pytest.fixture
    def world(self) -> World:
        """Return a store without members."""
        raise NotImplementedError

    def test_a_joined_member_is_seen_by_all_with_its_published_info(self, world: World) -> None:
        """Members read each other's published wishes."""
        lists = {"t.with.dots": (3, 1)}
        info = MemberInfo(frozenset({"t.with.dots"}), AssignmentMode.STATIC, 2, 4, lists)
        world.member("a").join(info)
        b = world.member("b")
        b.join(INFO)
        assert b.members().members == {"a": info, "b": INFO}

    def test_each_stay_in_the_group_has_a_higher_member_epoch(self, world: World) -> None:
        """Joining again gives a member epoch above the one before."""
        a = world.member("a")
        first = a.join(INFO)
        a.leave()
        assert a.members().members == {}
        assert a.join(INFO).epoch > first.epoch

    def test_a_name_in_use_is_refused_with_its_holder(self, world: World) -> None:
        """A second session with the same name is told host and process, and beats that rise."""
        holder = world.member("a")
        holder.join(INFO)
        with pytest.raises(MemberExistsError, match="is already in the group, from process") as one:
            world.member("a").join(INFO)
        holder.heartbeat()
        with pytest.raises(MemberExistsError) as two:
            world.member("a").join(INFO)
        assert two.value.holder.beats > one.value.holder.beats

    def test_the_name_is_free_when_the_holders_session_ended(self, world: World) -> None:
        """A name outlives no session."""
        holder = world.member("a")
        holder.join(INFO)
        world.end_session(holder)
        assert world.member("a").join(INFO).epoch > 0

    def test_a_heartbeat_without_a_node_says_that_the_membership_is_lost(
        self, world: World
    ) -> None:
        """When somebody deletes a member's node, its heartbeat notices."""
        a = world.member("a")
        a.join(INFO)
        world.hand.delete(PATHS.member("a"))
        with pytest.raises(MembershipLostError):
            a.heartbeat()

    def test_a_heartbeat_survives_an_edit_by_hand(self, world: World) -> None:
        """A rewritten member node is written over with what the member publishes."""
        a = world.member("a")
        a.join(INFO)
        world.hand.set(PATHS.member("a"), b"scribble")
        assert a.members().problems.keys() == {"a"}
        a.heartbeat()
        assert a.members().members == {"a": INFO}

    def test_the_others_are_called_when_a_member_comes_publishes_or_goes(
        self, world: World
    ) -> None:
        """Each change of the members calls those who read them before, once per reading."""
        called = threading.Event()
        a, b = world.member("a"), world.member("b")
        a.join(INFO)
        a.watch(called.set)
        for change in (
            lambda: b.join(INFO),
            lambda: b.publish(MemberInfo(frozenset(), draining=True)),
            b.leave,
        ):
            a.members()
            called.clear()
            change()
            assert called.wait(5)

    def test_who_watches_no_more_is_let_go_of_before_anything_changes(self, world: World) -> None:
        """After the end of a watch nothing keeps its listener, though the watch never fired."""
        listener = threading.Event()
        a = world.member("a")
        a.join(INFO)
        a.watch(listener.set)
        a.members()
        gone = weakref.ref(listener)
        a.watch(None)
        del listener
        gc.collect()
        assert gone() is None


def joined(
    world: World, name: str, *, transactional_prefix: str | None = None
) -> ZooKeeperRegistry:
    """Return the access of a member that is in the group."""
    registry = world.member(name, transactional_prefix=transactional_prefix)
    registry.join(INFO)
    return registry
