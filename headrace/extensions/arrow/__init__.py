"""Reducers on tables of Arrow, run in this process: no Spark, and no JVM."""

from __future__ import annotations

from headrace.extensions.arrow.reducer import ArrowReducer

__all__ = ["ArrowReducer"]
