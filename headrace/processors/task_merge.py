"""Merging by time: the records of a task's topics in one order, which no fetch decides.

A task is one partition of each topic of a channel, all with the same number. Its next record is the
one with the lowest time among the first ones of its topics, of equal times that of the topic which
is configured first; within a topic records keep the order of their offsets. So a record is taken
only once nothing that comes later can belong before it.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.core.errors import BatchCancelledError, PartitionError
from headrace.core.records import Batch, TopicPartition, offset_of
from headrace.core.supervision import PeriodicThread
from headrace.processors.contract import BatchResponse
from headrace.processors.pending import PendingWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from headrace.core.clock import Clock, Deadline
    from headrace.core.records import Assignment
    from headrace.processors.pending import OpenBatches, PendingBatch

    Times: TypeAlias = npt.NDArray[np.int64]

#: Seconds between two looks at tasks that wait: how late is known that a topic is at rest.
LOOK_INTERVAL = 0.1

#: Seconds that records wait here at most before they go back to the channel, which delivers them
#: again: a release and a pause have to wait for all that is out.
HOLD = 2.0

#: Seconds that the channel may be at another position than what came from it says: it hands out
#: what it has cut, or takes back what it was given back, and is there again; or it was moved.
SETTLE = 5.0

#: Before the time of any record.
NEVER = np.iinfo(np.int64).min


def record_times(table: pa.Table) -> Times:
    """Return the records' own times in milliseconds, those of records without one before all."""
    micros = table.column("timestamp").cast(pa.int64()).fill_null(NEVER)
    found: Times = micros.to_numpy()
    return found // 1000


@dataclass(frozen=True, slots=True)
class MergeRules:
    """The rules by which tasks are merged.

    ``topics`` are in the order that decides between equal times. One without records is waited for
    while it may have some, and for ``max_idle`` seconds after its end was reached. Those of
    ``free`` are not: their records are taken as they come, and nothing waits for them. ``times``
    returns the times of a table's records, in milliseconds.
    """

    topics: tuple[str, ...]
    max_idle: float
    times: Callable[[pa.Table], Times] = record_times
    free: frozenset[str] = frozenset()

    @property
    def anchor(self) -> str:
        """Return the topic whose partitions tasks are known by."""
        return min(self.topics)


@dataclass(eq=False, slots=True)
class _Delivery:
    """A batch that is merged, of which ``taken`` records are in pieces of work.

    ``times`` are those at which records are merged: none is below that of one before it. What is
    before ``stored`` is committed. ``since`` is when the rest began to wait, ``came`` when all did.
    """

    pending: PendingBatch
    times: Times
    stored: int
    came: float
    since: float
    taken: int = 0

    @property
    def batch(self) -> Batch:
        return self.pending.batch

    @property
    def is_untouched(self) -> bool:
        return self.taken == 0

    @property
    def is_all_taken(self) -> bool:
        return self.taken == len(self.times)

    @property
    def next_offset(self) -> int:
        """Return where what is not taken begins."""
        return self._offset_at(self.taken)

    @property
    def failed_alone(self) -> bool:
        """Return whether it is one record that failed: it alone is to blame if that fails again."""
        return self.batch.attempt > 1 and len(self.times) == 1

    def take(self, end: int, now: float) -> _Part:
        """Return the records up to a number that are not taken, which they are now."""
        start, self.taken, self.since = self.taken, end, now
        batch, count = self.batch, end - start
        part = replace(
            batch,
            start=self._offset_at(start),
            records=batch.records[start:end],
            next_offset=self._offset_at(end),
            size=batch.size * count // len(batch),
        )
        return _Part(self, part, self.times[start:end], self.pending.prepared.slice(start, count))

    def _offset_at(self, number: int) -> int:
        batch = self.batch
        if number == 0:
            return batch.start
        return batch.next_offset if number == len(batch) else offset_of(batch.records[number])

    def give_back(self, error: BaseException | None, reason: str) -> None:
        """Answer that it was not all processed: it is delivered again from what is stored on.

        With ``error`` it is to blame.
        """
        if self.stored != self.batch.start:
            response = BatchResponse.advance(offset=self.stored)
            with suppress(InvalidStateError):
                self.pending.future.set_result(response)
        elif error is not None:
            self.pending.fail(error)
        else:
            self.pending.withdraw(reason)


@dataclass(frozen=True, slots=True)
class _Part:
    """Records of one delivery within a piece of work."""

    delivery: _Delivery
    batch: Batch
    times: Times
    table: pa.Table


class _TopicQueue:
    """The batches that a task has of one topic, in the order of the offsets."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.waiting: deque[_Delivery] = deque()
        self._reached = NEVER
        self._idle_since: float | None = None
        self._refused: range | None = None
        # where the channel should be, and since when it is not
        self._expected = assignment.position
        self._elsewhere_since: float | None = None

    @property
    def position(self) -> int:
        """Return where what is not taken begins, or will."""
        for each in reversed(self.waiting):
            if each.taken:
                return each.next_offset
        return self.waiting[0].batch.start if self.waiting else self._expected

    def untaken(self) -> Iterator[_Delivery]:
        """Yield what has records that are not taken."""
        return (each for each in self.waiting if not each.is_all_taken)

    @property
    def last_time(self) -> int | None:
        """Return the time of the last record that is not taken, None without one."""
        last = self.waiting[-1] if self.waiting else None
        return None if last is None or last.is_all_taken else int(last.times[-1])

    def refuses(self, batch: Batch) -> bool:
        """Return whether a batch was cut before the channel knew that those before are withdrawn.

        Once: the channel settles those before it cuts another.
        """
        refused, self._refused = self._refused, None
        return refused is not None and batch.start in refused

    def forget_refusal(self) -> None:
        """Accept the next batch, whatever it follows."""
        self._refused = None

    def put(self, pending: PendingBatch, times: Times, now: float) -> None:
        """Add a delivery after all others."""
        running: Times = np.maximum.accumulate(np.maximum(times, self._reached))
        self._reached = int(running[-1])
        self._idle_since = self._elsewhere_since = None
        self._expected = pending.batch.next_offset
        self.waiting.append(_Delivery(pending, running, pending.batch.start, now, now))

    def is_at_rest(self, max_idle: float, now: float) -> bool:
        """Return whether nothing is waited for: its end was reached that long ago."""
        held = self.assignment
        if not self._is_where_expected(now):
            self._idle_since = None
            return False
        # marks of transactions are passed by the group's offset, and by no batch
        reached = max(held.position, held.committed or 0)
        end = held.delivery_end
        if end is None or reached < end:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= max_idle

    def _is_where_expected(self, now: float) -> bool:
        """Return whether the channel is where what came from it ends; if not for long, it is."""
        position = self.assignment.position
        if position == self._expected:
            self._elsewhere_since = None
            return True
        if self._elsewhere_since is None:
            self._elsewhere_since = now
        if now - self._elsewhere_since < SETTLE:
            return False
        self._expected = position
        return True

    def give_up(self, since: int = 0) -> list[_Delivery]:
        """Remove what is delivered again, from the delivery of that number on, and return it."""
        gone = list(self.waiting)[since:]
        if gone:
            first, last = gone[0].batch, gone[-1].batch
            self._refused = range(first.next_offset, last.next_offset + 1)
            self._reached = NEVER if since == 0 else int(self.waiting[since - 1].times[-1])
            self._idle_since, self._expected = None, gone[0].stored
            for _ in gone:
                self.waiting.pop()
        return gone

    def overdue(self, hold: float, now: float) -> list[_Delivery]:
        """Remove what has waited for too long and all after it, and return it.

        Twice as long where some of it is taken now and then.
        """
        for number, each in enumerate(self.waiting):
            in_flight = each.stored != each.next_offset
            waited = now - each.since >= hold or now - each.came >= 2 * hold
            if waited and not each.is_all_taken and not in_flight:
                return self.give_up(number)
        return []


class MergedTask:
    """One partition of each topic, with the same number. A :class:`Task`.

    ``lock`` is for its queues and ``pieces``, which are open, in their order.
    """

    def __init__(self, rules: MergeRules, number: int) -> None:
        self._rules = rules
        self.lock = RLock()
        self.partition = TopicPartition(rules.anchor, number)
        self.queues: dict[str, _TopicQueue] = {}
        self.pieces: deque[MergedBatches] = deque()

    def is_current(self) -> bool:
        """Return whether all its partitions are held, and work for each may take effect."""
        held = [queue.assignment for queue in list(self.queues.values())]
        return len(held) == len(self._rules.topics) and all(each.is_current() for each in held)

    def next_parts(self, max_idle: float, now: float) -> tuple[list[_Part], bool]:
        """Return the records that come next, by topic, none where some topic is waited for.

        And whether one was not waited for any more. With the lock.
        """
        found = self._merged_parts(max_idle, now)
        return found if found[0] else (self._free_parts(now), False)

    def _free_parts(self, now: float) -> list[_Part]:
        """Return the records of topics that have no place in the order; one that failed alone."""
        for topic in sorted(self._rules.free):
            parts: list[_Part] = []
            for each in list(self.queues[topic].untaken()):
                if each.failed_alone and parts:
                    break
                parts.append(each.take(len(each.times), now))
                if each.failed_alone:
                    break
            if parts:
                return parts
        return []

    def _merged_parts(self, max_idle: float, now: float) -> tuple[list[_Part], bool]:
        """Return the records that come next of the topics that are merged."""
        topics = [topic for topic in self._rules.topics if topic not in self._rules.free]
        ordered = [self.queues[topic] for topic in topics]
        lasts = [(queue.last_time, number) for number, queue in enumerate(ordered)]
        filled = [(last, number) for last, number in lasts if last is not None]
        empty = [queue for queue, (last, _) in zip(ordered, lasts, strict=True) if last is None]
        if not filled or not all(each.is_at_rest(max_idle, now) for each in empty):
            return [], False
        alone = [
            (int(each.times[0]), number, each)
            for number, queue in enumerate(ordered)
            for each in queue.untaken()
            if each.failed_alone
        ]
        bound = min(filled)
        first = min(alone, key=lambda each: each[:2], default=None)
        if first is None or first[:2] > bound:
            return self._up_to(ordered, *bound, now), bool(empty)
        time, number, failed = first
        before = self._up_to(ordered, time, number, now, besides=number)
        if before:
            return before, bool(empty)
        return [failed.take(1, now)], bool(empty)

    @staticmethod
    def _up_to(
        ordered: Sequence[_TopicQueue],
        time: int,
        bound: int,
        now: float,
        besides: int | None = None,
    ) -> list[_Part]:
        """Return what comes no later than a record of this time in topic number ``bound``."""
        parts = []
        for number, queue in enumerate(ordered):
            if number == besides:
                continue
            side = "right" if number <= bound else "left"
            for delivery in list(queue.untaken()):
                end = int(np.searchsorted(delivery.times, time, side=side))  # type: ignore[call-overload]
                if end > delivery.taken:
                    parts.append(delivery.take(end, now))
                if not delivery.is_all_taken:
                    break
        return parts

    def merged(self, parts: Sequence[_Part], prepared: pa.Table) -> MergedBatches:
        """Return a piece of work. All topics are in it: their offsets are committed together."""
        batches = [part.batch for part in parts]
        there = {batch.partition.topic for batch in batches}
        for topic, queue in self.queues.items():
            if topic not in there:
                at = queue.position
                batches.append(Batch(queue.assignment, at, (), at, 0))
        return MergedBatches(self, batches, prepared, parts)


def _in_order(parts: Sequence[_Part]) -> pa.Table:
    """Return the records in the order of their times, those of equal ones as the parts are."""
    table = pa.concat_tables([part.table for part in parts])
    if len({part.batch.partition for part in parts}) == 1:
        return table
    order = np.argsort(np.concatenate([part.times for part in parts]), kind="stable")
    return table.combine_chunks().take(pa.array(order))


class MergedBatches(PendingWork):
    """Records of a task in the order of their times: one piece of work of several deliveries."""

    __slots__ = ("_batches", "_task", "future", "parts", "prepared")

    def __init__(
        self, task: MergedTask, batches: Sequence[Batch], prepared: Any, parts: Sequence[_Part]
    ) -> None:
        self._task = task
        self._batches = batches
        self.prepared = prepared
        self.parts = parts
        self.future = Future()

    @property
    def task(self) -> MergedTask:
        return self._task

    @property
    def batches(self) -> Sequence[Batch]:
        return self._batches

    def advance(self, now: float) -> None:
        del now
        with suppress(InvalidStateError):
            self.future.set_result(BatchResponse.advance())

    def error_of(self, delivery: _Delivery, error: BaseException | None) -> BaseException | None:
        """Return the error with which a delivery is to blame for this one, None where it is not.

        Some name the partition that they are of.
        """
        if error is None or isinstance(error, BatchCancelledError):
            return None
        mine = {part.batch.partition for part in self.parts}
        named = error.partition if isinstance(error, PartitionError) else None
        has_part = any(part.delivery is delivery for part in self.parts)
        is_named = named not in mine or named == delivery.batch.partition
        return error if has_part and is_named else None


class _Looks(PeriodicThread):
    """Looks at tasks that wait, now and then."""

    def __init__(
        self, name: str, look: Callable[[], None], fail: Callable[[BaseException], None]
    ) -> None:
        super().__init__(name, fail)
        self._look = look

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_INTERVAL):
            self._look()


class TaskMerge:
    """Puts the records of tasks among a channel's open work, as far as their order is known.

    What is given up of a task goes back to the channel, all of it: deliveries that are stored in
    part are answered by that offset. ``on_done`` is called with the future of each piece of work,
    and ``hold`` returns how many seconds records may wait here.
    All methods may be called on any thread, and :meth:`look` is called on one of its own.
    """

    def __init__(
        self,
        name: str,
        rules: MergeRules,
        open_batches: OpenBatches,
        clock: Clock,
        *,
        on_done: Callable[[Future[BatchResponse]], None],
        on_enforced: Callable[[], None],
        hold: Callable[[], float],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._rules = rules
        self._max_idle = rules.max_idle
        self._open = open_batches
        self._clock = clock
        self._on_done = on_done
        self._on_enforced = on_enforced
        self._hold = hold
        self._lock = RLock()
        self._tasks: dict[int, MergedTask] = {}
        self._work: dict[Future[Any], MergedBatches] = {}
        self._thread = _Looks(name, self.look, fail)

    # --- the thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Start to look for tasks that have waited."""
        self._thread.start()

    def close(self, deadline: Deadline) -> None:
        """Return all to the channel, whose queue refuses by now, and end the thread."""
        self._thread.stop(deadline)
        for task in self.tasks:
            self._give_up(task, None, None, "the channel stops")

    # --- partitions -------------------------------------------------------------------------

    @property
    def tasks(self) -> list[MergedTask]:
        """Return those of which some partition is held."""
        with self._lock:
            return list(self._tasks.values())

    def task_of(self, partition: TopicPartition) -> MergedTask:
        """Return the task of a partition that is held."""
        with self._lock:
            return self._tasks[partition.partition]

    def wait_for(self, max_idle: float) -> None:
        """Set for how many seconds a topic is waited for at its end."""
        self._max_idle = max_idle

    def add(self, assignment: Assignment) -> MergedTask:
        """Add a partition; its task is merged once all of it are there."""
        topic, number = assignment.partition
        with self._lock:
            task = self._tasks.setdefault(number, MergedTask(self._rules, number))
        with task.lock:
            task.queues[topic] = _TopicQueue(assignment)
        return task

    def remove(self, assignment: Assignment, reason: str) -> None:
        """Remove a partition: its task is withdrawn, and rests until it is whole again."""
        topic, number = assignment.partition
        with self._lock:
            task = self._tasks.get(number)
        held = None if task is None else task.queues.get(topic)
        if task is None or held is None or held.assignment is not assignment:
            return
        self._give_up(task, None, None, reason)
        with self._lock, task.lock:
            del task.queues[topic]
            if not task.queues:
                del self._tasks[number]

    def forget_failure(self, assignment: Assignment) -> None:
        """Accept batches of the partition again, whatever they follow."""
        with self._lock:
            task = self._tasks.get(assignment.partition.partition)
        queue = None if task is None else task.queues.get(assignment.partition.topic)
        if queue is not None and queue.assignment is assignment:
            queue.forget_refusal()

    # --- records ----------------------------------------------------------------------------

    def put(self, pending: PendingBatch) -> None:
        """Merge a batch with what the task has, and queue what is in order; or withdraw it."""
        assert pending.whole is None, "sinks of tasks store all of a result at once"
        assignment, now = pending.batch.assignment, self._clock.monotonic()
        with self._lock:
            task = self._tasks.get(assignment.partition.partition)
        queue = None if task is None else task.queues.get(assignment.partition.topic)
        if task is None or queue is None or queue.assignment is not assignment:
            pending.withdraw("its partition is not held")
            return
        times = self._rules.times(pending.prepared)
        with task.lock:
            refused = self._open.is_closed or queue.refuses(pending.batch)
            if not refused:
                queue.put(pending, times, now)
        if refused:
            pending.withdraw("a batch before it is withdrawn, or the channel stops")
            return
        pending.future.add_done_callback(self._on_answered)
        self._merge(task, now)

    def look(self) -> None:
        """Queue what is in order by now, because a topic rests; give back what waits for long."""
        now, hold = self._clock.monotonic(), self._hold()
        for task in self.tasks:
            self._merge(task, now)
            with task.lock:
                overdue = [
                    e for queue in list(task.queues.values()) for e in queue.overdue(hold, now)
                ]
            for each in overdue:
                each.give_back(None, "it waits for other records of its task")

    def tick(self, partition: TopicPartition, prepared: pa.Table) -> MergedBatches:
        """Return work without records of a partition's task, to be queued where nothing is open."""
        task = self.task_of(partition)
        with task.lock:
            return task.merged((), prepared)

    def _merge(self, task: MergedTask, now: float) -> None:
        with task.lock:
            while task.is_current() and not self._open.is_closed:
                parts, enforced = task.next_parts(self._max_idle, now)
                if not parts:
                    return
                if enforced:
                    self._on_enforced()
                work = task.merged(parts, _in_order(parts))
                task.pieces.append(work)
                with self._lock:
                    self._work[work.future] = work
                work.future.add_done_callback(self._on_done)
                work.future.add_done_callback(self._end)
                self._open.put(work)

    # --- answers ----------------------------------------------------------------------------

    def _end(self, answer: Future[BatchResponse]) -> None:
        """Answer the deliveries of a piece of work that is over."""
        with self._lock:
            work = self._work.pop(answer)
        error = answer.exception()
        if error is not None:
            reason = "what is before it in its task was not stored"
            self._give_up(work.task, work, error, reason)
            return
        now, finished = self._clock.monotonic(), []
        with work.task.lock:
            if work not in work.task.pieces:
                return  # given up meanwhile; the sink has it, and refuses it a second time
            work.task.pieces.remove(work)
            for part in work.parts:
                delivery = part.delivery
                delivery.stored = part.batch.next_offset
                if delivery.stored == delivery.batch.next_offset:
                    work.task.queues[delivery.batch.partition.topic].waiting.remove(delivery)
                    finished.append(delivery)
        for delivery in finished:
            delivery.pending.advance(now)

    def _on_answered(self, answer: Future[BatchResponse]) -> None:
        """Withdraw what follows a batch that the channel has withdrawn."""
        if not answer.cancelled():
            return
        for task in self.tasks:
            with task.lock:
                found = [
                    (queue, number, each)
                    for queue in task.queues.values()
                    for number, each in enumerate(queue.waiting)
                    if each.pending.future is answer
                ]
                for queue, number, each in found:
                    if not each.is_untouched:
                        continue
                    # the channel withdraws those after it as well, and knows what it cuts next
                    queue.give_up(number)
                    queue.forget_refusal()
                    return
            if found:
                self._give_up(task, None, None, "a batch of its task was withdrawn")
                return

    def _give_up(
        self,
        task: MergedTask,
        work: MergedBatches | None,
        error: BaseException | None,
        reason: str,
    ) -> None:
        """Return all of a task to the channel, after ``work`` ended with ``error``."""
        with task.lock:
            if work is not None and work not in task.pieces:
                return  # what was before it was given up, and it with that
            pieces = [each for each in task.pieces if each is not work]
            task.pieces.clear()
            left = [each for queue in list(task.queues.values()) for each in queue.give_up()]
        for piece in pieces:
            piece.withdraw(reason)
        for each in left:
            each.give_back(None if work is None else work.error_of(each, error), reason)
