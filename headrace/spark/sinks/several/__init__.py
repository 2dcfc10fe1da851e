"""A sink of several outputs."""

from __future__ import annotations

from headrace.spark.sinks.several.groups import Group, alone
from headrace.spark.sinks.several.sink import OutputsApartError, SeveralSink

__all__ = ["Group", "OutputsApartError", "SeveralSink", "alone"]
