"""A whole channel whose topics are matched by pattern, on a broker in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
from structlog.testing import capture_logs

from headrace.channel.bounds import Until
from headrace.config import DynamicCoordinatorConfig, StaticCoordinatorConfig
from headrace.coordinators.member_info import AssignmentMode
from headrace.coordinators.znodes import GroupPaths, MemberDocument
from headrace.core.clock import Deadline
from headrace.core.errors import ChannelFailedError, ConfigError
from headrace.core.records import TopicPartition
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.doubles import NotedOffsets
from tests.unit.channel.in_memory import committed, eventually, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel

Coordinator = TypeVar("Coordinator", DynamicCoordinatorConfig, StaticCoordinatorConfig)

EU, US = TopicPartition("alerts.eu", 0), TopicPartition("alerts.us", 0)
EVENTS = TopicPartition("events", 0)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let channels look at their topics all the time."""
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.01)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with the topics ``events`` and ``alerts.eu``, three records in each."""
    made = InMemoryBroker()
    for partition in (EVENTS, EU):
        made.create_topic(partition.topic)
        made.produce(partition, *values(3))
    return made


def published(zookeeper: InMemoryZooKeeper) -> MemberDocument | None:
    """Return what the member publishes, None where it is not in the group."""
    path = GroupPaths("group").member("member")
    node = zookeeper.node(path)
    return None if node is None else MemberDocument.decode(path, node.data)


def topics_of(zookeeper: InMemoryZooKeeper) -> frozenset[str]:
    """Return the topics that the member publishes."""
    document = published(zookeeper)
    return frozenset() if document is None else document.info.topics


def quick(kind: type[Coordinator], **fields: object) -> Coordinator:
    """Return a coordinator that does not wait for its group to settle."""
    return kind.model_validate({**fields, "rebalance_delay": "10ms"})


def mode_of(zookeeper: InMemoryZooKeeper) -> AssignmentMode | None:
    """Return the mode that the member publishes."""
    document = published(zookeeper)
    return None if document is None else document.info.mode


def test_a_topic_that_begins_to_match_is_read_from_its_first_record(
    broker: InMemoryBroker,
) -> None:
    """Also where ``initial_offset`` is latest; the member publishes what it knows, no patterns."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    channel = in_memory_channel(
        recorder, broker, zookeeper=zookeeper, topics=["^alerts"], initial_offset="latest"
    )
    with running(channel):
        assert committed(broker, EU, 3)
        assert topics_of(zookeeper) == {"alerts.eu"}
        with broker.at_once():
            broker.create_topic("alerts.us")
            broker.produce(US, *values(5))
        assert committed(broker, US, 5)
        assert topics_of(zookeeper) == {"alerts.eu", "alerts.us"}
    assert {batch.partition for batch in recorder.batches} == {US}
    assert broker.committed("group", EVENTS) is None


def test_a_channel_waits_for_topics_to_match(broker: InMemoryBroker) -> None:
    """A pattern without a match is no error."""
    channel = in_memory_channel(Recorder(), broker, topics=["^orders"])
    with capture_logs() as logs, running(channel):
        broker.create_topic("orders")
        broker.produce(TopicPartition("orders", 0), *values(2))
        assert committed(broker, TopicPartition("orders", 0), 2)
    said = [entry["pattern"] for entry in logs if entry["event"] == "no_topic_matches"]
    assert said == ["^orders"]


@pytest.mark.parametrize("owed", [False, True])
def test_a_matched_topic_that_is_deleted_is_given_up(broker: InMemoryBroker, owed: bool) -> None:
    """The processor is told of an orderly end; a commit that cannot be stored is not waited for."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    recorder.answer = lambda batch: (
        recorder.later(batch) if owed and batch.partition == EU else BatchResponse.advance()
    )
    channel = in_memory_channel(
        recorder, broker, zookeeper=zookeeper, topics=["events", "^alerts"], max_in_flight=1
    )
    with capture_logs() as logs, running(channel):
        assert committed(broker, EVENTS, 3)
        if owed:
            recorder.wait(lambda: bool(recorder.futures))
        else:
            assert committed(broker, EU, 3)
        broker.delete_topic("alerts.eu")
        eventually(lambda: topics_of(zookeeper) == {"events"})
        if owed:
            recorder.futures[0].set_result(BatchResponse.advance())
        eventually(lambda: zookeeper.node(GroupPaths("group").owner(EU)) is None)
        broker.produce(EVENTS, *values(2))
        assert committed(broker, EVENTS, 5)
        assert [reading.topic for reading in channel.partitions()] == ["events"]
    assert recorder.names().count("terminated") == 2
    assert "lost" not in recorder.names()
    gone = [entry["topic"] for entry in logs if entry["event"] == "topic_removed"]
    assert gone == ["alerts.eu"]
    forgone = [entry["processed_offset"] for entry in logs if entry["event"] == "commit_abandoned"]
    assert forgone == ([3] if owed else [])


@pytest.mark.parametrize("ends_before", [False, True])
def test_no_end_waits_for_a_commit_of_a_deleted_topic(
    broker: InMemoryBroker, ends_before: bool
) -> None:
    """A partition ends at once, before its first read or during an earlier end."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    store = NotedOffsets(broker)
    channel = in_memory_channel(
        recorder,
        broker,
        zookeeper=zookeeper,
        offset_store=store,
        topics=["^alerts"],
        batch_timeout="1h",
    )
    store.refuse = None if ends_before else "no coordinator"
    with running(channel):
        if ends_before:
            assert committed(broker, EU, 3)
            store.refuse = "no coordinator"
            broker.produce(EU, *values(2))
            recorder.wait(lambda: "CommitFailedError" in str(recorder.errors()))
            channel.replace_coordinator(
                quick(StaticCoordinatorConfig, partitions={"alerts.us": [0]})
            )
            eventually(lambda: in_state(channel) == ["releasing"])
        else:
            eventually(lambda: bool(store.asked))
            assert in_state(channel) == ["starting"]
        broker.delete_topic("alerts.eu")
        eventually(lambda: zookeeper.node(GroupPaths("group").owner(EU)) is None)
        assert in_state(channel) == []
    assert ("assigned" in recorder.names()) is ends_before


def in_state(channel: InboundKafkaChannel) -> list[str]:
    """Return the states of what is held."""
    return [reading.state for reading in channel.partitions()]


def test_a_matched_topic_that_comes_back_is_read_from_its_first_record(
    broker: InMemoryBroker,
) -> None:
    """The new topic's records are not taken for the old one's, though the group has an offset."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, topics=["^alerts"])
    with running(channel):
        assert committed(broker, EU, 3)
        broker.delete_topic("alerts.eu")
        eventually(lambda: zookeeper.node(GroupPaths("group").owner(EU)) is None)
        with broker.at_once():
            broker.create_topic("alerts.eu")
            broker.produce(EU, *[b"new-%d" % number for number in range(5)])
        assert committed(broker, EU, 5)
    read = [record.value() for batch in recorder.batches for record in batch.records]
    assert read == [*values(3), *[b"new-%d" % number for number in range(5)]]


@pytest.mark.parametrize("topics", [["events", "^alerts"], ["events", "alerts.eu"]])
def test_a_bounded_run_whose_topic_is_deleted_fails(
    broker: InMemoryBroker, topics: list[str]
) -> None:
    """It would wait for ever; the error names the topic, whether it was named or matched."""
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(
        recorder, broker, until=Until(), topics=topics, batch_timeout="100ms"
    )
    with running(channel):
        recorder.wait(lambda: len(recorder.futures) >= 2)
        broker.delete_topic("alerts.eu")
        eventually(lambda: channel.failure is not None)
        assert isinstance(channel.failure, ChannelFailedError)
        assert "topic alerts.eu was deleted" in str(channel.failure)
        recorder.answer = lambda _: BatchResponse.advance()


def test_a_bounded_run_has_the_topics_that_match_at_its_start(broker: InMemoryBroker) -> None:
    """Records of a topic that appears later are not delivered."""
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, until=Until(), topics=["^alerts"])
    with running(channel):
        broker.create_topic("alerts.us")
        broker.produce(US, *values(5))
        deadline = Deadline.after(PATIENCE)
        eventually(lambda: channel.reached_bounds(deadline))
    assert {batch.partition for batch in recorder.batches} == {EU}


def test_a_coordinator_is_replaced_where_topics_are_matched(broker: InMemoryBroker) -> None:
    """The topics that are known stay known, and lists may name what a pattern takes."""
    zookeeper = InMemoryZooKeeper()
    channel = in_memory_channel(Recorder(), broker, zookeeper=zookeeper, topics=["^alerts"])
    with running(channel):
        assert committed(broker, EU, 3)
        with pytest.raises(ConfigError, match=r"events is not a topic.* reads \^alerts"):
            channel.replace_coordinator(StaticCoordinatorConfig(partitions={"events": [0]}))
        lists = {"alerts.eu": [0], "alerts.us": [0]}
        channel.replace_coordinator(quick(StaticCoordinatorConfig, partitions=lists))
        eventually(lambda: mode_of(zookeeper) is AssignmentMode.STATIC)
        assert topics_of(zookeeper) == {"alerts.eu"}
        broker.create_topic("alerts.us")
        broker.produce(US, *values(2))
        assert committed(broker, US, 2)
        assert mode_of(zookeeper) is AssignmentMode.STATIC
        channel.replace_coordinator(quick(DynamicCoordinatorConfig, weight=2))
        eventually(lambda: mode_of(zookeeper) is AssignmentMode.DYNAMIC)
        assert topics_of(zookeeper) == {"alerts.eu", "alerts.us"}
