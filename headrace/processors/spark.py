"""The Spark processor: batches of several partitions become one job, committed whole or not."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from headrace.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    OwnershipLostError,
    PartitionError,
)
from headrace.processors.contract import BatchProcessor, ChannelContext
from headrace.processors.pending import MergeLimits, PendingBatch, PendingBatches
from headrace.processors.responses import BatchResponse
from headrace.spark.failures import JobCancelledError, JobTimeoutError, JvmDiedError
from headrace.spark.micro_batch import MicroBatch, ranges_of
from headrace.spark.sinks.contract import CommitConflictError, PartitionCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.clock import Deadline
    from headrace.records import Assignment, Batch, TopicPartition

log = structlog.get_logger(__name__)

#: Seconds a lane waits for work before it looks whether it has to stop.
_IDLE_TURN = 0.2

#: How many JVMs may die under the same micro-batch before it counts as the cause.
_MAX_DEATHS = 2


class Engine(Protocol):
    """What runs the jobs (``headrace.spark.engine.SparkEngine``; a double in unit tests)."""

    def open(self, channel: str, turn: Callable[[], None]) -> None:
        """Get ready and call ``turn`` again and again on the lane's thread from then on."""
        ...

    def stored_offset(self, identity: str) -> int | None:
        """Return the sink's offset for a partition."""
        ...

    def prepare(self, batch: Batch) -> Any:
        """Do what can be done on a worker thread while another job runs."""
        ...

    def stage(self, micro_batch: MicroBatch, tables: Sequence[Any], seconds: float | None) -> Any:
        """Run the job; nothing is visible yet. On the lane's thread."""
        ...

    def skipped(self, staged: Any) -> Mapping[TopicPartition, Sequence[int]]:
        """Return the offsets of the records that the job left out."""
        ...

    def commit(self, staged: Any, offsets: Sequence[PartitionCommit]) -> None:
        """Make result and offsets visible, both or neither."""
        ...

    def discard(self, staged: Any) -> None:
        """Remove a result that will not be committed."""
        ...

    def move(self, offsets: Sequence[PartitionCommit]) -> None:
        """Move the sink's offsets without data."""
        ...

    def cancel(self, micro_batch_id: str) -> None:
        """Cancel a running job; does not block, and does nothing when it is over."""
        ...

    def revive(self) -> None:
        """Bring Spark back after a JvmDiedError."""
        ...

    def close(self, deadline: Deadline) -> bool:
        """End everything; say whether it ended in time."""
        ...


class _WithdrawnError(Exception):
    """Part of a staged micro-batch is no longer ours; the rest has to be computed again."""


class SparkProcessor(BatchProcessor):
    """Answers batches with ``advance`` once a Spark job's result and their offsets are stored.

    ``on_next_batch`` prepares the batch on the worker's thread and returns a future. The lane's
    thread takes what waits, up to ``limits``, as one micro-batch: one job, one commit, whole or
    not at all. A micro-batch that fails is run again batch by batch, so that only those fail which
    fail alone. ``job_timeout`` bounds each job in seconds.

    The futures fail with UndecodableRecordError, SinkConflictError, BatchTimeoutError,
    OwnershipLostError, BatchCancelledError (not failures of the batch), ReducerError, or with what
    the reducer raised.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        limits: MergeLimits | None = None,
        job_timeout: float | None = None,
    ) -> None:
        self._engine = engine
        self._pending = PendingBatches(limits or MergeLimits())
        self._job_timeout = job_timeout
        self._guard = threading.Lock()
        self._in_hand: list[PendingBatch] = []
        self._running: dict[str, list[PendingBatch]] = {}
        self._failed: dict[TopicPartition, Batch] = {}
        self._closing = False
        self._context: ChannelContext | None = None

    @property
    def context(self) -> ChannelContext:
        """The channel served, known from :meth:`open` on."""
        assert self._context is not None, "open comes first"
        return self._context

    # --- callbacks, on the channel's threads ----------------------------------------------------

    def open(self, context: ChannelContext) -> None:
        """Load the reducer, start Spark and open the sink. Blocks until jobs can run."""
        self._context = context
        self._engine.open(context.channel, self.turn)

    def stored_offset(self, assignment: Assignment) -> int | None:
        """Return what the sink has stored for the partition."""
        return self._engine.stored_offset(assignment.identity)

    def on_assigned(self, assignment: Assignment) -> None:
        """Forget what was left of an earlier assignment of the partition."""
        self._unblock(assignment)

    def on_next_batch(self, batch: Batch) -> Future[BatchResponse]:
        """Prepare the batch and queue it. Returns at once; the lane completes the future."""
        with self._stage("arrow"):
            pending = PendingBatch(batch, self._engine.prepare(batch))
        pending.future.add_done_callback(lambda _: self._on_done(pending))
        with self._guard:
            refused = self._closing or self._follows_failed(batch)
            if not refused:
                self._failed.pop(batch.partition, None)
                self._pending.put(pending)
        if refused:
            _fail(pending, _cancelled(batch, "an earlier batch failed, or the channel stops"))
        return pending.future

    def on_exception(
        self,
        assignment: Assignment,
        error: PartitionError | BaseException,  # noqa: ARG002 - the channel's policy decides
        batch: Batch | None,  # noqa: ARG002
    ) -> BatchResponse | None:
        """Take batches of the partition again: what was under way with the failed one is over."""
        self._unblock(assignment)
        return None

    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        """Forget the partition; its batches are all answered."""
        self._withdraw(assignment, "the partition was released")
        return None

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Drop the partition's batches, and cancel a job that has some of them."""
        self._withdraw(assignment, "the partition was lost")

    def pass_over(self, batch: Batch) -> None:
        """Move the sink's offset behind a batch that will not be processed. Blocks.

        Where the sink keeps the offsets, a skipped batch would otherwise be found missing there,
        and be read again. Not a callback: for the channel's policy, while nothing of the partition
        is outstanding.

        Raises:
            CommitConflictError: the sink does not stand where the batch begins.
        """
        self._engine.move(_commits([PendingBatch(batch, None)]))

    def close(self, deadline: Deadline) -> None:
        """Cancel what runs, end the lane and close the sink."""
        with self._guard:
            self._closing = True
        if not self._engine.close(deadline):
            log.error("lane_left_behind", channel=self.context.channel)
        for pending in self._in_hand + self._pending.remove():
            _fail(pending, _cancelled(pending.batch, "the channel stops"))

    def _withdraw(self, assignment: Assignment, reason: str) -> None:
        self._unblock(assignment)
        with self._guard:
            withdrawn = self._open_batches(assignment)
        for pending in withdrawn:
            _fail(pending, _cancelled(pending.batch, reason))

    def _open_batches(self, assignment: Assignment) -> list[PendingBatch]:
        """Return what of an assignment the lane has in hand, and take what still waits."""
        in_hand = [each for each in self._in_hand if each.batch.assignment is assignment]
        return in_hand + self._pending.remove(assignment)

    def _on_done(self, pending: PendingBatch) -> None:
        """Cancel the job that a withdrawn batch is part of: its result could not be committed."""
        with self._guard:
            ids = [name for name, batches in self._running.items() if pending in batches]
        for name in ids:
            self._engine.cancel(name)

    def _unblock(self, assignment: Assignment) -> None:
        with self._guard:
            self._failed.pop(assignment.partition, None)

    def _follows_failed(self, batch: Batch) -> bool:
        """Whether the batch was cut before the channel knew that the one before it failed."""
        failed = self._failed.get(batch.partition)
        if failed is None or failed.assignment is not batch.assignment:
            return False
        return batch.start == failed.next_offset and batch.start != failed.start

    # --- the lane's side ------------------------------------------------------------------------

    def turn(self) -> None:
        """Process one micro-batch, or wait a little for one. On the lane's thread."""
        batches = self._pending.take(_IDLE_TURN)
        with self._guard:
            self._in_hand = batches
        try:
            self._process(batches)
        except Exception as error:
            log.exception("micro_batch_failed", channel=self.context.channel)
            for pending in batches:
                self._reject(pending, error)

    def _process(self, batches: list[PendingBatch]) -> None:
        """Bring every batch to its answer."""
        deaths = 0
        while batches := _wanted(batches):
            failure = self._attempt(batches)
            deaths += isinstance(failure, JvmDiedError)
            replay = isinstance(failure, JvmDiedError) and deaths < _MAX_DEATHS
            if failure is not None and not replay:
                self._split(batches, failure)
                return

    def _attempt(self, batches: list[PendingBatch]) -> BaseException | None:
        """Run the batches once. Return why they failed, None if it was not for what they hold."""
        try:
            self._run(batches)
        except (JobCancelledError, _WithdrawnError, CommitConflictError) as error:
            if isinstance(error, CommitConflictError):
                self._reject_conflicts(batches, error)
            others_are_left = len(_wanted(batches)) < len(batches)
            return None if others_are_left and not self._closing else error
        except JvmDiedError as error:
            self._engine.revive()
            return error
        except BaseException as error:  # noqa: BLE001 - a reducer's sys.exit() must not end the lane
            return error
        return None

    def _split(self, batches: list[PendingBatch], failure: BaseException) -> None:
        """Run each batch of a failed micro-batch alone; one that was alone has failed."""
        if self._closing or len(batches) == 1:
            for pending in batches:
                self._reject(pending, failure)
            return
        log.info(
            "micro_batch_split",
            channel=self.context.channel,
            batches=len(batches),
            error=type(failure).__name__,
        )
        for pending in batches:
            self._process([pending])

    def _run(self, batches: list[PendingBatch]) -> None:
        """Run one job and commit it. An exception means that nothing of it is visible."""
        micro_batch = MicroBatch(
            uuid.uuid4().hex[:16],
            self.context.channel,
            ranges_of(pending.batch for pending in batches),
            max(pending.batch.attempt for pending in batches),
        )
        begin = perf_counter()
        with self._guard:
            self._running[micro_batch.id] = batches
        try:
            staged = self._stage_and_commit(micro_batch, batches)
        finally:
            with self._guard:
                del self._running[micro_batch.id]
        self._count_skipped(staged)
        for pending in batches:
            _answer(pending)
        log.debug(
            "spark_micro_batch",
            channel=micro_batch.channel,
            id=micro_batch.id,
            partitions=len(micro_batch.ranges),
            records=micro_batch.records,
            seconds=round(perf_counter() - begin, 4),
        )

    def _stage_and_commit(self, micro_batch: MicroBatch, batches: list[PendingBatch]) -> Any:
        tables = [pending.prepared for pending in batches]
        with self._stage("reduce"):
            staged = self._engine.stage(micro_batch, tables, self._job_timeout)
        try:
            _require_all(batches)
            with self._stage("sink_commit"):
                self._engine.commit(staged, _commits(batches))
        except BaseException:
            self._engine.discard(staged)
            raise
        return staged

    def _stage(self, stage: str) -> Any:
        return self.context.metrics.stage(self.context.channel, stage)

    def _count_skipped(self, staged: Any) -> None:
        for partition, offsets in self._engine.skipped(staged).items():
            counter = self.context.metrics.skipped
            counter.labels(self.context.channel, partition.topic, "undecodable").inc(len(offsets))
            log.warning(
                "records_skipped",
                reason="undecodable",
                channel=self.context.channel,
                topic=partition.topic,
                partition=partition.partition,
                records=len(offsets),
                first_offsets=list(offsets[:5]),
            )

    def _reject_conflicts(self, batches: list[PendingBatch], error: CommitConflictError) -> None:
        conflicts = {conflict.partition: conflict for conflict in error.conflicts}
        for pending in batches:
            conflict = conflicts.get(pending.partition)
            if conflict is not None:
                self._reject(pending, conflict)

    def _reject(self, pending: PendingBatch, error: BaseException) -> None:
        """Fail one batch, and withdraw what follows it in its partition."""
        batch = pending.batch
        with self._guard:
            if pending.future.done():
                return
            self._failed[batch.partition] = batch
            others = self._open_batches(batch.assignment)
        _fail(pending, _failure(batch, error))
        for other in others:
            _fail(other, _cancelled(other.batch, f"the batch at {batch.start} failed"))


def _wanted(batches: list[PendingBatch]) -> list[PendingBatch]:
    """Return the batches whose outcome may still take effect; answer the lost ones."""
    for pending in batches:
        if not pending.future.done() and not pending.batch.assignment.is_current():
            partition = pending.partition
            message = f"{partition}: the claim ended before the batch was stored"
            _fail(pending, OwnershipLostError(partition, message))
    return [pending for pending in batches if not pending.future.done()]


def _require_all(batches: list[PendingBatch]) -> None:
    if len(_wanted(batches)) < len(batches):
        raise _WithdrawnError


def _commits(batches: list[PendingBatch]) -> list[PartitionCommit]:
    identities = {p.partition: p.batch.assignment.identity for p in batches}
    return [
        PartitionCommit(identities[key], key, part.start, part.next_offset)
        for part in ranges_of(pending.batch for pending in batches)
        for key in [part.topic_partition]
    ]


def _answer(pending: PendingBatch) -> None:
    with suppress(InvalidStateError):  # withdrawn meanwhile: the channel ignores the answer
        pending.future.set_result(BatchResponse.advance())


def _fail(pending: PendingBatch, error: BaseException) -> None:
    with suppress(InvalidStateError):  # withdrawn meanwhile: the channel knows
        pending.future.set_exception(error)


def _failure(batch: Batch, error: BaseException) -> BaseException:
    """Return the error as the channel should see it."""
    if isinstance(error, JobTimeoutError):
        return BatchTimeoutError(batch.partition, f"{batch.partition}: {error}")
    if isinstance(error, (JobCancelledError, _WithdrawnError)):
        return _cancelled(batch, "the job was cancelled")
    return error


def _cancelled(batch: Batch, reason: str) -> BatchCancelledError:
    partition = batch.partition
    return BatchCancelledError(
        partition, f"{partition}: batch at {batch.start} withdrawn: {reason}"
    )
