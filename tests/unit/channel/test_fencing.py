"""A whole channel whose offsets are refused or overwritten by somebody else."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.channel.offset_stores import Fencing
from headrace.coordinators.claims import Claim
from headrace.coordinators.lease import Lease
from headrace.coordinators.znodes import EpochDocument, GroupPaths
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.kafka.ports import Commit, OffsetStoreError
from headrace.testing import InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, values
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
    """What a crashed member's producer sends after the takeover is refused, and stays refused."""
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


def test_a_partition_waits_until_its_former_owner_is_shut_out(broker: InMemoryBroker) -> None:
    """Nothing is delivered while the producer of a former owner may still commit."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=False, unfenced=(OLDER,))
    zookeeper.put(PATHS.epoch(P0), former.encode())
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper)
    broker.produce(P0, *values(1))
    fence = channel._runtime.store.fence
    asked: list[list[str]] = []

    def refuse(ids: list[str], partition: TopicPartition, deadline: Deadline) -> None:
        asked.append(ids)
        if len(asked) < 3:
            raise OffsetStoreError("not just now")
        assert recorder.names() == []
        fence(ids, partition, deadline)

    channel._runtime.store.fence = refuse  # type: ignore[method-assign,assignment]
    with running(channel):
        assert committed(broker, P0, 1)
    assert asked == [[OLDER, GONE]] * 3


def test_a_claim_that_ends_before_it_fenced_hands_the_duty_down(broker: InMemoryBroker) -> None:
    """The epoch node goes on to name a producer that nobody could shut out."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=False)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper)
    tried_once = Event()

    def refuse(*_: object) -> None:
        tried_once.set()
        raise OffsetStoreError("never")

    channel._runtime.store.fence = refuse  # type: ignore[method-assign,assignment]
    with running(channel):
        assert committed(broker, P1, 0)
        assert tried_once.wait(PATIENCE)
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
    channel = in_memory_channel(Recorder(), broker, zookeeper=zookeeper, offsets=TRANSACTIONS)
    find, tried_once = channel._runtime.store.find, Event()

    def undecided(
        partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        if P0 in partitions:
            if zookeeper.node(PATHS.owner(P0)) is not None:
                tried_once.set()
            raise OffsetStoreError("a commit is not decided yet")
        return find(partitions, deadline)

    channel._runtime.store.find = undecided  # type: ignore[method-assign]
    with running(channel):
        assert tried_once.wait(PATIENCE)
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
