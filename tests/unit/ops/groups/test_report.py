"""Reports on a group from outside, with running members and without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.coordinators.znodes import OffsetDocument, OwnerDocument
from headrace.kafka.errors import KafkaUnavailableError
from headrace.ops.groups.report import GroupActivity, OffsetPlace, OwnershipState
from headrace.testing.broker import InMemoryCatalog
from headrace.version import VERSION
from tests.unit.coordinators.group import INFO, PATHS, TOPIC, partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.clock import Deadline
    from headrace.core.records import TopicPartition
    from headrace.sinks import OffsetMove
    from tests.unit.ops.groups.scene import Scene

OWNED, MOVING, PENDING = OwnershipState.OWNED, OwnershipState.MOVING, OwnershipState.PENDING
UNOWNED, FOREIGN, UNKNOWN = OwnershipState.UNOWNED, OwnershipState.FOREIGN, OwnershipState.UNKNOWN


def test_members_and_what_they_own(scene: Scene) -> None:
    """Each member with what it published, and each partition with its owner and epoch."""
    scene.group.join("a", replace(INFO, weight=2))
    scene.group.join("b")
    scene.group.run()
    report = scene.look()
    assert report.activity is GroupActivity.RUNNING
    assert [(member.name, member.owned) for member in report.members] == [("a", 3), ("b", 1)]
    document = report.members[0].document
    assert document is not None
    assert (document.info.mode, document.info.weight) == (AssignmentMode.DYNAMIC, 2)
    assert document.software == VERSION
    assert scene.standings() == [OWNED] * 4
    assert {each.owner for each in report.partitions} == {"a", "b"}
    assert [each.owner for each in report.partitions] == [
        each.meant_for for each in report.partitions
    ]
    assert [each.epoch for each in report.partitions] == [1] * 4
    assert (report.errors, report.unknown_topics, dict(report.foreign)) == ((), (), {})


def test_a_look_leaves_no_trace(scene: Scene) -> None:
    """No node is created or changed, neither of a group that runs nor of one that never did."""
    before = scene.group.zookeeper.paths()
    scene.look()
    assert scene.group.zookeeper.paths() == before
    scene.group.join("a")
    scene.group.run()
    nodes = {p: scene.group.zookeeper.node(p) for p in scene.group.zookeeper.paths()}
    scene.look()
    assert {p: scene.group.zookeeper.node(p) for p in scene.group.zookeeper.paths()} == nodes
    assert scene.broker.commits == []


def test_a_group_that_never_ran_is_no_error(scene: Scene) -> None:
    """The partitions are listed without owners."""
    report = scene.look()
    assert report.activity is GroupActivity.NEVER_RUN
    assert report.errors == ()
    assert report.members == ()
    assert scene.standings() == [UNOWNED] * 4


def test_a_stopped_group_tells_how_its_claims_ended(scene: Scene) -> None:
    """Each partition has its last owner, and whether its claim ended cleanly."""
    a, b = scene.group.join("a"), scene.group.join("b")
    scene.group.run()
    owners = {each.partition: each.owner for each in scene.look().partitions}
    scene.group.crash(b)
    a.member.drain()
    scene.group.run(0.4)
    assert a.member.leave() == ()
    report = scene.look()
    assert report.activity is GroupActivity.STOPPED
    latest = {each.partition: each.latest for each in report.partitions}
    assert {p: None if d is None else (d.member, d.clean_end) for p, d in latest.items()} == {
        p: (owner, owner == "a") for p, owner in owners.items()
    }


def test_a_partition_on_its_way_is_pending_or_moving(scene: Scene) -> None:
    """A partition is pending before its first claim, and moving until its owner releases it."""
    a = scene.group.join("a")
    scene.group.run(0.2)
    assert scene.standings() == [PENDING] * 4
    scene.group.run()
    a.channel.gives_back = False
    scene.group.join("b")
    scene.group.run()
    moving = scene.look().ownership(MOVING)
    assert [(each.owner, each.meant_for) for each in moving] == [("a", "b")] * 2
    assert len(scene.look().ownership(OWNED)) == 2


def test_a_free_partition_is_meant_for_its_last_owner(scene: Scene) -> None:
    """The report plans as the members do, or it would name others."""
    members = scene.group.join("b"), scene.group.join("a")
    scene.group.run()
    running = scene.look()
    for member in members:
        scene.group.crash(member)
    for each in running.members:
        assert each.document is not None
        scene.group.zookeeper.put(PATHS.member(each.name), each.document.encode())
    pending = scene.look().ownership(PENDING)
    assert [(each.partition, each.meant_for) for each in pending] == [
        (each.partition, each.owner) for each in running.partitions
    ]


def test_faults_of_static_lists_are_reported(scene: Scene) -> None:
    """A partition in two lists is contended, one that does not exist is missing."""
    static = MemberInfo(frozenset({TOPIC}), AssignmentMode.STATIC, lists={TOPIC: (0, 1, 9)})
    scene.group.join("a", static)
    scene.group.join("b", replace(static, lists={TOPIC: (1, 2)}))
    scene.group.run()
    report = scene.look()
    assert dict(report.contended) == {partition(1): ("a", "b")}
    assert dict(report.missing) == {"a": (partition(9),)}
    assert scene.standings() == [OWNED, OWNED, OWNED, UNOWNED]


def test_unassigned_partitions_and_mixed_modes_are_reported(scene: Scene) -> None:
    """A partition beyond fixed numbers is unowned, and the modes of all members are named."""
    scene.group.join(
        "a", MemberInfo(frozenset({TOPIC}), AssignmentMode.FIXED_COUNT, partitions_per_topic=3)
    )
    scene.group.run()
    assert scene.standings().count(UNOWNED) == 1
    scene.group.join("b")
    scene.group.run()
    report = scene.look()
    assert report.modes == {AssignmentMode.FIXED_COUNT, AssignmentMode.DYNAMIC}
    assert scene.standings() == [OWNED] * 4


def test_a_member_that_publishes_no_warm_tasks_is_named(scene: Scene) -> None:
    """One of an earlier version is named, and no member where none publishes any."""
    silent = replace(INFO, together=True)
    scene.group.join("a", silent)
    scene.group.run()
    assert scene.look().without_warm == ()
    scene.group.join("b", replace(silent, warm=frozenset()))
    scene.group.run()
    assert scene.look().without_warm == ("a",)


def test_a_task_that_is_not_whole_says_what_it_waits_for(scene: Scene) -> None:
    """Each part of a task in two hands names the other one, and a member without tasks is named."""
    scene.broker.create_topic("payments", 4)
    scene.group.counts = {TOPIC: 4, "payments": 4}
    together = replace(INFO, topics=frozenset(scene.group.counts), together=True)
    whole = scene.group.join("a", together)
    scene.group.run()
    assert not any("waits for" in note for each in scene.look().partitions for note in each.notes)
    scene.group.join("b", replace(together, together=False))
    scene.group.run()
    report = scene.look()
    assert report.without_tasks == ("b",)
    owned = {each.partition for each in whole.channel.held.values()}
    for each in report.partitions:
        topic = TOPIC if each.partition.topic == "payments" else "payments"
        other = each.partition._replace(topic=topic)
        halved = each.owner == "a" and other not in owned
        waits = [note for note in each.notes if note.startswith("waits for")]
        assert waits == ([f"waits for {other}"] if halved else [])


def test_owners_that_are_no_members(scene: Scene) -> None:
    """A stranger's and an unreadable owner node make a partition foreign, and are explained."""
    stranger = OwnerDocument("x", 1, 1, "h", 0)
    scene.group.zookeeper.put(PATHS.owner(partition(0)), stranger.encode())
    scene.group.zookeeper.put(PATHS.owner(partition(1)), b"scribble")
    scene.group.join("a")
    scene.group.run()
    report = scene.look()
    assert dict(report.foreign) == {partition(0): "x", partition(1): ""}
    assert scene.standings() == [FOREIGN, FOREIGN, OWNED, OWNED]
    assert "x is no member" in report.partitions[0].notes
    assert any("is not JSON" in note for note in report.partitions[1].notes)


def test_an_unreadable_member_is_shown_with_its_problem(scene: Scene) -> None:
    """The problem of the member's node is in its row."""
    scene.group.zookeeper.put(PATHS.member("x"), b"scribble")
    (member,) = scene.look().members
    assert (member.name, member.document) == ("x", None)
    assert member.problem is not None
    assert "is not JSON" in member.problem


def test_a_partition_of_a_later_version_says_why_it_waits(scene: Scene) -> None:
    """The epoch node is kept, so no member of this version can claim it."""
    scene.group.zookeeper.put(PATHS.epoch(partition(0)), b'{"version":2}')
    scene.group.join("a")
    scene.group.run()
    found = scene.partition(0)
    assert (found.ownership, found.meant_for, found.epoch) == (PENDING, "a", None)
    assert any("format version 2" in note for note in found.notes)


def test_claims_that_cannot_take_effect_are_noted(scene: Scene) -> None:
    """Owner nodes of an earlier start, or with another epoch, are noted."""
    a = scene.group.join("a")
    scene.group.run()
    claim = a.channel.held[partition(0)]
    stale = OwnerDocument("a", claim.member_epoch - 1, claim.epoch, "h", 0)
    scene.group.zookeeper.put(PATHS.owner(partition(0)), stale.encode())
    assert "the claim is of another start of a" in scene.partition(0).notes
    stale = OwnerDocument("a", claim.member_epoch, 7, "h", 0)
    scene.group.zookeeper.put(PATHS.owner(partition(0)), stale.encode())
    assert any("with epoch 7" in note for note in scene.partition(0).notes)
    scene.group.zookeeper.remove(PATHS.epoch(partition(0)))
    assert "its epoch node is gone" in scene.partition(0).notes


def test_owned_partitions_that_do_not_exist_are_shown(scene: Scene) -> None:
    """Their owner is about to give them back."""
    scene.group.join("a")
    scene.group.run()
    scene.broker.delete_topic(TOPIC)
    report = scene.look()
    assert report.unknown_topics == (TOPIC,)
    assert scene.standings() == [MOVING] * 4
    assert "it does not exist on the brokers" in scene.partition(0).notes


# --- offsets ---------------------------------------------------------------------------------


def test_the_offset_of_the_later_claim_counts(scene: Scene) -> None:
    """Kafka's or ZooKeeper's, whichever has the higher epoch."""
    scene.broker.produce(partition(0), *[b""] * 10)
    assert scene.partition(0).kept_in is None
    scene.commit(0, 4, epoch=2)
    assert scene.partition(0).kept_in is OffsetPlace.KAFKA
    for epoch, place, offset in ((1, OffsetPlace.KAFKA, 4), (3, OffsetPlace.ZOOKEEPER, 6)):
        document = OffsetDocument(6, epoch, "a", 0)
        scene.group.zookeeper.put(PATHS.offset(partition(0)), document.encode())
        found = scene.partition(0)
        assert found.offsets is not None
        assert (found.kept_in, found.offsets.next) == (place, offset)


class MovableOffsets:
    """A sink that has every partition at 8."""

    def stored_offset(self, _identity: str) -> int | None:
        """Return it."""
        return 8

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Refuse."""
        raise AssertionError((moves, note))


def test_the_sinks_offset_wins(scene: Scene) -> None:
    """A disagreement is noted without members; with them the sink is ahead at times."""
    scene.sink_offsets = MovableOffsets()
    scene.broker.produce(partition(0), *[b""] * 10)
    scene.commit(0, 7)
    found = scene.partition(0)
    assert found.kept_in is OffsetPlace.SINK
    assert found.offsets is not None
    assert found.offsets.next == 8
    assert found.notes == ("the sink's offset counts, not the group's",)
    scene.group.join("a")
    scene.group.run()
    assert scene.partition(0).notes == ()


class Leaderless(InMemoryCatalog):
    """A catalog that gets no answer for one partition."""

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Answer for the others."""
        if partition.partition == 1:
            raise KafkaUnavailableError(f"the leader of {partition} did not answer")
        return super().watermarks(partition, deadline)


def test_a_partition_without_a_leader_holds_up_no_other(scene: Scene) -> None:
    """The partition has a note, and the others are reported."""
    scene.catalog = Leaderless(scene.broker)
    scene.group.join("a")
    scene.group.run()
    report = scene.look()
    assert [each.offsets is None for each in report.partitions] == [False, True, False, False]
    assert report.partitions[1].notes == (f"the leader of {TOPIC}-1 did not answer",)
    assert scene.standings() == [OWNED] * 4


# --- what does not answer --------------------------------------------------------------------


@pytest.mark.parametrize("members", [0, 1])
def test_without_kafka_the_nodes_are_shown(scene: Scene, members: int) -> None:
    """Owners and epochs are known; what is to be is not."""
    scene.group.join("a")
    scene.group.run()
    if not members:
        scene.group.crash(scene.group.participants[0])
    scene.broker.down = True
    report = scene.look()
    assert report.errors == ("the broker in memory is down",)
    assert scene.standings() == [OWNED if members else UNKNOWN] * 4
    assert [each.epoch for each in report.partitions] == [1] * 4
    assert report.unknown_topics == ()


def test_without_zookeeper_the_offsets_are_shown(scene: Scene) -> None:
    """Positions are known; members and owners are not."""
    scene.broker.produce(partition(0), b"")
    scene.commit(0, 1)
    scene.zookeeper_down = True
    report = scene.look()
    assert report.activity is GroupActivity.UNKNOWN
    assert len(report.errors) == 1
    assert scene.standings() == [UNKNOWN] * 4
    assert report.partitions[0].offsets is not None
    assert report.partitions[0].offsets.next == 1
