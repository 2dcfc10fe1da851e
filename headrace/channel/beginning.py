"""With how many partitions of each topic a channel's group began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.coordinators.znodes import BegunTopic
from headrace.core.clock import Clock, Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config.subscription import Subscription
    from headrace.coordinators.begun_topics import BegunTopics
    from headrace.kafka.ports import OffsetStore, TopicInfo

log = structlog.get_logger(__name__)

#: Seconds in which the offsets of a group are read that an earlier version began with.
_READ_TIMEOUT = 5.0


class GroupBeginning:
    """Finds out what is new to the group, by its nodes or else by its offsets. Blocks.

    Any thread, one at a time, before anything new is claimed.
    """

    def __init__(self, begun: BegunTopics, store: OffsetStore, clock: Clock) -> None:
        self._begun = begun
        self._store = store
        self._clock = clock

    def __call__(
        self, subscription: Subscription, found: Mapping[str, TopicInfo]
    ) -> Mapping[str, int]:
        """Return how many partitions of each topic the group began with."""
        topics = {name: BegunTopic(info.topic_id, info.partitions) for name, info in found.items()}
        return self._begun.begin(topics, subscription, lambda: self._stored(found))

    def _stored(self, found: Mapping[str, TopicInfo]) -> Mapping[str, int]:
        """Return how many partitions of each topic there are up to the last that has an offset."""
        partitions = [
            TopicPartition(name, number)
            for name, info in found.items()
            for number in range(info.partitions)
        ]
        try:
            offsets = self._store.find(partitions, Deadline.after(_READ_TIMEOUT, self._clock))
        except HeadraceError as error:
            log.warning("begun_topics_unknown", group=self._begun.group, error=str(error))
            return {}
        counts: dict[str, int] = {}
        for partition, stored in offsets.items():
            topic = partition.topic
            if not stored.is_of_another(found[topic].topic_id):
                counts[topic] = max(counts.get(topic, 0), partition.partition + 1)
        return counts
