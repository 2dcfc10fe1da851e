"""The heartbeats of threads, and whether all of them go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Heartbeat(Protocol):
    """Something that works in a loop on a thread of its own. Properties are safe on any thread."""

    @property
    def last_beat(self) -> float:
        """Monotonic time of the last sign of progress."""

    @property
    def stall_timeout(self) -> float | None:
        """Seconds within which there has to be another; None before the start and after the end."""


class HeartbeatCheck:
    """Says when all parts have come on. For one thread at a time; does not block.

    Nothing here looks at a clock: a process that stood still as a whole, stopped by a signal or
    with its machine, has come on as soon as its parts take their next turns.
    """

    def __init__(self) -> None:
        self._seen: dict[Heartbeat, float] = {}

    def since_last_time(self, parts: Iterable[Heartbeat]) -> bool:
        """Whether each part that runs sent a heartbeat since this was last answered with True."""
        beats = {part: part.last_beat for part in parts if part.stall_timeout is not None}
        if any(self._seen.get(part) == beat for part, beat in beats.items()):
            return False
        self._seen = beats
        return True
