"""Commits of micro-batches to the sink: in order, and with what a policy skipped."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import structlog

from headrace.core.errors import FencedError, RetryableError, RowsRefusedError, SinkFailedError
from headrace.core.spans import linked_span, use_span
from headrace.core.supervision import StuckReport
from headrace.core.user_text import describe_error, plain_error
from headrace.processors.jobs import commits_of, context_of, require_all
from headrace.telemetry.logs import Bound, bound_fields
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.core.records import Batch, TopicPartition
    from headrace.processors.admission import Overflow
    from headrace.processors.contract import ChannelContext
    from headrace.processors.jobs import Job
    from headrace.processors.pending import OpenBatches, PendingWork
    from headrace.sinks.channel_sink import ChannelSink

log = structlog.get_logger(__name__)

#: Seconds between two log events of one partition: a topic full of rubbish must not fill the disk.
_QUIET = 10.0

#: Offsets that a log event names.
_NAMED = 5

_Outcome: TypeAlias = Literal["undecodable", "skipped", "dead_lettered"]

#: What is left out: records that cannot be decoded, for which reason, or those that are too many,
#: by which choice.
_What: TypeAlias = tuple[_Outcome, str]


@dataclass(slots=True)
class _Unreported:
    """A partition's records that are not logged yet; ``due`` is when they may be (monotonic)."""

    due: float
    records: int = 0
    first: list[int] = field(default_factory=list)


class SkippedRecords:
    """Counts what one channel leaves out for a reason, and says it now and then. Any thread.

    The lines of the log add up to the metric: what is held back meanwhile is said when its time has
    come, whether more is left out or not, and at the latest at the end.
    """

    def __init__(self, context: ChannelContext, reason: str = "undecodable") -> None:
        self._context = context
        self._reason = reason
        self._lock = threading.Lock()
        self._unreported: dict[tuple[TopicPartition, _What], _Unreported] = {}

    def count(self, skipped: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Count the records left out of a stored micro-batch; ``skipped`` has their offsets."""
        channel = self._context.channel
        for partition, offsets in skipped.items():
            counter = self._context.metrics.skipped.labels(channel, partition.topic, self._reason)
            counter.inc(len(offsets))
            self._hold(partition, ("undecodable", self._reason), len(offsets), offsets)
        self.report()

    def count_overflow(self, batch: Batch, overflow: Overflow) -> None:
        """Count what was left out of a batch that is stored, because too many records waited."""
        channel, partition, choice = self._context.channel, batch.partition, overflow.choice.value
        self._context.metrics.overflow.labels(channel, partition.topic, choice).inc(overflow.count)
        outcome: _Outcome = "skipped" if overflow.to is None else "dead_lettered"
        self._hold(partition, (outcome, choice), overflow.count, [batch.start])
        self.report()

    def _hold(
        self, partition: TopicPartition, what: _What, records: int, offsets: Sequence[int]
    ) -> None:
        with self._lock:
            now = self._context.clock.monotonic()
            unreported = self._unreported.setdefault((partition, what), _Unreported(now))
            unreported.records += records
            unreported.first += offsets[: _NAMED - len(unreported.first)]

    def report(self, *, all_of_it: bool = False) -> None:
        """Log what was held back for long enough, or all."""
        now = self._context.clock.monotonic()
        with self._lock:
            ready = [
                (partition, what, unreported)
                for (partition, what), unreported in self._unreported.items()
                if all_of_it or now >= unreported.due
            ]
            for partition, what, unreported in ready:
                if unreported.records:
                    self._unreported[partition, what] = _Unreported(now + _QUIET)
                else:
                    # as long as nothing is left out nothing is kept of the partition
                    del self._unreported[partition, what]
        for partition, what, unreported in ready:
            if unreported.records:
                self._warn(partition, what, unreported)

    def _warn(self, partition: TopicPartition, what: _What, unreported: _Unreported) -> None:
        fields: dict[str, Any] = {
            "channel": self._context.channel,
            "topic": partition.topic,
            "partition": partition.partition,
            "records": unreported.records,
        }
        first = unreported.first
        match what:
            case "undecodable", reason:
                log.warning(
                    "undecodable_records_skipped", reason=reason, first_offsets=first, **fields
                )
            case "skipped", choice:
                log.warning("overflow_records_skipped", choice=choice, offset=first[0], **fields)
            case _, choice:
                log.warning(
                    "overflow_records_dead_lettered", choice=choice, offset=first[0], **fields
                )


#: Results that are staged and not committed: one in the sink's hand, two that wait. Each holds its
#: batches, and files on disk or rows in memory.
ROOM = 3

#: As many where the sink takes several at once: half of them in its hand, while the others come.
GROUPING_ROOM = 8

#: Bytes of records that more than ``ROOM`` results may be of, together: what one micro-batch may
#: hold at the most, so that many small ones take no more memory than a few large ones.
GROUPING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Returned:
    """Work that was not committed, and why; None if something before it was not."""

    number: int
    work: Sequence[PendingWork]
    failure: BaseException | None


class CommitQueue:
    """Jobs go in at the lane's end and are taken by the thread that commits.

    That takes one at a time, or all that wait where the sink ``groups``. One that is not committed
    comes back, and with it each after it that shares a task. All methods may be called on any
    thread.
    """

    def __init__(self, *, groups: bool) -> None:
        self._groups = groups
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._in_hand: Sequence[Job] = ()
        self._returned: list[Returned] = []
        self._has_ended = False

    @property
    def has_returned(self) -> bool:
        """Return whether anything came back."""
        return bool(self._returned)

    def wait_for_room(self, timeout: float) -> bool:
        """Return whether another job may be staged; waits up to ``timeout`` seconds for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room, timeout)

    @property
    def _has_room(self) -> bool:
        staged = self._staged
        if len(staged) < ROOM or not self._groups:
            return len(staged) < ROOM
        return len(staged) < GROUPING_ROOM and sum(job.size for job in staged) < GROUPING_BYTES

    @property
    def _staged(self) -> list[Job]:
        return [*self._in_hand, *self._waiting]

    def put(self, job: Job) -> None:
        """Queue a staged job."""
        with self._changed:
            self._waiting.append(job)
            self._changed.notify_all()

    def take(self, timeout: float) -> Sequence[Job]:
        """Return the next jobs, to be answered or given back.

        None after ``timeout`` seconds, or at once where there is no job after the end.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._has_ended, timeout)
            taken = len(self._waiting) if self._groups else min(1, len(self._waiting))
            self._in_hand = [self._waiting.popleft() for _ in range(taken)]
            return self._in_hand

    def end(self) -> None:
        """Wake waiting threads for good: the lane, which brings jobs, has stopped."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def settle(self) -> None:
        """Record that the current jobs are over."""
        with self._changed:
            self._in_hand = ()
            self._changed.notify_all()

    def give_back(self, returned: Returned) -> None:
        """Return batches to the lane of which nothing is stored, nor will be."""
        with self._changed:
            self._returned.append(returned)
            self._changed.notify_all()

    def follows_returned(self, job: Job) -> bool:
        """Return whether something before the job came back that shares a task with it.

        A task is known by its partition: one that was assigned again follows what it was.
        """
        mine = {pending.task.partition for pending in job.work}
        with self._changed:
            return any(
                pending.task.partition in mine
                for returned in self._returned
                if returned.number < job.number
                for pending in returned.work
            )

    def returned(self, timeout: float) -> list[Returned]:
        """Return what came back in its order, once nothing is in line; nothing while it is.

        Waits up to ``timeout`` seconds for that.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._staged, timeout):
                return []
            returned, self._returned = self._returned, []
            return sorted(returned, key=lambda each: each.number)


#: Seconds that the thread waits for jobs before it looks whether it has to stop.
_IDLE_INTERVAL = 0.2


class SinkCommitter:
    """Commits staged jobs in the order of their line, in one transaction where the sink can.

    ``run_once`` is called on a thread of its own, ``commit`` there, and on the lane's while the
    line is empty. ``job_timeout`` is how long a commit may take, in seconds, before the log says
    where it is; half of it, as for a job. ``name`` is the thread's.
    """

    def __init__(
        self,
        sink: ChannelSink,
        line: CommitQueue,
        open_batches: OpenBatches,
        context: ChannelContext,
        job_timeout: Callable[[], float | None],
    ) -> None:
        self._sink = sink
        self._line = line
        self._open = open_batches
        self._context = context
        self._job_timeout = job_timeout
        self._skipped = SkippedRecords(context)
        self._keyless = SkippedRecords(context, "no_key")
        self.name = f"sink-{context.channel}"
        self._report = StuckReport(self.name)
        self._time = context.metrics.thread_time(context.channel, ThreadRole.SINK)

    def forget(self) -> None:
        """Report the remaining skipped records, and drop the thread's time metric. Any thread."""
        for skipped in (self._skipped, self._keyless):
            skipped.report(all_of_it=True)
        self._context.metrics.forget_thread(self._time)

    def run_once(self) -> bool:
        """Commit what waits, or wait a little for it. Return whether there was anything."""
        jobs = self._line.take(_IDLE_INTERVAL)
        if not jobs:
            self._skipped.report()
            self._keyless.report()
            return False
        try:
            with self._time.during(ThreadActivity.COMMIT):
                self._commit_in_order(jobs)
        finally:
            self._line.settle()
        return True

    def _commit_in_order(self, jobs: Sequence[Job]) -> None:
        """Commit all at once; where that fails each by itself, so that one fails no other."""
        ready = [job for job in jobs if self._is_ready(job)]
        if len(ready) > 1 and self._are_over(ready):
            return
        for job in ready:
            if self._is_ready(job):
                with self._watched([job]), self._giving_back(job):
                    self.commit(job)

    def _is_ready(self, job: Job) -> bool:
        """Return whether all before the job is stored, and all of it wanted."""
        failure: BaseException | None = None
        try:
            if not self._line.follows_returned(job):
                require_all(job.work)
                return True
        except BaseException as error:  # noqa: BLE001 - as below
            failure = plain_error(error)
        self._return(job, failure)
        return False

    def _are_over(self, jobs: Sequence[Job]) -> bool:
        """Commit several jobs in one transaction; whether none is left to be committed alone."""
        with self._watched(jobs):
            try:
                seconds = self._store(jobs)
            except FencedError as error:
                for job in jobs:
                    self._return(job, error)
                return True
            except BaseException as error:  # noqa: BLE001 - it may be about one of them only
                reason = describe_error(error)
                log.info("commit_split", channel=self._context.channel, error=reason)
                return False
            for job in jobs:
                with self._giving_back(job):
                    self._answer_batches(job, seconds, len(jobs))
            return True

    @contextmanager
    def _watched(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Bind the jobs to lines that are logged in the block, and log if it takes long."""
        names = ",".join(job.micro_batch.id for job in jobs)
        with Bound(**context_of(jobs)):
            try:
                self._report.begin(names, self._job_timeout(), bound_fields())
                yield
            finally:
                self._report.end()

    @contextmanager
    def _giving_back(self, job: Job) -> Iterator[None]:
        """Return a job that fails in the block to the lane."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - the lane sees to it
            self._line.give_back(Returned(job.number, job.work, plain_error(error)))

    def _return(self, job: Job, failure: BaseException | None) -> None:
        """Return a job of which nothing is stored to the lane."""
        try:
            self._drop(job, failure)
        except BaseException as error:  # noqa: BLE001 - a sink's own that breaks its promise
            failure = plain_error(error)
        self._line.give_back(Returned(job.number, job.work, failure))

    def commit(self, job: Job) -> None:
        """Commit a job and answer its batches. An exception means that nothing of it is visible.

        Raises:
            JobCancelledError: some of its batches are no longer wanted.
            RetryableError, RowsRefusedError: see :meth:`Sink.commit`.
        """
        try:
            require_all(job.work)
            seconds = self._store([job])
        except BaseException as error:
            self._drop(job, error)
            raise
        self._answer_batches(job, seconds, 1)

    def _store(self, jobs: Sequence[Job]) -> float:
        """Commit in one transaction. Return the seconds that are each job's share."""
        begin = perf_counter()
        with (
            self._context.metrics.stage(self._context.channel, "sink_commit"),
            use_span(linked_span([job.span for job in jobs], "sink_commit")),
        ):
            self._hand_over(jobs)
        return (perf_counter() - begin) / len(jobs)

    def _hand_over(self, jobs: Sequence[Job]) -> None:
        """Commit all to the sink; its errors do not blame the records unless they say so.

        As one micro-batch's batches have one share for each partition, so have those of several.
        """
        batches = [batch for job in jobs for batch in job.batches]
        over = [pending.overflow for job in jobs for pending in job.work if pending.overflow]
        copies = [each for each in over if each.copies]
        self._send_letters(jobs)
        try:
            self._sink.commit(
                [job.staged for job in jobs],
                commits_of(batches),
                [record for each in copies for record in each.results()],
            )
        except (RetryableError, RowsRefusedError):
            raise
        except Exception as error:  # noqa: BLE001 - sinks raise what they like
            reason = f"the sink did not take the result: {describe_error(error)}"
            raise SinkFailedError(reason) from plain_error(error)

    def _send_letters(self, jobs: Sequence[Job]) -> None:
        """Produce the dead letters of all jobs before anything of the rest is stored."""
        new = [job for job in jobs if not job.has_sent_letters]
        found = [each for job in new for each in job.rejected()]
        if found:
            self._context.send_undecodable(found)
        for job in new:
            job.has_sent_letters = True

    def _drop(self, job: Job, error: BaseException | None = None) -> None:
        self._open.end_job(job.micro_batch.id)
        job.span.end(error, outcome="" if error is not None else "withdrawn")
        self._sink.discard(job.staged)

    def _answer_batches(self, job: Job, seconds: float, together: int) -> None:
        """Answer a job's batches; one transaction had as many jobs as ``together``."""
        micro_batch = job.micro_batch
        seconds += job.seconds
        self._open.end_job(micro_batch.id)
        job.span.end()
        self._skipped.count(job.staged.skipped)
        self._keyless.count(job.staged.keyless)
        for pending in job.work:
            if pending.overflow is not None:
                self._skipped.count_overflow(pending.batches[0], pending.overflow)
            pending.advance(self._context.clock.monotonic())
        self._open.took(micro_batch.records, seconds)
        log.debug(
            "micro_batch_stored",
            channel=micro_batch.channel,
            id=micro_batch.id,
            partitions=len(micro_batch.ranges),
            records=micro_batch.records,
            seconds=round(seconds, 4),
            together=together,
        )
