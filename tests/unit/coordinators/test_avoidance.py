from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinators.allocation import allocate
from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.core.records import TopicPartition, all_partitions
from tests.unit.coordinators.strategies import Owners, groups


@given(groups(weight=3), st.data())
def test_an_avoided_partition_goes_to_another_member(
    group: tuple[dict[str, MemberInfo], dict[str, int], Owners], data: st.DataObject
) -> None:
    """No member gets what it avoids while another can take it, and moves come to an end.

    Each free partition moves once, each that is taken away twice: given back and claimed.
    """
    members, counts, owners = group
    partitions = all_partitions(counts)
    some = st.frozensets(st.sampled_from(partitions or [TopicPartition("x", 0)]), max_size=4)
    for name, info in members.items():
        members[name] = replace(info, cooldown=data.draw(some))
    for _ in range(4):
        allocation = allocate(members, partitions, owners)
        for partition, owner in allocation.owners.items():
            if partition in members[owner].cooldown:
                assert all(partition in info.cooldown for info in members.values())
        kept = {p: owner for p, owner in owners.items() if allocation.owners[p] == owner}
        owners = kept | {p: allocation.owners[p] for p in partitions if p not in owners}
    assert allocate(members, partitions, owners).owners == owners


def test_an_avoided_partition_does_not_exceed_a_fixed_count() -> None:
    """A member with its number takes no more, and one without takes what is avoided."""
    count = MemberInfo(frozenset({"orders"}), AssignmentMode.FIXED_COUNT, partitions_per_topic=2)
    first = TopicPartition("orders", 0)
    members = {"a": replace(count, cooldown=frozenset({first})), "b": count}
    full = {TopicPartition("orders", 1): "a", TopicPartition("orders", 2): "b"}
    full |= {TopicPartition("orders", 3): "b"}
    assert allocate(members, all_partitions({"orders": 4}), full).owners[first] == "a"
    room = {TopicPartition("orders", 1): "a", TopicPartition("orders", 2): "b"}
    assert allocate(members, all_partitions({"orders": 3}), room).owners[first] == "b"
