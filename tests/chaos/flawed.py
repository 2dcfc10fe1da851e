"""Sinks that are wrong in one way each: what the oracle must notice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.chaos.sinks import FileSink, PlainSink, TransactionalSink
from headrace.processors import BatchResponse

if TYPE_CHECKING:
    from headrace.core.records import Batch

#: Which of its batches a process drops.
_DROPPED = 3


class Unfenced(TransactionalSink):
    """Stores whatever comes, also from a former owner."""

    def check(self, batch: Batch, stored: int | None) -> None:
        """Refuse nothing."""


class CommitFirst(FileSink):
    """Stores a batch only when its offset is committed."""

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Advance with nothing stored."""
        del batch
        return BatchResponse.advance()

    def on_batch_processed(self, batch: Batch) -> None:
        """Work for a while, and store what came of it."""
        time.sleep(self.work)
        file = self.file(batch.partition)
        with file.transaction():
            file.append(batch, self.member)


class Dropping(PlainSink):
    """Advances behind one batch that it never stored."""

    def __init__(self, directory: str, member: str, work: float) -> None:
        super().__init__(directory, member, work)
        self._left = _DROPPED

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Drop one batch of all, and store the others."""
        self._left -= 1
        return BatchResponse.advance() if self._left == 0 else super().on_next_batch(batch)
