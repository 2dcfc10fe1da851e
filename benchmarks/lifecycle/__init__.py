"""How soon a daemon under load pauses, resumes, reloads and stops, and that nothing is lost."""

from __future__ import annotations

from benchmarks.lifecycle.run import run

__all__ = ["run"]
