"""Reducers with state by key: the public names of :mod:`headrace.extensions.keyed`."""

from __future__ import annotations

from headrace.extensions.keyed.aggregates import count
from headrace.extensions.keyed.api import (
    Event,
    Fired,
    KeyedReducer,
    Output,
    Phase,
    Phases,
    Timer,
    at_clock,
    at_event,
    batched,
)

__all__ = [
    "Event",
    "Fired",
    "KeyedReducer",
    "Output",
    "Phase",
    "Phases",
    "Timer",
    "at_clock",
    "at_event",
    "batched",
    "count",
]
