"""A sink of several outputs."""

from __future__ import annotations

from headrace.spark.sinks.several.sink import Group, OutputsApartError, SeveralSink, alone

__all__ = ["Group", "OutputsApartError", "SeveralSink", "alone"]
