"""Batches that wait for a Spark job, and which of them go into the next one."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.processors.responses import BatchResponse
    from headrace.records import Assignment, Batch, TopicPartition


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """How much one micro-batch may hold. A single batch may exceed both and runs alone then.

    A table exists twice while it is handed over, here and in the JVM; 64 MiB is what a driver of
    the default size takes with ease.
    """

    max_records: int = 100_000
    max_bytes: int = 64 << 20


@dataclass(eq=False, slots=True)
class PendingBatch:
    """A batch between ``on_next_batch`` and its answer. ``prepared`` is the engine's own."""

    batch: Batch
    prepared: Any
    future: Future[BatchResponse] = field(default_factory=Future)

    @property
    def partition(self) -> TopicPartition:
        """The batch's partition."""
        return self.batch.partition

    @property
    def runs_alone(self) -> bool:
        """Whether the batch failed before: then it must not take others with it."""
        return self.batch.attempt > 1


class PendingBatches:
    """The queue between the channel's workers and the lane, in order of arrival.

    All methods may be called on any thread.
    """

    def __init__(self, limits: MergeLimits) -> None:
        self._limits = limits
        self._waiting: list[PendingBatch] = []
        self._arrived = threading.Condition()

    def put(self, pending: PendingBatch) -> None:
        """Add a batch behind all others."""
        with self._arrived:
            self._waiting.append(pending)
            self._arrived.notify()

    def take(self, timeout: float) -> list[PendingBatch]:
        """Remove and return what the next micro-batch holds; empty after ``timeout`` seconds.

        As many as fit, from the front, without waiting for more: what arrives while a job runs
        goes into the next one together. Batches of one partition keep their order.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._waiting), timeout)
            taken = self._fitting()
            self._waiting = self._waiting[len(taken) :]
            return taken

    def _fitting(self) -> list[PendingBatch]:
        taken: list[PendingBatch] = []
        records = size = 0
        for pending in self._waiting:
            records += len(pending.batch)
            size += pending.batch.size
            too_much = records > self._limits.max_records or size > self._limits.max_bytes
            if taken and (pending.runs_alone or too_much):
                break
            taken.append(pending)
            if pending.runs_alone:
                break
        return taken

    def remove(self, assignment: Assignment | None = None) -> list[PendingBatch]:
        """Remove and return the batches of one assignment, or all of them."""

        def goes(pending: PendingBatch) -> bool:
            return assignment is None or pending.batch.assignment is assignment

        return self._remove(goes)

    def _remove(self, goes: Callable[[PendingBatch], bool]) -> list[PendingBatch]:
        with self._arrived:
            removed = [pending for pending in self._waiting if goes(pending)]
            self._waiting = [pending for pending in self._waiting if not goes(pending)]
        return removed
