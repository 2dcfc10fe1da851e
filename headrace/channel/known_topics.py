"""What a channel knows of its topics: their ids, their partitions, and which are missing."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from headrace.records import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config.subscription import Subscription
    from headrace.kafka.ports import TopicInfo
    from headrace.records import TopicPartition

#: Looks in a row in which a topic has to be missing: one broker may lag behind the others.
LOOKS = 2


@dataclass(frozen=True, slots=True)
class Changes:
    """What a look found to be different.

    ``matched`` topics are new, ``missing`` ones have just been missing often enough to count as
    deleted, ``replaced`` ones have another id than before: the former and the present one.
    """

    matched: frozenset[str]
    missing: frozenset[str]
    replaced: Mapping[str, tuple[str, str]]


class KnownTopics:
    """Written by the thread that looks, read on any.

    A topic that is named stays as it was while it is missing; one that a pattern matched is gone
    when it was missing ``LOOKS`` times. What was seen of it is kept all the same, because claims
    and commits may still speak of it.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._known: Mapping[str, TopicInfo] = {}
        self._at_start: Mapping[str, int] = {}
        self._misses: Mapping[str, int] = {}
        self._gone: frozenset[str] = frozenset()
        self._dropped: frozenset[str] = frozenset()
        self._cluster = ""
        self.wanted = Event()

    # --- any thread -----------------------------------------------------------------------------

    def look(self) -> None:
        """Have the topics looked at now: somebody knows that one changed. Does not block."""
        self.wanted.set()

    def counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic, as last seen."""
        without = self._gone | self._dropped
        return {name: info.partitions for name, info in self._known.items() if name not in without}

    def topic_id(self, partition: TopicPartition) -> str:
        """Return the id of the partition's topic, as last seen."""
        return self._known[partition.topic].topic_id

    def identity(self, partition: TopicPartition, group: str) -> str:
        """Return the name under which a sink keeps the partition's offset."""
        return identity_of(self._cluster, group, self.topic_id(partition), partition.partition)

    def appeared_later(self, partition: TopicPartition) -> bool:
        """Whether the partition, or its topic as it is now, was made after this channel started."""
        return partition.partition >= self._at_start.get(partition.topic, 0)

    def is_missing(self, topic: str) -> bool:
        """Whether the last look did not find the topic."""
        return topic in self._misses or topic in self._gone

    def is_gone(self, topic: str) -> bool:
        """Whether the topic is none of the channel's any more."""
        return topic in self._gone

    @property
    def in_doubt(self) -> bool:
        """Whether a topic was missing, but not often enough to count as deleted."""
        return any(times < LOOKS for times in self._misses.values())

    # --- the thread that looks ------------------------------------------------------------------

    def begin(self, cluster: str, found: Mapping[str, TopicInfo]) -> None:
        """Take note of the cluster's id and of what there is at the start."""
        self._cluster = cluster
        self._known = dict(found)
        self._at_start = self.counts()

    def follow(self, subscription: Subscription, found: Mapping[str, TopicInfo]) -> None:
        """Take note of another subscription, and of what it covers.

        A topic that it brings in begins as at a start of the channel. What only the former one
        covered is none of the channel's any more, though claims and commits still speak of it.
        """
        new = found.keys() - self.counts().keys()
        kept = found.keys() | frozenset(subscription.names)
        self.subscription = subscription
        self._at_start = {**self._at_start, **{name: found[name].partitions for name in new}}
        self._known = {**self._known, **found}
        self._gone -= found.keys()
        self._dropped = frozenset(self._known.keys() - kept)
        self._misses = {topic: n for topic, n in self._misses.items() if topic in kept}

    def take_in(self, found: Mapping[str, TopicInfo]) -> Changes:
        """Take note of what there is now, and return what is different."""
        known, present = self._known, self._known.keys() - self._gone - self._dropped
        misses = {topic: self._misses.get(topic, 0) + 1 for topic in present - found.keys()}
        missing = frozenset(topic for topic, times in misses.items() if times == LOOKS)
        replaced = {
            topic: (known[topic].topic_id, found[topic].topic_id)
            for topic in known.keys() & found.keys()
            if found[topic].topic_id != known[topic].topic_id
        }
        gone = missing - frozenset(self.subscription.names)
        self._at_start = {
            topic: count
            for topic, count in self._at_start.items()
            if topic not in replaced and topic not in gone
        }
        self._known = {**known, **found}
        self._gone = (self._gone | gone) - found.keys()
        self._misses = {topic: times for topic, times in misses.items() if topic not in gone}
        return Changes(frozenset(found.keys() - present), missing, replaced)
