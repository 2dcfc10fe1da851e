"""Failed attempts of one partition: how many there were, and until when the next one waits."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from headrace.core.records import offset_of

if TYPE_CHECKING:
    from headrace.channel.buffer import BatchSlice


class Retries:
    """Attempts and waits of an owned partition: for its start, then for the batch that comes next.

    The partition's holder changes it; it may be read on any thread. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.not_before = 0.0
        self.last_error: str | None = None
        # start, first record and end of the batch that failed last: its records may be dropped
        self._failed: tuple[int, int, int] | None = None

    def failed_between(self, processed: int, position: int) -> tuple[int, int] | None:
        """Return first record and end of the batch that failed and is retried.

        It begins at the position, or before it where it was just taken to be delivered, and not
        before what is processed.
        """
        failed = self._failed
        if not self.attempts or failed is None:
            return None
        start, first, end = failed
        return (first, end) if processed <= start <= position else None

    @property
    def awaits_event(self) -> bool:
        """Return whether it goes on with an event only."""
        return self.not_before == inf

    def begin_attempt(self) -> None:
        """Count a look for the start position."""
        self.attempts += 1

    def count_failure(self, cut: BatchSlice) -> None:
        """Count an attempt that failed with a batch."""
        self._failed = cut.start, offset_of(cut.records[0]), cut.next_offset
        self.attempts += 1

    def clear_failures(self) -> None:
        """Count from 0 again: what comes next is another batch."""
        self.attempts = 0

    def note_error(self, error: str | None) -> None:
        """Remember an error for the status, or that there is none any more."""
        self.last_error = error

    def hold_until(self, at: float) -> None:
        """Deliver nothing before ``at``."""
        self.not_before = at

    def await_event(self) -> None:
        """Suspend work until the next event; no time-out ends the wait."""
        self.not_before = inf

    def retry_at(self, now: float) -> None:
        """Deliver a batch that has failed again now: it is another one without a record."""
        self.attempts, self.not_before = 0, now
