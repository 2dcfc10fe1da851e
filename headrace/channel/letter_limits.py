"""The limits of dead letters that one claim may send: in a row, and within successive offsets."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.core.record_runs import places_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.channel.buffer import BatchSlice
    from headrace.config import LimitedRejects
    from headrace.core.records import Batch

#: Successive offsets among which ``max_per_thousand`` bounds the letters.
WINDOW = 1000

#: Letters from which a rate is reckoned.
_ENOUGH = 5


class DeadLetterLimits:
    """Those of one claim. Changed by the thread that holds the partition; ``count`` on any."""

    def __init__(self) -> None:
        self.count = 0
        self._offsets: deque[int] = deque(maxlen=WINDOW)
        self._in_a_row = 0
        self._after_letter: int | None = None
        self._row_began = 0
        self._bisected_at: int | None = None

    def divide(self, cut: BatchSlice) -> None:
        """Record that a batch is given up and bisected; its parts are delivered from here on."""
        if cut.failures == 0:
            self._bisected_at = cut.start

    def in_doubt(self, cut: BatchSlice) -> bool:
        """Return whether nothing was answered since the batch was divided, or since the last
        letter.

        What fails then may fail for something that has nothing to do with the record.
        """
        return cut.start in {self._bisected_at, self._after_letter}

    def excess(self, cut: BatchSlice, offset: int, limits: LimitedRejects) -> str | None:
        """Return which limit one more letter would pass, None if it may be sent.

        ``cut`` has the one record that would be sent, at ``offset``.
        """
        row = self._row(cut)
        if row > limits.max_consecutive:
            return f"{row} records in a row (max_consecutive: {limits.max_consecutive})"
        recent = 1 + sum(offset - WINDOW < at < offset for at in self._offsets)
        if recent > limits.max_per_thousand:
            return (
                f"{recent} records within {WINDOW} offsets "
                f"(max_per_thousand: {limits.max_per_thousand})"
            )
        return None

    def heads_for(self, cut: BatchSlice, limits: LimitedRejects) -> bool:
        """Return whether ``max_per_thousand`` will be passed at the rate so far, and ``cut`` fits
        in.

        Then another try of what fails tells nothing new. It does not fit in where more fail in a
        row than would by chance: that may be trouble that began just now, and is waited out.
        """
        row = self._row(cut)
        began = cut.start if row == 1 else self._row_began
        before = {at for at in self._offsets if began - WINDOW < at < began}
        if len(before) < _ENOUGH:
            return False
        span = began - min(before)
        rate = len(before) / span
        return rate * WINDOW > limits.max_per_thousand and span * rate**row >= 1

    def note(self, cut: BatchSlice, offset: int) -> None:
        """Count a letter, now that reading goes on after it."""
        self._in_a_row = self._row(cut)
        if self._in_a_row == 1:
            self._row_began = cut.start
        self._after_letter = cut.next_offset
        self._offsets.append(offset)
        self.count += 1

    def _row(self, cut: BatchSlice) -> int:
        """Return how many letters in a row it makes: nothing was answered between them."""
        return self._in_a_row + 1 if cut.start == self._after_letter else 1


class UndecodableLimits:
    """The same for undecodable records of one claim, which are found by the micro-batch.

    For the thread that commits; ``count`` on any.
    """

    def __init__(self) -> None:
        self.count = 0
        self._offsets: deque[int] = deque()
        self._in_a_row = 0
        self._after_letter: int | None = None

    def excess(
        self, batch: Batch, offsets: Sequence[int], limits: LimitedRejects
    ) -> tuple[int, str] | None:
        """Return which record of a batch would pass a limit, and which limit; None if none would.

        ``offsets`` are those of its undecodable records. A batch that is retried counts once.
        """
        recent = deque(at for at in self._offsets if batch.start - WINDOW < at < batch.start)
        for offset, row in zip(offsets, self._rows(batch, offsets), strict=True):
            if row > limits.max_consecutive:
                return offset, f"{row} records in a row (max_consecutive: {limits.max_consecutive})"
            while recent and recent[0] <= offset - WINDOW:
                recent.popleft()
            recent.append(offset)
            if len(recent) > limits.max_per_thousand:
                return offset, (
                    f"{len(recent)} records within {WINDOW} offsets "
                    f"(max_per_thousand: {limits.max_per_thousand})"
                )
        return None

    def note(self, batch: Batch, offsets: Sequence[int]) -> None:
        """Count the letters of a batch, now that they are in the topic."""
        is_last = bool(offsets) and offsets[-1] == batch.last_offset
        *_, row = 0, *self._rows(batch, offsets)
        self._in_a_row = row if is_last else 0
        self._after_letter = batch.next_offset if is_last else None
        first = batch.next_offset - WINDOW
        kept = [at for at in self._offsets if first < at < batch.start]
        self._offsets = deque([*kept, *(at for at in offsets if at > first)])
        self.count += len(offsets)

    def _rows(self, batch: Batch, offsets: Sequence[int]) -> Iterator[int]:
        """Yield for each letter how many in a row it makes: no other record lies between them."""
        row = self._in_a_row if self._after_letter == batch.start else 0
        before = -1
        for place in places_in(batch.records, offsets):
            row = row + 1 if place == before + 1 else 1
            yield row
            before = place
