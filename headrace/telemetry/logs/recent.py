"""The last events that an operator of the process wants to know of, kept in memory.

They are taken from the pipe before levels are looked at: what is shown does not depend on how much
is logged. Everything from ``warning`` up is kept, and the milestones named below. Events of one
kind that follow each other closely are one entry with a count, so that a failing batch, tried
again every second, does not push everything else out.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import structlog

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.user_text import describe_error
from headrace.telemetry.logs.context import bound_fields

if TYPE_CHECKING:
    from collections.abc import Hashable

    from structlog.typing import EventDict, WrappedLogger

    from headrace.core.clock import Clock


#: Seconds for which what was said often enough is held back: a client without a broker has dozens
#: of lines a second, and a reader wants to see that it goes on.
INTERVAL = 10.0

#: Kinds that are remembered; the oldest is forgotten for a new one. 1000 take about 200 KB.
KINDS = 1000


@dataclass(slots=True)
class _Window:
    """The lines of one kind since ``begin``, in monotonic seconds."""

    begin: float
    admitted: int = 0
    held_back: int = 0


class Repeats:
    """Lets ``burst`` of each kind through within an interval, and counts the others.

    Any thread. Its memory is bounded: of ``KINDS`` kinds the one seen first is forgotten, and so
    are counts that are never read.
    """

    def __init__(self, burst: int = 1, clock: Clock = SYSTEM_CLOCK) -> None:
        self._burst = burst
        self._clock = clock
        self._lock = Lock()
        self._windows: OrderedDict[Hashable, _Window] = OrderedDict()
        self._forgotten: OrderedDict[Hashable, int] = OrderedDict()

    def admit(self, kind: Hashable, burst: int | None = None) -> int | None:
        """Return how many were held back since the last one; None to hold this one back too."""
        now = self._clock.monotonic()
        with self._lock:
            window = self._windows.get(kind)
            if window is None or now - window.begin >= INTERVAL:
                return self._open_window(kind, now)
            if window.admitted < (self._burst if burst is None else burst):
                window.admitted += 1
                return 0
            window.held_back += 1
            return None

    def _open_window(self, kind: Hashable, now: float) -> int:
        """Restart the count and return the number that the former window suppressed."""
        former = self._windows.pop(kind, None)
        self._windows[kind] = _Window(now, admitted=1)
        if len(self._windows) > KINDS:
            oldest, window = self._windows.popitem(last=False)
            if window.held_back:
                self._forgotten[oldest] = window.held_back
                if len(self._forgotten) > KINDS:
                    self._forgotten.popitem(last=False)
        return former.held_back if former else 0

    def over(self) -> list[tuple[Hashable, int]]:
        """Return, once, the kinds that were held back until their interval ended, and how often.

        So the count is not lost where nothing more of the kind is said.
        """
        found: list[tuple[Hashable, int]] = []
        before = self._clock.monotonic() - INTERVAL
        with self._lock:
            found += self._forgotten.items()
            self._forgotten.clear()
            # windows are in the order in which they began
            while self._windows:
                kind, window = next(iter(self._windows.items()))
                if window.begin > before:
                    break
                del self._windows[kind]
                if window.held_back:
                    found.append((kind, window.held_back))
        return found


class Budget:
    """Lets ``burst`` lines through at once and ``rate`` a second from then on. One thread."""

    def __init__(self, rate: float, burst: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock.monotonic()

    def admit(self) -> bool:
        """Return whether one more line may be written."""
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


#: Entries kept of milestones, and as many of troubles: neither pushes the other out. At about
#: 1 kB each this is below half a megabyte.
KEPT = 200

#: Seconds within which an event like one before is counted with that one.
TOGETHER = 60.0

#: Characters of a field that are kept.
_LONGEST = 300

#: Items of a list that are kept; the others are counted.
_ITEMS = 3

Field: TypeAlias = "str | int | float | bool | None"


class Subject(Enum):
    """The subject of an event."""

    GROUP = "group"
    """Members, claims, and the session that both hang on."""
    PAUSE = "pause"
    """Pauses and their ends."""
    CONFIG = "config"
    """Changes of the configuration or of code, and those asked of the API."""
    LIFE = "life"
    """Starts and stops."""
    WORK = "work"
    """Everything else: batches, commits, sinks, clients."""


#: The milestones, and what they and some troubles are about.
SUBJECTS = {
    name: subject
    for subject, names in {
        Subject.GROUP: (
            "claim_ended",
            "claim_lost",
            "coordination_restarted",
            "coordination_resumed",
            "coordination_suspended",
            "group_rebalanced",
            "member_drained",
            "member_fenced",
            "member_joined",
            "member_left",
            "membership_lost",
            "partition_claimed",
            "partition_lost",
            "partition_released",
            "partitions_changed",
            "partitions_contended",
            "partition_owners_unknown",
            "partitions_missing",
            "partitions_unowned",
            "session_resumed",
            "session_suspended",
            "zookeeper_session_started",
        ),
        Subject.PAUSE: ("channel_paused", "channel_resumed", "pause_expired", "pause_restored"),
        Subject.CONFIG: (
            "admin_change",
            "channel_not_restarted",
            "channel_reconfigured",
            "channel_restarted",
            "config_pending",
            "config_rejected",
            "config_reload_failed",
            "config_reloaded",
            "config_step_failed",
            "clients_reconnected",
            "mode_changed",
            "topics_changed",
        ),
        Subject.LIFE: (
            "channel_failed",
            "channel_started",
            "channel_state_changed",
            "controller_started",
            "spark_ready",
            "spark_rebuild",
            "stopping",
        ),
    }.items()
    for name in names
}

_PROBLEM_LEVELS = frozenset({"warning", "error", "critical"})


@dataclass(frozen=True, slots=True)
class RecentEvent:
    """``count`` events of one kind. Times are in seconds since the epoch, ``fields`` of the last.

    ``number`` is higher the later the entry was changed.
    """

    number: int
    event: str
    level: str
    subject: Subject
    first: float
    last: float
    count: int
    fields: dict[str, Field]


class _Ring:
    """Entries by number, the one that was changed longest ago first."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self.entries: dict[int, RecentEvent] = {}
        self._latest: dict[tuple[str, str, str], int] = {}

    def add(self, added: RecentEvent) -> None:
        """Add an entry, or count it with the one like it that is not long ago."""
        key = (added.event, str(added.fields.get("channel")), str(added.fields.get("topic")))
        before = self.entries.get(self._latest.get(key, 0))
        if before is not None and added.last - before.last <= TOGETHER:
            del self.entries[before.number]
            added = replace(added, first=before.first, count=before.count + 1)
        self.entries[added.number] = added
        self._latest[key] = added.number
        if len(self.entries) > self._kept:
            del self.entries[next(iter(self.entries))]
            self._latest = {k: n for k, n in self._latest.items() if n in self.entries}


class RecentEvents:
    """A ring of milestones and one of troubles. Any thread; does not block."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self.forget()

    def forget(self) -> None:
        """Reset everything, whatever other threads were doing: for the only thread after a fork."""
        self._lock = Lock()
        self._number = 0
        self._milestones = _Ring(self._kept)
        self._problems = _Ring(self._kept)

    def add(self, event: str, level: str, fields: dict[str, Field], now: float) -> None:
        """Keep an event, which ``fields`` describe."""
        ring = self._problems if level in _PROBLEM_LEVELS else self._milestones
        subject = SUBJECTS.get(event, Subject.WORK)
        with self._lock:
            self._number += 1
            ring.add(RecentEvent(self._number, event, level, subject, now, now, 1, fields))

    def after(self, number: int = 0) -> list[RecentEvent]:
        """Return what was changed after the entry of this number, in that order."""
        with self._lock:
            found = [*self._milestones.entries.values(), *self._problems.entries.values()]
        return sorted((e for e in found if e.number > number), key=lambda e: e.number)


_RECENT = RecentEvents()


def recent_events(after: int = 0) -> list[RecentEvent]:
    """Return what the process has kept, the oldest first; ``after`` leaves out up to a number."""
    return _RECENT.after(after)


def forget_events() -> None:
    """Clear the events that the process has kept, in the child of a fork."""
    _RECENT.forget()


def keep(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Keep an event that matters, among the first of the pipe. Never drops or changes it."""
    name = event.get("event")
    method = "error" if method == "exception" else method
    if (
        method != "debug"
        and isinstance(name, str)
        and (method in _PROBLEM_LEVELS or name in SUBJECTS)
    ):
        _RECENT.add(name, method, described(event), time.time())
    return event


def described(event: EventDict) -> dict[str, Field]:
    """Return the fields of an event and of its thread's context, each bounded."""
    fields = {**bound_fields(), **structlog.contextvars.get_contextvars(), **event}
    fields.pop("event", None)
    error = _error(fields.pop("exc_info", None))
    if error is not None:
        fields.setdefault("error", error)
    return {key: _bounded(value) for key, value in fields.items()}


def _bounded(value: object) -> Field:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        value = [f"{key}: {_in_words(each)}" for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        shown = [_in_words(each) for each in list(value)[:_ITEMS]]
        more = f" and {len(value) - _ITEMS} more" if len(value) > _ITEMS else ""
        value = f"{', '.join(shown)}{more}"
    # without halves of characters, which no JSON in UTF-8 can have
    return str(value)[:_LONGEST].encode("utf-8", "replace").decode()


def _in_words(value: object) -> str:
    """Return a part of a field; one that has parts itself goes in brackets."""
    if isinstance(value, Mapping):
        return f"({', '.join(f'{key}: {_in_words(each)}' for key, each in value.items())})"
    if isinstance(value, list | tuple | set | frozenset):
        return f"({', '.join(map(_in_words, value))})"
    return str(value)


def _error(exc_info: object) -> str | None:
    """Return an error in one line, of what a logger was given."""
    if not exc_info:
        return None
    error = exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
    elif not isinstance(exc_info, BaseException):
        error = sys.exc_info()[1]
    return describe_error(error) if isinstance(error, BaseException) else None
