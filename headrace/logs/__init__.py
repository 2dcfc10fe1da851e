"""What the process says: one pipe for our own events and those of the libraries."""

from __future__ import annotations

from headrace.logs.context import Bound, bound_fields
from headrace.logs.hooks import install_hooks
from headrace.logs.levels import levels, listen, set_level, unlisten
from headrace.logs.pipe import configure_logging, flush
from headrace.logs.recent import Budget, RecentEvent, Repeats, Subject, recent_events

__all__ = [
    "Bound",
    "Budget",
    "RecentEvent",
    "Repeats",
    "Subject",
    "bound_fields",
    "configure_logging",
    "flush",
    "install_hooks",
    "levels",
    "listen",
    "recent_events",
    "set_level",
    "unlisten",
]
