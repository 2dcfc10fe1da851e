"""How many dead letters one claim may send: in a row, and within successive offsets."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.channel.buffer import BatchSlice
    from headrace.config import DeadLetterConfig

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
        """Take note that a batch is given up; its parts come from here on."""
        if cut.failures == 0:
            self._bisected_at = cut.start

    def in_doubt(self, cut: BatchSlice) -> bool:
        """Whether nothing was answered since the batch was divided, or since the last letter.

        What fails then may fail for something that has nothing to do with the record.
        """
        return cut.start in {self._bisected_at, self._after_letter}

    def excess(self, cut: BatchSlice, offset: int, limits: DeadLetterConfig) -> str | None:
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

    def heads_for(self, cut: BatchSlice, limits: DeadLetterConfig) -> bool:
        """Whether ``max_per_thousand`` will be passed at the rate so far, and ``cut`` fits in.

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
