"""The topics of a channel: what the group subscribes to, and which there are on the brokers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock
from typing import TYPE_CHECKING, Protocol

import structlog

from headrace.coordinators.coordinator import member_info
from headrace.coordinators.tasks import uneven_partitions
from headrace.core.clock import Clock, Deadline
from headrace.core.errors import HeadraceError, StartError
from headrace.core.records import identity_of
from headrace.core.supervision import PeriodicThread
from headrace.kafka.catalog import matching, meant
from headrace.kafka.errors import KafkaUnavailableError, UnknownTopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.config import ChannelConfig
    from headrace.config.subscription import Subscription
    from headrace.coordinators.coordinator import Coordinator
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import TopicCatalog, TopicInfo

    #: Returns with how many partitions the group began with each topic.
    Begun = Callable[[Subscription, Mapping[str, TopicInfo]], Mapping[str, int]]


class GroupSubscription:
    """Tells the coordinator both together, whichever of them changed. Any thread; never blocks."""

    def __init__(self, config: ChannelConfig, coordinator: Coordinator) -> None:
        self._config = config
        self._coordinator = coordinator
        self._topics = frozenset(config.subscription.names)
        self._lock = Lock()

    def set_topics(self, counts: Mapping[str, int]) -> None:
        """Ask for partitions of these topics, which have so many each."""
        with self._lock:
            self._topics = frozenset(counts)
            self._coordinator.update(member_info(self._config, self._topics))
            self._coordinator.set_partitions(counts)

    def set_assignor(self, config: ChannelConfig) -> None:
        """Apply the assignment strategy of ``config.coordinator``."""
        with self._lock:
            self._config = config
            self._coordinator.update(member_info(config, self._topics), config.coordinator)


#: Looks in a row in which a topic has to be missing: one broker may lag behind the others.
LOOKS = 2


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """The changes that a look at the topics found.

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

    def request_check(self) -> None:
        """Request a check of the topics now: one is known to have changed. Does not block."""
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
        """Return whether the partition, or its topic as it is now, is newer than the group's
        beginning.

        The group began with the topic then, whether any member ran when the partition came or not.
        """
        return partition.partition >= self._at_start.get(partition.topic, 0)

    def is_missing(self, topic: str) -> bool:
        """Return whether the last look did not find the topic."""
        return topic in self._misses or topic in self._gone

    def is_gone(self, topic: str) -> bool:
        """Return whether the topic is none of the channel's any more."""
        return topic in self._gone

    def deleted(self) -> list[str]:
        """Return the named topics that were missing often enough to count as deleted, sorted."""
        return sorted(topic for topic, times in self._misses.items() if times >= LOOKS)

    @property
    def in_doubt(self) -> bool:
        """Return whether a topic was missing, but not often enough to count as deleted."""
        return any(times < LOOKS for times in self._misses.values())

    # --- the thread that looks ------------------------------------------------------------------

    def begin(self, cluster: str, found: Mapping[str, TopicInfo], begun: Mapping[str, int]) -> None:
        """Record the cluster's id, the topics at the start, and the partitions that are not new."""
        self._cluster = cluster
        self._known = dict(found)
        self._at_start = dict(begun)

    def follow(
        self,
        subscription: Subscription,
        found: Mapping[str, TopicInfo],
        begun: Mapping[str, int],
    ) -> None:
        """Replace the subscription and the topics that it covers.

        A topic that it brings in begins as at a start of the channel. What only the former one
        covered is none of the channel's any more, though claims and commits still speak of it.
        """
        new = found.keys() - self.counts().keys()
        kept = found.keys() | frozenset(subscription.names)
        self.subscription = subscription
        self._at_start = {**self._at_start, **{name: begun[name] for name in new}}
        self._known = {**self._known, **found}
        self._gone -= found.keys()
        self._dropped = frozenset(self._known.keys() - kept)
        self._misses = {topic: n for topic, n in self._misses.items() if topic in kept}

    def take_in(self, found: Mapping[str, TopicInfo]) -> TopicChanges:
        """Record the topics that exist now, and return the changes."""
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
        return TopicChanges(frozenset(found.keys() - present), missing, replaced)


log = structlog.get_logger(__name__)

#: Seconds between two looks: what a new partition or topic waits for at most. Short of librdkafka's
#: own ``topic.metadata.refresh.interval.ms`` (300 s), because a look costs one small request, and
#: with patterns one more that grows with the topics of the cluster.
REFRESH_INTERVAL = 30.0

#: Seconds until a topic that was missing is looked for again. Brokers hear of a new topic, or of
#: one that was deleted, within a second or two.
CONFIRM_INTERVAL = 5.0

#: Looks in a row at which topics of tasks have to have different numbers of partitions before that
#: is no more taken for a growth under way: who adds partitions does so topic by topic, by hand.
GROWTH_LOOKS = 6

#: Seconds in which the brokers have to answer at the start, as ZooKeeper has by default.
START_TIMEOUT = 15.0

#: Seconds one look may take.
REFRESH_TIMEOUT = 10.0


class TopicCounts(Protocol):
    """The group's subscription."""

    def set_topics(self, counts: Mapping[str, int]) -> None:
        """Ask for partitions of these topics, which have so many each."""
        ...


class TopicEvents(Protocol):
    """The manager of the channel's partitions."""

    def log_replaced(self, topic: str) -> None:
        """Start the partitions of a topic over that was created again."""
        ...

    def topic_missing(self, topic: str) -> None:
        """Stop waiting for a topic that was deleted."""
        ...


class TopicWatcher(PeriodicThread):
    """Owns the loop that asks the catalog. What it finds is in ``known``.

    It calls ``subscription.set_topics`` whenever topics or their numbers of partitions change,
    ``manager.log_replaced`` for a topic that was created again, and ``manager.topic_missing`` for
    one that counts as deleted: on the watcher's thread and at the start; none of them blocks.
    ``begun`` returns how many partitions the group began with each topic, given those of now, and
    may block. Of topics that the channel works on ``together`` all have to have the same number.
    """

    def __init__(
        self,
        known: KnownTopics,
        catalog: TopicCatalog,
        *,
        subscription: TopicCounts,
        manager: TopicEvents,
        begun: Begun,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
        together: bool = False,
    ) -> None:
        self._together = together
        self._uneven_looks = 0
        self._published: Mapping[str, int] = {}
        self._known = known
        self._begun = begun
        self._catalog = catalog
        self._looking = Lock()
        self._subscription, self._manager = subscription, manager
        self._channel = channel
        self._clock = clock
        self._fail = fail
        super().__init__(f"{channel}-topics", fail)

    def begin(self, deadline: Deadline) -> None:
        """Read the topics once, so that the channel knows its partitions. Blocks; before ``start``.

        Raises:
            KafkaUnavailableError: no broker answered by the deadline.
            UnknownTopicError: a topic that is named does not exist.
            StartError: topics of tasks have different numbers of partitions.
        """
        deadline = Deadline.after(deadline.at_most(START_TIMEOUT), self._clock)
        cluster = self._catalog.cluster_id(deadline)
        subscription = self._known.subscription
        found = self._find(subscription, deadline)
        self._check(subscription, found, frozenset(subscription.names), deadline)
        self._known.begin(cluster, found, self._begun(subscription, found))
        self._publish(self._known.counts())

    @contextmanager
    def resubscribe(self, subscription: Subscription, deadline: Deadline) -> Iterator[None]:
        """Check the topics of a reloaded configuration, run the block, then subscribe to them.

        The block may refuse them. Topics that the reload adds are claimed, others are given back.

        Any thread. Blocks until the deadline at most. While the block runs the watcher does not
        look.

        Raises:
            KafkaUnavailableError: no broker answered by the deadline; nothing was changed.
            UnknownTopicError: a topic that is newly named does not exist; nothing was changed.
            StartError: topics of tasks would have different numbers of partitions; nothing was
                changed.
        """
        if not self._looking.acquire(timeout=deadline.remaining):
            raise KafkaUnavailableError(
                f"channel {self._channel}: the brokers have not said in time which topics there are"
            )
        try:
            former = frozenset(self._known.subscription.names)
            found = self._find(subscription, deadline)
            self._check(subscription, found, frozenset(subscription.names) - former, deadline)
            begun = self._begun(subscription, found)
            yield
            self._known.follow(subscription, found, begun)
            counts = self._known.counts()
            log.info("topics_changed", channel=self._channel, partitions=counts)
            self._publish(counts)
        finally:
            self._looking.release()

    def _check(
        self,
        subscription: Subscription,
        found: Mapping[str, TopicInfo],
        named: frozenset[str],
        deadline: Deadline,
    ) -> None:
        """Refuse what is ``named`` and not found, and topics of which no tasks can be made.

        Warn of patterns that match nothing.
        """
        missing = sorted(named - found.keys())
        if missing:
            raise UnknownTopicError(
                f"channel {self._channel}: no topic {', '.join(missing)} on the broker"
                f"{meant(self._catalog, missing, deadline)}; create it, or correct "
                f"channels.{self._channel}.topics"
            )
        uneven = self._unevenness({name: info.partitions for name, info in found.items()})
        if uneven is not None:
            raise uneven
        for pattern in subscription.fruitless(found):
            log.warning("no_topic_matches", channel=self._channel, pattern=pattern)

    def _unevenness(self, counts: Mapping[str, int]) -> StartError | None:
        """Return why the topics make no tasks, None where they do."""
        found = uneven_partitions(counts) if self._together else None
        if found is None:
            return None
        return StartError(
            f"channel {self._channel}: its topics are not co-partitioned: {found}; it works on the "
            "same partitions of all of them, so have a channel with the rekey processor write "
            f"those with fewer again, to topics of {max(counts.values())} partitions, and read "
            "these"
        )

    def _publish(self, counts: Mapping[str, int]) -> None:
        self._published = counts
        self._subscription.set_topics(counts)

    def _wake_up(self) -> None:
        self._known.request_check()

    def _run(self) -> None:
        while True:
            soon = min(CONFIRM_INTERVAL, REFRESH_INTERVAL)
            in_doubt = self._known.in_doubt or self._uneven_looks > 0
            self._known.wanted.wait(soon if in_doubt else REFRESH_INTERVAL)
            self._known.wanted.clear()
            if self._stopping.is_set():
                return
            try:
                with self._looking:
                    self._check_topics()
            except HeadraceError as error:
                log.warning("topic_metadata_unavailable", channel=self._channel, error=str(error))

    def _find(self, subscription: Subscription, deadline: Deadline) -> dict[str, TopicInfo]:
        """Ask for what is named or was known before, and for what the patterns match."""
        matched = matching(self._catalog, subscription, deadline)
        known = filter(subscription.covers, self._known.counts())
        rest = {*subscription.names, *known} - matched.keys()
        return {**matched, **self._catalog.describe(sorted(rest), deadline)}

    def _check_topics(self) -> None:
        deadline = Deadline.after(REFRESH_TIMEOUT, self._clock)
        found = self._find(self._known.subscription, deadline)
        changes = self._known.take_in(found)
        self._log(changes)
        counts = self._known.counts()
        if self._is_even(counts) and counts != self._published:
            log.info("partitions_changed", channel=self._channel, partitions=counts)
            self._publish(counts)
        for topic in changes.replaced:
            self._manager.log_replaced(topic)
        for topic in changes.missing:
            self._manager.topic_missing(topic)

    def _is_even(self, counts: Mapping[str, int]) -> bool:
        """Return whether the topics make tasks; fail the channel where they do not for long.

        Until then the group goes on with the tasks that there were.
        """
        uneven = self._unevenness(counts)
        self._uneven_looks = 0 if uneven is None else self._uneven_looks + 1
        if uneven is not None:
            log.warning("topics_not_co_partitioned", channel=self._channel, partitions=counts)
            if self._uneven_looks == GROWTH_LOOKS:
                self._fail(uneven)
        return uneven is None

    def _log(self, changes: TopicChanges) -> None:
        for topic in sorted(changes.matched):
            log.info("topic_matched", channel=self._channel, topic=topic)
        for topic in sorted(changes.missing):
            event = "topic_removed" if self._known.is_gone(topic) else "topic_missing"
            log.warning(event, channel=self._channel, topic=topic)
        for topic, (former, present) in sorted(changes.replaced.items()):
            log.warning(
                "topic_recreated",
                channel=self._channel,
                topic=topic,
                before=former,
                topic_id=present,
            )
