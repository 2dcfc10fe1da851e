"""Topologies in channels, exactly once, beside Kafka Streams: windows, sessions, word count."""

from __future__ import annotations

from benchmarks.streams.run import run

__all__ = ["run"]
