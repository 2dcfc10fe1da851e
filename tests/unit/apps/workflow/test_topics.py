"""The topics of an executor, without a broker: making them, and reading one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.apps.workflow import topics as module
from headrace.apps.workflow.topics import TopicReader, Topics, create_topics
from headrace.core.errors import StartError
from headrace.core.records import TopicPartition
from headrace.kafka.errors import KafkaAccessError, KafkaUnavailableError
from headrace.kafka.ports import Fetched
from headrace.testing import InMemoryBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.clock import Deadline
    from headrace.kafka.catalog import NewTopic

_OTHERS = ("assignments", "results", "outcomes", "dead")


class SlowBrokers:
    """Stand for brokers that know a topic only some looks after its creation; ``old`` exists."""

    def __init__(self, *_: Any) -> None:
        self.created: list[str] = []
        self.looks = 0

    def create(self, wanted: NewTopic, deadline: Deadline) -> bool:
        """Create a topic."""
        del deadline
        if wanted.name == "old":
            return False
        self.created.append(wanted.name)
        return True

    def describe(self, names: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """Say which are known: one more with each look."""
        del deadline
        self.looks += 1
        return dict.fromkeys(names[: self.looks], "known")

    def close(self) -> None:
        """Hold nothing."""


def test_topics_are_created_when_brokers_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later reader finds the new topics; an existing one is not waited for."""
    brokers = SlowBrokers()
    monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: brokers)
    made = create_topics({}, Topics("old"), partitions=1, assignments=1)
    assert made == brokers.created == [f"old.{name}" for name in _OTHERS]
    assert brokers.looks == len(made)


def test_the_history_has_a_topic_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history's topic is created with the others on request."""
    brokers = SlowBrokers()
    monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: brokers)
    made = create_topics({}, Topics("old"), partitions=1, assignments=1, history=True)
    assert made == [f"old.{name}" for name in (*_OTHERS, "history")]


def test_topics_that_brokers_do_not_come_to_know_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the time for their answer is over."""
    brokers = SlowBrokers()
    monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: brokers)
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.0)
    with pytest.raises(KafkaUnavailableError, match=r"topic flow.* was created and is not there"):
        create_topics({}, Topics("flow"), partitions=1, assignments=1)


class OlderTopics(SlowBrokers):
    """Brokers that have all topics already; None: they do not say how outcomes are kept."""

    def __init__(self, policy: str | None) -> None:
        super().__init__()
        self.policy = policy

    def create(self, wanted: NewTopic, deadline: Deadline) -> bool:
        """Refuse."""
        del wanted, deadline
        return False

    def settings(self, topic: str, deadline: Deadline) -> dict[str, str]:
        """Return the topic's settings."""
        del topic, deadline
        if self.policy is None:
            raise KafkaUnavailableError("not authorized")
        return {"cleanup.policy": self.policy}


@pytest.mark.parametrize("policy", ["compact", "compact,delete", None])
def test_topics_that_are_there_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch, policy: str | None
) -> None:
    """Also where this user may not ask whether outcomes are kept, which is logged."""
    monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: OlderTopics(policy))
    with capture_logs() as logged:
        assert create_topics({}, Topics("flow"), partitions=1, assignments=1) == []
    assert [each["event"] for each in logged] == ["outcomes_topic_unknown"] * (policy is None)


def test_outcomes_that_would_be_deleted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the topic, what it has and what to do."""
    monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: OlderTopics("delete"))
    with pytest.raises(StartError, match=r"'flow.outcomes' has cleanup.policy=delete.*set"):
        create_topics({}, Topics("flow"), partitions=1, assignments=1)


P0 = TopicPartition("events", 0)


class Reports:
    """A broker in memory whose source reports what a test wants before anything else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = InMemoryBroker()
        self.broker.create_topic("events")
        self.next: list[Fetched] = []
        source = self.broker.source()
        monkeypatch.setattr(module, "KafkaTopicCatalog", lambda *_: self.broker.catalog())
        monkeypatch.setattr(module, "KafkaRecordSource", lambda *_: source)
        fetch = source.fetch
        monkeypatch.setattr(source, "fetch", lambda t: self.next.pop() if self.next else fetch(t))

    def values(self, reader: TopicReader) -> list[bytes | None]:
        """Return what one fetch after those reports brings, and they themselves."""
        return [record.value() for _ in range(2) for record in reader.fetch(0)]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Return a broker in memory."""
    return Reports(monkeypatch)


def test_a_topic_that_may_not_be_read_is_no_empty_one(reports: Reports) -> None:
    """The error names the topic and the right that is missing."""
    said = "events-0: Fetch from broker 1 failed: Broker: Topic authorization failed"
    reports.next = [Fetched(errors=[said])]
    refused = pytest.raises(KafkaAccessError, match=r"topic 'events' cannot be .* to READ it")
    with TopicReader({}, "events", from_beginning=True) as reader, refused:
        list(reader.fetch(0))


def test_a_passing_error_is_logged_and_reported_at_the_end(reports: Reports) -> None:
    """A broker that goes away ends no reader; an incomplete read raises the last error."""
    reports.broker.produce(P0, b"1")
    reports.next = [Fetched(errors=["1 request(s) timed out: disconnect"])] * 2
    with TopicReader({}, "events", from_beginning=True) as reader, capture_logs() as logged:
        assert list(reader.fetch(0)) == list(reader.fetch(0)) == []
        assert not reader.is_at_end
        error = reader.unread(30)
        assert [record.value() for record in reader.fetch(0)] == [b"1"]
    assert isinstance(error, KafkaUnavailableError)
    assert str(error) == (
        "topic 'events' was not all read after 30 s: 1 request(s) timed out: disconnect"
    )
    assert [(each["event"], each["topic"]) for each in logged] == [("topic_reader_error", "events")]


@pytest.mark.parametrize(("end", "again"), [(2, [b"c"]), (None, [b"1", b"2", b"c"])])
def test_a_log_that_lost_its_end_is_read_on(
    reports: Reports, end: int | None, again: list[bytes]
) -> None:
    """Reading continues at the log's end, or at its start if the end is unknown."""
    reports.broker.produce(P0, b"1", b"2", b"3", b"4")
    with TopicReader({}, "events", from_beginning=True) as reader, capture_logs() as logged:
        assert reports.values(reader) == [b"1", b"2", b"3", b"4"]
        reports.broker.truncate(P0, 2)
        reports.broker.produce(P0, b"c")
        reports.next = [Fetched(truncated=[(P0, end)])]
        assert reports.values(reader) == again
        assert reader.is_at_end
    (said,) = logged
    assert (said["event"], said["before"]) == ("topic_reader_truncated", 4)


def test_a_position_that_is_gone_is_left(reports: Reports) -> None:
    """Records that were deleted before they were read are passed over, up to the end."""
    reports.broker.produce(P0, b"1", b"2")
    with TopicReader({}, "events", from_beginning=True) as reader:
        reports.broker.expire(P0, 2)
        assert reports.values(reader) == []
        assert reader.is_at_end
