"""Workers: assignments of the topic are called in a pool of threads, and answered."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from typing_extensions import override

from headrace.apps.workflow.calls import make_call
from headrace.apps.workflow.definitions import load_workflows
from headrace.apps.workflow.messages import (
    ASSIGNMENT,
    CANCEL,
    Assignment,
)
from headrace.apps.workflow.topics import ANSWER_TIMEOUT, PARTITIONER
from headrace.core.clock import Deadline
from headrace.core.errors import ChannelFailedError
from headrace.core.records import offset_of
from headrace.core.user_text import describe_error
from headrace.kafka.clients import properties_of
from headrace.kafka.topic_producer import TopicProducer
from headrace.processors.contract import BatchProcessor, BatchResponse, ChannelContext
from headrace.telemetry.metrics import PoolSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.apps.workflow.definitions import Workflows
    from headrace.core.clock import Clock
    from headrace.core.records import Assignment as ChannelAssignment
    from headrace.core.records import Batch, Record, TopicPartition
    from headrace.kafka.topic_producer import KeyValue

log = structlog.get_logger(__name__)

#: Characters of what is logged of a record.
_SHOWN = 4_000

#: Milliseconds that a time may have, as those of Kafka.
_LAST_MS = (1 << 63) - 1

#: Answers that are flushed together.
_MOST_ANSWERS = 1_000

#: How a call may end: it is answered; its time is over while it runs, or before it has a thread; it
#: was cancelled, when it is to be made or was; it may repeat, because its partition was lost or
#: its batch was withdrawn before it had a thread, or because its answer may not be stored; it was
#: none.
_ENDS = (
    "returned",
    "failed",
    "abandoned",
    "late",
    "not_needed",
    "withdrawn",
    "not_stored",
    "unusable",
)

#: After these a call that is repeated is made.
_OPEN_ENDS = ("withdrawn", "not_stored")

#: Seconds between two looks at calls whose time is over.
_OVERDUE_INTERVAL = 0.5

#: Seconds between two warnings of calls that were late: behind a backlog, all of them are.
_LATE_INTERVAL = 10.0

_Key = tuple[str, str, int]


def AtomicProcessExecutor(  # noqa: N802 - a factory, named as a configuration names one
    *,
    workflows: str,
    brokers: str | Sequence[str],
    topic: str = "workflow",
    threads: int = 4,
    properties: Mapping[str, str] | None = None,
) -> AssignmentProcessor:
    """Return the processor of a channel that reads assignments.

    ``workflows`` is the import path of the processes, ``topic`` where answers go, ``threads`` how
    many calls are made at once, ``properties`` are librdkafka's for the answers' producer.

    Raises:
        ImportPathError, DefinitionError: the workflows cannot be imported, or cannot be started.
        ConfigError: an address or a property cannot be used.
        ValueError: ``threads`` is no number above 0.
    """
    given: object = threads
    if not isinstance(given, int) or given < 1:
        raise ValueError(f"threads is {threads!r}; it has to be a whole number from 1 on")
    found = load_workflows(workflows)
    found.check()
    client = properties_of(brokers, properties)
    return AssignmentProcessor(found, lambda: AnswerProducer(client, topic), threads)


class AnswerProducer:
    """Produces answers to the topic that the reducer reads. For one thread."""

    def __init__(self, client: Mapping[str, Any], topic: str) -> None:
        self._producer = TopicProducer({"linger.ms": 0, **client, **PARTITIONER}, topic)

    def send(self, answers: Sequence[KeyValue]) -> None:
        """Produce, and wait until the brokers have stored all.

        Raises:
            ProduceError: something was not stored, or not for certain.
        """
        deadline = Deadline.after(ANSWER_TIMEOUT)
        self._producer.send(answers, deadline)
        self._producer.flush(deadline)


def _read(record: Record) -> tuple[Assignment, bool]:
    """Return the call that a record is about, and whether it is to be made: it may be cancelled.

    Raises:
        KeyError, TypeError, ValueError, RecursionError: it is no assignment, and cancels none.
    """
    message = json.loads(record.value() or b"null")
    is_cancelled = message["type"] == CANCEL
    if is_cancelled:
        message = {**message, "proc": "", "args": {}, "issued": 0, "timeout": 0}
    elif message["type"] != ASSIGNMENT:
        raise ValueError(f"type is {message['type']!r}")
    call = Assignment.of(message)
    call.key.encode()  # a lone surrogate could not be answered to
    if max(abs(call.issued), abs(call.timeout)) > _LAST_MS:
        raise ValueError(f"issued is {call.issued}, and timeout {call.timeout}")
    return call, not is_cancelled


class _OpenBatch:
    """A batch with calls that are not answered. Guarded by the processor's lock."""

    def __init__(self) -> None:
        self.answer: Future[BatchResponse] = Future()
        self.calls = 0

    def advance_if_over(self) -> None:
        """Answer it once all of its calls are; one that the channel has given up stays so."""
        if self.calls == 0:
            with suppress(InvalidStateError):
                self.answer.set_result(BatchResponse.advance())


@dataclass(eq=False, slots=True)
class _Job:
    """A call that waits for a thread, or has one. ``batches`` are those that it came in."""

    call: Assignment
    partition: TopicPartition
    offset: int
    batches: list[_OpenBatch] = field(default_factory=list)
    is_over: bool = False
    thread: threading.Thread | None = None
    outcome: str = "returned"

    @property
    def key(self) -> _Key:
        return self.call.instance, self.call.ref, self.call.attempt

    def lateness(self, clock: Clock) -> float:
        """Return seconds since the call timed out, negative before.

        The reducer decides the time-out by itself, by a timer: ``fire`` in instance.py.
        """
        return clock.time() - (self.call.issued + self.call.timeout) / 1000


class _LateCalls:
    """Calls that were late since the last warning. Guarded by the processor's lock."""

    def __init__(self) -> None:
        self._count, self._most = 0, 0.0
        self._last: Assignment | None = None
        self._warned_at = -_LATE_INTERVAL

    def note(self, call: Assignment, seconds: float) -> None:
        """Count one call."""
        self._count, self._most, self._last = self._count + 1, max(self._most, seconds), call

    def warn(self, clock: Clock) -> None:
        """Warn of them, unless that was done a moment ago."""
        if self._last is None or clock.monotonic() < self._warned_at + _LATE_INTERVAL:
            return
        log.warning(
            "calls_late",
            calls=self._count,
            seconds=round(self._most, 3),
            instance=self._last.instance,
            call=self._last.ref,
            process=self._last.process,
            note="their time was over before they had a thread, and they were not made: either "
            "more is assigned than the workers can make, or clocks differ from the reducer's",
        )
        self._count, self._most, self._last = 0, 0.0, None
        self._warned_at = clock.monotonic()


class AssignmentProcessor(BatchProcessor):
    """Calls processes; a batch is answered when all of its calls are.

    An answer is stored by the brokers before the batch advances, so that a call is made again after
    a crash, and never lost. One that is repeated while it runs, or after it, is not made twice:
    what is over is known until a commit has passed it, or the partition is lost. A call whose time
    is over is left to its thread, and another thread takes its place, for as many calls as the pool
    has threads: with one more the channel fails, as only a new process gets rid of them. A call
    whose time is over before it has a thread is not made, as the reducer has made another attempt.
    """

    def __init__(self, workflows: Workflows, producer: Callable[[], Any], threads: int) -> None:
        self._processes = workflows.processes
        self._make_producer = producer
        self._count = threads
        self._lock = threading.Condition()
        self._jobs: dict[_Key, _Job] = {}
        # by partition: calls that are over and whose batches may be repeated, with their offsets
        self._over: dict[TopicPartition, dict[_Key, int]] = {}
        self._waiting: deque[_Job] = deque()
        self._running: set[_Job] = set()
        self._answers: deque[tuple[_Job, KeyValue]] = deque()
        self._stopping = False
        self._ended: Counter[str] = Counter()
        self._late = _LateCalls()
        self._started = 0
        self._threads: list[threading.Thread] = []
        self._left: set[threading.Thread] = set()
        self._context: ChannelContext | None = None

    @property
    def _clock(self) -> Clock:
        assert self._context is not None, "open comes first"
        return self._context.clock

    # --- the channel's life -----------------------------------------------------------------

    @override
    def open(self, context: ChannelContext) -> None:
        self._context = context
        for _ in range(self._count):
            self._start_caller()
        for target in (self._publish, self._watch_limits):
            self._start(target)

    def _start_caller(self) -> None:
        self._start(self._make_calls)

    def _start(self, target: Callable[[], None]) -> None:
        self._started += 1
        name = f"{target.__name__.strip('_')}-{self._started}"
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    @override
    def close(self, deadline: Deadline) -> None:
        with self._lock:
            self._stopping = True
            for job in self._running:
                job.call.cancelled.set()
            self._lock.notify_all()
        for thread in self._threads:
            deadline.joined(thread)

    @override
    def pool_snapshot(self) -> PoolSnapshot:
        with self._lock:
            ended = {each: self._ended[each] for each in _ENDS}
            numbers = self._count, len(self._running), len(self._waiting)
            return PoolSnapshot(*numbers, ended, len(self._left))

    @override
    def on_next_batch(self, batch: Batch) -> Future[BatchResponse]:
        opened = _OpenBatch()
        with self._lock:
            self._over.setdefault(batch.partition, {})
            for record in batch.records:
                try:
                    call, is_to_be_made = _read(record)
                except (KeyError, TypeError, ValueError, RecursionError) as error:
                    self._pass_over(batch.partition, record, error)
                    continue
                job = _Job(call, batch.partition, offset_of(record))
                if is_to_be_made:
                    self._accept_call(job, opened)
                elif job.key in self._jobs:
                    self._jobs[job.key].call.cancelled.set()
            self._lock.notify_all()
            opened.advance_if_over()
        return opened.answer

    def _pass_over(self, partition: TopicPartition, record: Record, error: Exception) -> None:
        """Log and skip a record that no reducer has written: it would stop its partition.

        If it was meant as a call, the reducer attempts that again.
        """
        self._ended["unusable"] += 1
        log.warning(
            "assignment_unusable",
            topic=partition.topic,
            partition=partition.partition,
            offset=offset_of(record),
            error=describe_error(error, _SHOWN),
        )

    def _accept_call(self, job: _Job, batch: _OpenBatch) -> None:
        if job.key in self._over[job.partition]:
            return
        known = self._jobs.setdefault(job.key, job)
        if known is job:
            self._waiting.append(job)
        known.batches.append(batch)
        batch.calls += 1

    @override
    def on_batch_processed(self, batch: Batch) -> None:
        with self._lock:
            over = self._over.get(batch.partition, {})
            for key in [key for key, offset in over.items() if offset < batch.next_offset]:
                del over[key]

    @override
    def on_stream_termination(self, assignment: ChannelAssignment) -> None:
        self.on_partition_lost(assignment)

    @override
    def on_partition_lost(self, assignment: ChannelAssignment) -> None:
        with self._lock:
            self._over.pop(assignment.partition, None)

    # --- calls ------------------------------------------------------------------------------

    def _make_calls(self) -> None:
        """Make one call after the other. On a thread of the pool."""
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._stopping or self._waiting)
                if self._stopping:
                    return
                job = self._waiting.popleft()
                if self._ended_unmade(job):
                    continue
                job.thread = threading.current_thread()
                self._running.add(job)
            job.outcome, message = make_call(self._processes, job.call)
            with self._lock:
                self._running.discard(job)
                if job.is_over:  # another thread has taken the place of this one
                    self._left.discard(threading.current_thread())
                    return
                if job.call.cancelled.is_set():
                    self._end_call(job, "not_needed")
                    continue
                self._answers.append((job, (job.call.instance.encode(), message)))
                self._lock.notify_all()

    def _ended_unmade(self, job: _Job) -> bool:
        """End a call that has no thread yet if no caller waits for it. Under the lock."""
        reason = self._reason_not_to_make(job)
        if reason is None:
            return False
        if reason == "late":
            self._late.note(job.call, job.lateness(self._clock))
        self._end_call(job, reason)
        return True

    def _reason_not_to_make(self, job: _Job) -> str | None:
        """Return how a call has ended that was not made yet, None if a caller waits for it."""
        if job.call.cancelled.is_set():
            return "not_needed"
        if all(each.answer.done() for each in job.batches):
            return "withdrawn"
        return "late" if job.lateness(self._clock) >= 0 else None

    def _end_call(self, job: _Job, outcome: str) -> None:
        """Record that a call is over. Under the lock."""
        self._ended[outcome] += 1
        job.is_over = True
        self._jobs.pop(job.key, None)
        if outcome not in _OPEN_ENDS and job.partition in self._over:
            self._over[job.partition][job.key] = job.offset
        for batch in job.batches:
            batch.calls -= 1
            batch.advance_if_over()

    # --- calls that take too long -----------------------------------------------------------

    def _watch_limits(self) -> None:
        """Abandon threads whose calls exceed their limit. On a thread of its own.

        Queued calls that are no longer needed end as well: it may be long before a thread is free,
        and their batches are not answered before.
        """
        assert self._context is not None, "open comes first"
        while True:
            refusal = None
            with self._lock:
                if self._lock.wait_for(lambda: self._stopping, _OVERDUE_INTERVAL):
                    return
                kept = [job for job in self._waiting if not self._ended_unmade(job)]
                self._waiting = deque(kept)
                self._late.warn(self._clock)
                for job in [job for job in self._running if job.lateness(self._clock) >= 0]:
                    self._leave_call(job)
                    refusal = self._replace_caller() or refusal
            if refusal is not None:
                self._context.fail(ChannelFailedError(refusal))

    def _leave_call(self, job: _Job) -> None:
        """Leave a call to its thread. Under the lock."""
        job.call.cancelled.set()
        self._running.discard(job)
        self._end_call(job, "abandoned")
        assert job.thread is not None, "it runs"
        self._threads.remove(job.thread)
        self._left.add(job.thread)
        log.warning(
            "call_abandoned",
            instance=job.call.instance,
            call=job.call.ref,
            process=job.call.process,
            attempt=job.call.attempt,
            seconds=job.call.timeout / 1000,
            left=len(self._left),
        )

    def _replace_caller(self) -> str | None:
        """Start a thread in place of an abandoned one; return the reason if that is refused."""
        reason = f"the pool has {self._count}"
        if len(self._left) <= self._count:
            try:
                self._start_caller()
            except RuntimeError as error:  # of the system
                reason = str(error)
            else:
                return None
        return (
            f"{len(self._left)} threads are left to calls that hang, and another one cannot be had "
            f"({reason}); start the process again, and see to the processes that call_abandoned "
            "names: they have to end in time, or once call.cancelled is set"
        )

    # --- answers ----------------------------------------------------------------------------

    def _publish(self) -> None:
        """Produce answers as they come. On a thread of its own."""
        producer = None
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._stopping or self._answers)
                if not self._answers:
                    return
                count = min(len(self._answers), _MOST_ANSWERS)
                taken = [self._answers.popleft() for _ in range(count)]
            try:
                if producer is None:
                    producer = self._make_producer()
                producer.send([message for _, message in taken])
            except Exception as error:  # noqa: BLE001 - the batches are failed with it
                producer = None
                self._fail([job for job, _ in taken], error)
            else:
                with self._lock:
                    for job, _ in taken:
                        self._end_call(job, job.outcome)

    def _fail(self, jobs: Sequence[_Job], error: Exception) -> None:
        """Fail the batches of calls whose answers may not be stored, so that they are retried."""
        with self._lock:
            for job in jobs:
                for batch in job.batches:
                    with suppress(InvalidStateError):
                        batch.answer.set_exception(error)
                self._end_call(job, "not_stored")
