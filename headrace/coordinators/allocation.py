"""Who is to have which partition: a pure function of what the members publish.

Every member computes the whole map and acts on its own part of it, so no two members reach for
the same partition, and nobody has to lead. The result depends on the arguments' content only, not
on their order, and a group whose members follow it step by step comes to rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.coordinators.even_spread import hand_out, spread
from headrace.coordinators.member_info import MemberInfo, Mode
from headrace.core.records import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def place_avoided(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have those of ``partitions`` that some avoid and others may have.

    Whoever owns one keeps it; otherwise it goes to the one that has the fewest.
    """
    avoided = {partition for info in members.values() for partition in info.cooldown}
    if not avoided:
        return {}
    placed: dict[TopicPartition, str] = {}
    loads = Counter(owners.values())
    of_topics = Counter((p.topic, owner) for p, owner in owners.items())
    for partition in sorted(avoided.intersection(partitions)):
        topic, owner = partition.topic, owners.get(partition)
        takers = [
            name
            for name, info in members.items()
            if _may_have(info, partition, beside=of_topics[topic, name] - (name == owner))
        ]
        if owner in takers:
            placed[partition] = owners[partition]
        elif takers:
            taker = min(takers, key=lambda m: (loads[m], crc32(f"{partition}\0{m}".encode()), m))
            placed[partition] = taker
            loads[taker] += 1
            of_topics[topic, taker] += 1
            of_topics[topic, owner or ""] -= 1
    return placed


def _may_have(info: MemberInfo, partition: TopicPartition, *, beside: int) -> bool:
    """Whether a member may have it ``beside`` so many of the topic by its mode, and wants it."""
    if partition.topic not in info.topics or partition in info.cooldown:
        return False
    if info.mode is Mode.FIXED_COUNT:
        return beside < info.partitions_per_topic
    return info.mode is Mode.DYNAMIC


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


def listed(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> tuple[
    dict[TopicPartition, str],
    Mapping[TopicPartition, tuple[str, ...]],
    Mapping[str, tuple[TopicPartition, ...]],
]:
    """Return who is to have which partition, and what is contended and missing.

    Of several members that list a partition its present owner keeps it, otherwise the first by
    name has it. Lists of topics of which no partition is known are not judged.
    """
    existing = set(partitions)
    known = {partition.topic for partition in existing}
    listed_by: dict[TopicPartition, list[str]] = defaultdict(list)
    missing: dict[str, tuple[TopicPartition, ...]] = {}
    for member, info in sorted(members.items()):
        wanted = {
            TopicPartition(topic, number)
            for topic, numbers in info.lists.items()
            if topic in known
            for number in numbers
        }
        for partition in wanted & existing:
            listed_by[partition].append(member)
        if wanted - existing:
            missing[member] = tuple(sorted(wanted - existing))
    given = {
        partition: owner if (owner := owners.get(partition, "")) in wishing else wishing[0]
        for partition, wishing in listed_by.items()
    }
    contended = {p: tuple(wishing) for p, wishing in sorted(listed_by.items()) if len(wishing) > 1}
    return given, contended, missing


@dataclass(frozen=True, slots=True)
class Allocation:
    """The map and what is to be said about it.

    ``owners`` says who is to have a partition. ``unowned`` partitions nobody is to have.
    ``contended`` partitions are listed by several static members, all named. ``missing``
    partitions are listed by a member but do not exist. ``foreign`` partitions are held by somebody
    who is not a member that we understand: they are left alone until that ends. ``modes`` has more
    than one entry when members disagree about the mode.
    """

    owners: Mapping[TopicPartition, str]
    unowned: frozenset[TopicPartition]
    contended: Mapping[TopicPartition, tuple[str, ...]]
    missing: Mapping[str, tuple[TopicPartition, ...]]
    foreign: Mapping[TopicPartition, str]
    modes: frozenset[Mode]

    def of(self, member: str) -> frozenset[TopicPartition]:
        """Return what one member is to have."""
        return frozenset(p for p, owner in self.owners.items() if owner == member)


def allocate(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
    former: Mapping[TopicPartition, str] | None = None,
) -> Allocation:
    """Return the map for ``members``, given who owns what now and who did before.

    A partition without an owner counts as that of its ``former`` one, if that is a member. So a
    group whose nodes all went, with ZooKeeper or with every session, comes back to what it had;
    and a partition on its way to another member is in the same place before, during and after
    its release.

    Draining members are given nothing. When modes are mixed, each member's own mode holds for it:
    listed partitions go first, then the fixed numbers are served, and what is left is spread
    evenly over the dynamic members. What some avoid and others may have goes to these beforehand,
    and is not counted as a part of the even spread.
    """
    existing = set(partitions)
    foreign = {
        p: owner for p, owner in sorted(owners.items()) if p in existing and owner not in members
    }
    returning = {p: member for p, member in (former or {}).items() if member in members}
    held = returning | dict(owners)
    active = {name: info for name, info in members.items() if not info.draining}
    free = existing - foreign.keys()
    chosen, contended, missing = listed(_of_mode(active, Mode.STATIC), existing, held)
    given = {p: member for p, member in chosen.items() if p in free}
    placed = place_avoided(active, free - given.keys(), held)
    left = free - given.keys() - placed.keys()
    given |= placed | fixed_counts(_of_mode(active, Mode.FIXED_COUNT), left, held, placed)
    given |= spread(_of_mode(active, Mode.DYNAMIC), left - given.keys(), held)
    return Allocation(
        owners=dict(sorted(given.items())),
        unowned=frozenset(free - given.keys()),
        contended=contended,
        missing=missing,
        foreign=foreign,
        modes=frozenset(info.mode for info in active.values()),
    )


def _of_mode(members: Mapping[str, MemberInfo], mode: Mode) -> dict[str, MemberInfo]:
    return {name: info for name, info in sorted(members.items()) if info.mode is mode}
