"""How long the map of a large group takes to compute."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from headrace.coordinators.allocation import allocate
from headrace.coordinators.member_info import MemberInfo
from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDS = 5


def allocate_ms(partitions: int, members: int) -> float:
    """Return the milliseconds for the worst of a start, a join and a leave (median of rounds)."""
    info = MemberInfo(frozenset({"topic"}))
    group = {f"member-{number:03}": info for number in range(members)}
    one_less = dict(list(group.items())[1:])
    topic = {TopicPartition("topic", number) for number in range(partitions)}
    settled = allocate(group, topic, {}).owners
    before = allocate(one_less, topic, {}).owners
    left = {partition: owner for partition, owner in settled.items() if owner in one_less}
    cases = [(group, {}), (group, before), (one_less, left)]
    return round(max(_median_ms(one, topic, owners) for one, owners in cases), 1)


def _median_ms(
    members: dict[str, MemberInfo],
    partitions: set[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> float:
    taken = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        allocate(members, partitions, owners)
        taken.append(time.perf_counter() - begin)
    return median(taken) * 1000
