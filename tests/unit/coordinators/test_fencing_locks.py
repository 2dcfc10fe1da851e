"""Locks at shutting a producer out, of members on a ZooKeeper in memory."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from headrace.coordinators.fencing_locks import FencingLocks
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.kafka.errors import OffsetStoreError
from headrace.testing import InMemoryZooKeeper

GROUP, ID = "group", "headrace.group.a.3"
PATH = GroupPaths(GROUP).fencing_lock(ID)
WAIT = 10.0


def test_one_member_waits_for_another() -> None:
    """The second goes on once the first is done, and the node is gone after it."""
    zookeeper = InMemoryZooKeeper()
    first, second = (FencingLocks(zookeeper.session(), GROUP) for _ in range(2))
    done: list[str] = []
    begun = Event()

    def take() -> None:
        begun.set()
        with second(ID, Deadline.after(WAIT)):
            done.append("second")

    thread = Thread(target=take)
    with first(ID, Deadline.after(WAIT)):
        thread.start()
        assert begun.wait(WAIT)
        done.append("first")
    thread.join(WAIT)
    assert done == ["first", "second"]
    assert zookeeper.node(PATH) is None


def test_a_lock_that_is_not_free_in_time_is_an_error() -> None:
    """It names the producer and the node; another producer's lock is free."""
    zookeeper = InMemoryZooKeeper()
    first, second = (FencingLocks(zookeeper.session(), GROUP) for _ in range(2))
    with first(ID, Deadline.after(WAIT)):
        with pytest.raises(OffsetStoreError, match=rf"shutting '{ID}' out \({PATH}\)"):
            second(ID, Deadline.after(0.1)).__enter__()
        with second("headrace.group.b.1", Deadline.after(WAIT)):
            assert zookeeper.node(PATH) is not None
    with second(ID, Deadline.after(WAIT)):
        pass


def test_a_node_left_by_the_same_session_is_its_own() -> None:
    """A node that could not be deleted blocks other members, and not its own."""
    zookeeper = InMemoryZooKeeper()
    session = zookeeper.session()
    locks = FencingLocks(session, GROUP)
    with locks(ID, Deadline.after(WAIT)):
        pass
    session.create(PATH, ephemeral=True)
    with locks(ID, Deadline.after(0.1)):
        pass
    assert zookeeper.node(PATH) is None
