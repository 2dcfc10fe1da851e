"""Dynamic mode: an even spread over the members, in total and of each topic, with fewest moves.

Topics with the same subscribers are balanced together. Each member knows the partitions of all
topics in such a set that concerns it, so all members come to the same result, also when they
subscribe to different topics.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.coordinators.rounding import Shares, round_shares
from headrace.records import by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace.coordinators.members import MemberInfo
    from headrace.records import TopicPartition


def spread(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have each partition; those of topics without a subscriber are missing."""
    of_topics = by_topic(partitions)
    by_subscribers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic in of_topics:
        subscribers = tuple(sorted(m for m, info in members.items() if topic in info.topics))
        if subscribers:
            by_subscribers[subscribers].append(topic)
    spread: dict[TopicPartition, str] = {}
    for subscribers, topics in by_subscribers.items():
        weights = {member: members[member].weight for member in subscribers}
        spread.update(_spread_set(weights, {topic: of_topics[topic] for topic in topics}, owners))
    return spread


def _spread_set(
    weights: Mapping[str, int],
    topics: Mapping[str, list[TopicPartition]],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    owned = Counter(
        (topic, owners[p]) for topic, all_of in topics.items() for p in all_of if p in owners
    )
    counts = {topic: len(all_of) for topic, all_of in topics.items()}
    targets = round_shares(Shares(weights, counts, owned))
    spread: dict[TopicPartition, str] = {}
    for topic, all_of in topics.items():
        spread.update(hand_out(topic, all_of, owners, {m: targets[topic, m] for m in weights}))
    return spread


def hand_out(
    topic: str,
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
    targets: Mapping[str, int],
) -> dict[TopicPartition, str]:
    """Give each member its number of one topic's partitions: first of those it owns.

    A member keeps its lowest partitions, and the others go, in order, to members in order of a
    hash. While members give back and claim, what is still to be done comes out the same again.
    """
    left = dict(targets)
    kept: dict[TopicPartition, str] = {}
    free: list[TopicPartition] = []
    for partition in sorted(partitions):
        owner = owners.get(partition)
        if owner is not None and left.get(owner, 0) > 0:
            left[owner] -= 1
            kept[partition] = owner
        else:
            free.append(partition)
    return kept | dict(zip(free, _takers(topic, left), strict=False))


def _takers(topic: str, left: Mapping[str, int]) -> Iterator[str]:
    for member in sorted(left, key=lambda m: (crc32(f"{topic}\0{m}".encode()), m)):
        for _ in range(left[member]):
            yield member
