"""Partitions that a member could not work on: others have them first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.coordinators.members import Mode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.coordinators.members import MemberInfo
    from headrace.records import TopicPartition


def place_avoided(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have those of ``partitions`` that some avoid and others may have.

    Whoever owns one keeps it; otherwise it goes to the one that has the fewest.
    """
    avoided = {partition for info in members.values() for partition in info.avoiding}
    placed: dict[TopicPartition, str] = {}
    loads = Counter(owners.values())
    for partition in sorted(avoided.intersection(partitions)):
        rest = {p: owner for p, owner in {**owners, **placed}.items() if p != partition}
        takers = [name for name, info in members.items() if _may_have(name, info, partition, rest)]
        if owners.get(partition) in takers:
            placed[partition] = owners[partition]
        elif takers:
            taker = min(takers, key=lambda m: (loads[m], crc32(f"{partition}\0{m}".encode()), m))
            placed[partition] = taker
            loads[taker] += 1
    return placed


def _may_have(
    member: str,
    info: MemberInfo,
    partition: TopicPartition,
    rest: Mapping[TopicPartition, str],
) -> bool:
    """Whether a member may have a partition beside the ``rest`` by its mode, and does not mind."""
    if partition.topic not in info.topics or partition in info.avoiding:
        return False
    if info.mode is Mode.FIXED_COUNT:
        has = sum(p.topic == partition.topic and owner == member for p, owner in rest.items())
        return has < info.partitions_per_topic
    return info.mode is Mode.DYNAMIC
