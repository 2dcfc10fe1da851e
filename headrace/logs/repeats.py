"""Keeping what is said again and again from filling the log."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from headrace.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Hashable

    from headrace.clock import Clock

#: Seconds for which what was said often enough is held back: a client without a broker has dozens
#: of lines a second, and whoever reads along wants to see that it goes on.
INTERVAL = 10.0

#: Kinds that are remembered; the oldest is forgotten for a new one. 1000 take about 200 KB.
KINDS = 1000


@dataclass(slots=True)
class _Window:
    """What was said of one kind since ``begin``, in monotonic seconds."""

    begin: float
    admitted: int = 0
    held_back: int = 0


class Repeats:
    """Lets ``burst`` of each kind through within an interval, and counts the others.

    Any thread. Its memory is bounded: of ``KINDS`` kinds the one seen first is forgotten, and so
    are counts for which nobody asks.
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
                return self._open(kind, now)
            if window.admitted < (self._burst if burst is None else burst):
                window.admitted += 1
                return 0
            window.held_back += 1
            return None

    def _open(self, kind: Hashable, now: float) -> int:
        """Begin to count anew and return what the window before held back."""
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
        """Whether one more line may be written."""
        now = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
