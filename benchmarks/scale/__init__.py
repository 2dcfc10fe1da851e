"""What a record costs with more daemons, more partitions and more workers of a Spark cluster."""

from __future__ import annotations

from benchmarks.scale.run import run

__all__ = ["run"]
