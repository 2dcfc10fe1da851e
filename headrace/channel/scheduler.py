"""Who is next: one FIFO queue of partitions that are ready, one heap of those due later."""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum
from itertools import count
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition
    from headrace.clock import Clock


class _Place(Enum):
    """Where the scheduler has a partition."""

    NOWHERE = "nowhere"
    READY = "ready"
    LATER = "later"
    HELD = "held"


class _Entry:
    """What the scheduler knows of one partition; ``due`` counts only in LATER."""

    __slots__ = ("due", "place")

    def __init__(self) -> None:
        self.place = _Place.NOWHERE
        self.due = 0.0


class Scheduler:
    """Hands each partition to one worker at a time, in the order in which they became ready.

    That is round robin: a partition that is given back and ready again goes behind the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()
        self._ready: deque[OwnedPartition] = deque()
        self._later: list[tuple[float, int, OwnedPartition]] = []
        self._sequence = count()
        self._entries: dict[OwnedPartition, _Entry] = {}
        self._closed = False

    def touch(self, partition: OwnedPartition) -> None:
        """Look again at when ``partition`` is due, because something about it changed."""
        with self._changed:
            entry = self._entries.setdefault(partition, _Entry())
            if entry.place in (_Place.NOWHERE, _Place.LATER):
                self._place(partition, entry)

    def take(self, timeout: float) -> OwnedPartition | None:
        """Wait for a partition that is due and hold it; None after ``timeout`` or when closed."""
        give_up = self._clock.monotonic() + timeout
        with self._changed:
            while not self._closed:
                now = self._clock.monotonic()
                self._promote(now)
                if self._ready:
                    partition = self._ready.popleft()
                    self._entries[partition].place = _Place.HELD
                    partition.holder = object()
                    return partition
                if now >= give_up:
                    return None
                soonest = self._later[0][0] if self._later else give_up
                self._changed.wait(min(soonest, give_up) - now)
            return None

    def give_back(self, partition: OwnedPartition, holder: object) -> None:
        """End the hold, unless it was seized; a partition in a final state is forgotten."""
        with self._changed:
            if partition.holder is holder:
                self._end_hold(partition)

    def seize(self, partition: OwnedPartition) -> None:
        """End the hold of a worker that hangs, so that another one can end the partition."""
        with self._changed:
            self._end_hold(partition)

    def _end_hold(self, partition: OwnedPartition) -> None:
        partition.holder = None
        if partition.final:
            self._entries.pop(partition, None)
        else:
            entry = self._entries[partition]
            entry.place = _Place.NOWHERE
            self._place(partition, entry)

    def close(self) -> None:
        """Let every ``take`` return None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _place(self, partition: OwnedPartition, entry: _Entry) -> None:
        due = partition.due()
        if due is None:
            entry.place = _Place.NOWHERE
        elif due <= self._clock.monotonic():
            entry.place = _Place.READY
            self._ready.append(partition)
            self._changed.notify()
        elif entry.place is not _Place.LATER or due != entry.due:
            entry.place, entry.due = _Place.LATER, due
            heapq.heappush(self._later, (due, next(self._sequence), partition))
            if self._later[0][2] is partition:
                self._changed.notify_all()

    def _promote(self, now: float) -> None:
        """Move what is due from the heap to the queue; outdated heap items are dropped."""
        while self._later and self._later[0][0] <= now:
            due, _, partition = heapq.heappop(self._later)
            entry = self._entries.get(partition)
            if entry is not None and entry.place is _Place.LATER and entry.due == due:
                self._place(partition, entry)
