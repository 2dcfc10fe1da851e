"""Windows over time: tumbling, hopping, sliding, session, and the interval of a join.

All spans are whole milliseconds. A window is over once the operator time, the highest time of the
records that reached its operator, passes its end by the grace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from headrace.config.types.units import parse_duration

#: A length of time: a ``timedelta``, or text with a unit such as ``5m`` or ``250ms``.
Span: TypeAlias = timedelta | str

#: Panes of a hopping window at most: a window's value is merged from that many rows.
MAX_PANES = 10_000

_MILLISECOND = timedelta(milliseconds=1)
#: What a span may be at most, so that a time and a few spans never leave 64 bits: 10,000 years.
_LONGEST = 10_000 * 366 * 86_400_000


def span_ms(span: Span, name: str, *, least: int = 0) -> int:
    """Return a span in milliseconds; ``name`` is what an error calls it.

    Raises:
        TypeError: it is neither text nor a timedelta.
        ValueError: it is no duration, no whole number of milliseconds, or out of bounds.
    """
    if isinstance(span, timedelta):
        number, rest = divmod(span, _MILLISECOND)
        exact = not rest
    elif isinstance(span, str):
        seconds = parse_duration(span)
        if seconds is None:
            raise ValueError(
                f"{name} is {span!r}, which is no duration: write it as '5m' or '250ms'"
            )
        number = round(seconds * 1000)
        exact = math.isclose(number, seconds * 1000, rel_tol=1e-12, abs_tol=1e-9)
    else:
        raise TypeError(
            f"{name} is {span!r}, a {type(span).__name__}: give a timedelta, or text such as '5m'"
        )
    if not exact:
        raise ValueError(f"{name} is {span}, which is no whole number of milliseconds")
    if not least <= number <= _LONGEST:
        bound = f"at least {least} ms" if number < least else "at most 10,000 years"
        raise ValueError(f"{name} is {span}: it has to be {bound}")
    return number


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of one size that begin at each multiple of ``every``, from time 0 on.

    A record at t is in the windows that begin at w with w <= t < w + size. Tumbling windows have
    ``every`` equal to ``size``.
    """

    size: int
    every: int
    grace: int

    def __post_init__(self) -> None:
        if self.every > self.size:
            raise ValueError(
                f"windows of {self.size} ms begin each {self.every} ms: records between two "
                "windows would be in none; make `every` the size, or less"
            )
        if self.panes > MAX_PANES:
            raise ValueError(
                f"windows of {self.size} ms each {self.every} ms have {self.panes:,} panes of "
                f"{self.pane} ms, and {MAX_PANES:,} are allowed: take spans with a greater common "
                "divisor"
            )

    @property
    def tumbling(self) -> bool:
        """Return whether each record is in exactly one window."""
        return self.every == self.size

    @property
    def pane(self) -> int:
        """Return the length of a pane: no window begins or ends within one."""
        return math.gcd(self.size, self.every)

    @property
    def panes(self) -> int:
        """Return the panes of a window."""
        return self.size // self.pane


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of ``size``, both ends included, that end at a record or begin right after one."""

    size: int
    grace: int


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of records with at most ``gap`` between one and the next."""

    gap: int
    grace: int


#: Windows that rows can be grouped by.
Windows: TypeAlias = TimeWindows | SlidingWindows | SessionWindows


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """The interval of a stream-stream join: a right record joins a left one where its time is from
    ``before`` earlier to ``after`` later, both included.
    """

    before: int
    after: int
    grace: int


def tumbling(size: Span, *, grace: Span = "0s") -> TimeWindows:
    """Return windows that follow each other: each record is in one.

    Raises:
        TypeError, ValueError: a span cannot be used; the text says which.
    """
    length = span_ms(size, "size", least=1)
    return TimeWindows(length, length, span_ms(grace, "grace"))


def hopping(size: Span, every: Span, *, grace: Span = "0s") -> TimeWindows:
    """Return windows of ``size`` of which one begins each ``every``.

    Raises:
        TypeError, ValueError: a span cannot be used, or ``every`` is longer than ``size``.
    """
    return TimeWindows(
        span_ms(size, "size", least=1), span_ms(every, "every", least=1), span_ms(grace, "grace")
    )


def sliding(size: Span, *, grace: Span = "0s") -> SlidingWindows:
    """Return windows that move with the records: two records are in one if at most ``size`` apart.

    Raises:
        TypeError, ValueError: a span cannot be used; the text says which.
    """
    return SlidingWindows(span_ms(size, "size"), span_ms(grace, "grace"))


def session(gap: Span, *, grace: Span = "0s") -> SessionWindows:
    """Return windows that last as long as a key's records are at most ``gap`` apart.

    Raises:
        TypeError, ValueError: a span cannot be used; the text says which.
    """
    return SessionWindows(span_ms(gap, "gap", least=1), span_ms(grace, "grace"))


def join_windows(*, before: Span = "0s", after: Span = "0s", grace: Span = "0s") -> JoinWindows:
    """Return the interval of a join; ``before`` and ``after`` the same make it symmetric.

    Raises:
        TypeError, ValueError: a span cannot be used; the text says which.
    """
    return JoinWindows(span_ms(before, "before"), span_ms(after, "after"), span_ms(grace, "grace"))
