"""Doubles and builders for tests of reducers, processors and channels."""

from __future__ import annotations

from headrace.testing.broker import InMemoryBroker
from headrace.testing.channel import (
    FakeClock,
    InMemoryDeadLetters,
    in_memory_channel,
    in_memory_ports,
    running,
)
from headrace.testing.records import FakeAssignment, FakeRecord, make_batch
from headrace.testing.reducers import LocalSpark, records_table, reduce_arrow
from headrace.testing.zookeeper import InMemoryRegistry, InMemorySession, InMemoryZooKeeper

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
