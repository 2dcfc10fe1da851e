"""Tasks with state go to members that are warm for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinators.allocation import allocate
from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.coordinators.warm import settle_warm
from headrace.coordinators.znodes import MemberDocument
from headrace.core.records import TopicPartition, all_partitions
from tests.unit.coordinators.strategies import groups_in_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.coordinators.strategies import Owners

TOPIC = "orders"

#: Tasks that a member makes itself warm for at a time.
WARMUPS = 2

Group = tuple[dict[str, MemberInfo], dict[str, int], "Owners"]


def member(*warm: int, **others: object) -> MemberInfo:
    """Return a member that is warm for tasks."""
    return MemberInfo(frozenset({TOPIC}), together=True, warm=frozenset(warm), **others)  # type: ignore[arg-type]


def tasks(owners: Mapping[int, str]) -> Owners:
    """Return owners by number as those of partitions."""
    return {TopicPartition(TOPIC, number): owner for number, owner in owners.items()}


def numbers(owners: Mapping[TopicPartition, str]) -> dict[int, str]:
    """Return owners of partitions by their numbers."""
    return {partition.partition: owner for partition, owner in owners.items()}


@st.composite
def warm_groups(draw: st.DrawFn) -> Group:
    """Members of a group in tasks, of one topic or several, each warm for some of them."""
    members, counts, owners = draw(groups_in_tasks())
    if draw(st.booleans()):
        counts = dict(list(counts.items())[:1])
        members = {name: replace(info, topics=frozenset(counts)) for name, info in members.items()}
        owners = {p: owner for p, owner in owners.items() if p.topic in counts}
    count = max(counts.values())
    warm = st.frozensets(st.integers(0, max(0, count - 1)))
    return {n: replace(info, warm=draw(warm)) for n, info in members.items()}, counts, owners


def live_owners(owners: Owners, counts: Mapping[str, int]) -> dict[int, str]:
    """Return the owners of tasks that are held as a whole."""
    found: dict[int, set[str | None]] = {}
    for partition in all_partitions(counts):
        found.setdefault(partition.partition, set()).add(owners.get(partition))
    return {n: name for n, (name, *more) in found.items() if name is not None and not more}


@given(warm_groups())
def test_a_live_task_never_moves_to_a_cold_member(group: Group) -> None:
    """Each task that one member has as a whole stays there, or goes to one that is warm for it."""
    members, counts, owners = group
    found = allocate(members, all_partitions(counts), owners).owners
    for number, owner in live_owners(owners, counts).items():
        (taker,) = {name for p, name in found.items() if p.partition == number}
        assert taker == owner or number in (members[taker].warm or ())


@given(warm_groups())
def test_a_group_comes_to_rest_balanced_and_no_task_moves_twice(group: Group) -> None:
    """While members become warm for what is to be theirs, tasks move once, to where they stay."""
    members, counts, owners = group
    partitions = all_partitions(counts)
    owned = dict(allocate(members, partitions, owners).owners)
    moved: Counter[TopicPartition] = Counter()
    for _ in range(len(partitions) + 1):
        found = allocate(members, partitions, owned)
        moved.update(p for p, name in found.owners.items() if owned[p] != name)
        owned = dict(found.owners)
        members = {
            name: replace(info, warm=(info.warm or frozenset()) | coming(found.goal, owned, name))
            for name, info in members.items()
        }
    found = allocate(members, partitions, owned)
    assert found.owners == found.goal == owned
    assert max(moved.values(), default=0) <= 1
    loads = Counter({name: len(found.of(name)) // max(1, len(counts)) for name in members})
    whole = sum(info.weight for info in members.values())
    count = max(counts.values())
    for name, info in members.items():
        assert count * info.weight // whole <= loads[name] <= -(-count * info.weight // whole)


def coming(goal: Mapping[TopicPartition, str], owners: Owners, name: str) -> frozenset[int]:
    """Return what a member makes itself warm for next."""
    wanted = {p.partition for p, taker in goal.items() if taker == name and owners[p] != name}
    return frozenset(sorted(wanted)[:WARMUPS])


@given(
    st.lists(st.sampled_from("abc"), max_size=6),
    st.lists(st.frozensets(st.integers(0, 5)), min_size=3, max_size=3),
)
def test_free_tasks_go_to_warm_members_within_their_shares_as_far_as_can_be(
    goal: list[str], warm: list[frozenset[int]]
) -> None:
    """A task that a member is warm for goes to such a one; beyond shares go the fewest."""
    members = {name: member(*some) for name, some in zip("abc", warm, strict=True)}
    found = numbers(settle_warm(tasks(dict(enumerate(goal))), members, {}, {}))

    def fits(way: Mapping[int, str]) -> int:
        return sum(number in (members[name].warm or ()) for number, name in way.items())

    known = sum(any(number in some for some in warm) for number in range(len(goal)))
    assert (len(found), fits(found)) == (len(goal), known)
    best = max(fits(dict(enumerate(way))) for way in set(permutations(goal)))
    assert (Counter(found.values()) - Counter(goal)).total() <= known - best


def test_the_owner_keeps_a_task_until_the_next_one_is_warm_for_it() -> None:
    """A task that will move is told as the goal, and moves once the other member is warm."""
    partitions = all_partitions({TOPIC: 4})
    owners = tasks(dict.fromkeys(range(4), "a"))
    cold = allocate({"a": member(), "b": member()}, partitions, owners)
    assert numbers(cold.owners) == dict.fromkeys(range(4), "a")
    assert numbers(cold.goal) == {0: "a", 1: "a", 2: "b", 3: "b"}
    warm = allocate({"a": member(), "b": member(3)}, partitions, owners)
    assert numbers(warm.owners) == {0: "a", 1: "a", 2: "a", 3: "b"}


def test_tasks_of_a_lost_member_go_to_its_standbys() -> None:
    """Each of two that are left gets the tasks that it is warm for, of as many as are its share."""
    members = {"b": member(0, 2), "c": member(1, 3)}
    found = allocate(members, all_partitions({TOPIC: 4}), {}).owners
    assert numbers(found) == {0: "b", 1: "c", 2: "b", 3: "c"}


def test_a_free_task_goes_beyond_a_share_rather_than_to_a_cold_member() -> None:
    """One that has just come back is given it once it is warm, and not before."""
    partitions = all_partitions({TOPIC: 4})
    owners = tasks({0: "b", 1: "b"})
    cold = {"a": member(), "b": member(2, 3)}
    assert numbers(allocate(cold, partitions, owners).goal) == {0: "b", 1: "b", 2: "a", 3: "a"}
    assert numbers(allocate(cold, partitions, owners).owners) == dict.fromkeys(range(4), "b")
    fixed = {
        name: replace(info, mode=AssignmentMode.FIXED_COUNT, partitions_per_topic=2)
        for name, info in cold.items()
    }
    assert numbers(allocate(fixed, partitions, owners).owners) == {0: "b", 1: "b", 2: "a", 3: "a"}


def test_a_task_comes_back_to_its_former_owner_though_another_member_is_warm() -> None:
    """After all sessions were lost each has what it had, whose state is in its store."""
    members = {"a": member(2, 3), "b": member(0, 1)}
    former = tasks({0: "a", 1: "a", 2: "b", 3: "b"})
    found = allocate(members, all_partitions({TOPIC: 4}), {}, former)
    assert found.owners == former


def test_tasks_of_a_draining_member_go_to_warm_ones() -> None:
    """One that drains is given nothing, and what it has goes where it can go on at once."""
    members = {"a": member(draining=True), "b": member(1), "c": member(0)}
    owners = tasks({0: "a", 1: "a"})
    found = allocate(members, all_partitions({TOPIC: 2}), owners).owners
    assert numbers(found) == {0: "c", 1: "b"}


def test_a_task_does_not_stay_where_it_cannot_be_worked_on() -> None:
    """A member that avoids a task, or whose list has it no longer, does not keep it."""
    partition = TopicPartition(TOPIC, 0)
    avoiding = {"a": member(cooldown=frozenset({partition})), "b": member()}
    assert allocate(avoiding, [partition], {partition: "a"}).owners == {partition: "b"}
    lists: dict[str, tuple[int, ...]] = {TOPIC: (0,)}
    static = {
        "a": member(mode=AssignmentMode.STATIC),
        "b": member(mode=AssignmentMode.STATIC, lists=lists),
    }
    assert allocate(static, [partition], {partition: "a"}).owners == {partition: "b"}


@given(warm_groups(), st.data())
def test_a_member_of_an_earlier_version_has_all_move_as_before(
    group: Group, data: st.DataObject
) -> None:
    """With one that publishes nothing of it the map is that of today, and it is named."""
    members, counts, owners = group
    earlier = data.draw(st.sampled_from(sorted(members)))
    mixed = {**members, earlier: replace(members[earlier], warm=None)}
    today = {name: replace(info, warm=None) for name, info in members.items()}
    partitions = all_partitions(counts)
    found, before = (allocate(each, partitions, owners) for each in (mixed, today))
    assert found.owners == found.goal == before.owners
    assert found.without_warm == (() if len(members) == 1 else (earlier,))
    assert before.without_warm == ()


def test_members_publish_for_what_they_are_warm() -> None:
    """The node names the tasks, none of them too, and has no such field where it does not say."""
    for info in (member(3, 1), member(), replace(member(), warm=None)):
        document = MemberDocument(info, "host", 1, 0.0, "1.0")
        encoded = document.encode()
        assert MemberDocument.decode("/ids/a", encoded).info == info
        assert (b'"warm"' in encoded) is (info.warm is not None)
