"""What is known of threads that should take turns, and whether all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Turning(Protocol):
    """Something that takes turns on a thread of its own. Properties are safe on any thread."""

    @property
    def last_turn(self) -> float:
        """Monotonic time of the last sign of progress."""
        ...

    @property
    def turn_limit(self) -> float | None:
        """Seconds within which there has to be another; None before the start and after the end."""
        ...


class Progress:
    """Says when all parts have come on. For one thread at a time; does not block.

    Nothing here looks at a clock: a process that stood still as a whole, stopped by a signal or
    with its machine, has come on as soon as its parts take their next turns.
    """

    def __init__(self) -> None:
        self._seen: dict[Turning, float] = {}

    def since_last_time(self, parts: Iterable[Turning]) -> bool:
        """Whether each part that runs has taken a turn since this was last answered with True."""
        turns = {part: part.last_turn for part in parts if part.turn_limit is not None}
        if any(self._seen.get(part) == turn for part, turn in turns.items()):
            return False
        self._seen = turns
        return True
