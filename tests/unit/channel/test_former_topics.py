"""Offsets of a topic that was deleted and created again while no member ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.coordinators.znodes import GroupPaths, OffsetDocument
from headrace.core.clock import Deadline
from headrace.kafka.ports import StoredOffset
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.doubles import NotedCatalog
from tests.unit.channel.in_memory import P0, P1, committed, filled_broker
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from headrace.core.records import TopicPartition

NEW = [b"new-%d" % number for number in range(25)]


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with a topic of two partitions, ten records in each."""
    return filled_broker()


def replace_topic(broker: InMemoryBroker) -> None:
    """Create the topic again, longer than it was; the group's offsets stay, as if stored again."""
    with broker.at_once():
        broker.delete_topic("events")
        broker.create_topic("events", 2)
        for partition in (P0, P1):
            broker.produce(partition, *NEW)


def of_topic(broker: InMemoryBroker) -> str:
    """Return the id that the topic has now."""
    return broker.topics()["events"].topic_id


def in_zookeeper(zookeeper: InMemoryZooKeeper, partition: TopicPartition) -> StoredOffset:
    """Return what the partition's offset node says."""
    path = GroupPaths("group").offset(partition)
    node = zookeeper.node(path)
    assert node is not None
    return OffsetDocument.decode(path, node.data).stored()


def delivered(recorder: Recorder, partition: TopicPartition) -> list[bytes | None]:
    """Return the values of a partition in the order in which they came."""
    batches = [batch for batch in recorder.batches if batch.partition == partition]
    return [record.value() for batch in batches for record in batch.records]


def events(logs: list[MutableMapping[str, Any]], name: str) -> list[MutableMapping[str, Any]]:
    """Return the events of that name."""
    return [event for event in logs if event["event"] == name]


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("after", ["kafka", "zookeeper"])
@pytest.mark.parametrize("before", ["kafka", "zookeeper"])
def test_a_topic_replaced_while_no_member_ran_is_read_from_its_beginning(
    broker: InMemoryBroker, before: str, after: str, policy: str
) -> None:
    """The offset of the former topic is logged and not used, for any ``initial_offset``.

    The first commit counts instead of it, under a higher epoch and with the present topic's id.
    That the group moves to another store on this occasion changes nothing.
    """
    zookeeper = InMemoryZooKeeper()
    settings: dict[str, Any] = {"zookeeper": zookeeper, "initial_offset": policy}
    for partition in (P0, P1):
        broker.store("group").commit({partition: StoredOffset(0, 0)}, Deadline.after(PATIENCE))
    first = Recorder()
    with running(in_memory_channel(first, broker, offsets=before, **settings)):
        first.wait(lambda: len(delivered(first, P0) + delivered(first, P1)) == 20)
    former = of_topic(broker)
    replace_topic(broker)
    second = Recorder()
    with (
        capture_logs() as logs,
        running(in_memory_channel(second, broker, offsets=after, **settings)),
    ):
        second.wait(lambda: len(delivered(second, P0) + delivered(second, P1)) == 50)
    for partition in (P0, P1):
        assert delivered(second, partition) == NEW
        stored = broker.committed("group", partition)
        if after == "zookeeper":
            stored = in_zookeeper(zookeeper, partition)
        assert stored == StoredOffset(25, 2)
        assert stored is not None
        assert stored.topic_id == of_topic(broker)
    told = events(logs, "offset_of_deleted_topic")
    assert {(e["offset"], e["before"], e["topic_id"]) for e in told} == {
        (10, former, of_topic(broker))
    }
    assert {e["partition"] for e in told} == {0, 1}


def test_the_epoch_of_such_an_offset_still_counts(broker: InMemoryBroker) -> None:
    """The owner raises its own above it, or its commits would look stale."""
    former = StoredOffset(7, 41, "gone", "another topic")
    broker.store("group").commit({P0: former}, Deadline.after(PATIENCE))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 10)
    assert broker.committed("group", P0) == StoredOffset(10, 42)
    assert len(delivered(recorder, P0)) == 10


def test_a_claim_that_moves_from_a_member_that_did_not_see_it(broker: InMemoryBroker) -> None:
    """The next owner, which started later, begins at the first record of the new topic.

    The former owner did not notice the new topic, and its commits count the wrong records.
    """
    zookeeper, a, b = InMemoryZooKeeper(), Recorder(), Recorder()
    with running(in_memory_channel(a, broker, zookeeper=zookeeper, member="a")):
        assert committed(broker, P0, 10)
        assert committed(broker, P1, 10)
        replace_topic(broker)
        with running(in_memory_channel(b, broker, zookeeper=zookeeper, member="b")):
            b.wait(lambda: len(b.batches) > 0)
            moved = b.batches[0].partition
            b.wait(lambda: len(delivered(b, moved)) == 25)
            assert committed(broker, moved, 25)
    assert delivered(b, moved) == NEW


def test_a_member_that_knows_an_older_topic_looks_again(broker: InMemoryBroker) -> None:
    """An offset of the present topic is not taken for a former one's by who did not see it yet.

    It goes on there and delivers nothing again; its other partition begins with the new log.
    """
    zookeeper, a, b = InMemoryZooKeeper(), Recorder(), Recorder()
    catalog = NotedCatalog(broker)
    with running(
        in_memory_channel(a, broker, zookeeper=zookeeper, topic_catalog=catalog, member="a")
    ):
        assert committed(broker, P0, 10)
        assert committed(broker, P1, 10)
        looks = catalog.looks
        replace_topic(broker)
        with running(in_memory_channel(b, broker, zookeeper=zookeeper, member="b")):
            b.wait(lambda: len(b.batches) > 0)
            moved = b.batches[0].partition
            assert committed(broker, moved, 25)
            assert catalog.looks == looks, "it has looked already"
        a.wait(lambda: a.names(moved.partition).count("assigned") == 2)
        broker.produce(moved, b"last")
        assert committed(broker, moved, 26)
        other = P1 if moved == P0 else P0
        assert committed(broker, other, 25)
        a.wait(lambda: a.names(other.partition).count("assigned") == 2)
        a.wait(lambda: len(delivered(a, other)) >= 25)
    assert delivered(a, moved)[-1] == b"last"
    assert delivered(a, moved).count(b"new-0") == 0
    identities = {batch.assignment.identity for batch in a.batches if batch.partition == moved}
    assert {identity.split("/")[2] for identity in identities} == {"id-1", of_topic(broker)}
    assert set(NEW) <= set(delivered(a, other))
    assert a.names(moved.partition).count("lost") == 0, "nothing of it was of the former topic"
