"""Times and timers that a reducer returns: which are taken, and why one is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.user_text import plain_text
from headrace.extensions.keyed.api import Timer, TimerClock
from headrace.extensions.keyed.exact import exact_text
from headrace.extensions.keyed.row import PREFIX
from headrace.extensions.keyed.tables import MAX_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Timers that one key may have.
MAX_TIMERS = 100

#: Bytes that a timer's name may have.
MAX_TIMER_NAME = 1000


def require_time(time: object, what: str) -> int:
    """Return a time in milliseconds.

    Raises:
        TypeError, ValueError: it is none, or too far off.
    """
    if type(time) is not int:
        kind = type(time).__name__
        raise TypeError(f"{what} is at {time!r}, a {kind}; it has to be an int of milliseconds")
    if abs(time) > MAX_TIME:
        raise ValueError(f"{what} is at {time}; that is further off than {MAX_TIME} milliseconds")
    return time


def checked_timers(timers: Mapping[str, Timer], *, may_be_event: bool) -> dict[str, Timer]:
    """Return the timers that a reducer wants. ``may_be_event``: those of event time may be set.

    Raises:
        TypeError, ValueError: one cannot be set.
    """
    if len(timers) > MAX_TIMERS:
        raise ValueError(f"{len(timers)} timers; a key may have {MAX_TIMERS}")
    for name, timer in timers.items():
        if not isinstance(timer, Timer):
            kind = type(timer).__name__
            raise TypeError(f"timer {name!r} is a {kind}; make it with at_event or at_clock")
        if type(name) is not str:
            kind = type(name).__name__
            raise TypeError(f"a timer's name is {name!r}, a {kind}; it has to be a plain text")
        size = len(exact_text(name, "a timer's name"))
        if size > MAX_TIMER_NAME:
            raise ValueError(
                f"a timer's name has {size} bytes, and {MAX_TIMER_NAME} are allowed: "
                f"{plain_text(name, 100)!r}; keep what it says in the state"
            )
        require_time(timer.due, f"timer {name!r}")
        if type(timer.clock) is not TimerClock:
            kind = type(timer.clock).__name__
            raise TypeError(
                f"timer {name!r} has a {kind} as its clock; make it with at_event or at_clock"
            )
        if name.startswith(PREFIX):
            raise ValueError(f"timer {name!r}: names that begin with {PREFIX!r} are reserved")
        if not may_be_event and timer.clock is TimerClock.EVENT:
            raise ValueError(
                f"timer {name!r} is of event time, and the reducer is @batched: when it fires "
                "would depend on where batches are cut; leave @batched out"
            )
    return dict(timers)
