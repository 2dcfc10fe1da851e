"""The contract of every offset store for owners and for former owners."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

import pytest

from headrace.coordinators.claims import Claim, Release
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.kafka.ports import CommitRefusal, StoredOffset
from tests.brokers import stored_offset
from tests.contracts.kafka_world import WAIT
from tests.contracts.members import GROUP, INFO
from tests.contracts.registry import lease

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import CommitFailure, OffsetStore
    from headrace.zookeeper.protocol import Session

PATHS = GroupPaths(GROUP)

#: More than one transaction of ZooKeeper's takes.
MANY = 120


class Zombies(Enum):
    """The ways in which a store treats the commit of a former owner."""

    RECOGNISED = "recognised"
    """It stores it; the epoch tells the owner that it is not its own."""
    REFUSED = "refused"
    """It refuses it for that partition."""
    SHUT_OUT = "shut_out"
    """It refuses it, and whatever else the former owner commits in that stay."""


class World(Protocol):
    """A group, its ZooKeeper, and its offsets."""

    #: What the store does with the commit of a former owner.
    zombies: Zombies

    @property
    def hand(self) -> Session:
        """A ZooKeeper session beside the members'."""
        ...

    def registry(self, name: str) -> ZooKeeperRegistry:
        """Return the access of a member to ``GROUP``, with a session of its own."""
        ...

    def store(self, registry: ZooKeeperRegistry) -> OffsetStore:
        """Return the offset store of a member."""
        ...

    def partition(self, number: int) -> TopicPartition:
        """Return a partition of an existing topic that has ``MANY``."""
        ...


class Member:
    """A member that owns what it takes, until somebody else takes it."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.registry = world.registry(name)
        self.registry.join(INFO)
        self.store = world.store(self.registry)
        self.claims: dict[TopicPartition, Claim] = {}

    def take(self, *numbers: int) -> None:
        """Claim partitions, from under an owner that does not know it, as after a standstill."""
        for number in numbers:
            partition = self._world.partition(number)
            path = PATHS.owner(partition)
            if self._world.hand.exists(path) is not None:
                self._world.hand.delete(path)
            claim = self.registry.claim([partition], lease())[partition]
            assert isinstance(claim, Claim), claim
            self.store.fence(claim.unfenced, partition, Deadline.after(WAIT))
            self.claims[partition] = claim.fenced()

    def commit(self, offsets: Mapping[int, int], wait: float = WAIT) -> dict[int, CommitFailure]:
        """Commit, by the numbers of the partitions; return what failed likewise.

        What is in doubt is tried again: a group's first coordinator may just be being chosen.
        """
        commits = {
            self._world.partition(n): self.claims[self._world.partition(n)].commit(offset)
            for n, offset in offsets.items()
        }
        deadline = Deadline.after(wait)
        while True:
            failures = self.store.commit(commits, deadline)
            in_doubt = any(failure.refusal is CommitRefusal.NONE for failure in failures.values())
            if not in_doubt or deadline.expired:
                return {partition.partition: failure for partition, failure in failures.items()}

    def stored(self, number: int = 0) -> StoredOffset | None:
        """Read an offset through this member's store."""
        return stored_offset(self.store, self._world.partition(number))

    def release(self, number: int = 0) -> None:
        """Give a partition back in order."""
        claim = self.claims[self._world.partition(number)]
        assert self.registry.release([claim], clean=True)[claim.partition] is Release.RELEASED


class OffsetStoreContract:
    """Subclasses provide the fixture ``world``."""

    @pytest.fixture
    def world(self) -> World:
        """Return a group without offsets."""
        raise NotImplementedError

    @pytest.fixture
    def a(self, world: World) -> Iterator[Member]:
        """Return a member."""
        member = Member(world, "a")
        yield member
        member.store.close()

    @pytest.fixture
    def b(self, world: World) -> Iterator[Member]:
        """Return another member."""
        member = Member(world, "b")
        yield member
        member.store.close()

    def test_nothing_is_stored_at_first(self, world: World, a: Member) -> None:
        """A partition without an offset is None by itself and missing among others."""
        assert a.stored() is None
        partitions = [world.partition(n) for n in range(2)]
        assert a.store.read_many(partitions, Deadline.after(WAIT)) == {}

    def test_an_offset_of_one_member_is_read_by_all(
        self, world: World, a: Member, b: Member
    ) -> None:
        """Offset, epoch and the member's name are there for everybody, with one answer for all."""
        a.take(0, 1)
        assert a.commit({0: 7, 1: 0}) == {}
        b.stored()
        partitions = [world.partition(n) for n in range(3)]
        found = b.store.read_many(partitions, Deadline.after(WAIT))
        assert found == {partitions[0]: StoredOffset(7, 1), partitions[1]: StoredOffset(0, 1)}
        assert {stored.by for stored in found.values()} == {"a"}

    def test_the_topic_of_an_offset_is_kept(self, world: World, a: Member, b: Member) -> None:
        """It comes back as it was stored, and is None where the owner did not name it."""
        a.take(0, 1)
        claims = {number: a.claims[world.partition(number)] for number in (0, 1)}
        commits = {
            claims[0].partition: claims[0].commit(7, "wJ3dT2sqQ2ShS2qpW7zDfA"),
            claims[1].partition: claims[1].commit(8),
        }
        deadline = Deadline.after(WAIT)
        while a.store.commit(commits, deadline):
            assert not deadline.expired
        found = [b.stored(number) for number in (0, 1)]
        assert found == [StoredOffset(7, 1), StoredOffset(8, 1)]
        topics = [None if stored is None else stored.topic_id for stored in found]
        assert topics == ["wJ3dT2sqQ2ShS2qpW7zDfA", None]

    def test_many_partitions_are_committed_at_once(self, world: World, a: Member) -> None:
        """Each of many partitions has its own offset, also when all of them move on."""
        a.take(*range(MANY))
        partitions = [world.partition(n) for n in range(MANY)]
        for start in (0, 1000):
            assert a.commit({n: start + n for n in range(MANY)}) == {}
            a.stored()
            found = a.store.read_many(partitions, Deadline.after(WAIT))
            assert [found[p].offset for p in partitions] == list(range(start, start + MANY))

    def test_an_owner_may_go_back(self, a: Member) -> None:
        """A seek to an earlier offset is committed like any other."""
        a.take(0)
        assert a.commit({0: 7}) == {}
        assert a.commit({0: 3}) == {}
        assert a.stored() == StoredOffset(3, 1)

    def test_a_raised_epoch_commits(self, world: World, a: Member) -> None:
        """An owner whose epoch was raised goes on under the higher one."""
        a.take(0)
        partition = world.partition(0)
        raised = a.registry.raise_epoch(a.claims[partition], 40)
        assert raised is not None
        a.claims[partition] = raised
        assert a.commit({0: 7}) == {}
        assert a.stored() == StoredOffset(7, 40)

    def test_the_next_owner_goes_on(self, a: Member, b: Member) -> None:
        """After a clean end and after none, the next owner finds the offset and commits its own."""
        a.take(0, 1)
        assert a.commit({0: 7, 1: 8}) == {}
        a.release(0)
        b.take(0, 1)
        assert [b.stored(n) for n in (0, 1)] == [StoredOffset(7, 1), StoredOffset(8, 1)]
        assert b.commit({0: 17, 1: 18}) == {}
        assert [b.stored(n) for n in (0, 1)] == [StoredOffset(17, 2), StoredOffset(18, 2)]

    def test_a_former_owner_s_commit(self, world: World, a: Member, b: Member) -> None:
        """It is refused, or stands out by its epoch; what is refused changes nothing."""
        a.take(0)
        assert a.commit({0: 7}) == {}
        b.take(0)
        assert b.commit({0: 20}) == {}
        failures = a.commit({0: 9})
        if world.zombies is Zombies.RECOGNISED:
            assert failures == {}
            assert b.stored() == StoredOffset(9, 1)
            assert b.commit({0: 20}) == {}
        else:
            refusal = (
                CommitRefusal.CLAIM
                if world.zombies is Zombies.REFUSED
                else CommitRefusal.MEMBERSHIP
            )
            assert failures[0].refusal is refusal, failures
            assert a.commit({0: 10})[0].refusal is refusal
        assert b.stored() == StoredOffset(20, 2)
        assert b.commit({0: 30}) == {}

    def test_a_former_owner_s_other_partitions(self, world: World, a: Member, b: Member) -> None:
        """Partitions that were not taken over still commit, except where the owner is shut out."""
        a.take(0, 1)
        assert a.commit({0: 7, 1: 8}) == {}
        b.take(0)
        failures = a.commit({0: 9, 1: 10})
        expected = {
            Zombies.RECOGNISED: set(),
            Zombies.REFUSED: {0},
            Zombies.SHUT_OUT: {0, 1},
        }[world.zombies]
        assert failures.keys() == expected
        assert b.stored(1) == (StoredOffset(8, 1) if 1 in failures else StoredOffset(10, 1))
        a.registry.leave()
        a.registry.join(INFO)
        a.take(1)
        assert a.commit({1: 11}) == {}, "a new stay commits again"
        assert b.stored(1) == StoredOffset(11, 2)

    def test_a_store_answers_with_and_without_an_offset(self, world: World, a: Member) -> None:
        """A partition's offset can be asked for past transactions, be there one or not."""
        a.take(0)
        assert a.commit({0: 7}) == {}
        for number in range(2):
            assert a.store.answers(world.partition(number), Deadline.after(WAIT))

    def test_without_time_nothing_is_promised(self, a: Member) -> None:
        """A commit without time left has a reason for each partition, and may be repeated."""
        a.take(0, 1)
        failures = a.commit({0: 7, 1: 8}, wait=0)
        assert failures.keys() == {0, 1}
        assert all(failure.refusal is CommitRefusal.NONE for failure in failures.values())
        assert a.commit({0: 7, 1: 8}) == {}
        assert a.stored(1) == StoredOffset(8, 1)
