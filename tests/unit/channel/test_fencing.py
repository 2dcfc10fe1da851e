"""A whole channel whose offsets another writer refuses or overwrites."""

from __future__ import annotations

from math import inf
from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.channel.offset_stores import Fencing
from headrace.coordinators.claims import Claim
from headrace.coordinators.lease import Lease
from headrace.coordinators.znodes import EpochDocument, GroupPaths
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import Commit
from headrace.testing import InMemoryZooKeeper, in_memory_channel, running
from headrace.testing.broker import InMemoryOffsets
from tests.unit.channel.in_memory import P0, P1, committed, eventually, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import StoredOffset
    from headrace.testing import InMemoryBroker

PATHS = GroupPaths("group")
GONE, OLDER = "headrace.group.a.3", "headrace.group.b.2"
TRANSACTIONS = {"fencing": "transactions"}


def epoch_node(zookeeper: InMemoryZooKeeper) -> EpochDocument:
    """Return what the epoch node of P0 says."""
    node = zookeeper.node(PATHS.epoch(P0))
    assert node is not None
    return EpochDocument.decode("epoch", node.data)


def test_a_member_whose_producer_is_shut_out_joins_again(broker: InMemoryBroker) -> None:
    """All its partitions are lost, and claimed anew in another stay, with another producer."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, offsets=TRANSACTIONS)
    with running(channel):
        broker.produce(P0, *values(5))
        assert committed(broker, P0, 5)
        assert committed(broker, P1, 0)
        before = epoch_node(zookeeper)
        assert before.transactional_id == f"headrace.group.member.{before.member_epoch}"
        broker.store("group").fence([before.transactional_id], P0, Deadline.after(PATIENCE))
        broker.produce(P0, *values(5))
        assert committed(broker, P0, 10)
        recorder.wait(lambda: recorder.names(1).count("assigned") == 2)
    after = epoch_node(zookeeper)
    assert after.member_epoch > before.member_epoch
    assert after.transactional_id != before.transactional_id
    assert recorder.names().count("lost") == 1
    assert recorder.names(1) == ["assigned", "lost", "assigned", "terminated"]
    offsets = [offset for _, offset in broker_commits(broker)]
    assert offsets == sorted(offsets)


def broker_commits(broker: InMemoryBroker) -> list[tuple[int, int]]:
    """Return epoch and offset of each commit of P0, in order."""
    return [(s.epoch, s.offset) for partition, s in broker.commits if partition == P0]


def test_a_takeover_shuts_out_the_former_owner(broker: InMemoryBroker) -> None:
    """Commits of a crashed member's producer are refused from the takeover on."""
    zookeeper = InMemoryZooKeeper()
    crashed = in_memory_channel(
        Recorder(), broker, zookeeper=zookeeper, member="a", offsets=TRANSACTIONS
    )
    with running(crashed):
        broker.produce(P0, *values(5))
        assert committed(broker, P0, 5)
        former = epoch_node(zookeeper)
    zookeeper.put(PATHS.epoch(P0), former.encode())  # as if it had not ended in order
    late = Commit(2, former.epoch, "a", transactional_id=former.transactional_id)
    with running(
        in_memory_channel(Recorder(), broker, zookeeper=zookeeper, member="b", offsets=TRANSACTIONS)
    ):
        assert broker.wait_commit("group", P0, epoch=2, deadline=Deadline.after(PATIENCE))
        failures = broker.store("group").commit({P0: late}, Deadline.after(PATIENCE))
        assert failures.keys() == {P0}
    assert epoch_node(zookeeper).unfenced == ()
    assert [offset for _, offset in broker_commits(broker)] == [0, 5, 5]


class UnfencedOffsets(InMemoryOffsets):
    """Fails to shut producers out so many times; notes which ones it is asked to.

    ``called`` has the callbacks that the processor had had of P0 each time.
    """

    def __init__(self, broker: InMemoryBroker, recorder: Recorder, refusals: float) -> None:
        super().__init__(broker, "group")
        self._recorder = recorder
        self._left = refusals
        self.asked: list[list[str]] = []
        self.called: list[list[object]] = []

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        """Note the producers, and shut them out."""
        self.called.append(self._recorder.names())
        self.asked.append(list(transactional_ids))
        if self._left:
            self._left -= 1
            raise OffsetStoreError("not just now")
        super().fence(transactional_ids, partition, deadline)


class UndecidedOffsets(InMemoryOffsets):
    """Cannot read the offset of P0, as while a commit of it is not decided."""

    def __init__(self, broker: InMemoryBroker, zookeeper: InMemoryZooKeeper) -> None:
        super().__init__(broker, "group")
        self._zookeeper = zookeeper
        self.asked_by_owner = Event()

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Find the offsets of other partitions."""
        if P0 in partitions:
            if self._zookeeper.node(PATHS.owner(P0)) is not None:
                self.asked_by_owner.set()
            raise OffsetStoreError("a commit is not decided yet")
        return super().find(partitions, deadline)


def test_a_partition_waits_until_its_former_owner_is_shut_out(broker: InMemoryBroker) -> None:
    """No record is delivered while a former owner's producer may still commit."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=False, unfenced=(OLDER,))
    zookeeper.put(PATHS.epoch(P0), former.encode())
    broker.produce(P0, *values(1))
    store = UnfencedOffsets(broker, recorder, refusals=2)
    with running(in_memory_channel(recorder, broker, zookeeper=zookeeper, offset_store=store)):
        assert committed(broker, P0, 1)
    assert store.asked == [[OLDER, GONE]] * 3
    assert store.called == [[]] * 3


def test_a_claim_that_ends_before_it_fenced_hands_the_duty_down(broker: InMemoryBroker) -> None:
    """The epoch node still names a producer that could not be fenced."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    store = UnfencedOffsets(broker, recorder, refusals=inf)
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=False)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    with running(in_memory_channel(recorder, broker, zookeeper=zookeeper, offset_store=store)):
        assert committed(broker, P1, 0)
        eventually(lambda: bool(store.asked))
    assert epoch_node(zookeeper).clean_end
    assert epoch_node(zookeeper).unfenced == (GONE,)


def test_a_claim_that_ends_before_own_commits_are_decided_is_no_clean_end(
    broker: InMemoryBroker,
) -> None:
    """The next owner has to shut our producer out: a commit under our former claim is under way."""
    zookeeper = InMemoryZooKeeper()
    own = "headrace.group.member.11"
    former = EpochDocument(7, "member", 11, transactional_id=own, clean_end=False)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    store = UndecidedOffsets(broker, zookeeper)
    with running(
        in_memory_channel(
            Recorder(), broker, zookeeper=zookeeper, offset_store=store, offsets=TRANSACTIONS
        )
    ):
        assert store.asked_by_owner.wait(PATIENCE)
    found = epoch_node(zookeeper)
    assert (found.epoch, found.transactional_id) == (8, own)
    assert not found.clean_end


def test_a_superseded_owner_lets_go(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of a higher epoch ends delivery and commits, and the next claim is above it."""
    monkeypatch.setattr("headrace.channel.commits.CHECK_INTERVAL", 0.01)
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    with running(in_memory_channel(recorder, broker, zookeeper=zookeeper)):
        broker.produce(P0, *values(5))
        assert committed(broker, P0, 5)
        other = {P0: Commit(3, 50, "other")}
        broker.store("group").commit(other, Deadline.after(PATIENCE))
        recorder.wait(lambda: "lost" in recorder.names())
        assert broker.wait_commit("group", P0, epoch=51, deadline=Deadline.after(PATIENCE))
    commits = broker_commits(broker)
    assert commits[commits.index((50, 3)) + 1] == (51, 3)


@pytest.mark.parametrize("unfenced", [(), ("x",), ("x", "y")])
def test_each_producer_is_shut_out_once(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch, unfenced: tuple[str, ...]
) -> None:
    """The partitions of one former owner cost one fence."""
    store = broker.store("group")
    asked: list[str] = []

    def note(ids: Collection[str], *_: object) -> None:
        asked.extend(ids)

    monkeypatch.setattr(store, "fence", note)
    fencing = Fencing(store)
    lease = Lease(60, SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic())
    for number in range(3):
        claim = Claim(P0._replace(partition=number), 1, "me", 7, 1, lease, unfenced=unfenced)
        assert fencing.fence(claim, Deadline.after(1)).unfenced == ()
    assert asked == list(unfenced)


def test_a_producer_is_shut_out_again_under_another_lease(
    broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ZooKeeper lost its data, member epochs begin again, and producers' ids with them."""
    store = broker.store("group")
    asked: list[str] = []

    def note(ids: Collection[str], *_: object) -> None:
        asked.extend(ids)

    monkeypatch.setattr(store, "fence", note)
    fencing = Fencing(store)
    for _ in range(2):
        lease = Lease(60, SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic())
        claim = Claim(P0, 1, "me", 7, 1, lease, unfenced=("headrace.group.b.5",))
        assert not fencing.are_fenced(claim)
        fencing.fence(claim, Deadline.after(1))
        assert fencing.are_fenced(claim)
    assert asked == ["headrace.group.b.5"] * 2
