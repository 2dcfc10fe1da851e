"""Reducers with state by key: the public names of :mod:`headrace.extensions.keyed`."""

from __future__ import annotations

from headrace.extensions.keyed import (
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
    count,
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
