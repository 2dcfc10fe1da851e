"""The thread that follows a channel's topics on the broker: which there are, and of what size."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.threads import Patrol
from headrace.clock import Clock, Deadline
from headrace.errors import HeadraceError, KafkaUnavailableError, UnknownTopicError
from headrace.kafka.matching import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.channel.known_topics import Changes, KnownTopics
    from headrace.config.subscription import Subscription
    from headrace.kafka.ports import TopicCatalog, TopicInfo

log = structlog.get_logger(__name__)

#: Seconds between two looks: what a new partition or topic waits for at most. Short of librdkafka's
#: own ``topic.metadata.refresh.interval.ms`` (300 s), because a look costs one small request, and
#: with patterns one more that grows with the topics of the cluster.
REFRESH_INTERVAL = 30.0

#: Seconds until a topic that was missing is looked for again. Brokers hear of a new topic, or of
#: one that was deleted, within a second or two.
CONFIRM_INTERVAL = 5.0

#: Seconds in which the brokers have to answer at the start, as ZooKeeper has by default.
START_TIMEOUT = 15.0

#: Seconds one look may take.
REFRESH_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class TopicListener:
    """Who is told, on the watcher's thread and at the start; must not block.

    ``counts`` of the partitions of all topics, whenever they are not what they were; ``replaced``
    of a topic that was created again; ``missing`` of one that counts as deleted.
    """

    counts: Callable[[Mapping[str, int]], None]
    replaced: Callable[[str], None]
    missing: Callable[[str], None]


class TopicWatcher(Patrol):
    """Owns the loop that asks the catalog. What it finds is in ``known``."""

    def __init__(
        self,
        known: KnownTopics,
        catalog: TopicCatalog,
        listener: TopicListener,
        *,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._known = known
        self._catalog = catalog
        self._looking = Lock()
        self._listener = listener
        self._channel = channel
        self._clock = clock
        super().__init__(f"{channel}-topics", fail)

    def begin(self, deadline: Deadline) -> None:
        """Look once, so that the channel knows what there is. Blocks; before ``start``.

        Raises:
            KafkaUnavailableError: no broker answered by the deadline.
            UnknownTopicError: a topic that is named does not exist.
        """
        deadline = Deadline.after(deadline.at_most(START_TIMEOUT), self._clock)
        cluster = self._catalog.cluster_id(deadline)
        subscription = self._known.subscription
        found = self._find(subscription, deadline)
        self._check(subscription, found, frozenset(subscription.names))
        self._known.begin(cluster, found)
        self._listener.counts(self._known.counts())

    def follow(self, subscription: Subscription, deadline: Deadline) -> None:
        """Follow other topics from now on. Blocks until the deadline at most; any thread.

        Raises:
            KafkaUnavailableError: no broker answered by the deadline; nothing was changed.
            UnknownTopicError: a topic that is newly named does not exist; nothing was changed.
        """
        if not self._looking.acquire(timeout=deadline.remaining):
            raise KafkaUnavailableError(
                f"channel {self._channel}: the brokers have not said in time which topics there are"
            )
        try:
            former = frozenset(self._known.subscription.names)
            found = self._find(subscription, deadline)
            self._check(subscription, found, frozenset(subscription.names) - former)
            self._known.follow(subscription, found)
            counts = self._known.counts()
            log.info("topics_changed", channel=self._channel, partitions=counts)
            self._listener.counts(counts)
        finally:
            self._looking.release()

    def _check(
        self, subscription: Subscription, found: Mapping[str, TopicInfo], named: frozenset[str]
    ) -> None:
        """Refuse what is ``named`` and not found; warn of patterns that match nothing."""
        missing = sorted(named - found.keys())
        if missing:
            raise UnknownTopicError(
                f"channel {self._channel}: no topic {', '.join(missing)} on the broker; "
                f"create it, or correct channels.{self._channel}.topics"
            )
        for pattern in subscription.fruitless(found):
            log.warning("no_topic_matches", channel=self._channel, pattern=pattern)

    def _wake_up(self) -> None:
        self._known.look()

    def _run(self) -> None:
        while True:
            soon = min(CONFIRM_INTERVAL, REFRESH_INTERVAL)
            self._known.wanted.wait(soon if self._known.in_doubt else REFRESH_INTERVAL)
            self._known.wanted.clear()
            if self._stopping.is_set():
                return
            try:
                with self._looking:
                    self._look()
            except HeadraceError as error:
                log.warning("topics_unknown", channel=self._channel, error=str(error))

    def _find(self, subscription: Subscription, deadline: Deadline) -> dict[str, TopicInfo]:
        """Ask for what is named or was known before, and for what the patterns match."""
        matched = matching(self._catalog, subscription, deadline)
        known = filter(subscription.covers, self._known.counts())
        rest = {*subscription.names, *known} - matched.keys()
        return {**matched, **self._catalog.describe(sorted(rest), deadline)}

    def _look(self) -> None:
        deadline = Deadline.after(REFRESH_TIMEOUT, self._clock)
        found = self._find(self._known.subscription, deadline)
        before = self._known.counts()
        changes = self._known.take_in(found)
        self._log(changes)
        counts = self._known.counts()
        if counts != before:
            log.info("partitions_changed", channel=self._channel, partitions=counts)
            self._listener.counts(counts)
        for topic in changes.replaced:
            self._listener.replaced(topic)
        for topic in changes.missing:
            self._listener.missing(topic)

    def _log(self, changes: Changes) -> None:
        for topic in sorted(changes.matched):
            log.info("topic_matched", channel=self._channel, topic=topic)
        for topic in sorted(changes.missing):
            event = "topic_gone" if self._known.is_gone(topic) else "topic_missing"
            log.warning(event, channel=self._channel, topic=topic)
        for topic, (former, present) in sorted(changes.replaced.items()):
            log.warning(
                "topic_replaced",
                channel=self._channel,
                topic=topic,
                before=former,
                topic_id=present,
            )
