"""A workflow of three steps beside Celery and plain asyncio: rate, latency, and a killed worker."""

from __future__ import annotations

from benchmarks.workflow.run import run

__all__ = ["run"]
