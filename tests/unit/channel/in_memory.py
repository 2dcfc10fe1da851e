"""Helpers of the tests of a whole channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.testing import InMemoryBroker
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)


def values(count: int) -> list[bytes]:
    """Return so many values."""
    return [b"%d" % number for number in range(count)]


def committed(broker: InMemoryBroker, partition: TopicPartition, offset: int) -> bool:
    """Wait for a commit of the group."""
    return broker.wait_committed("group", partition, offset, Deadline.after(PATIENCE))


def filled_broker() -> InMemoryBroker:
    """Return a broker with a topic of two partitions, ten records in each."""
    broker = InMemoryBroker()
    broker.create_topic("events", 2)
    for partition in (P0, P1):
        broker.produce(partition, *values(10))
    return broker


def fail(error: BaseException) -> None:
    """Raise an error that would fail a channel."""
    raise error


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for states that no event announces."""
    assert wait_for(condition, Deadline.after(PATIENCE))
