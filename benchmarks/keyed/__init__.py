"""State by key, exactly once, beside Kafka Streams and Quix Streams: rate, growth, restoring."""

from __future__ import annotations

from benchmarks.keyed.run import run

__all__ = ["run"]
