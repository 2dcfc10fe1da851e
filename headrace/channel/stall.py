"""The thread that notices when another one, which should take turns, takes none any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.channel.threads import Patrol
from headrace.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.progress import Turning

log = structlog.get_logger(__name__)

#: Seconds between two looks at most.
LONGEST_INTERVAL = 1.0

#: Looks within the time that a thread may take for a turn.
LOOKS = 8


class StallGuard(Patrol):
    """The thread that fails the channel when ``turning`` stands still.

    Time counts by its looks and not by the clock: a process that stood still as a whole, stopped
    by a signal or with its machine, has not looked either, and goes on where it was.
    """

    def __init__(
        self,
        what: str,
        turning: Turning,
        *,
        fail: Callable[[BaseException], None],
        channel: str,
    ) -> None:
        self._what = what
        self._turning = turning
        self._fail = fail
        self._channel = channel
        self._seen: float | None = None
        self._idle = 0.0
        super().__init__(f"{channel}-{what}-guard", fail)

    def _run(self) -> None:
        while True:
            limit = self._turning.turn_limit
            interval = LONGEST_INTERVAL if limit is None else min(LONGEST_INTERVAL, limit / LOOKS)
            if self._stopping.wait(interval):
                return
            self._look(interval)
            if limit is not None and self._idle >= limit:
                self._give_up(limit)
                return

    def _look(self, interval: float) -> None:
        """Add to the time without progress, or begin it anew."""
        before, self._seen = self._seen, self._turning.last_turn
        self._idle = self._idle + interval if self._seen == before else 0.0

    def _give_up(self, limit: float) -> None:
        log.error("thread_stalled", channel=self._channel, thread=self._what, seconds=limit)
        self._fail(
            FatalError(
                f"channel {self._channel}: its {self._what} has done nothing for {limit:.1f} s; "
                "the process has to be restarted"
            )
        )
