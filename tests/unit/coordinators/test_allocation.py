from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinators.allocation import Allocation, allocate
from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.core.records import TopicPartition, all_partitions
from tests.unit.coordinators.strategies import Owners, dynamic, groups

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from random import Random


def moves(owners: Mapping[TopicPartition, str], allocation: Allocation) -> int:
    """Count the partitions that change their owner."""
    return sum(allocation.owners.get(partition) != owner for partition, owner in owners.items())


def totals(allocation: Allocation, members: Collection[str]) -> list[int]:
    """How many partitions each member is to have."""
    return [len(allocation.of(member)) for member in members]


def of_topic(allocation: Allocation, members: Collection[str], topic: str) -> list[int]:
    """How many partitions of one topic each member is to have."""
    counted = Counter(owner for p, owner in allocation.owners.items() if p.topic == topic)
    return [counted[member] for member in members]


def fewest_moves(
    members: Mapping[str, MemberInfo], counts: Mapping[str, int], owners: Owners
) -> int:
    """Try out all fair spreads and return the fewest partitions that one of them takes away."""
    weights = [members[name].weight for name in sorted(members)]
    whole = sum(weights)
    owned = Counter((p.topic, owner) for p, owner in owners.items())
    best = {tuple([0] * len(weights)): 0}
    for topic, count in counts.items():
        floors = [count * weight // whole for weight in weights]
        open_to = [n for n, weight in enumerate(weights) if count * weight % whole]
        reached: dict[tuple[int, ...], int] = {}
        for chosen in combinations(open_to, count - sum(floors)):
            gets = [floor + (n in chosen) for n, floor in enumerate(floors)]
            taken = sum(
                max(0, owned[topic, name] - get)
                for name, get in zip(sorted(members), gets, strict=True)
            )
            for loads, before in best.items():
                sums = tuple(load + get for load, get in zip(loads, gets, strict=True))
                reached[sums] = min(reached.get(sums, before + taken), before + taken)
        best = reached
    total = sum(counts.values())
    return min(
        cost
        for loads, cost in best.items()
        if all(
            abs(load * whole - total * weight) < whole
            for load, weight in zip(loads, weights, strict=True)
        )
    )


@given(groups())
def test_an_even_spread_is_even_in_total_and_of_each_topic(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners],
) -> None:
    """Every partition has one owner, and no two members differ by more than one partition."""
    members, counts, owners = group
    allocation = allocate(members, all_partitions(counts), owners)
    assert set(allocation.owners) == set(all_partitions(counts))
    assert not allocation.unowned
    assert max(totals(allocation, members)) - min(totals(allocation, members)) <= 1
    for topic in counts:
        numbers = of_topic(allocation, members, topic)
        assert max(numbers) - min(numbers) <= 1


@given(groups(members=4, topics=3, partitions=9, weight=3))
def test_an_even_spread_moves_no_more_than_it_must(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners],
) -> None:
    """The number of moves is the least of all spreads that are fair by weight."""
    members, counts, owners = group
    allocation = allocate(members, all_partitions(counts), owners)
    assert moves(owners, allocation) == fewest_moves(members, counts, owners)


@given(groups(members=5, topics=4, partitions=4))
@settings(max_examples=60)
def test_many_small_topics_are_moved_no_more_than_they_must(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners],
) -> None:
    """The number of moves is the least also where the totals decide who gets an extra."""
    members, counts, owners = group
    allocation = allocate(members, all_partitions(counts), owners)
    assert moves(owners, allocation) == fewest_moves(members, counts, owners)


@given(groups(weight=5), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners], random: Random
) -> None:
    """All members come to the same result, in whatever order they read the group."""
    members, counts, owners = group
    partitions = all_partitions(counts)
    expected = allocate(members, partitions, owners)
    shuffled_members = list(members.items())
    shuffled_owners = list(owners.items())
    random.shuffle(shuffled_members)
    random.shuffle(shuffled_owners)
    random.shuffle(partitions)
    again = allocate(dict(shuffled_members), partitions, dict(shuffled_owners))
    assert again == expected


@given(groups(weight=5))
def test_weights_are_met_to_the_nearest_partition(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners],
) -> None:
    """Each member's part of a topic and of the whole is its weighted share, rounded."""
    members, counts, owners = group
    allocation = allocate(members, all_partitions(counts), owners)
    whole = sum(info.weight for info in members.values())
    for name, info in members.items():
        share = sum(counts.values()) * info.weight / whole
        assert abs(len(allocation.of(name)) - share) < 1
        for topic, count in counts.items():
            assert abs(of_topic(allocation, [name], topic)[0] - count * info.weight / whole) < 1


@given(groups(weight=3), st.randoms(use_true_random=False))
def test_members_that_act_one_after_the_other_come_to_rest(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners], random: Random
) -> None:
    """From any state, in any order of steps, each partition moves at most once, and then none."""
    members, counts, owners = group
    partitions = all_partitions(counts)
    steps = moves(owners, allocate(members, partitions, owners)) + len(partitions)
    for _ in range(2 * steps + 1):
        allocation = allocate(members, partitions, owners)
        surplus = [p for p, owner in owners.items() if allocation.owners[p] != owner]
        free = [p for p in partitions if p not in owners]
        if not surplus and not free:
            break
        partition = random.choice(sorted(surplus + free))
        if partition in owners:
            del owners[partition]
        else:
            owners[partition] = allocation.owners[partition]
    assert allocate(members, partitions, owners).owners == owners


@given(groups(weight=3))
def test_members_that_act_at_once_come_to_rest(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners],
) -> None:
    """When all see the same state and act together, one round gives back and the next claims."""
    members, counts, owners = group
    partitions = all_partitions(counts)
    for _ in range(2):
        allocation = allocate(members, partitions, owners)
        kept = {p: owner for p, owner in owners.items() if allocation.owners[p] == owner}
        owners = kept | {p: allocation.owners[p] for p in partitions if p not in owners}
    assert allocate(members, partitions, owners).owners == owners


@given(groups(members=6, topics=1, partitions=40))
def test_a_member_that_joins_one_topic_takes_its_share_alone(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners],
) -> None:
    """A join moves partitions to the new member only, at most a rounded-up share.

    With several topics, being even in each and in total may force further exchanges.
    """
    members, counts, _ = group
    partitions = all_partitions(counts)
    owners = dict(allocate(members, partitions, {}).owners)
    grown = {**members, "new": dynamic(counts)}
    allocation = allocate(grown, partitions, owners)
    assert moves(owners, allocation) <= -(-len(partitions) // len(grown))
    assert moves(owners, allocation) == len(allocation.of("new"))


@given(groups(members=6, topics=1, partitions=40), st.data())
def test_only_partitions_of_a_leaver_move(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners], data: st.DataObject
) -> None:
    """A draining member's partitions of one topic change hands, and no other ones."""
    members, counts, _ = group
    partitions = all_partitions(counts)
    owners = dict(allocate(members, partitions, {}).owners)
    leaver = data.draw(st.sampled_from(sorted(members)))
    members[leaver] = MemberInfo(frozenset(counts), draining=True)
    allocation = allocate(members, partitions, owners)
    assert allocation.of(leaver) == frozenset()
    moved = {p for p, owner in owners.items() if allocation.owners.get(p) != owner}
    assert moved == {p for p, owner in owners.items() if owner == leaver}


@given(groups(weight=3), st.data())
def test_the_last_owner_of_a_free_partition_counts_as_its_owner(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners], data: st.DataObject
) -> None:
    """The map is the same, whichever partitions are free for a moment."""
    infos, counts, owners = group
    free = data.draw(st.sets(st.sampled_from(sorted(owners)))) if owners else set()
    held = {p: owner for p, owner in owners.items() if p not in free}
    whole = allocate(infos, all_partitions(counts), owners)
    assert allocate(infos, all_partitions(counts), held, owners) == whole
    gone = dict.fromkeys(all_partitions(counts), "gone")
    assert allocate(infos, all_partitions(counts), owners, gone) == whole


def test_the_remainders_of_many_topics_do_not_pile_up() -> None:
    """Ten topics of one partition are spread over both members."""
    topics = [f"t{n}" for n in range(10)]
    members = {"a": dynamic(topics), "b": dynamic(topics)}
    allocation = allocate(members, [TopicPartition(t, 0) for t in topics], {})
    assert totals(allocation, members) == [5, 5]


def test_members_with_other_topics_agree_on_common_ones() -> None:
    """A member that does not know another's topics agrees about the common ones."""
    members = {"a": dynamic(["x", "y"]), "b": dynamic(["x"]), "c": dynamic(["x", "z"])}
    seen = [
        allocate(members, all_partitions({"x": 7, **more}), {}).owners
        for more in ({"y": 5}, {}, {"z": 1})
    ]
    of_x = [{p: o for p, o in owners.items() if p.topic == "x"} for owners in seen]
    assert of_x[0] == of_x[1] == of_x[2]
    assert {o for p, o in seen[0].items() if p.topic == "y"} == {"a"}


def test_partitions_of_an_unknown_owner_are_left_alone() -> None:
    """A stranger's partitions are reported, and the rest is spread without them."""
    partitions = all_partitions({"orders": 8})
    owners = dict.fromkeys(partitions[:4], "stranger")
    members = {"a": dynamic(["orders"]), "b": dynamic(["orders"])}
    allocation = allocate(members, partitions, owners)
    assert allocation.foreign == owners
    assert totals(allocation, members) == [2, 2]
    assert not allocation.unowned


def test_without_members_nothing_is_owned() -> None:
    """All partitions of a group without members are reported."""
    partitions = all_partitions({"orders": 2})
    assert allocate({}, partitions, {}).unowned == set(partitions)


def fixed(number: int) -> MemberInfo:
    """A member that wants a number of each topic's partitions."""
    return MemberInfo(frozenset({"orders", "returns"}), AssignmentMode.FIXED_COUNT, 1, number)


def test_fixed_count_gives_each_member_its_number_of_each_topic() -> None:
    """Each member has N of each topic, and the rest is reported as unowned."""
    members = {"a": fixed(2), "b": fixed(3)}
    partitions = all_partitions({"orders": 8, "returns": 5})
    allocation = allocate(members, partitions, {})
    assert of_topic(allocation, members, "orders") == [2, 3]
    assert of_topic(allocation, members, "returns") == [2, 3]
    assert len(allocation.unowned) == 3


def test_fixed_count_takes_nothing_from_those_who_have() -> None:
    """With too few partitions those who came first keep theirs; the last goes short."""
    members = {"a": fixed(3), "b": fixed(3), "c": fixed(3)}
    partitions = all_partitions({"orders": 7})
    owners = dict(zip(partitions, "cccbbb", strict=False))
    allocation = allocate(members, partitions, owners)
    assert of_topic(allocation, members, "orders") == [1, 3, 3]
    assert moves(owners, allocation) == 0


def test_fixed_count_shares_free_partitions_evenly() -> None:
    """With too few partitions, members without one share them evenly."""
    members = {"a": fixed(4), "b": fixed(4)}
    assert totals(allocate(members, all_partitions({"orders": 4}), {}), members) == [2, 2]


@given(groups(), st.integers(0, 5))
def test_fixed_count_is_stable(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners], number: int
) -> None:
    """Only partitions above a member's number move, and no member gets more than its number."""
    _, counts, owners = group
    members = {
        name: MemberInfo(frozenset(counts), AssignmentMode.FIXED_COUNT, 1, number)
        for name in group[0]
    }
    allocation = allocate(members, all_partitions(counts), owners)
    owned = Counter((p.topic, owner) for p, owner in owners.items())
    assert moves(owners, allocation) == sum(max(0, n - number) for n in owned.values())
    given_out = Counter((p.topic, owner) for p, owner in allocation.owners.items())
    assert all(n <= number for n in given_out.values())
    assert dict(allocate(members, all_partitions(counts), allocation.owners).owners) == dict(
        allocation.owners
    )


def static(**lists: tuple[int, ...]) -> MemberInfo:
    """A member that lists its partitions."""
    return MemberInfo(frozenset(lists), AssignmentMode.STATIC, lists=lists)


def test_static_lists_are_followed_topic_by_topic() -> None:
    """Each member has what it lists and nothing else; the rest is reported."""
    members = {"a": static(orders=(0, 1), returns=(2,)), "b": static(orders=(2,))}
    allocation = allocate(members, all_partitions({"orders": 4, "returns": 3}), {})
    assert allocation.of("a") == {
        TopicPartition("orders", 0),
        TopicPartition("orders", 1),
        TopicPartition("returns", 2),
    }
    assert allocation.of("b") == {TopicPartition("orders", 2)}
    assert len(allocation.unowned) == 3


def test_a_conflict_of_lists_blocks_nothing_else() -> None:
    """A partition in two lists stays with its owner and is reported; the others are given out."""
    members = {"a": static(orders=(0, 1, 2)), "b": static(orders=(1, 2, 3))}
    one = TopicPartition("orders", 1)
    two = TopicPartition("orders", 2)
    allocation = allocate(members, all_partitions({"orders": 4}), {one: "b"})
    assert allocation.contended == {one: ("a", "b"), two: ("a", "b")}
    assert allocation.owners[one] == "b"
    assert allocation.owners[two] == "a"
    assert len(allocation.owners) == 4


def test_listed_partitions_that_do_not_exist_are_reported() -> None:
    """A number beyond the topic is named; a topic that no member sees yet is not judged."""
    members = {"a": static(orders=(0, 9), unseen=(1,))}
    allocation = allocate(members, all_partitions({"orders": 2}), {})
    assert allocation.missing == {"a": (TopicPartition("orders", 9),)}
    assert allocation.of("a") == {TopicPartition("orders", 0)}


def test_an_unlisted_partition_is_given_back() -> None:
    """A static member does not keep a partition outside of its list."""
    owners = {TopicPartition("orders", 3): "a"}
    allocation = allocate({"a": static(orders=(0,))}, all_partitions({"orders": 4}), owners)
    assert TopicPartition("orders", 3) in allocation.unowned


def test_in_a_group_of_mixed_modes_each_members_mode_holds_for_it() -> None:
    """Lists go first, then fixed numbers, then the even spread; the mixture is reported."""
    members = {
        "d1": dynamic(["orders"]),
        "d2": dynamic(["orders"]),
        "f": fixed(2),
        "s": static(orders=(0, 5)),
    }
    allocation = allocate(members, all_partitions({"orders": 10}), {})
    assert allocation.modes == {
        AssignmentMode.DYNAMIC,
        AssignmentMode.FIXED_COUNT,
        AssignmentMode.STATIC,
    }
    assert allocation.of("s") == {TopicPartition("orders", 0), TopicPartition("orders", 5)}
    assert totals(allocation, ["f", "d1", "d2"]) == [2, 3, 3]
    assert not allocation.unowned
