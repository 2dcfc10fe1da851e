"""How fast the flights are produced, and how far before something else must have happened."""

from __future__ import annotations

from enum import Enum

#: Seconds that the production takes at least.
SECONDS = 40.0

#: A turn that took longer than this many seconds, because the machine was busy, is not made up for.
_LONGEST_TURN = 1.0


class Gate(Enum):
    """How much of the flights, as a share, may be produced until the gate is opened."""

    CLOSED = 0.0
    """Nothing: no daemon is ready."""

    BEFORE_KILL = 0.6
    """Below the highest share at which the kill may happen: the table cannot run past it."""

    BEFORE_RETURN = 0.85
    """The rest is for when the killed daemon is back, so that it has something to commit."""

    OPEN = 1.0
    """Everything."""


class Pace:
    """Spreads ``total`` records evenly over at least ``seconds``; time at a gate is extra."""

    def __init__(self, total: int, seconds: float = SECONDS) -> None:
        self.total = total
        self.produced = 0
        self._rate = total / seconds if seconds > 0 else float("inf")
        self._credit = 0.0

    def due(self, elapsed: float, gate: Gate) -> int:
        """Return how many records to produce now, ``elapsed`` seconds after the last call."""
        limit = round(self.total * gate.value)
        room = limit - self.produced
        if room <= 0 or elapsed <= 0:
            return 0
        self._credit = min(self._credit + self._rate * min(elapsed, _LONGEST_TURN), room)
        count = int(self._credit)
        self._credit = 0.0 if count == room else self._credit - count
        self.produced += count
        return count
