"""The lane's side of those processors: a micro-batch is committed whole or not at all."""

from __future__ import annotations

import uuid
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from headrace.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    FencedError,
    OwnershipLostError,
    RetryableError,
)
from headrace.logs import Bound
from headrace.processors.skipped import SkippedRecords
from headrace.spans import joint, within
from headrace.spark.failures import JobCancelledError, JobTimeoutError, JvmDiedError
from headrace.spark.micro_batch import MicroBatch, ranges_of
from headrace.spark.sinks.contract import (
    CommitConflictError,
    PartitionCommit,
    RowsRefusedError,
    SinkFailedError,
)
from headrace.thread_time import Activity, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.clock import Deadline
    from headrace.processors.contract import ChannelContext
    from headrace.processors.pending import OpenBatches, PendingBatch
    from headrace.records import Batch, TopicPartition
    from headrace.spans import Span
    from headrace.spark.decode import Decode
    from headrace.spark.sinks.contract import OffsetMove

log = structlog.get_logger(__name__)

#: Seconds a lane waits for work before it looks whether it has to stop.
_IDLE_TURN = 0.2

#: How many JVMs may die under the same micro-batch before it counts as the cause.
_MAX_DEATHS = 2


class Engine(Protocol):
    """What runs the jobs: Spark, or a reducer in this process; a double in unit tests."""

    @property
    def activity(self) -> Activity:
        """What the lane's thread does during :meth:`stage`."""
        ...

    @property
    def span(self) -> str:
        """What the time of :meth:`stage` is called in a trace."""
        ...

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

    def decode_as(self, decode: Decode) -> None:
        """Decode the next micro-batch in another way; the schema is the same."""
        ...

    def move_to(self, move: OffsetMove, note: str) -> None:
        """Move one of the sink's offsets forward or back, as an operator asks; any thread."""
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


class MicroBatchRunner:
    """Takes open batches as micro-batches and brings each batch to its answer.

    All methods run on the lane's thread. ``job_timeout`` bounds each job in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        open_batches: OpenBatches,
        context: ChannelContext,
        job_timeout: Callable[[], float | None],
    ) -> None:
        self._engine = engine
        self._open = open_batches
        self._context = context
        self._job_timeout = job_timeout
        self._skipped = SkippedRecords(context)
        self._time = context.metrics.thread_time(context.channel, Role.LANE)

    def forget(self) -> None:
        """Serve the lane's time no longer. Any thread."""
        self._context.metrics.forget_thread(self._time)

    def turn(self) -> None:
        """Process one micro-batch, or wait a little for one."""
        batches = self._open.take(_IDLE_TURN)
        try:
            with self._time.during(Activity.PROCESS):
                self._process(batches)
        except Exception as error:
            log.exception("micro_batch_failed", channel=self._context.channel)
            for pending in batches:
                self._open.fail(pending, error)

    def _process(self, batches: list[PendingBatch]) -> None:
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
                self._fail_conflicts(batches, error)
            others_are_left = len(_wanted(batches)) < len(batches)
            return None if others_are_left and not self._open.is_closed else error
        except JvmDiedError as error:
            self._engine.revive()
            return error
        except BaseException as error:  # noqa: BLE001 - a reducer's sys.exit() must not end the lane
            return error
        return None

    def _split(self, batches: list[PendingBatch], failure: BaseException) -> None:
        """Run each batch of a failed micro-batch alone; one that was alone has failed."""
        if self._open.is_closed or len(batches) == 1 or isinstance(failure, FencedError):
            for pending in batches:
                self._open.fail(pending, _as_answer(pending.batch, failure))
            return
        log.info(
            "micro_batch_split",
            channel=self._context.channel,
            batches=len(batches),
            error=type(failure).__name__,
        )
        for pending in batches:
            self._process([pending])

    def _run(self, batches: list[PendingBatch]) -> None:
        """Run one job and commit it. An exception means that nothing of it is visible."""
        begin = perf_counter()
        micro_batch = MicroBatch(
            uuid.uuid4().hex[:16],
            self._context.channel,
            ranges_of(pending.batch for pending in batches),
            max(pending.batch.attempt for pending in batches),
        )
        with (
            Bound(**_context(micro_batch, batches)),
            self._open.job(micro_batch.id, batches),
            within(_span(micro_batch, batches)) as span,
        ):
            staged = self._stage_and_commit(micro_batch, batches, span)
        self._skipped.count(self._engine.skipped(staged))
        for pending in batches:
            pending.advance()
        seconds = perf_counter() - begin
        self._open.took(micro_batch.records, seconds)
        log.debug(
            "micro_batch_stored",
            channel=micro_batch.channel,
            id=micro_batch.id,
            partitions=len(micro_batch.ranges),
            records=micro_batch.records,
            seconds=round(seconds, 4),
        )

    def _stage_and_commit(
        self, micro_batch: MicroBatch, batches: list[PendingBatch], span: Span
    ) -> Any:
        metrics, channel = self._context.metrics, self._context.channel
        tables = [pending.prepared for pending in batches]
        with (
            metrics.stage(channel, "reduce"),
            self._time.during(self._engine.activity),
            within(span.child(self._engine.span)),
        ):
            staged = self._engine.stage(micro_batch, tables, self._job_timeout())
        try:
            _require_all(batches)
            with (
                metrics.stage(channel, "sink_commit"),
                self._time.during(Activity.COMMIT),
                within(span.child("sink_commit")),
            ):
                self._commit(staged, [pending.batch for pending in batches])
        except BaseException:
            self._engine.discard(staged)
            raise
        return staged

    def _commit(self, staged: Any, batches: list[Batch]) -> None:
        """Commit; what a sink fails with says nothing of the records, unless it says so."""
        try:
            self._engine.commit(staged, commits_of(batches))
        except (RetryableError, RowsRefusedError):
            raise
        except Exception as error:
            reason = f"the sink did not take the result: {type(error).__name__}: {error}"
            raise SinkFailedError(reason) from error

    def _fail_conflicts(self, batches: list[PendingBatch], error: CommitConflictError) -> None:
        conflicts = {conflict.partition: conflict for conflict in error.conflicts}
        for pending in batches:
            conflict = conflicts.get(pending.partition)
            if conflict is not None:
                self._open.fail(pending, conflict)


def _span(micro_batch: MicroBatch, batches: list[PendingBatch]) -> Span:
    """Begin the micro-batch's span, below that of its first batch and linked to the others'."""
    return joint(
        [pending.batch.span for pending in batches],
        "micro_batch",
        id=micro_batch.id,
        records=micro_batch.records,
        batches=len(batches),
    )


def commits_of(batches: Sequence[Batch]) -> list[PartitionCommit]:
    """Return what the sink has to store for the batches: one share for each partition."""
    held = {batch.partition: batch.assignment for batch in batches}
    return [
        PartitionCommit(
            held[key].identity, key, part.start, part.next_offset, held[key].transactional_id
        )
        for part in ranges_of(batches)
        for key in [part.topic_partition]
    ]


def _context(micro_batch: MicroBatch, batches: list[PendingBatch]) -> dict[str, Any]:
    """Return what the lines that a reducer logs on the lane's thread say of their micro-batch."""
    found: dict[str, Any] = {"channel": micro_batch.channel, "micro_batch": micro_batch.id}
    if len(batches) > 1:
        return {**found, "batches": [f"{each.partition}@{each.batch.start}" for each in batches]}
    batch = batches[0].batch
    topic, partition = batch.partition
    own = {"topic": topic, "partition": partition, "epoch": batch.assignment.epoch}
    return {**found, **own, "batch": batch.first_offset}


def _wanted(batches: list[PendingBatch]) -> list[PendingBatch]:
    """Return the batches whose outcome may still take effect; answer the lost ones."""
    for pending in batches:
        if not pending.future.done() and not pending.batch.assignment.is_current():
            partition = pending.partition
            message = f"{partition}: the claim ended before the batch was stored"
            pending.fail(OwnershipLostError(partition, message))
    return [pending for pending in batches if not pending.future.done()]


def _require_all(batches: list[PendingBatch]) -> None:
    if len(_wanted(batches)) < len(batches):
        raise _WithdrawnError


def _as_answer(batch: Batch, error: BaseException) -> BaseException:
    """Return the error as the channel should see it."""
    partition = batch.partition
    if isinstance(error, JobTimeoutError):
        return BatchTimeoutError(partition, f"{partition}: {error}")
    if isinstance(error, (JobCancelledError, _WithdrawnError)):
        return BatchCancelledError(partition, f"{partition}: batch at {batch.start} withdrawn")
    return error
