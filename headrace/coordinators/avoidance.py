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
    if partition.topic not in info.topics or partition in info.avoiding:
        return False
    if info.mode is Mode.FIXED_COUNT:
        return beside < info.partitions_per_topic
    return info.mode is Mode.DYNAMIC
