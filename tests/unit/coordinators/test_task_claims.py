"""How members that work in tasks claim partitions and give them back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.coordinators.member_info import AssignmentState, MemberInfo
from headrace.coordinators.znodes import MemberDocument
from headrace.core.records import TopicPartition
from tests.unit.coordinators.group import PATHS, Group, Participant, assignment_of

PAIR = ("orders", "payments")
TOGETHER = MemberInfo(frozenset(PAIR), together=True)

#: A member that makes the group a mixed one, and takes none of its partitions.
OTHER = MemberInfo(frozenset({"returns"}))


@pytest.fixture
def group() -> Group:
    """A group of two topics of three partitions."""
    return Group(3, topics=PAIR)


def orders(number: int) -> TopicPartition:
    """Return a partition of the anchors' topic."""
    return TopicPartition("orders", number)


def payments(number: int) -> TopicPartition:
    """Return a partition of the other topic."""
    return TopicPartition("payments", number)


def tasks(*participants: Participant) -> list[list[int]]:
    """Return the whole tasks of each, after a check that they have nothing else."""
    found = [participant.tasks(len(PAIR)) for participant in participants]
    assert [len(p.held) for p in participants] == [len(PAIR) * len(own) for own in found]
    return found


def test_a_third_member_takes_a_whole_task(group: Group) -> None:
    """Three tasks are with two members as two and one, and each of three members has one."""
    a, b = group.join("a", TOGETHER), group.join("b", TOGETHER)
    group.run()
    assert sorted(map(len, tasks(a, b))) == [1, 2]
    c = group.join("c", TOGETHER)
    group.run()
    assert sorted(map(len, tasks(a, b, c))) == [1, 1, 1]
    assert len(a.channel.asked + b.channel.asked) == len(PAIR)


def test_a_task_is_claimed_once_all_of_it_is_free(group: Group) -> None:
    """No part of a task is claimed while another member gives it back piece by piece."""
    a = group.join("a", TOGETHER)
    group.run()
    a.channel.gives_back = False
    b = group.join("b", TOGETHER)
    group.run()
    first, second = a.channel.asked
    assert {first.partition.topic, second.partition.topic} == set(PAIR)
    a.channel.release(first)
    group.run()
    assert b.held == []
    assert assignment_of(b) is AssignmentState.PENDING
    a.channel.release(second)
    group.run()
    assert tasks(a, b) == [a.tasks(2), [first.partition.partition]]


@pytest.mark.parametrize("lost", [orders(1), payments(1)])
def test_the_rest_of_a_task_is_given_back_with_a_lost_claim(
    group: Group, lost: TopicPartition
) -> None:
    """An owner node that a hand removes costs the whole task, which is claimed anew as one."""
    a = group.join("a", TOGETHER)
    group.run()
    before = dict(a.channel.held)
    group.zookeeper.remove(PATHS.owner(lost))
    group.run()
    assert tasks(a) == [[0, 1, 2]]
    [claim] = a.channel.asked
    assert claim.partition.partition == lost.partition
    assert claim.partition != lost
    renewed = {p for p, claim in a.channel.held.items() if claim.epoch > before[p].epoch}
    assert renewed == {orders(1), payments(1)}


@pytest.mark.parametrize("others", [[], [OTHER]], ids=["in tasks", "mixed"])
def test_a_lost_part_comes_back_after_the_rest_of_its_task_has_ended(
    group: Group, others: list[MemberInfo]
) -> None:
    """A part is not claimed while the channel has not finished with another one of the task."""
    a = group.join("a", TOGETHER)
    for info in others:
        group.join("b", info)
    group.run()
    a.channel.gives_back = False
    group.zookeeper.remove(PATHS.owner(orders(1)))
    group.run()
    assert sorted(a.channel.held.keys() & {orders(1), payments(1)}) == [payments(1)]
    [claim] = a.channel.asked
    a.channel.release(claim)
    group.run()
    assert tasks(a) == [[0, 1, 2]]


@pytest.mark.parametrize("others", [[], [OTHER]], ids=["in tasks", "mixed"])
@pytest.mark.parametrize("lost", [orders(1), payments(1)])
def test_a_channel_that_is_slow_to_finish_gives_a_task_back_once(
    group: Group, others: list[MemberInfo], lost: TopicPartition
) -> None:
    """The parts of a task do not come and go in turn: each is claimed anew a single time."""
    a = group.join("a", TOGETHER)
    for info in others:
        group.join("b", info)
    group.run()
    before = dict(a.channel.held)
    a.channel.gives_back = False
    group.zookeeper.remove(PATHS.owner(lost))
    for _ in range(10):
        # longer than the pause until the member looks at the group again
        group.run(1.0)
        for claim in a.channel.asked:
            if a.channel.held.get(claim.partition) == claim:
                a.channel.release(claim)
    assert tasks(a) == [[0, 1, 2]]
    renewed = {p: claim.epoch - before[p].epoch for p, claim in a.channel.held.items()}
    assert {p: times for p, times in renewed.items() if times} == {orders(1): 1, payments(1): 1}


@pytest.mark.parametrize("clean", [True, False])
def test_the_rest_of_a_task_is_given_back_with_a_claim_that_its_channel_ends(
    group: Group, *, clean: bool
) -> None:
    """A channel that gives one partition up unasked is asked for the others of the task."""
    a = group.join("a", TOGETHER)
    group.run()
    a.channel.release(a.channel.held[payments(2)], clean=clean)
    group.run()
    assert [claim.partition for claim in a.channel.asked] == [orders(2)]
    assert tasks(a) == [[0, 1, 2]]


def test_an_abandoned_partition_takes_its_task_to_another_member(group: Group) -> None:
    """The other member takes all of a task of which one partition cannot be started."""
    a, b = group.join("a", TOGETHER), group.join("b", TOGETHER)
    group.run()
    number = a.tasks(2)[0]
    a.channel.abandon(payments(number))
    group.run()
    assert number in tasks(a, b)[1]


def test_a_task_waits_until_the_last_of_its_partitions_may_be_tried_again(group: Group) -> None:
    """A member that is alone claims no other part of the task while one is avoided."""
    a = group.join("a", TOGETHER)
    group.run()
    a.channel.abandon(payments(0))
    group.run(5)
    assert tasks(a) == [[1, 2]]
    group.run(10)
    assert tasks(a) == [[0, 1, 2]]


def test_a_partition_that_is_left_out_takes_its_task_along(group: Group) -> None:
    """The drain of a partition gives its task to another member, and its end takes it again."""
    a = group.join("a", TOGETHER)
    group.run()
    a.member.rebalance.leave_out([payments(1)])
    group.run()
    assert tasks(a) == [[0, 2]]
    b = group.join("b", TOGETHER)
    group.run()
    assert 1 in tasks(a, b)[1]
    b.member.drain()
    a.member.rebalance.leave_out([])
    group.run()
    assert tasks(a, b) == [[0, 1, 2], []]


def test_a_part_is_given_back_where_the_rest_cannot_be_claimed(group: Group) -> None:
    """A task with an epoch node of a later format is left to whoever can read it, as a whole."""
    group.zookeeper.put(PATHS.epoch(payments(1)), b'{"version": 99}')
    a = group.join("a", TOGETHER)
    group.run()
    assert tasks(a) == [[0, 2]]
    assert a.channel.summary is not None
    assert a.channel.summary.pending == {orders(1), payments(1)}


def test_a_lease_that_ends_asks_for_nothing(group: Group) -> None:
    """With all claims lost at once the channel hears of the losses alone."""
    a = group.join("a", TOGETHER)
    group.run()
    a.session.suspend()
    group.run(20)
    assert len(a.channel.lost) == 6
    assert a.channel.asked == []


def test_a_member_without_tasks_is_named(group: Group) -> None:
    """In a mixed group every partition has an owner, and both members see who works otherwise."""
    a, b = group.join("a", TOGETHER), group.join("b", replace(TOGETHER, together=False))
    group.run()
    assert sorted([*a.held, *b.held]) == [0, 0, 1, 1, 2, 2]
    for participant in (a, b):
        assert participant.channel.summary is not None
        assert participant.channel.summary.without_tasks == ("b",)
    group.crash(b)
    group.run()
    assert tasks(a) == [[0, 1, 2]]
    assert a.channel.summary is not None
    assert a.channel.summary.without_tasks == ()


def test_a_returning_member_claims_its_whole_tasks_at_once(group: Group) -> None:
    """The member takes its former tasks before the group has settled, each as a whole."""
    a = group.join("a", TOGETHER)
    group.run()
    group.crash(a)
    again = group.join("a", TOGETHER)
    group.run(0.4)
    assert tasks(again) == [[0, 1, 2]]


def test_a_member_of_an_earlier_version_is_read_as_one_without_tasks() -> None:
    """The key is there where it says something: nodes of other channels stay as they are."""
    plain = MemberDocument(replace(TOGETHER, together=False), "h", 1, 0.0, "s")
    assert b"together" not in plain.encode()
    assert MemberDocument.decode("", plain.encode()) == plain
    tasked = MemberDocument(TOGETHER, "h", 1, 0.0, "s")
    assert MemberDocument.decode("", tasked.encode()) == tasked
