"""Batches between ``on_next_batch`` and their answers: which run together, and when."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.core.errors import BatchCancelledError
from headrace.processors.contract import BatchResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.core.clock import Clock
    from headrace.core.records import Assignment, Batch, TopicPartition
    from headrace.processors.admission import Overflow


#: By what a size changes at most from one micro-batch to the next: one that was slow for a reason
#: of its own, a garbage collection or a checkpoint, says little.
MOST_CHANGE = 2.0

#: The part of the limit that a micro-batch has to fill to say that more would fit.
FULL = 0.8


class AdaptiveSize:
    """Goes towards ``target`` seconds a micro-batch, between ``least`` and ``most`` records.

    A micro-batch that took longer lowers the limit in proportion; one that was about full and took
    less raises it. Where each has a fixed cost as well, the proportion falls short of the target,
    and the next ones come closer. Without a target the limit is ``most``. For one thread at a
    time.
    """

    def __init__(self, most: int, target: float | None, least: int = 1_000) -> None:
        self.target = target
        self._least = min(least, most)
        self._most = most
        self.records = most

    def resized(self, most: int, target: float | None) -> AdaptiveSize:
        """Return a size with other bounds that goes on from this one's records."""
        other = AdaptiveSize(most, target, self._least)
        if target is not None:
            other.records = min(self.records, most)
        return other

    def took(self, records: int, seconds: float) -> None:
        """Adapt the size to the time that a stored micro-batch took."""
        if self.target is None or seconds <= 0:
            return
        factor = self.target / seconds
        if factor < 1:
            wanted = min(self.records, records) * max(factor, 1 / MOST_CHANGE)
        elif records >= FULL * self.records:
            wanted = self.records * min(factor, MOST_CHANGE)
        else:
            return
        self.records = max(self._least, min(self._most, round(wanted)))


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


class BatchPacer:
    """The pace of one lane, which is the only one to have a :meth:`job`; all else on any thread.

    A batch that is cut as soon as its partition may have another one holds little, and what comes
    after it waits for two jobs. One that is cut shortly before the lane is free has it all.
    ``wake`` is called when a job ended before batches were wanted.
    """

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._usual = 0.0
        self._next_batch_at = 0.0

    @contextmanager
    def job(self) -> Iterator[None]:
        """Measure the job that runs in the block; a failed one does not count."""
        began = self._clock.monotonic()
        self._next_batch_at = began + LEAD * self._usual
        try:
            yield
            seconds = self._clock.monotonic() - began
            self._usual += (seconds - self._usual) * (_WEIGHT if self._usual else 1.0)
        finally:
            foretold, self._next_batch_at = self._next_batch_at, 0.0
            if self._clock.monotonic() < foretold:
                self._wake()

    def next_batch_at(self) -> float:
        """Return when the next batches should be handed out, in monotonic time; 0.0 is at once."""
        return self._next_batch_at

    def gathering(self) -> float:
        """Return how many seconds the lane waits for others once it has a first batch."""
        return min(GATHER * self._usual, MOST_GATHER)


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """How much one micro-batch may hold. A single batch may exceed both and runs alone then.

    A table exists twice while it is handed over, here and in the JVM; 64 MiB is what a driver of
    the default size takes with ease.
    ``target`` is how many seconds one is meant to take, None where that is no matter.
    """

    max_records: int = 100_000
    max_bytes: int = 64 << 20
    target: float | None = None


@dataclass(eq=False, slots=True)
class PendingBatch:
    """A batch that is not answered yet. ``prepared`` is the engine's own.

    ``whole`` is what the channel delivered, where only its first part is taken. ``overflow`` is
    what was left out of it, which ``batch`` is without; ``next_at`` is when another may be let
    in, in monotonic time.

    The channel may cancel the future at any time, so that setting it can come too late; the
    channel knows then, and expects nothing.
    """

    batch: Batch
    prepared: Any
    future: Future[BatchResponse] = field(default_factory=Future)
    whole: Batch | None = None
    overflow: Overflow | None = None
    next_at: float = 0.0

    @property
    def partition(self) -> TopicPartition:
        """Return the batch's partition."""
        return self.batch.partition

    @property
    def delivered(self) -> Batch:
        """Return what the channel delivered."""
        return self.whole or self.batch

    @property
    def is_tick(self) -> bool:
        """Return whether it has no records: it is there for what is due without any."""
        return self.batch.next_offset == self.batch.start

    @property
    def is_all_overflow(self) -> bool:
        """Return whether all its records were left out, so that there is nothing to compute."""
        return self.overflow is not None and not self.batch.records

    @property
    def runs_alone(self) -> bool:
        """Return whether the batch failed before: then it must not take others with it."""
        return self.batch.attempt > 1

    def advance(self, now: float) -> None:
        """Answer that result and offset are stored; ``now`` is the monotonic time."""
        offset = None if self.whole is None else self.batch.next_offset
        wait = max(0.0, self.next_at - now)
        with suppress(InvalidStateError):
            self.future.set_result(BatchResponse.advance(offset=offset, wait=wait))

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def withdraw(self, reason: str) -> None:
        """Answer that the batch was not processed, and that this is no failure of its own."""
        text = f"{self.partition}: batch at {self.batch.start} withdrawn: {reason}"
        self.fail(BatchCancelledError(self.partition, text))


class OpenBatches:
    """All batches of a channel that are not answered: waiting, or taken for a micro-batch.

    Keeps the order within each partition: what follows a failed batch is withdrawn, also when it
    arrives only after the failure, because the channel had cut it before. All methods may be
    called on any thread.
    """

    def __init__(self, limits: MergeLimits) -> None:
        self._limits = limits
        self._size = AdaptiveSize(limits.max_records, limits.target)
        self._changed = threading.Condition()
        self._waiting: list[PendingBatch] = []
        self._in_hand: list[PendingBatch] = []
        self._jobs: dict[str, Sequence[PendingBatch]] = {}
        self._failed: dict[TopicPartition, Batch] = {}
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Return whether no batch is accepted any more, and none is to be run again."""
        return self._closed

    def limit(self, limits: MergeLimits) -> None:
        """Merge up to other limits from the next micro-batch on."""
        with self._changed:
            self._limits = limits
            self._size = self._size.resized(limits.max_records, limits.target)

    def took(self, records: int, seconds: float) -> None:
        """Adapt the size to the time that a micro-batch's job and commit took; ignore ticks."""
        with self._changed:
            if records:
                self._size.took(records, seconds)

    def put(self, pending: PendingBatch) -> None:
        """Queue a batch after all others, or withdraw it if it must not be processed."""
        with self._changed:
            refused = self._closed or self._follows_failed(pending.delivered)
            # this one follows upon none of those that the channel has withdrawn meanwhile
            self._waiting = [each for each in self._waiting if not each.future.done()]
            if not refused:
                self._failed.pop(pending.partition, None)
                if pending.whole is not None:  # what follows it was cut before the rest is retried
                    self._failed[pending.partition] = pending.whole
                self._waiting.append(pending)
                self._changed.notify()
        if refused:
            pending.withdraw("the batch before it failed, or the channel stops")

    def put_if_idle(self, tick: PendingBatch) -> bool:
        """Queue a tick, unless batches of its assignment are open; say whether it is queued."""
        assignment = tick.batch.assignment
        with self._changed:
            self._in_hand = [each for each in self._in_hand if not each.future.done()]
            is_open = (
                each.batch.assignment is assignment for each in self._in_hand + self._waiting
            )
            in_job = (each.batch.assignment is assignment for each in self._in_jobs())
            if self._closed or any(is_open) or any(in_job):
                return False
            self._waiting.append(tick)
            self._changed.notify()
            return True

    def _follows_failed(self, batch: Batch) -> bool:
        """Return whether the batch was cut before the channel knew that the last one failed."""
        failed = self._failed.get(batch.partition)
        if failed is None or failed.assignment is not batch.assignment:
            return False
        return batch.start == failed.next_offset

    def take(self, timeout: float, gathering: float = 0.0) -> list[PendingBatch]:
        """Return the next micro-batch's batches; none after ``timeout`` seconds and once closed.

        As many as fit, from the front, without waiting for more: what arrives while a job runs
        goes into the next one together. Only where nothing was there the first one is waited for,
        and ``gathering`` seconds for others to come with it. Batches of one partition keep their
        order.
        """
        with self._changed:
            self._in_hand = [each for each in self._in_hand if not each.future.done()]
            if not self._waiting and self._changed.wait_for(self._is_awaited, timeout):
                self._changed.wait_for(self._is_full, gathering)
            taken = self._fitting_batches()
            self._waiting = self._waiting[len(taken) :]
            self._in_hand = self._in_hand + taken
            return taken

    def _is_awaited(self) -> bool:
        """Return whether there is something to take, or nothing will come any more."""
        return self._closed or bool(self._waiting)

    def _is_full(self) -> bool:
        """Return whether more would not be taken together with what waits."""
        size = sum(pending.batch.size for pending in self._waiting)
        records = sum(len(pending.batch) for pending in self._waiting)
        return self._closed or records >= self._size.records or size >= self._limits.max_bytes

    def _fitting_batches(self) -> list[PendingBatch]:
        taken: list[PendingBatch] = []
        records = size = 0
        for pending in self._waiting:
            records += len(pending.batch)
            size += pending.batch.size
            too_much = records > self._size.records or size > self._limits.max_bytes
            if taken and (pending.runs_alone or too_much):
                break
            taken.append(pending)
            if pending.runs_alone:
                break
        return taken

    def begin_job(self, name: str, batches: Sequence[PendingBatch]) -> None:
        """Register a job for :meth:`jobs_of`, from its plan until nothing more of it is stored."""
        with self._changed:
            self._jobs[name] = batches

    def end_job(self, name: str) -> None:
        """Unregister a job."""
        with self._changed:
            del self._jobs[name]

    def jobs_of(self, answer: Future[BatchResponse]) -> list[str]:
        """Return the jobs that the batch with this answer is part of."""
        with self._changed:
            return [
                name
                for name, batches in self._jobs.items()
                if any(pending.future is answer for pending in batches)
            ]

    def is_in_job(self, assignment: Assignment) -> bool:
        """Return whether a job has batches of an assignment, also withdrawn ones."""
        with self._changed:
            return any(each.batch.assignment is assignment for each in self._in_jobs())

    def has_job_of(self, partition: int) -> bool:
        """Return whether a job has batches or ticks of a partition, whatever assignment they are
        of.
        """
        with self._changed:
            return any(each.partition.partition == partition for each in self._in_jobs())

    def _in_jobs(self) -> Iterator[PendingBatch]:
        return chain.from_iterable(self._jobs.values())

    def fail(self, pending: PendingBatch, error: BaseException) -> None:
        """Fail one batch, and withdraw what follows it in its partition."""
        batch = pending.batch
        with self._changed:
            if pending.future.done():
                return
            if not pending.is_tick:  # nothing was cut after it
                self._failed[batch.partition] = pending.delivered
            others = self._remove(batch.assignment)
        pending.fail(error)
        for other in others:
            other.withdraw(f"the batch at {batch.start} failed")

    def withdraw(self, assignment: Assignment, reason: str) -> None:
        """Answer all batches of an assignment, and forget its failure."""
        with self._changed:
            self._failed.pop(assignment.partition, None)
            withdrawn = self._remove(assignment)
        for pending in withdrawn:
            pending.withdraw(reason)

    def forget_failure(self, assignment: Assignment) -> None:
        """Accept batches of the partition again, whatever they follow."""
        with self._changed:
            self._failed.pop(assignment.partition, None)

    def refuse(self) -> None:
        """Accept no batch from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def withdraw_all(self, reason: str) -> None:
        """Answer every batch."""
        with self._changed:
            left, self._waiting = self._in_hand + self._waiting, []
        for pending in left:
            pending.withdraw(reason)

    def _remove(self, assignment: Assignment) -> list[PendingBatch]:
        """Return what of an assignment was taken, and what waits, which waits no longer."""
        mine = [each for each in self._waiting if each.batch.assignment is assignment]
        self._waiting = [each for each in self._waiting if each not in mine]
        return [each for each in self._in_hand if each.batch.assignment is assignment] + mine
