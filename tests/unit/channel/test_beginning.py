"""Topics that are new to a group begin at their first record, also with latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.channel.beginning import GroupBeginning
from headrace.config.subscription import Subscription
from headrace.coordinators.begun_topics import BegunTopics
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.records import TopicPartition
from headrace.kafka.ports import TopicInfo
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

PATHS = GroupPaths("group")
P2 = TopicPartition("events", 2)
US, OTHER = TopicPartition("alerts.us", 0), TopicPartition("others", 0)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with ``events``, of two partitions, and ``alerts.eu``; each has three records."""
    broker = InMemoryBroker()
    broker.create_topic("events", 2)
    broker.create_topic("alerts.eu")
    for partition in (P0, P1, TopicPartition("alerts.eu", 0)):
        broker.produce(partition, *values(3))
    return broker


def run(
    broker: InMemoryBroker,
    zookeeper: InMemoryZooKeeper,
    ends: dict[TopicPartition, int],
    topics: Sequence[str] = ("events",),
    **settings: Any,
) -> set[TopicPartition]:
    """Run a member until the group has these offsets; return the partitions with batches."""
    recorder = Recorder()
    channel = in_memory_channel(
        recorder,
        broker,
        zookeeper=zookeeper,
        topics=list(topics),
        initial_offset="latest",
        **settings,
    )
    with running(channel):
        for partition, end in ends.items():
            assert committed(broker, partition, end)
    return {batch.partition for batch in recorder.batches}


@pytest.mark.parametrize("offsets", ["kafka", "zookeeper"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_partition_added_while_no_member_ran_begins_at_its_first_record(
    broker: InMemoryBroker, offsets: str, *, earlier: bool
) -> None:
    """Wherever offsets are kept, and where an earlier version left offsets and nothing else."""
    zookeeper, before, after = InMemoryZooKeeper(), Recorder(), Recorder()
    settings: dict[str, Any] = {"initial_offset": "latest", "offsets": offsets}
    with running(in_memory_channel(before, broker, zookeeper=zookeeper, **settings)):
        before.wait(lambda: all("assigned" in before.names(number) for number in range(2)))
    assert before.batches == []
    if earlier:
        zookeeper.remove(PATHS.begun_topic("events"))
        zookeeper.remove(PATHS.begun)
    broker.create_topic("events", 3)
    broker.produce(P2, *values(5))
    with running(in_memory_channel(after, broker, zookeeper=zookeeper, **settings)):
        after.wait(lambda: bool(after.batches))
    assert [(batch.partition, batch.first_offset) for batch in after.batches] == [(P2, 0)]


def test_one_whose_offset_was_never_stored_is_new_still(broker: InMemoryBroker) -> None:
    """A member that knew of it, and ended before it had begun, does not make it an old one."""
    zookeeper = InMemoryZooKeeper()
    run(broker, zookeeper, {P0: 3, P1: 3})
    broker.create_topic("events", 3)
    broker.produce(P2, *values(5))
    for _ in range(2):
        run(broker, zookeeper, {P2: 5})
        broker.forget("group", P2)


def test_all_that_a_new_group_finds_is_old(broker: InMemoryBroker) -> None:
    """Though one member has begun with a partition, and has an offset, before another begins."""
    zookeeper = InMemoryZooKeeper()
    assert run(broker, zookeeper, {P0: 3, P1: 3}) == set()
    broker.forget("group", P1)
    assert run(broker, zookeeper, {P1: 3}) == set()


def test_topics_are_new_that_a_former_pattern_matches(broker: InMemoryBroker) -> None:
    """One that is named now, or that only another pattern matches, was there before."""
    zookeeper, eu = InMemoryZooKeeper(), TopicPartition("alerts.eu", 0)
    assert run(broker, zookeeper, {eu: 3}, ["^alerts"]) == set()
    for partition in (US, OTHER):
        broker.create_topic(partition.topic)
        broker.produce(partition, *values(4))
    ends = {US: 4, OTHER: 4, P0: 3, P1: 3}
    assert run(broker, zookeeper, ends, ["^alerts", "^oth", "events"]) == {US}


def test_a_topic_created_again_while_no_member_ran_is_new(broker: InMemoryBroker) -> None:
    """Also where the brokers dropped the group's offsets of the former one."""
    zookeeper = InMemoryZooKeeper()
    run(broker, zookeeper, {P0: 3, P1: 3})
    broker.delete_topic("events")
    for partition in (P0, P1):
        broker.forget("group", partition)
    broker.create_topic("events", 2)
    broker.produce(P0, *values(4))
    assert run(broker, zookeeper, {P0: 4}) == {P0}


def test_without_zookeeper_s_answer_all_is_old_and_that_is_said(broker: InMemoryBroker) -> None:
    """The start goes on; what cannot be told apart is named in the log."""
    session = InMemoryZooKeeper().session()
    session.deny(PATHS.begun)
    beginning = GroupBeginning(BegunTopics(session, "group"), broker.store("group"), SYSTEM_CLOCK)
    with capture_logs() as logs:
        found = beginning(Subscription(("events",)), {"events": TopicInfo("events", "id", 2)})
    assert found == {"events": 2}
    assert [entry["event"] for entry in logs] == ["begun_topics_unknown"]
