"""The lease: until when a member may act on its claims, by its own clock.

``member.GroupMembership._keep_alive`` renews it. Once it has ended, that drops every claim
(``Rebalance.lose_all``). Their nodes stay in ZooKeeper until a later look at the group deletes them
(``Rebalance._reconcile_owners``).
"""

from __future__ import annotations

import threading
from collections import deque
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.core.clock import Clock

MARGIN = 0.1
"""Share of the session time-out that is given away: it covers clocks of different speed, and
the delay between a look at the lease and the effect of what it allowed."""

HEARTBEAT_SHARE = 1 / 6
"""Share of the session time-out from one heartbeat to the next."""

REPORT_SHARE = 0.275
"""Share of the session time-out within which a follower has told the leader that it heard us.

The leader asks each follower every half tick, and a session is no shorter than two ticks, so that
is a quarter. The rest is for requests that are on their way."""

SILENCE_SHARE = 1 / 3
"""Share of the session time-out for which the client is silent at most while it is connected."""


class Lease:
    """The time for which the servers are known to keep the session.

    The leader counts the time-out. Of a session whose client is connected to a follower it hears
    from that follower alone, which tells every half tick which sessions it heard. A follower that
    stops just after it acknowledged a heartbeat takes this one with it. But the leader cannot have
    acknowledged it without what the follower told before. So a heartbeat counts, from its sending,
    once another is acknowledged that was sent ``REPORT_SHARE`` after the first one's answer.

    Where there is no such pair yet, as after joining, the client's own pings count: the newest that
    the leader must have heard of is no older than ``REPORT_SHARE`` and ``SILENCE_SHARE``. A server
    that lets us in tells the leader at once.

    A process that stands still does not ping. Of one that may have done so until ``pinged_since``
    pings count from then on; until there is a pair, its lease does not hold yet.

    A lease ends a margin before the time-out would. One that has ended stays so: another member
    may have claimed in between. All methods are safe on any thread and do not block.
    """

    def __init__(
        self,
        session_timeout: float,
        clock: Clock,
        counted_from: float,
        pinged_since: float = -inf,
    ) -> None:
        self._clock = clock
        self._session_timeout = session_timeout
        self._lock = threading.Lock()
        self._counted_from = counted_from
        self._pinged_since = pinged_since
        self._acknowledged: deque[tuple[float, float]] = deque()
        self._begun = pinged_since == -inf
        self._broken = False

    @classmethod
    def begin(
        cls,
        session_timeout: float,
        clock: Clock,
        sent_at: float,
        connected_at: float,
        pinged_since: float = -inf,
    ) -> Lease:
        """Return the lease that a first write gives, acknowledged now and sent at ``sent_at``.

        ``connected_at``: when we last asked a server to let us in, which it did.
        """
        lease = cls(session_timeout, clock, -inf, pinged_since)
        lease._confirm(sent_at, session_timeout, connected_at)
        return lease

    def valid(self) -> bool:
        """Return whether the member may act now."""
        return self.remaining() > 0

    def ended(self) -> bool:
        """Return whether the member may not act now and never again, under this lease."""
        with self._lock:
            self._remaining()
            return self._broken

    def remaining(self) -> float:
        """Return the seconds for which the member may act, 0 when it may not."""
        with self._lock:
            return self._remaining()

    def confirm(self, sent_at: float, session_timeout: float, connected_at: float) -> bool:
        """Extend the lease by a write that was sent at ``sent_at`` and is acknowledged now.

        ``session_timeout`` is what is agreed on now; a shorter one shortens the lease. Returns
        whether the lease has not ended. An acknowledgement that comes after the end is too late.
        """
        with self._lock:
            self._remaining()
            if not self._broken:
                self._confirm(sent_at, session_timeout, connected_at)
                self._remaining()
            return not self._broken

    def reconnected(self, session_timeout: float, connected_at: float) -> None:
        """Record the time-out that the server granted to the connection made at ``connected_at``.

        A shorter time-out counts from then on, whether or not a write is acknowledged after it.
        The lease does not become longer by that.
        """
        with self._lock:
            less = self._session_timeout - session_timeout
            if less > 0:
                latest = self._counted_from + less * (1 - MARGIN)
                self._counted_from = min(latest, max(self._counted_from, connected_at))
                self._session_timeout = session_timeout

    def break_(self) -> None:
        """End the lease now and for good."""
        with self._lock:
            self._broken = True

    def _confirm(self, sent_at: float, session_timeout: float, connected_at: float) -> None:
        reported = sent_at - REPORT_SHARE * session_timeout
        proven = [self._counted_from]
        pinged = reported - SILENCE_SHARE * session_timeout
        if pinged >= self._pinged_since:
            proven.append(pinged)
        while self._acknowledged and self._acknowledged[0][1] <= reported:
            proven.append(self._acknowledged.popleft()[0])
        if connected_at <= sent_at:
            proven.append(connected_at)
        self._counted_from = max(proven)
        self._session_timeout = session_timeout
        self._acknowledged.append((sent_at, self._clock.monotonic()))

    def _remaining(self) -> float:
        if self._broken:
            return 0.0
        end = self._counted_from + self._session_timeout * (1 - MARGIN)
        left = end - self._clock.monotonic()
        if left > 0:
            self._begun = True
        elif self._begun:
            self._broken = True
        return max(0.0, left)
