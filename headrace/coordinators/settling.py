"""When a group has been the same for long enough to move partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.clock import Clock
    from headrace.coordinators.members import MemberInfo

LONGEST_WAIT = 10
"""How many delays a group that keeps changing can put off a rebalance."""


class Settling:
    """Debounces membership: one rule for start, join, leave, crash and ZooKeeper's return.

    A draining member counts as gone, so that its leave is one change and not two.
    """

    def __init__(self, delay: float, clock: Clock) -> None:
        self._delay = delay
        self._clock = clock
        self._members: Mapping[str, MemberInfo] | None = None
        self._same_since = 0.0
        self._restless_since: float | None = None

    def observe(self, members: Mapping[str, MemberInfo]) -> float:
        """Take note of the members seen now; seconds to wait before acting on them, 0 for none."""
        now = self._clock.monotonic()
        present = {name: info for name, info in members.items() if not info.draining}
        if present != self._members:
            self._members = present
            self._same_since = now
            if self._restless_since is None:
                self._restless_since = now
        if self._restless_since is None:
            return 0.0
        due = min(self._same_since + self._delay, self._restless_since + LONGEST_WAIT * self._delay)
        if now < due:
            return due - now
        self._restless_since = None
        return 0.0
