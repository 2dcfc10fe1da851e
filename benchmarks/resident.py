"""The memory of another process, seen from outside."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two readings.
_INTERVAL = 0.1

#: What counts as growth: less is the noise of an idle process.
_GROWTH = 1 << 20


class Resident:
    """Reads the resident set size of one process, in bytes, without that of its children."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.peak = 0

    def now(self) -> int:
        """Return the size at this moment."""
        size: int = self._process.memory_info().rss
        self.peak = max(self.peak, size)
        return size

    def usual(self, seconds: float) -> int:
        """Return the median size over some time. Blocks for it."""
        readings: list[int] = []

        def goes_on() -> bool:
            readings.append(self.now())
            return True

        self.watch(goes_on, seconds)
        return int(median(readings))

    def settle(self, quiet: float, most: float) -> None:
        """Watch until the peak has not grown for ``quiet`` seconds, ``most`` seconds at most."""
        last, since = self.peak, time.monotonic()

        def goes_on() -> bool:
            nonlocal last, since
            self.now()
            if self.peak > last + _GROWTH:
                last, since = self.peak, time.monotonic()
            return time.monotonic() - since < quiet

        self.watch(goes_on, most)

    @staticmethod
    def watch(goes_on: Callable[[], bool], most: float) -> None:
        """Call ``goes_on`` ten times a second until it says no or ``most`` seconds are over."""
        until = time.monotonic() + most
        while goes_on() and time.monotonic() < until:
            time.sleep(_INTERVAL)
