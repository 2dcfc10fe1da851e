"""Allocation by task: partition i of each topic goes to one member."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinators.allocation import Allocation, allocate
from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.core.records import TopicPartition, all_partitions
from tests.unit.coordinators.strategies import TOPICS, Owners, groups_in_tasks
from tests.unit.coordinators.test_allocation import fewest_moves, totals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

Drawn = tuple[dict[str, MemberInfo], dict[str, int], Owners]

PAIR = frozenset({"orders", "payments"})
TOGETHER = MemberInfo(PAIR, together=True)


def p(topic: str, number: int) -> TopicPartition:
    """Return a partition."""
    return TopicPartition(topic, number)


def pair(partitions: int) -> list[TopicPartition]:
    """Return the partitions of two topics that have so many each."""
    return all_partitions(dict.fromkeys(PAIR, partitions))


def tasks_of(allocation: Allocation) -> dict[int, set[str]]:
    """Return the members that are to have parts of each task."""
    found: dict[int, set[str]] = {}
    for partition, owner in allocation.owners.items():
        found.setdefault(partition.partition, set()).add(owner)
    return found


def anchors(counts: Mapping[str, int], owners: Owners) -> tuple[str, dict[str, int], Owners]:
    """Return the anchor's topic, its count, and who each task counts as that of."""
    anchor = min(counts)
    held: Owners = {}
    for partition, owner in sorted(owners.items(), reverse=True):
        held[p(anchor, partition.partition)] = owner
    return anchor, {anchor: counts[anchor]}, held


@given(groups_in_tasks(weight=3))
def test_each_task_goes_to_one_member(group: Drawn) -> None:
    """All partitions of a task have the same owner, none is left, and shares are even by weight."""
    members, counts, owners = group
    allocation = allocate(members, all_partitions(counts), owners)
    assert allocation.by_task
    assert not allocation.unowned
    assert all(len(takers) == 1 for takers in tasks_of(allocation).values())
    assert len(allocation.owners) == sum(counts.values())
    whole = sum(info.weight for info in members.values())
    count = next(iter(counts.values()))
    for name, info in members.items():
        number = len(allocation.of(name)) / len(counts)
        assert abs(number - count * info.weight / whole) < 1


@given(groups_in_tasks(members=4, weight=3))
def test_tasks_are_moved_no_more_than_they_must(group: Drawn) -> None:
    """The number of tasks that change their member is the least of all fair spreads."""
    members, counts, owners = group
    allocation = allocate(members, all_partitions(counts), owners)
    _, of_anchor, held = anchors(counts, owners)
    moved = sum(allocation.owners[anchor] != owner for anchor, owner in held.items())
    assert moved == fewest_moves(members, of_anchor, held)


@given(groups_in_tasks(weight=3), st.sampled_from(AssignmentMode), st.data())
def test_tasks_are_allocated_as_partitions_of_their_anchor(
    group: Drawn, mode: AssignmentMode, data: st.DataObject
) -> None:
    """In every mode, and with partitions to avoid, the map of anchors is that of their topic."""
    members, counts, owners = group
    anchor, of_anchor, held = anchors(counts, owners)
    partitions = all_partitions(counts)
    some = st.frozensets(st.sampled_from(partitions or [p("x", 0)]), max_size=3)
    numbers = st.frozensets(st.integers(0, 9), max_size=5).map(lambda found: tuple(sorted(found)))
    for name in members:
        members[name] = replace(
            members[name],
            mode=mode,
            partitions_per_topic=data.draw(st.integers(0, 4)),
            lists=dict.fromkeys(counts, data.draw(numbers)),
            cooldown=data.draw(some),
        )
    alone = {
        name: replace(
            info,
            topics=frozenset({anchor}),
            lists={anchor: info.lists[anchor]},
            cooldown=frozenset(p(anchor, each.partition) for each in info.cooldown),
            together=False,
        )
        for name, info in members.items()
    }
    found = allocate(members, partitions, owners)
    expected = allocate(alone, all_partitions(of_anchor), held)
    assert found.owners == {
        partition: expected.owners[p(anchor, partition.partition)]
        for partition in partitions
        if p(anchor, partition.partition) in expected.owners
    }
    contended = {p(anchor, each.partition) for each in found.contended}
    assert contended == set(expected.contended)


@given(groups_in_tasks(weight=3), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter_to_tasks(group: Drawn, random: Random) -> None:
    """All members come to the same result, in whatever order they read the group."""
    members, counts, owners = group
    partitions = all_partitions(counts)
    expected = allocate(members, partitions, owners)
    shuffled_members, shuffled_owners = list(members.items()), list(owners.items())
    for each in (shuffled_members, shuffled_owners, partitions):
        random.shuffle(each)
    assert allocate(dict(shuffled_members), partitions, dict(shuffled_owners)) == expected


@given(groups_in_tasks(weight=3), st.randoms(use_true_random=False))
def test_members_that_move_parts_of_tasks_come_to_rest(group: Drawn, random: Random) -> None:
    """From any state, partition by partition in any order, each task comes to one member."""
    members, counts, owners = group
    partitions = all_partitions(counts)
    for _ in range(4 * len(partitions) + 1):
        allocation = allocate(members, partitions, owners)
        surplus = [each for each, owner in owners.items() if allocation.owners[each] != owner]
        free = [each for each in partitions if each not in owners]
        if not surplus and not free:
            break
        partition = random.choice(sorted(surplus + free))
        if partition in owners:
            del owners[partition]
        else:
            owners[partition] = allocation.owners[partition]
    assert allocate(members, partitions, owners).owners == owners


@given(groups_in_tasks(weight=3))
def test_members_that_move_tasks_at_once_come_to_rest(group: Drawn) -> None:
    """When all see the same state and act together, one round gives back and the next claims."""
    members, counts, owners = group
    partitions = all_partitions(counts)
    for _ in range(2):
        allocation = allocate(members, partitions, owners)
        kept = {each: owner for each, owner in owners.items() if allocation.owners[each] == owner}
        owners = kept | {each: allocation.owners[each] for each in partitions if each not in owners}
    assert allocate(members, partitions, owners).owners == owners


@given(groups_in_tasks(weight=3), st.data())
def test_a_member_that_does_not_work_in_tasks_has_partitions_allocated(
    group: Drawn, data: st.DataObject
) -> None:
    """One active member without ``together`` makes the map that of partitions, and is named."""
    members, counts, owners = group
    apart = data.draw(st.sets(st.sampled_from(sorted(members)), min_size=1))
    mixed = {name: replace(info, together=name not in apart) for name, info in members.items()}
    today = {name: replace(info, together=False) for name, info in members.items()}
    partitions = all_partitions(counts)
    found, expected = (allocate(each, partitions, owners) for each in (mixed, today))
    named = tuple(sorted(apart)) if len(apart) < len(members) else ()
    assert found == replace(expected, without_tasks=named)
    gone = {n: replace(info, draining=n in apart) for n, info in mixed.items()}
    assert allocate(gone, partitions, owners).by_task is (len(apart) < len(members))


def test_the_example_of_three_tasks() -> None:
    """Two topics of 3 partitions: two members have 4 and 2, and a third one gets a task."""
    two = {"a": TOGETHER, "b": TOGETHER}
    allocation = allocate(two, pair(3), {})
    assert sorted(totals(allocation, two)) == [2, 4]
    three = two | {"c": TOGETHER}
    later = allocate(three, pair(3), allocation.owners)
    assert totals(later, three) == [2, 2, 2]
    moved = [each for each, owner in allocation.owners.items() if later.owners[each] != owner]
    assert len({each.partition for each in moved}) == 1


def test_members_of_one_topic_have_nothing_to_say_of_tasks() -> None:
    """A member of an earlier version is not named while all work on one topic."""
    one = MemberInfo(frozenset({"orders"}), together=True)
    members = {"a": one, "b": replace(one, together=False)}
    assert allocate(members, all_partitions({"orders": 4}), {}).without_tasks == ()
    assert not allocate({"a": one}, all_partitions({"orders": 4}), {}).by_task


def test_a_topic_that_only_some_members_read_follows_its_task() -> None:
    """While a topic is added, member by member, tasks stay where they are, also as others see it.

    Its partitions are with the member that has the task, if that reads it.
    """
    more = replace(TOGETHER, topics=PAIR | {"accounts"})
    members = {"a": TOGETHER, "b": more}
    owners = dict(allocate({"a": TOGETHER, "b": TOGETHER}, pair(4), {}).owners)
    all_three = all_partitions(dict.fromkeys(more.topics, 4))
    seen_by_a = allocate(members, pair(4), owners)
    seen_by_b = allocate(members, all_three, owners)
    assert seen_by_a.owners == owners
    assert {each: o for each, o in seen_by_b.owners.items() if each.topic in PAIR} == owners
    of_b = {each.partition for each in seen_by_b.of("b") if each.topic == "accounts"}
    assert of_b == {each.partition for each, owner in owners.items() if owner == "b"}
    assert {each.topic for each in seen_by_b.unowned} == {"accounts"}


def test_members_that_share_no_topic_have_tasks_of_their_own() -> None:
    """A group of two subscriptions has the tasks of each, and those without a common topic none."""
    clicks = MemberInfo(frozenset({"clicks"}), together=True)
    members = {"a": TOGETHER, "b": TOGETHER, "c": clicks}
    allocation = allocate(members, [*pair(4), *all_partitions({"clicks": 3})], {})
    assert totals(allocation, members) == [4, 4, 3]
    assert all(len(takers - {"c"}) == 1 for takers in tasks_of(allocation).values())
    chain = {
        name: MemberInfo(frozenset(topics), together=True)
        for name, topics in {"a": "xy", "b": "yz", "c": "zx"}.items()
    }
    partitions = all_partitions(dict.fromkeys("xyz", 2))
    today = {name: replace(info, together=False) for name, info in chain.items()}
    found, expected = (allocate(each, partitions, {}).owners for each in (chain, today))
    assert found == expected


def test_a_task_with_a_foreign_partition_is_left_alone() -> None:
    """The other partitions go to no member, and one that has them gives them back."""
    owners = {p("orders", 0): "a", p("payments", 0): "stranger", p("payments", 1): "stranger"}
    allocation = allocate({"a": TOGETHER, "b": TOGETHER}, pair(4), owners)
    assert {each.partition for each in allocation.owners} == {2, 3}
    assert allocation.unowned == {p("orders", 0), p("orders", 1)}
    assert set(allocation.foreign) == {p("payments", 0), p("payments", 1)}


def test_a_task_of_which_a_partition_does_not_exist_is_not_given() -> None:
    """The tasks of before are as they were after one topic has grown alone."""
    partitions = all_partitions({"orders": 4, "payments": 3})
    allocation = allocate({"a": TOGETHER, "b": TOGETHER}, partitions, {})
    assert {each.partition for each in allocation.owners} == {0, 1, 2}
    assert allocation.unowned == {p("orders", 3)}


@pytest.mark.parametrize("topics", [PAIR, TOPICS[:3]])
def test_a_half_counts_as_its_owners_before_the_one_of_a_later_topic(
    topics: frozenset[str],
) -> None:
    """The member of the first topic keeps a task in two hands, before the anchor's former one."""
    info = MemberInfo(frozenset(topics), together=True)
    members = {"a": info, "b": info}
    first, second, *_ = sorted(topics)
    partitions = all_partitions(dict.fromkeys(topics, 2))
    halves = {p(first, 0): "a", p(second, 0): "b"}
    assert allocate(members, partitions, halves).owners[p(second, 0)] == "a"
    later = {p(second, 0): "b"}
    assert allocate(members, partitions, later, {p(first, 0): "a"}).owners[p(first, 0)] == "b"


def test_fixed_counts_are_of_tasks() -> None:
    """Each member has its number of tasks, and the others are reported partition by partition."""
    fixed = replace(TOGETHER, mode=AssignmentMode.FIXED_COUNT, partitions_per_topic=2)
    members = {"a": fixed, "b": fixed}
    allocation = allocate(members, pair(5), {p("payments", 4): "a"})
    assert Counter(tasks_of(allocation)[n].pop() for n in tasks_of(allocation)) == {"a": 2, "b": 2}
    assert allocation.owners[p("orders", 4)] == "a"
    assert len(allocation.unowned) == 2


def test_a_list_of_the_anchor_says_for_all_topics() -> None:
    """A list names tasks: by the anchor's partitions alone, or by the same ones of each topic."""
    short = replace(TOGETHER, mode=AssignmentMode.STATIC, lists={"orders": (0, 9)})
    full = replace(short, lists={"orders": (1,), "payments": (1,)})
    allocation = allocate({"a": short, "b": full}, pair(3), {})
    assert allocation.of("a") == {p("orders", 0), p("payments", 0)}
    assert allocation.of("b") == {p("orders", 1), p("payments", 1)}
    assert allocation.missing == {"a": (p("orders", 9),)}
    assert allocation.unowned == {p("orders", 2), p("payments", 2)}
