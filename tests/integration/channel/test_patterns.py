"""A channel whose topics are matched by pattern, on real servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.records import TopicPartition
from headrace.kafka.ports import StoredOffset
from tests.brokers import stored_offset
from tests.integration.channel.rig import Group, Notes, channel_of, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.seen import Log


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let channels look at their topics often."""
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.2)


@pytest.mark.parametrize("fencing", ["metadata", "transactions"])
def test_topics_come_and_go_below_a_pattern(
    make_group: Callable[..., Group], log: Log, fencing: str
) -> None:
    """A topic created later is read from its first record, and a deleted one is given up.

    The others go on all the while, and so do their commits.
    """
    group = make_group(1)
    settings: dict[str, Any] = {
        "topics": [f"^{re.escape(group.topic)}"],
        "initial_offset": "latest",
        "offsets": {"type": "kafka", "fencing": fencing},
    }
    notes = Notes()
    with group.running(notes, **settings) as controller:
        notes.wait(lambda: notes.assigned == {group.partition()})
        later = TopicPartition(group.broker.create_topic(1, f"{group.topic}.later"), 0)
        eventually(lambda: _takes(group, later))
        notes.wait(lambda: later in notes.assigned)
        group.broker.produce(later, b"second", b"third")
        eventually(lambda: stored_offset(group.store, later) == StoredOffset(3, 1))
        group.broker.delete_topic(later.topic)
        group.produce(5)
        eventually(lambda: group.stored() == [StoredOffset(5, 1)])
        notes.wait(lambda: notes.assigned == {group.partition()})
        group.produce(5, start=5)
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        held = channel_of(controller).partitions()
        assert [reading.topic for reading in held] == [group.topic]
    log.expect("topic_matched", channel="main", topic=later.topic)
    log.expect("partition_claimed", topic=later.topic, partition=0, epoch=1)
    log.expect("topic_removed", channel="main", topic=later.topic)
    log.expect("partitions_changed", channel="main", partitions={group.topic: 1, later.topic: 1})
    log.expect("partitions_changed", channel="main", partitions={group.topic: 1})
    log.expect("claim_released", topic=later.topic, partition=0, epoch=1, clean_end=True)
    assert notes.records == {group.partition(): list(range(10)), later: [0, 1, 2]}
    assert notes.callbacks[later][-1] == "terminated"
    assert set(notes.values.values()) == {1}


def _takes(group: Group, partition: TopicPartition) -> bool:
    """Whether a topic that was just created accepts a record."""
    try:
        group.broker.produce(partition, b"first")
    except Exception:  # noqa: BLE001 - the client does not know the topic yet
        return False
    return True
