"""Fixed count mode: each member has a number of each topic's partitions, as far as they go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.coordinators.even_spread import hand_out
from headrace.records import by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.coordinators.members import MemberInfo
    from headrace.records import TopicPartition


def fixed_counts(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
    placed: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have which partition; those beyond the numbers asked for are missing.

    A member keeps what it has up to its number, of which ``placed`` partitions are a part. Where
    too few are left for all others, those with the fewest get the next.
    """
    has = Counter((partition.topic, member) for partition, member in placed.items())
    given: dict[TopicPartition, str] = {}
    for topic, all_of in by_topic(partitions).items():
        wanted = {
            member: max(0, info.partitions_per_topic - has[topic, member])
            for member, info in members.items()
            if topic in info.topics
        }
        owned = Counter(owners[p] for p in all_of if p in owners)
        given.update(hand_out(topic, all_of, owners, _affordable(len(all_of), wanted, owned)))
    return given


def _affordable(count: int, wanted: Mapping[str, int], owned: Mapping[str, int]) -> dict[str, int]:
    """Return how many each member gets of ``count``."""
    targets = {member: min(number, owned.get(member, 0)) for member, number in wanted.items()}
    for _ in range(count - sum(targets.values())):
        short = [member for member, number in wanted.items() if targets[member] < number]
        if not short:
            break
        targets[min(short, key=lambda member: (targets[member], member))] += 1
    return targets
