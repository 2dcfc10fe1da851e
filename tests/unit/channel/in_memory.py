"""What the tests of a whole channel share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.clock import Deadline
from headrace.records import TopicPartition
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    from headrace.testing import InMemoryBroker


P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)


def values(count: int) -> list[bytes]:
    """Return so many values."""
    return [b"%d" % number for number in range(count)]


def committed(broker: InMemoryBroker, partition: TopicPartition, offset: int) -> bool:
    """Wait for a commit of the group."""
    return broker.wait_committed("group", partition, offset, Deadline.after(PATIENCE))
