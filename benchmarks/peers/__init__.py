"""How fast a channel reads beside a bare loop and other libraries: sums, and JSON by key."""

from __future__ import annotations

from benchmarks.peers.run import run

__all__ = ["run"]
