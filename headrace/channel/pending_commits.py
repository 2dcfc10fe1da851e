"""Commits of one partition that are staged, and what of them is known to be stored."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.channel.events import OffsetCommitted
    from headrace.core.records import Batch


class PendingCommits:
    """The offsets staged of a partition, and how much of them is known to be stored.

    The partition's holder changes it; it may be read on any thread.
    """

    def __init__(self) -> None:
        self.staged = 0
        self.stored = 0
        self.committed: int | None = None
        self._unconfirmed: deque[tuple[int, Batch]] = deque()

    @property
    def has_pending_commit(self) -> bool:
        """Return whether an offset was staged that is not known to be stored."""
        return self.stored < self.staged

    @property
    def size(self) -> int:
        """Return the bytes of the batches that are kept until their offset is stored."""
        unconfirmed = self._unconfirmed
        return sum(batch.size for _, batch in tuple(unconfirmed)) if unconfirmed else 0

    def enqueue(self, batch: Batch | None) -> int:
        """Assign a number to the next offset to store; ``batch`` is kept until it is confirmed."""
        self.staged += 1
        if batch is not None:
            self._unconfirmed.append((self.staged, batch))
        return self.staged

    def confirm(self, event: OffsetCommitted) -> list[Batch]:
        """Record a stored offset; return the batches that it covers."""
        self.committed = event.offset
        self.stored = max(self.stored, event.sequence)
        covered = []
        while self._unconfirmed and self._unconfirmed[0][0] <= self.stored:
            covered.append(self._unconfirmed.popleft()[1])
        return covered
