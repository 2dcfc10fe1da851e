"""Reducers on Spark: the public names of :mod:`headrace.extensions.spark`."""

from __future__ import annotations

from headrace.sinks.micro_batch import MicroBatch, OffsetRange

__all__ = ["MicroBatch", "OffsetRange"]
