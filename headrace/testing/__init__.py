"""Doubles and builders for tests of reducers, processors and channels."""

from __future__ import annotations

from headrace.testing.broker import InMemoryBroker
from headrace.testing.channel import in_memory_channel, in_memory_ports, running
from headrace.testing.clock import FakeClock
from headrace.testing.dead_letters import InMemoryDeadLetters
from headrace.testing.records import FakeAssignment, FakeRecord, make_batch
from headrace.testing.reducers import LocalSpark, records_table, reduce_arrow
from headrace.testing.registry import InMemoryRegistry
from headrace.testing.zookeeper import InMemorySession, InMemoryZooKeeper

__all__ = [
    "FakeAssignment",
    "FakeClock",
    "FakeRecord",
    "InMemoryBroker",
    "InMemoryDeadLetters",
    "InMemoryRegistry",
    "InMemorySession",
    "InMemoryZooKeeper",
    "LocalSpark",
    "in_memory_channel",
    "in_memory_ports",
    "make_batch",
    "records_table",
    "reduce_arrow",
    "running",
]
