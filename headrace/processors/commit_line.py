"""What was staged, in the order in which it is committed, and what came back from there."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.processors.jobs import Job
    from headrace.processors.pending import PendingBatch

#: Results that are staged and not committed: one in the sink's hand, two that wait. Each holds its
#: batches, and files on disk or rows in memory.
ROOM = 3

#: As many where the sink takes several at once: half of them in its hand, while the others come.
GROUPING_ROOM = 8

#: Bytes of records that more than ``ROOM`` results may be of, together: what one micro-batch may
#: hold at the most, so that many small ones take no more memory than a few large ones.
GROUPING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Returned:
    """Batches that were not committed, and why; None if something before them was not."""

    number: int
    batches: Sequence[PendingBatch]
    failure: BaseException | None


class CommitLine:
    """Jobs go in at the lane's end and are taken by the thread that commits.

    That takes one at a time, or all that wait where the sink ``groups``. One that is not committed
    comes back, and with it each behind it that shares a partition. All methods may be called on any
    thread.
    """

    def __init__(self, *, groups: bool) -> None:
        self._groups = groups
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._in_hand: Sequence[Job] = ()
        self._returned: list[Returned] = []

    @property
    def has_returned(self) -> bool:
        """Whether anything came back."""
        return bool(self._returned)

    def wait_for_room(self, timeout: float) -> bool:
        """Return whether another job may be staged; waits up to ``timeout`` seconds for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room, timeout)

    @property
    def _has_room(self) -> bool:
        staged = self._staged
        if len(staged) < ROOM or not self._groups:
            return len(staged) < ROOM
        return len(staged) < GROUPING_ROOM and sum(job.size for job in staged) < GROUPING_BYTES

    @property
    def _staged(self) -> list[Job]:
        return [*self._in_hand, *self._waiting]

    def put(self, job: Job) -> None:
        """Line a staged job up."""
        with self._changed:
            self._waiting.append(job)
            self._changed.notify_all()

    def take(self, timeout: float) -> Sequence[Job]:
        """Return the next jobs, to be answered or given back; none after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting), timeout)
            taken = len(self._waiting) if self._groups else min(1, len(self._waiting))
            self._in_hand = [self._waiting.popleft() for _ in range(taken)]
            return self._in_hand

    def settle(self) -> None:
        """Note that the jobs in hand are over."""
        with self._changed:
            self._in_hand = ()
            self._changed.notify_all()

    def give_back(self, returned: Returned) -> None:
        """Have the lane see to batches of which nothing is stored, and is any more."""
        with self._changed:
            self._returned.append(returned)
            self._changed.notify_all()

    def follows_returned(self, job: Job) -> bool:
        """Whether something before the job came back that shares a partition with it."""
        mine = {pending.partition for pending in job.batches}
        with self._changed:
            return any(
                pending.partition in mine
                for returned in self._returned
                if returned.number < job.number
                for pending in returned.batches
            )

    def returned(self, timeout: float) -> list[Returned]:
        """Return what came back in its order, once nothing is in line; nothing while it is.

        Waits up to ``timeout`` seconds for that.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._staged, timeout):
                return []
            returned, self._returned = self._returned, []
            return sorted(returned, key=lambda each: each.number)
