"""The log of the process: one pipe for our own events and those of the libraries."""

from __future__ import annotations

from headrace.telemetry.logs.context import Bound, bound_fields
from headrace.telemetry.logs.levels import levels, listen, set_level, unlisten
from headrace.telemetry.logs.pipe import configure_logging, export_lines, flush, install_hooks
from headrace.telemetry.logs.recent import Budget, RecentEvent, Repeats, Subject, recent_events

__all__ = [
    "Bound",
    "Budget",
    "RecentEvent",
    "Repeats",
    "Subject",
    "bound_fields",
    "configure_logging",
    "export_lines",
    "flush",
    "install_hooks",
    "levels",
    "listen",
    "recent_events",
    "set_level",
    "unlisten",
]
