"""A clock that only tests turn."""

from __future__ import annotations

from threading import Lock


class FakeClock:
    """A ``Clock`` that stands still until it is told to advance. Safe on any thread."""

    def __init__(self, start: float = 1000.0) -> None:
        self._lock = Lock()
        self._now = start

    def monotonic(self) -> float:
        """Seconds as told."""
        with self._lock:
            return self._now

    def time(self) -> float:
        """Seconds as told: both clocks are one."""
        return self.monotonic()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += seconds
