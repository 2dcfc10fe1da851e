"""The order of partitions: one FIFO queue of those that are ready, one heap of those due later."""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum
from itertools import count
from threading import Condition
from typing import TYPE_CHECKING

from headrace.channel.states import EndReason

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition, RunningCallback
    from headrace.core.clock import Clock


#: Outdated items that the heap may hold besides two for each partition.
_HEAP_SLACK = 64


class _Place(Enum):
    """The place where the scheduler has a partition."""

    NOWHERE = "nowhere"
    READY = "ready"
    LATER = "later"
    HELD = "held"


class _Entry:
    """The entry of one partition in the scheduler; ``due`` counts only in LATER."""

    __slots__ = ("due", "place")

    def __init__(self) -> None:
        self.place = _Place.NOWHERE
        self.due = 0.0


class Scheduler:
    """Hands each partition to one worker at a time, in the order in which they became ready.

    That is round robin: a partition that is given back and ready again goes after the others. One
    that is to rest or to end goes before them: it takes no batch, and the caller of a pause waits.
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
        """Reschedule ``partition``, because something about it changed."""
        with self._changed:
            if partition.life.final:
                return
            entry = self._entries.setdefault(partition, _Entry())
            if entry.place in (_Place.NOWHERE, _Place.LATER):
                self._place_partition(partition, entry)
            elif entry.place is _Place.READY and partition.is_urgent:
                self._ready.remove(partition)
                self._ready.appendleft(partition)

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
                    partition.hold.begin()
                    return partition
                if now >= give_up:
                    return None
                soonest = self._later[0][0] if self._later else give_up
                self._changed.wait(min(soonest, give_up) - now)
            return None

    def give_back(self, partition: OwnedPartition, holder: object) -> None:
        """End the hold, unless it was seized; a partition in a final state is forgotten."""
        with self._changed:
            if partition.hold.holder is holder:
                self._end_hold(partition)

    def seize(self, partition: OwnedPartition, hung: RunningCallback) -> bool:
        """Abandon a partition whose worker's callback ``hung``.

        Returns:
            False if the callback has come back meanwhile: nothing was done.
        """
        with self._changed:
            if partition.hold.holder is None or partition.hold.callback is not hung:
                return False
            partition.hold.end_callback()
            partition.life.end(EndReason.ABANDONED)
            self._end_hold(partition)
            return True

    def _end_hold(self, partition: OwnedPartition) -> None:
        partition.hold.end()
        if partition.life.final:
            self._entries.pop(partition, None)
        else:
            entry = self._entries[partition]
            entry.place = _Place.NOWHERE
            self._place_partition(partition, entry)

    def close(self) -> None:
        """Close the queue: every ``take`` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _place_partition(self, partition: OwnedPartition, entry: _Entry) -> None:
        due = partition.due()
        if due is None:
            entry.place = _Place.NOWHERE
        elif due <= self._clock.monotonic():
            entry.place = _Place.READY
            if partition.is_urgent:
                self._ready.appendleft(partition)
            else:
                self._ready.append(partition)
            self._changed.notify()
        elif entry.place is not _Place.LATER or due != entry.due:
            entry.place, entry.due = _Place.LATER, due
            heapq.heappush(self._later, (due, next(self._sequence), partition))
            self._prune()
            if self._later[0][2] is partition:
                self._changed.notify_all()

    def _prune(self) -> None:
        """Drop outdated items when they outnumber the others: each batch leaves some."""
        if len(self._later) <= 2 * len(self._entries) + _HEAP_SLACK:
            return
        current = {
            partition: item
            for item in self._later
            if (partition := item[2]) in self._entries
            and self._entries[partition].place is _Place.LATER
            and self._entries[partition].due == item[0]
        }
        self._later = list(current.values())
        heapq.heapify(self._later)

    def _promote(self, now: float) -> None:
        """Move what is due from the heap to the queue; outdated heap items are dropped."""
        while self._later and self._later[0][0] <= now:
            due, _, partition = heapq.heappop(self._later)
            entry = self._entries.get(partition)
            if entry is not None and entry.place is _Place.LATER and entry.due == due:
                self._place_partition(partition, entry)
