"""Which records of a partition went to the dead-letter topic lately, and when that is too many."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.channel.buffer import Cut
    from headrace.config import DeadLetterConfig

#: Successive offsets among which ``max_per_thousand`` bounds the letters.
WINDOW = 1000


class Letters:
    """Those of one claim. Changed by the thread that holds the partition; ``count`` on any."""

    def __init__(self) -> None:
        self.count = 0
        self._offsets: deque[int] = deque(maxlen=WINDOW)
        self._in_a_row = 0
        self._behind: int | None = None

    def excess(self, cut: Cut, offset: int, limits: DeadLetterConfig) -> str | None:
        """Return which limit one more letter would pass, None if it may be sent.

        ``cut`` has the one record that would be sent, at ``offset``.
        """
        row = self._row(cut)
        if row > limits.max_consecutive:
            return f"{row} records in a row (max_consecutive: {limits.max_consecutive})"
        lately = 1 + sum(offset - WINDOW < at < offset for at in self._offsets)
        if lately > limits.max_per_thousand:
            return (
                f"{lately} records within {WINDOW} offsets "
                f"(max_per_thousand: {limits.max_per_thousand})"
            )
        return None

    def note(self, cut: Cut, offset: int) -> None:
        """Count a letter, now that reading goes on behind it."""
        self._in_a_row = self._row(cut)
        self._behind = cut.next_offset
        self._offsets.append(offset)
        self.count += 1

    def _row(self, cut: Cut) -> int:
        """Return how many letters in a row it makes: nothing was answered between them."""
        return self._in_a_row + 1 if cut.start == self._behind else 1
