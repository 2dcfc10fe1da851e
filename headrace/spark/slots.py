"""The task slots of a session, shared out so that no lane's job has those of all others."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Share:
    """How many tasks a job may have at once; with ``is_limit`` any more are others' to have."""

    tasks: int
    is_limit: bool = False


def slots_for(cores: int, channels: int) -> int:
    """Return how many slots a session has: more than cores where there are several channels.

    Beside a job that hangs with as many tasks as there are cores the others have as many slots
    again, and each at least one, however many hang. Tasks that wait for nothing share the cores.
    """
    return cores if channels <= 1 else 2 * cores + channels - 2


class Slots:
    """Says how many tasks a lane's next job may have. Any thread; does not block.

    A task that hangs keeps its slot, and Spark takes none away. So a job may have as many tasks as
    there are cores, but no more than its part if several lanes are busy, and it leaves each lane
    that is idle one slot. That holds for as many lanes as there are slots.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cores = 1
        self._count: int | None = None
        self._taken: dict[object, int] = {}

    def resize(self, cores: int, count: int | None) -> None:
        """Share out the ``count`` slots of another session, None where they cannot be counted."""
        with self._lock:
            self._cores, self._count = cores, count

    def enter(self, lane: object) -> None:
        """Leave a slot to this lane from now on."""
        with self._lock:
            self._taken[lane] = 0

    def leave(self, lane: object) -> None:
        """Leave it none any more."""
        with self._lock:
            self._taken.pop(lane, None)

    @contextmanager
    def share(self, lane: object) -> Iterator[Share]:
        """Take what the lane's job may have, for the time of the block."""
        with self._lock:
            share = self._of(lane)
            self._taken[lane] = share.tasks
        try:
            yield share
        finally:
            with self._lock:
                if lane in self._taken:
                    self._taken[lane] = 0

    def _of(self, lane: object) -> Share:
        others = [tasks for other, tasks in self._taken.items() if other != lane]
        if self._count is None or not others:
            return Share(self._cores)
        idle = others.count(0)
        even = -(-self._count // (1 + len(others) - idle))
        free = self._count - sum(others) - idle
        return Share(max(1, min(self._cores, even, free)), is_limit=True)
