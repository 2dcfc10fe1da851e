"""Until when a member may act on its claims, by its own clock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.clock import Clock

MARGIN = 0.1
"""Share of the session time-out that is given away: it covers clocks of different speed, and the
way from asking the lease to the effect of what it allowed."""


class Lease:
    """The time for which the servers are known to keep the session, counted from our last sign.

    It ends at the monotonic time at which the last acknowledged write was sent, plus the session
    time-out agreed on, minus a margin. The servers count from the write's arrival, which is later,
    so they never end the session before the lease ends. A lease that has ended stays so: another
    member may have claimed in between. All methods are safe on any thread and do not block.
    """

    def __init__(
        self, session_timeout: float, clock: Clock, sent_at: float, margin: float = MARGIN
    ) -> None:
        self._clock = clock
        self._span = session_timeout * (1 - margin)
        self._lock = threading.Lock()
        self._end = sent_at + self._span
        self._broken = False

    def valid(self) -> bool:
        """Whether the member may act now."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """Seconds for which the member may act, 0 when it may not."""
        with self._lock:
            return self._remaining()

    def confirm(self, sent_at: float) -> bool:
        """Extend the lease by a write that was sent at ``sent_at`` and is acknowledged now.

        Returns whether the lease holds. An acknowledgement that comes after the end is too late.
        """
        with self._lock:
            if self._remaining() <= 0:
                self._broken = True
                return False
            self._end = max(self._end, sent_at + self._span)
            return self._remaining() > 0

    def break_(self) -> None:
        """End the lease now and for good."""
        with self._lock:
            self._broken = True

    def _remaining(self) -> float:
        if self._broken:
            return 0.0
        left = self._end - self._clock.monotonic()
        if left <= 0:
            self._broken = True
        return max(0.0, left)
