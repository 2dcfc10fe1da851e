"""The sink's side of micro-batches: what was staged is committed, and then answered."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import structlog

from headrace.errors import RetryableError
from headrace.logs import Bound
from headrace.processors.commit_line import Returned
from headrace.processors.jobs import commits_of, require_all
from headrace.processors.skipped import SkippedRecords
from headrace.spans import within
from headrace.spark.sinks.contract import RowsRefusedError, SinkFailedError
from headrace.spark.stuck import StuckReport
from headrace.thread_time import Activity, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.processors.commit_line import CommitLine
    from headrace.processors.contract import ChannelContext
    from headrace.processors.engine import Engine
    from headrace.processors.jobs import Job
    from headrace.processors.pending import OpenBatches

log = structlog.get_logger(__name__)

#: Seconds that the thread waits for a job before it looks whether it has to stop.
_IDLE_TURN = 0.2


class Commits:
    """Commits staged jobs in the order of their line.

    ``turn`` is called on a thread of its own, ``commit`` there, and on the lane's while the line
    is empty. ``job_timeout`` is how long a commit may take, in seconds, before the log says where
    it is; half of it, as for a job.
    """

    def __init__(
        self,
        engine: Engine,
        line: CommitLine,
        open_batches: OpenBatches,
        context: ChannelContext,
        job_timeout: Callable[[], float | None],
    ) -> None:
        self._engine = engine
        self._line = line
        self._open = open_batches
        self._context = context
        self._job_timeout = job_timeout
        self._skipped = SkippedRecords(context)
        self._report = StuckReport(f"sink-{context.channel}")
        self._time = context.metrics.thread_time(context.channel, Role.SINK)

    def forget(self) -> None:
        """Serve the thread's time no longer. Any thread."""
        self._context.metrics.forget_thread(self._time)

    def turn(self) -> bool:
        """Commit the next job, or wait a little for one. Return whether there was one."""
        job = self._line.take(_IDLE_TURN)
        if job is None:
            return False
        with self._time.during(Activity.COMMIT), Bound(**job.context):
            try:
                self._report.begin(job.micro_batch.id, self._job_timeout())
                self._commit_in_turn(job)
            finally:
                self._report.end()
                self._line.settle()
        return True

    def _commit_in_turn(self, job: Job) -> None:
        failure: BaseException | None = None
        try:
            if not self._line.follows_returned(job):
                self.commit(job)
                return
            self._drop(job)
        except BaseException as error:  # noqa: BLE001 - the lane sees to it
            failure = error
        self._line.give_back(Returned(job.number, job.batches, failure))

    def commit(self, job: Job) -> None:
        """Commit a job and answer its batches. An exception means that nothing of it is visible.

        Raises:
            WithdrawnError: some of its batches are no longer wanted.
            RetryableError, RowsRefusedError: see :meth:`Sink.commit`.
        """
        begin = perf_counter()
        try:
            require_all(job.batches)
            with (
                self._context.metrics.stage(self._context.channel, "sink_commit"),
                within(job.span.child("sink_commit")),
            ):
                self._store(job)
        except BaseException as error:
            self._drop(job, error)
            raise
        self._answer(job, job.seconds + perf_counter() - begin)

    def _store(self, job: Job) -> None:
        """Commit; what a sink fails with says nothing of the records, unless it says so."""
        try:
            self._engine.commit(job.staged, commits_of([each.batch for each in job.batches]))
        except (RetryableError, RowsRefusedError):
            raise
        except Exception as error:
            reason = f"the sink did not take the result: {type(error).__name__}: {error}"
            raise SinkFailedError(reason) from error

    def _drop(self, job: Job, error: BaseException | None = None) -> None:
        self._open.end_job(job.micro_batch.id)
        job.span.end(error, outcome="" if error is not None else "withdrawn")
        self._engine.discard(job.staged)

    def _answer(self, job: Job, seconds: float) -> None:
        micro_batch = job.micro_batch
        self._open.end_job(micro_batch.id)
        job.span.end()
        self._skipped.count(self._engine.skipped(job.staged))
        for pending in job.batches:
            pending.advance()
        self._open.took(micro_batch.records, seconds)
        log.debug(
            "micro_batch_stored",
            channel=micro_batch.channel,
            id=micro_batch.id,
            partitions=len(micro_batch.ranges),
            records=micro_batch.records,
            seconds=round(seconds, 4),
        )
