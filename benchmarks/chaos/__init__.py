"""A group under attack: everything that was acknowledged has to be there, and once."""

from __future__ import annotations

from benchmarks.chaos.run import run

__all__ = ["run"]
