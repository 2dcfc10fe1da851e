"""Tasks: partition i of each topic, where a group's members work on them together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from headrace.coordinators.member_info import MemberInfo


@dataclass(frozen=True, slots=True)
class Tasks:
    """The partitions that make a task: those with the same number, of members that share topics.

    A task is allocated in the place of its *anchor*, its partition of the first topic by name among
    those that all these members have (``anchors``, by topic). Every member knows these topics
    (``common``), so all members see the same tasks. What only some of them read follows its anchor.
    """

    anchors: Mapping[str, str]
    common: frozenset[str]

    @classmethod
    def of(cls, members: Mapping[str, MemberInfo]) -> Tasks | None:
        """Return the tasks of a group's active members; None where not all work in tasks.

        None also where each has one topic: a partition is a task by itself then.
        """
        if not all(info.together for info in members.values()):
            return None
        if all(len(info.topics) <= 1 for info in members.values()):
            return None
        anchors: dict[str, str] = {}
        common: set[str] = set()
        for subscriptions in _sharing_topics(info.topics for info in members.values()):
            shared = frozenset.intersection(*subscriptions)
            # without any, each partition is a task of its own
            if shared:
                common |= shared
                anchors |= dict.fromkeys(frozenset().union(*subscriptions), min(shared))
        return cls(anchors, frozenset(common))

    def anchor(self, partition: TopicPartition) -> TopicPartition:
        """Return the anchor of the partition's task."""
        topic, number = partition
        return TopicPartition(self.anchors.get(topic, topic), number)

    def by_anchor(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[TopicPartition]]:
        """Return the partitions of each task, the anchor first, without what follows it.

        A task of which a partition does not exist is missing.
        """
        found: dict[TopicPartition, list[TopicPartition]] = defaultdict(list)
        for partition in sorted(partitions):
            if partition.topic in self.common or partition.topic not in self.anchors:
                found[self.anchor(partition)].append(partition)
        topics: dict[str, int] = defaultdict(int)
        for topic in self.common:
            topics[self.anchors[topic]] += 1
        return {
            anchor: parts
            for anchor, parts in found.items()
            if len(parts) == topics.get(anchor.topic, 1)
        }

    def with_task_cooldown(self, members: Mapping[str, MemberInfo]) -> dict[str, MemberInfo]:
        """Return the members as they avoid tasks: those of which they avoid a partition."""
        return {
            name: replace(info, cooldown=frozenset(map(self.anchor, info.cooldown)))
            for name, info in members.items()
        }


def _sharing_topics(subscriptions: Iterable[frozenset[str]]) -> list[list[frozenset[str]]]:
    """Return the subscriptions by sets of members that share topics, be it through others."""
    found: list[list[frozenset[str]]] = []
    for topics in subscriptions:
        touching = [each for each in found if not topics.isdisjoint(frozenset().union(*each))]
        found = [each for each in found if each not in touching]
        found.append([topics, *(former for each in touching for former in each)])
    return found


def without_tasks(members: Mapping[str, MemberInfo]) -> tuple[str, ...]:
    """Return the active members for which others cannot work in tasks of several topics."""
    if not any(info.together and len(info.topics) > 1 for info in members.values()):
        return ()
    return tuple(sorted(name for name, info in members.items() if not info.together))


def uneven_partitions(counts: Mapping[str, int]) -> str | None:
    """Return the topics with their partitions, most first, None where all have as many."""
    if len(set(counts.values())) <= 1:
        return None
    (first, most), *others = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join([f"{first} has {most} partitions", *(f"{name} {n}" for name, n in others)])


def holder_of(
    partitions: Collection[TopicPartition], *owners: Mapping[TopicPartition, str]
) -> str | None:
    """Return the member that a task counts as that of; None: of none.

    That is the owner of the first of its partitions that has one, by the first of ``owners`` that
    knows any.
    """
    return next((known[p] for known in owners for p in partitions if p in known), None)
