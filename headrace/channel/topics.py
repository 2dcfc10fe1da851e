"""The thread that follows a channel's topics on the broker: their ids and partition counts."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.clock import Clock, Deadline
from headrace.errors import HeadraceError, UnknownTopicError
from headrace.records import identity_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.kafka.ports import TopicCatalog, TopicInfo
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)

#: Seconds between two looks: what a new partition waits for at most. Short of librdkafka's own
#: ``topic.metadata.refresh.interval.ms`` (300 s), because a look costs one small request.
REFRESH_INTERVAL = 30.0

#: Seconds in which the brokers have to answer at the start, as ZooKeeper has by default.
START_TIMEOUT = 15.0

#: Seconds one look may take.
REFRESH_TIMEOUT = 10.0


class TopicWatcher:
    """Owns the loop that asks the catalog, and tells of changed partition counts and topic ids."""

    def __init__(
        self,
        catalog: TopicCatalog,
        topics: Collection[str],
        *,
        channel: str,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._topics = tuple(topics)
        self._channel = channel
        self._clock = clock
        self._known: Mapping[str, TopicInfo] = {}
        self._first: Mapping[str, TopicInfo] = {}
        self._replaced: set[str] = set()
        self._cluster = ""
        self._stopping = Event()
        self._wanted = Event()
        self._thread: Thread | None = None

    def start(
        self,
        deadline: Deadline,
        changed: Callable[[Mapping[str, int]], None],
        replaced: Callable[[str], None],
    ) -> None:
        """Look once, so that the channel knows what there is, then start the thread.

        ``changed`` is told of the partition counts, ``replaced`` of a topic that was created again.

        Raises:
            KafkaUnavailableError: no broker answered by the deadline.
            UnknownTopicError: a topic does not exist.
        """
        deadline = Deadline.after(deadline.at_most(START_TIMEOUT), self._clock)
        self._cluster = self._catalog.cluster_id(deadline)
        self._known = self._first = self._catalog.describe(self._topics, deadline)
        missing = sorted(set(self._topics) - set(self._known))
        if missing:
            raise UnknownTopicError(
                f"channel {self._channel}: no topic {', '.join(missing)} on the broker; "
                "create it, or correct channels."
                f"{self._channel}.topics"
            )
        changed(self.counts())
        self._thread = Thread(
            target=self._run, args=[changed, replaced], name=f"{self._channel}-topics", daemon=True
        )
        self._thread.start()

    def counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic, as last seen."""
        return {name: info.partitions for name, info in self._known.items()}

    def topic_id(self, partition: TopicPartition) -> str:
        """Return the id of the partition's topic, as last seen. Any thread."""
        return self._known[partition.topic].topic_id

    def look(self) -> None:
        """Have the thread look now: somebody knows that a topic changed. Does not block."""
        self._wanted.set()

    def identity(self, partition: TopicPartition, group: str) -> str:
        """Return the name under which a sink keeps the partition's offset."""
        topic_id = self._known[partition.topic].topic_id
        return identity_of(self._cluster, group, topic_id, partition.partition)

    def appeared_later(self, partition: TopicPartition) -> bool:
        """Whether the partition, or its topic as it is now, was made after this channel started."""
        if partition.topic in self._replaced:
            return True
        return partition.partition >= self._first[partition.topic].partitions

    def stop(self, deadline: Deadline) -> bool:
        """End the thread; False if it overran the deadline."""
        self._stopping.set()
        self._wanted.set()
        if self._thread is None:
            return True
        self._thread.join(deadline.remaining)
        return not self._thread.is_alive()

    def _run(
        self, changed: Callable[[Mapping[str, int]], None], replaced: Callable[[str], None]
    ) -> None:
        while True:
            self._wanted.wait(REFRESH_INTERVAL)
            self._wanted.clear()
            if self._stopping.is_set():
                return
            try:
                self._refresh(changed, replaced)
            except HeadraceError as error:
                log.warning("topics_unknown", channel=self._channel, error=str(error))

    def _refresh(
        self, changed: Callable[[Mapping[str, int]], None], replaced: Callable[[str], None]
    ) -> None:
        deadline = Deadline.after(REFRESH_TIMEOUT, self._clock)
        before, known = self.counts(), self._known
        self._known = {**self._known, **self._catalog.describe(self._topics, deadline)}
        if self.counts() != before:
            log.info("partitions_changed", channel=self._channel, partitions=self.counts())
            changed(self.counts())
        for topic, info in self._known.items():
            if info.topic_id != known[topic].topic_id:
                log.warning(
                    "topic_replaced",
                    channel=self._channel,
                    topic=topic,
                    before=known[topic].topic_id,
                    topic_id=info.topic_id,
                )
                self._replaced.add(topic)
                replaced(topic)
