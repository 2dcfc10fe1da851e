"""Time as a dependency: a clock that tests can turn, and deadlines that are handed down."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from threading import Thread


class Clock(Protocol):
    """The source of time for every decision about time. All methods are safe on any thread."""

    def monotonic(self) -> float:
        """Return the seconds that only rise; for durations, due times and leases.

        What is compared with a lease has to come from here, never from ``time.monotonic()``.
        """

    def time(self) -> float:
        """Return the seconds since the Unix epoch; for stamps that people or other hosts read."""


class SystemClock:
    """The clock of the operating system.

    On Linux its monotonic seconds go on while the machine is suspended: ZooKeeper's servers count
    on meanwhile, so a lease has to. Where the system has no such clock they stand still then.
    """

    def monotonic(self) -> float:
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def time(self) -> float:
        return time.time()


SYSTEM_CLOCK: Clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time that nested steps share, so that their waits do not add up."""

    at: float
    clock: Clock = SYSTEM_CLOCK

    @classmethod
    def after(cls, seconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return the deadline that lies ``seconds`` from now."""
        return cls(clock.monotonic() + seconds, clock)

    @property
    def remaining(self) -> float:
        """Return the seconds left, never negative: fit for any ``timeout`` argument."""
        return max(0.0, self.at - self.clock.monotonic())

    @property
    def left(self) -> float:
        """Return the seconds left, never 0, which some clients take for no limit."""
        return max(0.001, self.remaining)

    @property
    def expired(self) -> bool:
        """Return whether nothing is left."""
        return self.clock.monotonic() >= self.at

    def at_most(self, seconds: float) -> float:
        """Return the seconds left, but no more than ``seconds``: one step's share of the budget."""
        return min(seconds, self.remaining)

    def joined(self, thread: Thread) -> bool:
        """Wait for a thread to end; False if it goes on. One that was never started has ended."""
        if thread.ident is not None:
            thread.join(self.remaining)
        return not thread.is_alive()
