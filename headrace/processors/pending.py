"""Batches between ``on_next_batch`` and their answers: which run together, and when."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

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
    """The limits of one micro-batch. A single batch may exceed both and runs alone then.

    A table exists twice while it is handed over, here and in the JVM; 64 MiB is what a driver of
    the default size takes with ease.
    ``target`` is how many seconds one is meant to take, None where that is no matter.
    """

    max_records: int = 100_000
    max_bytes: int = 64 << 20
    target: float | None = None


class Task(Protocol):
    """A unit of work that is processed in one order, and is committed and given up together.

    An assignment is one: in most channels partitions have nothing to do with one another. In those
    that work in tasks it is one partition of each topic, with the same number. Any thread.
    """

    @property
    def partition(self) -> TopicPartition:
        """Return the partition that the task is known by, in this assignment and in others."""

    def is_current(self) -> bool:
        """Return whether work for it may still take effect."""


class PendingWork(ABC):
    """The work that runs as one piece and is not answered yet: ``batches`` of one task.

    ``prepared`` is the engine's own, and ``future`` has the answer. The channel may cancel it at
    any time, so that setting it can come too late; the channel knows then, and waits for nothing.
    """

    __slots__ = ()

    prepared: Any
    future: Future[BatchResponse]

    @property
    @abstractmethod
    def task(self) -> Task:
        """Return what all of it is of."""

    @property
    @abstractmethod
    def batches(self) -> Sequence[Batch]:
        """Return what is processed: those of a partition in their order."""

    @property
    def delivered(self) -> Batch | None:
        """Return what the channel delivered; None where it is made of several batches of a task:
        what follows one of those that failed is withdrawn before it comes here.
        """
        return None

    @property
    def overflow(self) -> Overflow | None:
        """Return what was left out of it, None if all is there."""
        return None

    @property
    def is_tick(self) -> bool:
        """Return whether it has no records: it is there for what is due without any."""
        return all(batch.next_offset == batch.start for batch in self.batches)

    @property
    def is_all_overflow(self) -> bool:
        """Return whether all its records were left out, so that there is nothing to compute."""
        return False

    @property
    def runs_alone(self) -> bool:
        """Return whether some of it failed before: then it must not take others with it."""
        return any(batch.attempt > 1 for batch in self.batches)

    @property
    def records(self) -> int:
        """Return how many records it has."""
        return sum(map(len, self.batches))

    @property
    def size(self) -> int:
        """Return what its records take, in bytes."""
        return sum(batch.size for batch in self.batches)

    @abstractmethod
    def advance(self, now: float) -> None:
        """Answer that result and offsets are stored; ``now`` is the monotonic time."""

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def withdraw(self, reason: str) -> None:
        """Answer that it was not processed, and that this is no failure of its own."""
        first = self.batches[0]
        text = f"{first.partition}: batch at {first.start} withdrawn: {reason}"
        self.fail(BatchCancelledError(first.partition, text))


@dataclass(eq=False, slots=True)
class PendingBatch(PendingWork):
    """A batch that is not answered yet, and is a piece of work by itself.

    ``whole`` is what the channel delivered, where only its first part is taken. ``overflow`` is
    what was left out of it, which ``batch`` is without; ``next_at`` is when another may be let
    in, in monotonic time.
    """

    batch: Batch
    prepared: Any
    future: Future[BatchResponse] = field(default_factory=Future)
    whole: Batch | None = None
    overflow: Overflow | None = None
    next_at: float = 0.0

    @property
    def task(self) -> Assignment:
        return self.batch.assignment

    @property
    def batches(self) -> Sequence[Batch]:
        return (self.batch,)

    @property
    def partition(self) -> TopicPartition:
        """Return the batch's partition."""
        return self.batch.partition

    @property
    def delivered(self) -> Batch:
        """Return what the channel delivered."""
        return self.whole or self.batch

    @property
    def is_all_overflow(self) -> bool:
        return self.overflow is not None and not self.batch.records

    @property
    def runs_alone(self) -> bool:
        return self.batch.attempt > 1

    @property
    def records(self) -> int:
        return len(self.batch)

    @property
    def size(self) -> int:
        return self.batch.size

    def advance(self, now: float) -> None:
        offset = None if self.whole is None else self.batch.next_offset
        wait = max(0.0, self.next_at - now)
        with suppress(InvalidStateError):
            self.future.set_result(BatchResponse.advance(offset=offset, wait=wait))


class OpenBatches:
    """All work of a channel that is not answered: waiting, or taken for a micro-batch.

    Keeps the order within each task: what follows a failed batch is withdrawn, also when it
    arrives only after the failure, because the channel had cut it before. All methods may be
    called on any thread.
    """

    def __init__(self, limits: MergeLimits) -> None:
        self._limits = limits
        self._size = AdaptiveSize(limits.max_records, limits.target)
        self._changed = threading.Condition()
        self._waiting: list[PendingWork] = []
        self._in_hand: list[PendingWork] = []
        self._jobs: dict[str, Sequence[PendingWork]] = {}
        # what failed last of a partition, and where what was cut after it ends
        self._failed: dict[TopicPartition, tuple[Batch, int]] = {}
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

    def put(self, pending: PendingWork) -> None:
        """Queue work after all other, or withdraw it if it must not be processed."""
        with self._changed:
            follows = self._follows_failed(pending.delivered)
            refused = self._closed or follows
            # this one follows upon none of those that the channel has withdrawn meanwhile
            self._waiting = [each for each in self._waiting if not each.future.done()]
            if not refused:
                if isinstance(pending, PendingBatch):
                    self._failed.pop(pending.partition, None)
                    if pending.whole is not None:  # what follows was cut before the rest is retried
                        whole = pending.whole
                        self._failed[pending.partition] = (whole, whole.next_offset)
                self._waiting.append(pending)
                self._changed.notify()
            elif follows and pending.delivered is not None:
                batch = pending.delivered
                failed, _ = self._failed[batch.partition]
                self._failed[batch.partition] = (failed, batch.next_offset)
        if refused:
            pending.withdraw("the batch before it failed, or the channel stops")

    def put_if_idle(self, tick: PendingWork) -> bool:
        """Queue a tick, unless work of its task is open; say whether it is queued."""
        task = tick.task
        with self._changed:
            self._in_hand = [each for each in self._in_hand if not each.future.done()]
            is_open = (each.task is task for each in self._in_hand + self._waiting)
            in_job = (each.task is task for each in self._in_jobs())
            if self._closed or any(is_open) or any(in_job):
                return False
            self._waiting.append(tick)
            self._changed.notify()
            return True

    def _follows_failed(self, batch: Batch | None) -> bool:
        """Return whether the batch was cut before the channel knew that the last one failed."""
        if batch is None:
            return False
        failed, end = self._failed.get(batch.partition, (None, 0))
        if failed is None or failed.assignment is not batch.assignment:
            return False
        return failed.next_offset <= batch.start <= end

    def take(self, timeout: float, gathering: float = 0.0) -> list[PendingWork]:
        """Return the next micro-batch's work; none after ``timeout`` seconds and once closed.

        As many as fit, from the front, without waiting for more: what arrives while a job runs
        goes into the next one together. Only where nothing was there the first one is waited for,
        and ``gathering`` seconds for others to come with it. Work of one task keeps its order.
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
        size = sum(pending.size for pending in self._waiting)
        records = sum(pending.records for pending in self._waiting)
        return self._closed or records >= self._size.records or size >= self._limits.max_bytes

    def _fitting_batches(self) -> list[PendingWork]:
        taken: list[PendingWork] = []
        records = size = 0
        for pending in self._waiting:
            records += pending.records
            size += pending.size
            too_much = records > self._size.records or size > self._limits.max_bytes
            if taken and (pending.runs_alone or too_much):
                break
            taken.append(pending)
            if pending.runs_alone:
                break
        return taken

    def begin_job(self, name: str, batches: Sequence[PendingWork]) -> None:
        """Register a job for :meth:`jobs_of`, from its plan until nothing more of it is stored."""
        with self._changed:
            self._jobs[name] = batches

    def end_job(self, name: str) -> None:
        """Unregister a job."""
        with self._changed:
            del self._jobs[name]

    def jobs_of(self, answer: Future[BatchResponse]) -> list[str]:
        """Return the jobs that the work with this answer is part of."""
        with self._changed:
            return [
                name
                for name, batches in self._jobs.items()
                if any(pending.future is answer for pending in batches)
            ]

    def is_in_job(self, assignment: Assignment) -> bool:
        """Return whether a job has batches of an assignment, also withdrawn ones."""
        with self._changed:
            return any(
                batch.assignment is assignment for each in self._in_jobs() for batch in each.batches
            )

    def has_job_of(self, partition: int) -> bool:
        """Return whether a job has batches or ticks of a partition, whatever assignment they are
        of.
        """
        with self._changed:
            return any(each.task.partition.partition == partition for each in self._in_jobs())

    def _in_jobs(self) -> Iterator[PendingWork]:
        return chain.from_iterable(self._jobs.values())

    def fail(self, pending: PendingWork, error: BaseException) -> None:
        """Fail one piece of work, and withdraw what follows it in its task."""
        with self._changed:
            if pending.future.done():
                return
            others = [each for each in self._remove(pending.task) if each is not pending]
            failed = pending.delivered
            if failed is not None and not pending.is_tick:  # nothing was cut after that
                # nor may what comes after the last of them, which may be on its way
                ends = [each.delivered.next_offset for each in others if each.delivered]
                self._failed[failed.partition] = (failed, max([failed.next_offset, *ends]))
        pending.fail(error)
        for other in others:
            other.withdraw(f"the batch at {pending.batches[0].start} failed")

    def withdraw(self, task: Task, reason: str) -> None:
        """Answer all work of a task, and forget its failure."""
        with self._changed:
            self._failed.pop(task.partition, None)
            withdrawn = self._remove(task)
        for pending in withdrawn:
            pending.withdraw(reason)

    def forget_failure(self, task: Task) -> None:
        """Accept batches of the task again, whatever they follow."""
        with self._changed:
            self._failed.pop(task.partition, None)

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

    def _remove(self, task: Task) -> list[PendingWork]:
        """Return what of a task was taken, and what waits, which waits no longer."""
        mine = [each for each in self._waiting if each.task is task]
        self._waiting = [each for each in self._waiting if each not in mine]
        return [each for each in self._in_hand if each.task is task] + mine
