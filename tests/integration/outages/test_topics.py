"""Topics that change below a running channel, on brokers that are well."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.coordinators.znodes import OffsetDocument
from headrace.core.errors import OffsetOutOfRangeError
from headrace.kafka.ports import StoredOffset
from tests.integration.channel.rig import WAIT, Group, Notes, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.brokers import Broker
    from tests.integration.seen import Log


def test_a_record_larger_than_the_fetch_size_comes_with_its_neighbours(
    broker: Broker, make_group: Callable[..., Group], zookeeper_hosts: str
) -> None:
    """The fetch size bounds no record: a broker gives at least one, however large it is."""
    group = make_group(zookeeper_hosts)
    group.topic = f"topic.{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    wanted = NewTopic(group.topic, 1, 1, config={"max.message.bytes": "2000000"})
    admin.create_topics([wanted])[group.topic].result(WAIT)
    values = [b"before", bytes(1_900_000), b"after"]
    broker.produce(group.partition(), *values)
    notes = Notes()
    with group.running(notes, batch={"max_bytes": "64KiB", "linger": 0}):
        eventually(lambda: group.stored() == [StoredOffset(3, 1)])
    assert notes.records[group.partition()] == [0, 1, 2]
    assert set(notes.values) == set(values)


def test_a_topic_created_again_with_fewer_records_is_read_from_its_beginning(
    broker: Broker, make_group: Callable[..., Group], zookeeper_hosts: str, log: Log
) -> None:
    """The position is out of range in the new log; the policy earliest delivers all that is new."""
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    with group.running(notes):
        eventually(lambda: group.offsets() == [10])
        broker.delete_topic(group.topic)
        eventually(lambda: _created(broker, group.topic))
        eventually(lambda: _takes(group, b"new-0"))
        broker.produce(group.partition(), b"new-1", b"new-2")
        notes.wait(lambda: bool(notes.errors))
        # the claim on the former topic ends once it is known for one
        eventually(lambda: group.stored() == [StoredOffset(3, 2)])
    log.expect("offset_out_of_range", channel="main", position=10, target=0, lost_records=0)
    assert {type(error) for error in notes.errors} == {OffsetOutOfRangeError}
    assert notes.records[group.partition()] == [*range(10), 0, 1, 2]
    assert set(notes.values.values()) == {1}


def test_a_topic_created_again_that_has_grown_is_read_from_its_beginning(
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
) -> None:
    """The topic's id tells the new log from the old one, though the position exists in both."""
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.2)
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    new = [b"new-%d" % number for number in range(25)]
    with group.running(notes):
        eventually(lambda: group.offsets() == [10])
        group.broker.delete_topic(group.topic)
        log.expect("topic_missing", channel="main", topic=group.topic)
        _fill_anew(group, 25)
        notes.wait(lambda: notes.callbacks[group.partition()].count("assigned") == 2)
        eventually(lambda: group.offsets() == [25])
        (stored,) = group.stored()
    assert stored is not None
    assert stored.epoch > 1
    log.expect("topic_recreated", channel="main", topic=group.topic, topic_id=stored.topic_id)
    log.expect("start_position_found", channel="main", epoch=stored.epoch)
    assert set(notes.values) == {b"0-%d" % number for number in range(10)} | set(new)
    assert notes.callbacks[group.partition()].count("lost") == 1


def test_a_topic_replaced_while_offsets_are_in_zookeeper_is_read_from_its_beginning(
    make_group: Callable[..., Group], zookeeper_hosts: str, log: Log
) -> None:
    """Brokers drop their offsets with a topic, ZooKeeper does not: the topic's id tells."""
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    with group.running(notes, offsets="zookeeper"):
        notes.wait(lambda: "processed" in notes.callbacks[group.partition()])
        notes.wait_values(10)
    _replace(group, 25)
    with group.running(notes, offsets="zookeeper", initial_offset="latest"):
        notes.wait_values(35)
    log.expect("offset_of_deleted_topic", channel="main", topic=group.topic, offset=10)
    log.expect("start_position_found", channel="main", epoch=2, position=0)
    assert notes.records[group.partition()] == [*range(10), *range(25)]
    with group.zookeeper() as session:
        path = group.paths.offset(group.partition())
        stored = OffsetDocument.decode(path, session.get(path).data).stored()
    assert stored == StoredOffset(25, 2)


@pytest.mark.parametrize(
    "offsets", ["kafka", {"fencing": "transactions"}], ids=["metadata", "transactions"]
)
def test_an_offset_that_an_owner_stored_again_is_known_by_its_topic(
    make_group: Callable[..., Group], zookeeper_hosts: str, log: Log, offsets: object
) -> None:
    """An owner that finds its offset missing stores it again, and may not know yet why it is."""
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    with group.running(notes, offsets=offsets):
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        (former,) = group.stored()
    assert former is not None
    assert former.topic_id is not None
    _replace(group, 25)
    eventually(lambda: group.stored() == [None])
    owner = {"version": 1, "epoch": 1, "member": "a", "topic_id": former.topic_id}
    group.broker.commit(group.name, group.partition(), 10, json.dumps(owner))
    with group.running(notes, offsets=offsets):
        eventually(lambda: group.stored() == [StoredOffset(25, 2)])
        (present,) = group.stored()
    assert notes.records[group.partition()] == [*range(10), *range(25)]
    log.expect("offset_of_deleted_topic", channel="main", topic=group.topic, offset=10)
    assert present is not None
    assert present.topic_id not in {None, former.topic_id}


def _replace(group: Group, count: int) -> None:
    """Delete the topic and create it again with so many records."""
    group.broker.delete_topic(group.topic)
    _fill_anew(group, count)


def _fill_anew(group: Group, count: int) -> None:
    """Create the topic that was deleted again, with so many records."""
    eventually(lambda: _created(group.broker, group.topic))
    eventually(lambda: _takes(group, b"new-0"))
    group.broker.produce(group.partition(), *[b"new-%d" % number for number in range(1, count)])


def _created(broker: Broker, topic: str) -> bool:
    """Whether the topic could be created: the old one must be gone everywhere."""
    try:
        broker.create_topic(1, topic)
    except Exception:  # noqa: BLE001 - it is being deleted still
        return False
    return True


def _takes(group: Group, value: bytes) -> bool:
    """Whether the new topic accepts a record."""
    try:
        group.broker.produce(group.partition(), value)
    except Exception:  # noqa: BLE001 - the client does not know the new topic yet
        return False
    return True
