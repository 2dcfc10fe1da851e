"""The types that a keyed reducer is called with, and those that it returns.

A reducer is a pure function of its arguments: no clock but ``now``, no random numbers, no input or
output. Then what is run again after a failure gives what it gave before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

K = TypeVar("K")
S = TypeVar("S")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


class TimerClock(Enum):
    """The clock that a timer's due time is compared with."""

    EVENT = "event"
    """The partition's stream time: the latest time of its records so far."""

    CLOCK = "clock"
    """The wall clock of the micro-batch."""


class Timer(NamedTuple):
    """A call that a key wants later. Made by :func:`at_event` and :func:`at_clock`.

    ``due`` is in milliseconds since the Unix epoch.
    """

    due: int
    clock: TimerClock = TimerClock.EVENT


def at_event(due: int) -> Timer:
    """Return a timer that fires once the partition's stream time is ``due`` (ms) or later."""
    return Timer(due, TimerClock.EVENT)


def at_clock(due: int) -> Timer:
    """Return a timer that fires in the first micro-batch at ``due`` (ms) or later."""
    return Timer(due, TimerClock.CLOCK)


class Event(NamedTuple, Generic[V]):
    """One record of the key, in the order of its partition.

    ``value`` is decoded as configured, None for a tombstone. ``ts`` is the record's own time in
    milliseconds; it is ``late`` where the partition had a later one before.
    """

    value: V
    ts: int
    source: str
    partition: int
    offset: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    late: bool = False


class Fired(NamedTuple):
    """A timer of the key that is due. It is no longer set when the reducer is called with it."""

    name: str
    due: int
    clock: TimerClock = TimerClock.EVENT


class Output(NamedTuple):
    """A record for one of the channel's output topics.

    ``value`` is written as JSON, or as it is where it is text or bytes; None is a tombstone.
    ``key`` is the reducer's own where it is left out, ``ts`` (ms) that of the fact. ``to`` names
    the output, and may be left out where there is one.
    """

    value: Any
    to: str | None = None
    key: Any = ...
    ts: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Phase(NamedTuple):
    """The phase of one key's state in metrics and status; see :class:`Phases`.

    ``since`` (ms) is from when its age counts, None where it has none. ``amounts`` and ``counts``
    are numbers in the order of their names there.
    """

    name: str
    since: int | None = None
    amounts: Sequence[int] = ()
    counts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases by which metrics and status count a reducer's states: its attribute ``phases``.

    ``of`` returns the phase of a state, one of ``names``; as pure a function as the reducer. It is
    called in the daemon, with each state before and after a commit. ``amounts`` names the numbers
    that are summed over all keys, ``counts`` those that never go down for a key, of which
    what is added with a commit is counted. All names become labels of metrics: keep them few.
    """

    of: Callable[[Any], Phase]
    names: tuple[str, ...]
    amounts: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()


#: What a reducer returns: the new state (None: there is none any more), outputs in their order,
#: and the whole set of timers by name; one that is not in it is cancelled.
Reduced: TypeAlias = tuple[S | None, Sequence[Output], Mapping[str, Timer]]

#: ``reduce(key, state, facts, now)``. ``state`` is None where there is none. ``facts`` has one
#: element, unless the function is marked ``@batched``. ``now`` is the micro-batch's wall clock in
#: milliseconds, the same for all keys.
KeyedReducer: TypeAlias = Callable[[K, S | None, list[Event[V] | Fired], int], Reduced[S]]

_BATCHED = "_headrace_batched"


def batched(function: F) -> F:
    """Mark a reducer that takes all facts up to the next timer that is due at once, for speed.

    It may not return timers of event time: when they fire would depend on where batches are cut.
    """
    setattr(function, _BATCHED, True)
    return function


def is_batched(function: object) -> bool:
    """Return whether a reducer takes several facts at once."""
    return bool(getattr(function, _BATCHED, False))
