"""Changing offsets on servers in memory: who is in the way, in which order, and what is left."""

from __future__ import annotations

import pytest

from headrace.channel.offset_stores import MovedOffsets
from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.coordinators.znodes import EpochDocument
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.devstack.wait import wait_for
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import Commit, CommitRefusal, StoredOffset
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.testing import (
    in_memory_channel,
    running,
)
from tests.unit.channel.in_memory import P0, P1, committed
from tests.unit.channel.recorder import PATIENCE, Recorder
from tests.unit.ops.offsets.stage import PATHS, Stage


def test_offsets_are_committed_under_claims_of_their_own(stage: Stage) -> None:
    """Each partition is claimed with a higher epoch, which its commit carries, and given back."""
    stage.move(3, 4)
    stage.move(5, 4)
    assert stage.committed() == [(5, 2), (4, 2)]
    assert stage.left() == []
    ended = stage.epoch(P0)
    assert (ended.epoch, ended.clean_end) == (2, True)
    assert ended.member.startswith("offsets.")


def test_the_next_member_goes_on_from_there(stage: Stage) -> None:
    """It claims above our epoch, so our commit is no stranger's to it."""
    stage.commit(P0, 10, 4)
    stage.move(7, partitions=[P0])
    assert stage.committed()[0] == (7, 5)
    recorder = Recorder()
    channel = in_memory_channel(recorder, stage.broker, zookeeper=stage.zookeeper)
    with running(channel):
        assert committed(stage.broker, P0, 10)
    assert recorder.delivered() == [(7, 10, 1)]
    assert stage.committed()[0] == (10, 6)


def test_epochs_are_raised_above_those_of_commits(stage: Stage) -> None:
    """After a wiped ZooKeeper the commits know higher epochs than the nodes."""
    stage.commit(P0, 10, 41)
    stage.move(0, partitions=[P0])
    assert stage.committed()[0] == (0, 42)
    assert stage.epoch(P0).epoch == 42


def test_an_offset_that_stays_is_committed_again_under_the_claim(stage: Stage) -> None:
    """The epoch in the commit is that of the last claim, as after a member's start."""
    stage.commit(P0, 5, 1)
    stage.move(5, partitions=[P0])
    assert stage.committed()[0] == (5, 2)


def test_an_offset_of_a_former_topic_becomes_one_of_the_present(stage: Stage) -> None:
    """Also where its number stays: a start trusts what was stored for this topic."""
    stage.broker.commit("group", {P0: StoredOffset(5, 1, "a", "former")})
    (change,) = stage.move(5, partitions=[P0])
    assert (change.found.next, change.moves) == (0, True)
    stored = stage.broker.committed("group", P0)
    assert stored is not None
    assert (stored, stored.topic_id) == (StoredOffset(5, 2), "id-1")


def test_partitions_that_were_not_chosen_are_not_touched(stage: Stage) -> None:
    """Offsets and nodes of other partitions stay."""
    stage.commit(P1, 9, 3)
    stage.move(0, partitions=[P0])
    assert stage.committed() == [(0, 1), (9, 3)]
    assert PATHS.epoch(P1) not in stage.zookeeper.paths()


def test_a_running_channel_is_refused(stage: Stage) -> None:
    """The message names the member, its process and how to stop it; nothing has changed."""
    channel = in_memory_channel(Recorder(), stage.broker, zookeeper=stage.zookeeper, member="web-1")
    with running(channel):
        assert committed(stage.broker, P0, 10)
        assert committed(stage.broker, P1, 10)
        with pytest.raises(ChannelRunningError, match=r"web-1 \(process \d+ on .*SIGTERM"):
            stage.move(0, 0)
        assert stage.committed() == [(10, 1), (10, 1)]
    stage.move(0, 0)
    assert stage.committed() == [(0, 2), (0, 2)]


def test_a_member_that_cannot_be_read_is_a_member(stage: Stage) -> None:
    """A later version's node, or one scribbled over, is named all the same."""
    stage.zookeeper.put(f"{PATHS.ids}/future", b'{"version": 9}')
    with pytest.raises(ChannelRunningError, match=r"future.*format version 9"):
        stage.move(0, 0)


def test_subscribed_consumers_are_refused(stage: Stage) -> None:
    """Kafka's own members of the group commit for themselves."""
    stage.subscribers = ["rdkafka at 10.0.0.7"]
    with pytest.raises(ChannelRunningError, match=r"rdkafka at 10\.0\.0\.7"):
        stage.move(0, 0)
    assert (stage.committed(), stage.left()) == ([None, None], [])


def test_a_consumer_that_subscribes_meanwhile_is_refused(stage: Stage) -> None:
    """It is asked again right before the change."""
    stage.meanwhile = lambda: stage.subscribers.append("late at 10.0.0.7")
    with pytest.raises(ChannelRunningError, match="late at"):
        stage.move(0, 0)
    assert stage.committed() == [None, None]


def test_an_owned_partition_is_refused(stage: Stage) -> None:
    """Claims made before the refusal are released."""
    stage.zookeeper.put(PATHS.owner(P1), b"somebody")
    with pytest.raises(ChannelRunningError, match="events-1 is held by an unreadable owner"):
        stage.move(0, 0)
    assert stage.committed() == [None, None]
    assert stage.left() == [PATHS.owner(P1)]


def test_a_member_that_starts_meanwhile_waits(stage: Stage) -> None:
    """It finds the partitions owned, and begins with the new offsets when they are free."""
    stage.commit(P0, 10, 1)
    stage.commit(P1, 10, 1)
    recorder = Recorder()
    channel = in_memory_channel(recorder, stage.broker, zookeeper=stage.zookeeper)

    def start() -> None:
        channel.start(Deadline.after(PATIENCE))
        joined = f"{PATHS.ids}/member"
        assert wait_for(lambda: joined in stage.zookeeper.paths(), Deadline.after(PATIENCE))
        assert recorder.batches == []

    stage.meanwhile = start
    try:
        stage.move(7, 8)
        assert committed(stage.broker, P0, 10)
        assert committed(stage.broker, P1, 10)
    finally:
        channel.stop(Deadline.after(PATIENCE))
    assert recorder.delivered(0) == [(7, 10, 1)]
    assert recorder.delivered(1) == [(8, 10, 1)]


def test_a_lost_session_stops_the_change(stage: Stage) -> None:
    """Our claims end with the session, so that another member may have them."""
    stage.meanwhile = stage.session.expire
    with pytest.raises(HeadraceError, match=r"hold on the group was lost|did not answer"):
        stage.move(0, 0)
    assert stage.committed() == [None, None]


def test_an_overwritten_claim_stops_the_change(stage: Stage) -> None:
    """The epoch node is checked right before the change."""
    document = EpochDocument(9, "other", 1, None, clean_end=False)
    stage.meanwhile = lambda: stage.zookeeper.put(PATHS.epoch(P1), document.encode())
    with pytest.raises(HeadraceError, match="hold on the group was lost"):
        stage.move(0, 0)
    assert stage.committed() == [None, None]


def test_a_hold_that_stood_still_too_long_is_over(stage: Stage) -> None:
    """The lease is asked of the clock, as with every member."""
    stage.meanwhile = lambda: stage.clock.advance(60)
    with pytest.raises(HeadraceError, match="hold on the group was lost"):
        stage.move(0, 0)
    assert stage.committed() == [None, None]


def test_a_plan_that_is_refused_changes_nothing(stage: Stage) -> None:
    """The check's error is raised, and all claims are released."""

    def refuse() -> None:
        raise UsageError("no")

    stage.meanwhile = refuse
    with pytest.raises(UsageError, match="no"):
        stage.move(0, 0)
    assert (stage.committed(), stage.left()) == ([None, None], [])


def test_former_owners_are_shut_out_first(stage: Stage) -> None:
    """One that commits through transactions cannot any more, and the next owner need not care."""
    former = EpochDocument(3, "old", 1, "headrace.group.old.1", clean_end=False)
    stage.zookeeper.put(PATHS.epoch(P0), former.encode())
    stage.move(1, 1)
    late = Commit(9, 3, "old", transactional_id="headrace.group.old.1")
    failures = stage.broker.store("group").commit({P0: late}, Deadline.after(PATIENCE))
    assert failures[P0].refusal is CommitRefusal.MEMBERSHIP
    assert stage.committed() == [(1, 4), (1, 1)]
    assert stage.epoch(P0).unfenced == ()


def test_a_former_owner_that_cannot_be_shut_out_stops_the_change(stage: Stage) -> None:
    """No offset is changed, and the producer's name stays for the next owner."""
    former = EpochDocument(3, "old", 1, "headrace.group.old.1", clean_end=False)
    stage.zookeeper.put(PATHS.epoch(P0), former.encode())
    stage.meanwhile = pytest.fail

    def silent() -> list[str]:
        stage.broker.down = True
        return []

    stage.ask = silent
    with pytest.raises(OffsetStoreError, match="cannot be fenced"):
        stage.move(1, 1)
    stage.broker.down = False
    assert stage.epoch(P0).unfenced == ("headrace.group.old.1",)


def test_offsets_in_zookeeper_move_under_the_same_claims(stage: Stage) -> None:
    """The store checks the epoch nodes as they were claimed, raised epochs included."""
    nodes = ZooKeeperOffsetStore(stage.session, "group", stage.clock)
    stage.store = MovedOffsets(nodes, stage.broker.store("group"))
    stage.commit(P0, 10, 7)
    stage.move(2, 3)
    deadline = Deadline.after(PATIENCE)
    found = [nodes.read(partition, deadline) for partition in (P0, P1)]
    assert [None if each is None else (each.offset, each.epoch) for each in found] == [
        (2, 8),
        (3, 1),
    ]
    assert stage.committed() == [(10, 7), None]
