"""From open batches to their answers: a micro-batch is committed whole or not at all."""

from __future__ import annotations

from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING

import structlog

from headrace.core.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    EngineDiedError,
    FencedError,
    JobCancelledError,
    JobTimeoutError,
)
from headrace.core.spans import use_span
from headrace.core.supervision import LoopThread, StuckReport
from headrace.core.user_text import plain_error
from headrace.processors.jobs import planned, wanted
from headrace.processors.pending import BatchPacer
from headrace.processors.sink_commits import CommitQueue, Returned, SinkCommitter
from headrace.sinks.errors import CommitConflictError
from headrace.telemetry.logs import Bound, bound_fields
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.core.clock import Deadline
    from headrace.processors.contract import ChannelContext
    from headrace.processors.engine import Engine
    from headrace.processors.jobs import Job
    from headrace.processors.pending import OpenBatches, PendingWork
    from headrace.sinks.channel_sink import ChannelSink

log = structlog.get_logger(__name__)

#: Seconds a lane waits for work, or for the sink, before it looks whether it has to stop.
_IDLE_INTERVAL = 0.2

#: How many engines may die under the same micro-batch before it counts as the cause.
_MAX_DEATHS = 2


class MicroBatchRunner:
    """Takes open batches as micro-batches and brings each batch to its answer.

    Owns two threads, the lane, which runs the jobs, and one that commits. While one micro-batch is
    committed the lane stages the next ones. What fails on the way, in its job or in its commit, is
    seen to when nothing is on its way any more: then the lane runs and commits by itself, one
    micro-batch after the other.

    :meth:`run_once` is the lane's, that of ``commits`` the other thread's. ``job_timeout`` bounds
    each job in seconds. ``pacer`` says when the lane takes the next micro-batch.
    """

    def __init__(
        self,
        engine: Engine,
        sink: ChannelSink,
        open_batches: OpenBatches,
        context: ChannelContext,
        job_timeout: Callable[[], float | None],
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._open = open_batches
        self._context = context
        self._job_timeout = job_timeout
        self._line = CommitQueue(groups=sink.groups)
        self._numbers = count(1)
        self._time = context.metrics.thread_time(context.channel, ThreadRole.LANE)
        self.pacer = BatchPacer(context.clock, context.wake)
        self.commits = SinkCommitter(sink, self._line, open_batches, context, job_timeout)
        self._lane = LoopThread(f"{engine.name}-{context.channel}", self.run_once)
        self._sink_thread = LoopThread(self.commits.name, self.commits.run_once, drains=True)
        self._report = StuckReport(self._lane.name)

    def start(self) -> None:
        """Get sink and engine ready, and start the threads. Blocks.

        Raises:
            StartError, ConfigError: the sink or the engine cannot be used; the sink is closed.
        """
        try:
            self._sink.open()
            self._engine.open(self._context.channel)
        except BaseException:
            self._sink.close()
            raise
        self._lane.start()
        self._sink_thread.start()

    def close(self, deadline: Deadline) -> bool:
        """Cancel the job under way, commit what is staged, close the sink.

        Return whether both threads ended in time.
        """
        self._lane.request_stop()
        self._engine.close()
        lane_ended = self._lane.joined(deadline)
        self._sink_thread.request_stop()
        self._line.end()
        sink_ended = self._sink_thread.joined(deadline)
        self._sink.close()
        self._context.metrics.forget_thread(self._time)
        self.commits.forget()
        return lane_ended and sink_ended

    def run_once(self) -> None:
        """Stage one micro-batch, or see to those that failed, or wait a little."""
        with self._engine.admitted():
            try:
                self._stage_or_settle()
            finally:
                self._report.end()

    def _stage_or_settle(self) -> None:
        if self._line.has_returned:
            self._see_to_returned()
            return
        with self._time.during(ThreadActivity.WAIT):
            has_room = self._line.wait_for_room(_IDLE_INTERVAL)
        if has_room:
            batches = self._open.take(_IDLE_INTERVAL, self.pacer.gathering())
            with self._time.during(ThreadActivity.PROCESS):
                self._begin_batches(batches)

    def _begin_batches(self, batches: list[PendingWork]) -> None:
        """Stage what is still wanted and line it up, unless it would come back from there."""
        batches = wanted(batches)
        if not batches:
            return
        number, failure = next(self._numbers), None
        if not self._line.has_returned:
            try:
                self._line.put(self._staged(number, batches))
            except BaseException as error:  # noqa: BLE001 - a reducer's sys.exit() must not end the lane
                failure = plain_error(error)
            else:
                return
        self._line.give_back(Returned(number, batches, failure))

    def _see_to_returned(self) -> None:
        with self._time.during(ThreadActivity.WAIT):
            returned = self._line.returned(_IDLE_INTERVAL)
        with self._time.during(ThreadActivity.PROCESS):
            for each in returned:
                try:
                    self._settle_batches(each.work, each.failure)
                except Exception as error:
                    log.exception("micro_batch_failed", channel=self._context.channel)
                    for pending in each.work:
                        self._open.fail(pending, error)

    def _settle_batches(
        self, batches: Sequence[PendingWork], failure: BaseException | None
    ) -> None:
        """Settle batches, whose last run ended with ``failure`` if there was one.

        Nothing else of the channel is on its way meanwhile.
        """
        deaths = 0
        while True:
            if failure is not None:
                failure = self._weigh_failure(batches, failure)
                died = isinstance(failure, EngineDiedError)
                deaths += died
                if failure is not None and not (died and deaths < _MAX_DEATHS):
                    self._split(batches, failure)
                    return
            batches = wanted(batches)
            if not batches:
                return
            failure = self._attempt(batches)

    def _attempt(self, batches: Sequence[PendingWork]) -> BaseException | None:
        """Run and commit the batches. Return why that failed."""
        try:
            job = self._staged(next(self._numbers), batches)
            with self._time.during(ThreadActivity.COMMIT), Bound(**job.context):
                self.commits.commit(job)
        except BaseException as error:  # noqa: BLE001 - a reducer's sys.exit() must not end the lane
            return plain_error(error)
        return None

    def _weigh_failure(
        self, batches: Sequence[PendingWork], failure: BaseException
    ) -> BaseException | None:
        """Handle a failure. Return it, None if the batches' records did not cause it."""
        if isinstance(failure, (JobCancelledError, CommitConflictError)):
            if isinstance(failure, CommitConflictError):
                self._fail_conflicts(batches, failure)
            some_are_left_out = len(wanted(batches)) < len(batches)
            return None if some_are_left_out and not self._open.is_closed else failure
        if isinstance(failure, EngineDiedError):
            self._engine.revive()
        return failure

    def _split(self, batches: Sequence[PendingWork], failure: BaseException) -> None:
        """Run each batch of a failed micro-batch alone; one that was alone has failed."""
        if self._open.is_closed or len(batches) == 1 or isinstance(failure, FencedError):
            for pending in batches:
                self._open.fail(pending, _as_answer(pending, failure))
            return
        log.info(
            "micro_batch_split",
            channel=self._context.channel,
            batches=len(batches),
            error=type(failure).__name__,
        )
        for pending in batches:
            self._settle_batches([pending], None)

    def _staged(self, number: int, batches: Sequence[PendingWork]) -> Job:
        """Run one job. An exception means that nothing of it is left."""
        begin = perf_counter()
        job = planned(number, self._context.channel, batches)
        self._open.begin_job(job.micro_batch.id, batches)
        try:
            with Bound(**job.context), self.pacer.job():
                self._stage(job)
        except BaseException as error:
            self._open.end_job(job.micro_batch.id)
            shown = plain_error(error)
            job.span.end(shown)
            if shown is error:
                raise
            raise shown from None
        job.seconds = perf_counter() - begin
        return job

    def _stage(self, job: Job) -> None:
        left = [pending for pending in job.work if not pending.is_all_overflow]
        if not left:
            job.staged = self._sink.stage_nothing(job.micro_batch)
            return
        prepared, seconds = [pending.prepared for pending in left], self._job_timeout()
        with (
            self._context.metrics.stage(self._context.channel, "reduce"),
            self._time.during(self._engine.activity),
            use_span(job.span.child(self._engine.span)),
        ):
            self._report.begin(job.micro_batch.id, seconds, bound_fields())
            job.staged = self._engine.execute(job.micro_batch, prepared, seconds, self._sink)

    def _fail_conflicts(self, batches: Sequence[PendingWork], error: CommitConflictError) -> None:
        conflicts = {conflict.partition: conflict for conflict in error.conflicts}
        for pending in batches:
            found = (conflicts.get(batch.partition) for batch in pending.batches)
            conflict = next((each for each in found if each is not None), None)
            if conflict is not None:
                self._open.fail(pending, conflict)


def _as_answer(pending: PendingWork, error: BaseException) -> BaseException:
    """Return the error as the channel should see it."""
    batch = pending.batches[0]
    partition = batch.partition
    if isinstance(error, JobTimeoutError):
        return BatchTimeoutError(partition, f"{partition}: {error}")
    if isinstance(error, JobCancelledError):
        return BatchCancelledError(partition, f"{partition}: batch at {batch.start} withdrawn")
    return error
