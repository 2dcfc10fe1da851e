"""Doubles and builders for tests of reducers, processors and channels."""

from __future__ import annotations

from headrace.testing.registry import InMemoryRegistry
from headrace.testing.zookeeper import InMemorySession, InMemoryZooKeeper

__all__ = ["InMemoryRegistry", "InMemorySession", "InMemoryZooKeeper"]
