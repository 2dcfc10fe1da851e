"""Topics of a channel over successive checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.channel.topics import GROWTH_LOOKS, KnownTopics, TopicWatcher
from headrace.config.subscription import Subscription
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import StartError
from headrace.core.records import TopicPartition
from headrace.kafka.errors import UnknownTopicError
from headrace.testing import InMemoryBroker
from headrace.testing.broker import InMemoryCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.kafka.ports import TopicCatalog, TopicInfo


class Bench:
    """A watcher whose thread does not run, and what it told."""

    def __init__(
        self,
        broker: InMemoryBroker,
        *topics: str,
        catalog: TopicCatalog | None = None,
        together: bool = False,
        fail: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.broker = broker
        self.told: list[object] = []
        self.known = KnownTopics(Subscription(topics))
        self.watcher = TopicWatcher(
            self.known,
            catalog or broker.catalog(),
            subscription=self,
            manager=self,
            begun=lambda _, found: {name: each.partitions for name, each in found.items()},
            channel="main",
            clock=SYSTEM_CLOCK,
            fail=fail or _fail,
            together=together,
        )

    def set_topics(self, counts: Mapping[str, int]) -> None:
        """Keep the numbers of partitions as they were handed over, as a listener may."""
        self.told.append(counts)

    def log_replaced(self, topic: str) -> None:
        """Record a topic that was created again."""
        self.told.append(("replaced", topic))

    def topic_missing(self, topic: str) -> None:
        """Record a topic that was deleted."""
        self.told.append(("missing", topic))

    def begin(self) -> list[str]:
        """Look for the first time; return the events of the log."""
        with capture_logs() as logs:
            self.watcher.begin(Deadline.after(1))
        return _events(logs)

    def look(self) -> list[str]:
        """Look again; return the events of the log."""
        with capture_logs() as logs:
            self.watcher._check_topics()
        return _events(logs)

    def event(self) -> list[object]:
        """Return what was told since the last question."""
        told, self.told = self.told, []
        return told


def _fail(error: BaseException) -> None:
    raise error


def _events(logs: list[Any]) -> list[str]:
    return [f"{entry['event']} {entry.get('topic', entry.get('pattern', ''))}" for entry in logs]


def _p(topic: str, number: int = 0) -> TopicPartition:
    return TopicPartition(topic, number)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with the topics ``events`` of two partitions and ``alerts.eu``."""
    made = InMemoryBroker()
    made.create_topic("events", 2)
    made.create_topic("alerts.eu")
    return made


def test_names_and_matches_make_the_topics(broker: InMemoryBroker) -> None:
    """Topics of the start did not appear later; a pattern without a match waits."""
    bench = Bench(broker, "events", "^alerts", "^none")
    assert bench.begin() == ["no_topic_matches ^none"]
    assert bench.event() == [{"events": 2, "alerts.eu": 1}]
    assert not any(map(bench.known.appeared_later, [_p("events", 1), _p("alerts.eu")]))
    assert bench.look() == []
    assert bench.event() == []


def test_a_named_topic_has_to_exist(broker: InMemoryBroker) -> None:
    """A pattern that would match it does not help."""
    with pytest.raises(UnknownTopicError, match=r"no topic none, other on the broker.*main\.topic"):
        Bench(broker, "other", "events", "none", "^none").begin()


def test_new_topics_and_partitions_are_read_from_their_beginning(broker: InMemoryBroker) -> None:
    """Topics that begin to match count, and partitions that are added to matching ones."""
    bench = Bench(broker, "^alerts")
    bench.begin()
    broker.create_topic("alerts.us", 2)
    broker.create_topic("alerts.eu", 2)
    broker.create_topic("others")
    assert bench.look() == ["topic_matched alerts.us", "partitions_changed "]
    assert bench.event()[1:] == [{"alerts.eu": 2, "alerts.us": 2}]
    later = [
        p
        for p in (_p("alerts.eu"), _p("alerts.eu", 1), _p("alerts.us"))
        if bench.known.appeared_later(p)
    ]
    assert later == [_p("alerts.eu", 1), _p("alerts.us")]


def test_a_matched_topic_is_gone_after_two_looks(broker: InMemoryBroker) -> None:
    """Facts about the topic are kept, because claims and commits may still refer to it."""
    bench = Bench(broker, "events", "^alerts")
    bench.begin()
    before = bench.known.topic_id(_p("alerts.eu"))
    bench.event()
    broker.delete_topic("alerts.eu")
    assert bench.look() == []
    assert bench.event() == []
    assert bench.known.in_doubt
    assert bench.known.is_missing("alerts.eu")
    assert not bench.known.is_gone("alerts.eu")
    assert bench.look() == ["topic_removed alerts.eu", "partitions_changed "]
    assert bench.event() == [{"events": 2}, ("missing", "alerts.eu")]
    assert not bench.known.in_doubt
    assert bench.known.is_missing("alerts.eu")
    assert bench.known.is_gone("alerts.eu")
    assert bench.known.topic_id(_p("alerts.eu")) == before
    assert bench.look() == []


class ForgetfulCatalog(InMemoryCatalog):
    """Describes no topic while ``forgets``, as a broker does that has not heard of it yet."""

    forgets = False

    def describe(self, topics: Collection[str], deadline: Deadline) -> Mapping[str, TopicInfo]:
        """Describe topics."""
        return {} if self.forgets else super().describe(topics, deadline)


def test_a_topic_that_is_missed_once_at_a_time_is_not_given_up(broker: InMemoryBroker) -> None:
    """The looks that miss it have to follow one another."""
    catalog = ForgetfulCatalog(broker)
    bench = Bench(broker, "^alerts", catalog=catalog)
    bench.begin()
    bench.event()
    for _ in range(3):
        for catalog.forgets in (True, False):
            bench.look()
    assert bench.event() == []
    assert not bench.known.is_missing("alerts.eu")
    assert not bench.known.appeared_later(_p("alerts.eu"))


def test_a_gone_topic_that_comes_back_is_a_new_one(broker: InMemoryBroker) -> None:
    """It appears and it is replaced: claims that were not given back meanwhile hear of that."""
    bench = Bench(broker, "^alerts")
    bench.begin()
    broker.delete_topic("alerts.eu")
    bench.look()
    bench.look()
    bench.event()
    broker.create_topic("alerts.eu")
    assert bench.look() == [
        "topic_matched alerts.eu",
        "topic_recreated alerts.eu",
        "partitions_changed ",
    ]
    assert bench.event() == [{"alerts.eu": 1}, ("replaced", "alerts.eu")]
    assert bench.known.appeared_later(_p("alerts.eu"))
    assert not bench.known.is_missing("alerts.eu")


def test_a_matched_topic_may_be_replaced_between_two_looks(broker: InMemoryBroker) -> None:
    """The changed id shows it, as for a named topic, though it was never missing."""
    bench = Bench(broker, "events", "^alerts")
    bench.begin()
    bench.event()
    for topic in ("alerts.eu", "events"):
        broker.delete_topic(topic)
        broker.create_topic(topic, 2)
    assert bench.look()[:2] == ["topic_recreated alerts.eu", "topic_recreated events"]
    told = bench.event()
    assert sorted(map(str, told[1:])) == ["('replaced', 'alerts.eu')", "('replaced', 'events')"]
    assert bench.known.appeared_later(_p("events"))


def test_a_named_topic_stays_while_it_is_missing(broker: InMemoryBroker) -> None:
    """It is said once, also where a pattern matches it too; nothing is given up."""
    bench = Bench(broker, "events", "^ev")
    bench.begin()
    bench.event()
    broker.delete_topic("events")
    assert [bench.look() for _ in range(4)] == [[], ["topic_missing events"], [], []]
    assert bench.event() == [("missing", "events")]
    assert bench.known.counts() == {"events": 2}
    assert bench.known.is_missing("events")
    assert not bench.known.is_gone("events")
    assert not bench.known.in_doubt
    assert bench.known.deleted() == ["events"]


def test_counts_are_told_as_they_are(broker: InMemoryBroker) -> None:
    """A listener that keeps them is not changed from behind."""
    bench = Bench(broker, "^.")
    bench.begin()
    broker.create_topic("more")
    bench.look()
    assert bench.told == [
        {"alerts.eu": 1, "events": 2},
        {"alerts.eu": 1, "events": 2, "more": 1},
    ]


def test_topics_of_tasks_that_grow_one_after_the_other_make_more_tasks(
    broker: InMemoryBroker,
) -> None:
    """The group goes on with the former tasks until the second topic has grown as well."""
    broker.create_topic("alerts.eu", 2)
    bench = Bench(broker, "events", "alerts.eu", together=True)
    bench.begin()
    broker.create_topic("events", 3)
    for _ in range(GROWTH_LOOKS - 1):
        assert bench.look() == ["topics_not_co_partitioned "]
    assert bench.event() == [{"events": 2, "alerts.eu": 2}]
    broker.create_topic("alerts.eu", 3)
    assert bench.look() == ["partitions_changed "]
    assert bench.event() == [{"events": 3, "alerts.eu": 3}]


def test_a_topic_of_tasks_that_grows_alone_fails_its_channel(broker: InMemoryBroker) -> None:
    """The channel ends after some looks by the error that a start would have, once."""
    failures: list[BaseException] = []
    broker.create_topic("alerts.eu", 2)
    bench = Bench(broker, "events", "alerts.eu", together=True, fail=failures.append)
    bench.begin()
    broker.create_topic("events", 3)
    for _ in range(GROWTH_LOOKS + 2):
        bench.look()
    [failure] = failures
    assert isinstance(failure, StartError)
    assert "events has 3 partitions, alerts.eu 2" in str(failure)


def test_topics_of_partitions_may_grow_as_they_like(broker: InMemoryBroker) -> None:
    """A channel that does not work in tasks takes any number of each topic."""
    bench = Bench(broker, "events", "alerts.eu")
    bench.begin()
    broker.create_topic("events", 3)
    bench.look()
    assert bench.event()[-1] == {"events": 3, "alerts.eu": 1}
