"""A sink of several outputs."""

from __future__ import annotations

from headrace.sinks.several.sink import OutputGroup, OutputsApartError, SeveralSink, alone

__all__ = ["OutputGroup", "OutputsApartError", "SeveralSink", "alone"]
