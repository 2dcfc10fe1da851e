"""Spark: one session per process, lanes that submit jobs, the hand-over of records, the sinks."""

from __future__ import annotations

from headrace.sinks.micro_batch import MicroBatch, OffsetRange

__all__ = ["MicroBatch", "OffsetRange"]
