"""Static mode: each member has the partitions it lists."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.coordinators.members import MemberInfo


@dataclass(frozen=True, slots=True)
class Listed:
    """What the lists give, and what is wrong with them.

    ``contended`` names all members that list the same partition; ``missing`` names listed
    partitions that do not exist.
    """

    given: Mapping[TopicPartition, str]
    contended: Mapping[TopicPartition, tuple[str, ...]]
    missing: Mapping[str, tuple[TopicPartition, ...]]


def listed(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> Listed:
    """Return who is to have which partition.

    Of several members that list a partition its present owner keeps it, otherwise the first by
    name has it. Lists of topics of which no partition is known are not judged.
    """
    existing = set(partitions)
    known = {partition.topic for partition in existing}
    wishes: dict[TopicPartition, list[str]] = defaultdict(list)
    missing: dict[str, tuple[TopicPartition, ...]] = {}
    for member, info in sorted(members.items()):
        wanted = {
            TopicPartition(topic, number)
            for topic, numbers in info.lists.items()
            if topic in known
            for number in numbers
        }
        for partition in wanted & existing:
            wishes[partition].append(member)
        if wanted - existing:
            missing[member] = tuple(sorted(wanted - existing))
    given = {
        partition: owner if (owner := owners.get(partition, "")) in wishing else wishing[0]
        for partition, wishing in wishes.items()
    }
    contended = {p: tuple(wishing) for p, wishing in sorted(wishes.items()) if len(wishing) > 1}
    return Listed(given, contended, missing)
