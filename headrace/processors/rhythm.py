"""When the lane takes what waits: foretold by how long its jobs took."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.clock import Clock

#: The part of a job's usual time after which the next batches are handed out, so that they are
#: ready at its end. What comes after them waits for one job more.
LEAD = 0.9

#: The part of a job's usual time that a lane without work waits for the other partitions, once the
#: first one has something.
GATHER = 0.05

#: Seconds that it waits so at the most.
MOST_GATHER = 0.02

#: How much of a job's time goes into the usual one.
_WEIGHT = 0.25


class Rhythm:
    """The pace of one lane, which is the only one to have a :meth:`job`; all else on any thread.

    A batch that is cut as soon as its partition may have another one holds little, and what comes
    behind it waits for two jobs. One that is cut shortly before the lane is free has it all.
    ``wake`` is called when a job ended before batches were wanted.
    """

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._usual = 0.0
        self._wanted_at = 0.0

    @contextmanager
    def job(self) -> Iterator[None]:
        """Take note of a job from its begin to its end; of one that fails only that it is over."""
        began = self._clock.monotonic()
        self._wanted_at = began + LEAD * self._usual
        try:
            yield
            seconds = self._clock.monotonic() - began
            self._usual += (seconds - self._usual) * (_WEIGHT if self._usual else 1.0)
        finally:
            foretold, self._wanted_at = self._wanted_at, 0.0
            if self._clock.monotonic() < foretold:
                self._wake()

    def wanted_at(self) -> float:
        """Return when the next batches should be handed out, in monotonic time; 0.0 is at once."""
        return self._wanted_at

    def gathering(self) -> float:
        """Return how many seconds the lane waits for others once it has a first batch."""
        return min(GATHER * self._usual, MOST_GATHER)
