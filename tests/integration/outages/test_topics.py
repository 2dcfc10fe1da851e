"""Topics that change below a running channel, on brokers that are well."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.errors import OffsetOutOfRangeError
from headrace.kafka.ports import StoredOffset
from tests.integration.channel.rig import WAIT, Group, Notes, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.brokers import Broker


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
    broker: Broker, make_group: Callable[..., Group], zookeeper_hosts: str
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
        eventually(lambda: group.stored() == [StoredOffset(3, 1)])
    assert {type(error) for error in notes.errors} == {OffsetOutOfRangeError}
    assert notes.records[group.partition()] == [*range(10), 0, 1, 2]
    assert set(notes.values.values()) == {1}


def test_a_topic_created_again_that_has_grown_is_read_from_its_beginning(
    broker: Broker,
    make_group: Callable[..., Group],
    zookeeper_hosts: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic's id tells the new log from the old one, though the position exists in both."""
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.2)
    group, notes = make_group(zookeeper_hosts), Notes()
    group.produce(10)
    new = [b"new-%d" % number for number in range(25)]
    with group.running(notes):
        eventually(lambda: group.offsets() == [10])
        broker.delete_topic(group.topic)
        eventually(lambda: _created(broker, group.topic))
        eventually(lambda: _takes(group, new[0]))
        broker.produce(group.partition(), *new[1:])
        notes.wait(lambda: notes.callbacks[group.partition()].count("assigned") == 2)
        eventually(lambda: group.offsets() == [25])
        (stored,) = group.stored()
    assert stored is not None
    assert stored.epoch > 1
    assert set(notes.values) == {b"0-%d" % number for number in range(10)} | set(new)
    assert notes.callbacks[group.partition()].count("lost") == 1


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
