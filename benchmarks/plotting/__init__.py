"""Kept results as a page with charts: RESULTS.md and the SVG files beside the JSON lines."""

from __future__ import annotations

from benchmarks.plotting.page import write

__all__ = ["write"]
