"""How many records a micro-batch may hold, so that it takes about as long as is wanted."""

from __future__ import annotations

#: By what a size changes at most from one micro-batch to the next: one that was slow for a reason
#: of its own, a garbage collection or a checkpoint, says little.
MOST_CHANGE = 2.0

#: The part of the limit that a micro-batch has to fill to say that more would fit.
FULL = 0.8


class AdaptiveSize:
    """Goes towards ``target`` seconds a micro-batch, between ``least`` and ``most`` records.

    A micro-batch that took longer lowers the limit in proportion; one that was about full and took
    less raises it. Where each has a fixed cost as well, the proportion falls short of the target,
    and the next ones come closer. Without a target the limit is ``most``. For one thread at a
    time.
    """

    def __init__(self, most: int, target: float | None, least: int = 1_000) -> None:
        self.target = target
        self._least = min(least, most)
        self._most = most
        self.records = most

    def resized(self, most: int, target: float | None) -> AdaptiveSize:
        """Return a size with other bounds that goes on from this one's records."""
        other = AdaptiveSize(most, target, self._least)
        if target is not None:
            other.records = min(self.records, most)
        return other

    def took(self, records: int, seconds: float) -> None:
        """Take note of a micro-batch that was stored."""
        if self.target is None or seconds <= 0:
            return
        factor = self.target / seconds
        if factor < 1:
            wanted = min(self.records, records) * max(factor, 1 / MOST_CHANGE)
        elif records >= FULL * self.records:
            wanted = self.records * min(factor, MOST_CHANGE)
        else:
            return
        self.records = max(self._least, min(self._most, round(wanted)))
