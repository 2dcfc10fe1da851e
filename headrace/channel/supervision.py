"""Supervision: threads, callbacks and batches that take too long are noticed and reported."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import structlog

from headrace.channel.states import PartitionState
from headrace.channel.status import snapshot_of
from headrace.core.clock import Deadline
from headrace.core.errors import FatalError, HeadraceError
from headrace.core.stacks import log_stacks
from headrace.core.supervision import PeriodicThread
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.partition import OwnedPartition, RunningCallback
    from headrace.channel.partition_manager import PartitionManager
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.workers import Workers
    from headrace.core.clock import Clock
    from headrace.core.records import TopicPartition
    from headrace.core.supervision import Heartbeat
    from headrace.kafka.ports import TopicCatalog
    from headrace.telemetry.metrics import Metrics, PartitionSnapshot


log = structlog.get_logger(__name__)

#: Seconds between two looks at most.
LONGEST_INTERVAL = 1.0

#: Looks within the time that a thread may take for a turn.
LOOKS = 8


class ThreadWatchdog(PeriodicThread):
    """The thread that fails the channel when ``heartbeat`` stands still.

    Time counts by its looks and not by the clock: a process that stood still as a whole, stopped
    by a signal or with its machine, has not looked either, and goes on where it was.
    """

    def __init__(
        self,
        what: str,
        heartbeat: Heartbeat,
        *,
        fail: Callable[[BaseException], None],
        channel: str,
    ) -> None:
        self._what = what
        self._heartbeat = heartbeat
        self._fail = fail
        self._channel = channel
        self._seen: float | None = None
        self._idle = 0.0
        super().__init__(f"{channel}-{what}-guard", fail)

    def _run(self) -> None:
        while True:
            limit = self._heartbeat.stall_timeout
            interval = LONGEST_INTERVAL if limit is None else min(LONGEST_INTERVAL, limit / LOOKS)
            if self._stopping.wait(interval):
                return
            self._check_progress(interval)
            if limit is not None and self._idle >= limit:
                self._give_up(limit)
                return

    def _check_progress(self, interval: float) -> None:
        """Add to the time without progress, or begin it again."""
        before, self._seen = self._seen, self._heartbeat.last_beat
        self._idle = self._idle + interval if self._seen == before else 0.0

    def _give_up(self, limit: float) -> None:
        log.error("thread_stalled", channel=self._channel, thread=self._what, seconds=limit)
        self._fail(
            FatalError(
                f"channel {self._channel}: its {self._what} has done nothing for {limit:.1f} s; "
                "the process has to be restarted"
            )
        )


#: Seconds between two looks. A partition is taken for stalled after two of them at the earliest:
#: far longer than a client takes to find a new leader.
LOOK_INTERVAL = 30.0

#: Seconds to wait for a partition's leader to say where the log ends.
ASK_TIMEOUT = 2.0

#: Partitions whose leaders do not answer, after which the others have so many seconds: brokers are
#: away then, and a look is not to take minutes for it.
_MANY_SILENT, _MOMENT = 3, 0.1

#: Looks in a row without an answer that make a leader unavailable: one is an election.
_LOOKS = 2


@dataclass(slots=True)
class _Seen:
    """A partition's position at the last look; ``end`` is that of its log, as its leader said."""

    position: int
    end: int
    refetched: int = 0
    held_by: str | None = None


class LagWatchdog(PeriodicThread):
    """Asks, for each partition from which nothing came since the last look, where its log ends.

    One that did not get to where the log ended a look before has stalled. It is fetched again, and
    when that does not help it is reported at every look. What waits for something else than the
    fetcher is left alone: a batch that is out, a pause, a full buffer. It costs a
    request for each idle partition at each look, one after the other: one for all of them has no
    answer for any while a broker is away.

    One that got to where committed records end, while its log goes on, is held back by a
    transaction; that is reported once, with what ``holder`` says of it.
    """

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        catalog: TopicCatalog,
        fetcher: Fetcher,
        manager: PartitionManager,
        holder: Callable[[TopicPartition], str],
    ) -> None:
        self._holder = holder
        self._environment = environment
        self._catalog = catalog
        self._fetcher = fetcher
        self._manager = manager
        self._seen: dict[OwnedPartition, _Seen] = {}
        self._held_back: dict[TopicPartition, str] = {}
        self._silent: dict[TopicPartition, int] = {}
        super().__init__(f"{environment.name}-stalls", environment.fail)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_INTERVAL):
            self._check_lag()

    def _check_lag(self) -> None:
        before, self._seen = self._seen, {}
        if not self._fetcher.fetching:
            self._silent = {}
            return
        waiting = {
            owned.partition: owned for owned in self._manager.all() if _waits_for_fetcher(owned)
        }
        silent: dict[TopicPartition, int] = {}
        for partition, owned in sorted(waiting.items()):
            if self._stopping.is_set():
                return
            patience = ASK_TIMEOUT if len(silent) < _MANY_SILENT else _MOMENT
            deadline = Deadline.after(patience, self._environment.clock)
            try:
                _, end = self._catalog.watermarks(partition, deadline)
            except KafkaUnavailableError:
                silent[partition] = self._silent.get(partition, 0) + 1
            else:
                self._compare(owned, end, before.get(owned))
        self._held_back = {
            owned.partition: seen.held_by
            for owned, seen in self._seen.items()
            if seen.held_by is not None
        }
        self._silent = silent
        if silent:
            # the client itself says nothing of a partition without a leader
            log.warning(
                "partition_leader_unavailable",
                channel=self._environment.name,
                partitions=[str(partition) for partition in silent],
            )

    def _compare(self, owned: OwnedPartition, end: int, before: _Seen | None) -> None:
        position = owned.progress.buffer.fetch_offset
        if before is None or before.position != position:
            before = None
        seen = _Seen(position, end, 0 if before is None else before.refetched)
        self._seen[owned] = seen
        if before is None:
            return
        if position < before.end:
            self._stalled(owned, seen)
        elif end <= position < (owned.high_watermark or 0):
            seen.held_by = before.held_by or self._report_holder(owned)

    def unanswered(self) -> tuple[TopicPartition, ...]:
        """Return those held whose leader did not answer at the last two looks. Any thread."""
        held = {owned.partition for owned in self._manager.all()}
        silent = self._silent.items()
        return tuple(each for each, looks in silent if looks >= _LOOKS and each in held)

    def held_back(self) -> dict[TopicPartition, str]:
        """Return who holds back which partitions, as of the last look. Any thread."""
        return dict(self._held_back)

    def _report_holder(self, owned: OwnedPartition) -> str:
        """Log and return whose transaction readers of committed records wait for."""
        self._environment.metrics.stalls.labels(self._environment.name, owned.partition.topic).inc()
        try:
            held_by = self._holder(owned.partition)
        except HeadraceError as error:
            held_by = f"who it is is not known: {error}"
        log.warning(
            "partition_held_back",
            **owned.life.log_fields,
            position=owned.progress.buffer.fetch_offset,
            end=owned.high_watermark,
            held_by=held_by,
        )
        return held_by

    def _stalled(self, owned: OwnedPartition, seen: _Seen) -> None:
        """Fetch again; say it louder when that was done before."""
        topic = owned.partition.topic
        self._environment.metrics.stalls.labels(self._environment.name, topic).inc()
        log.log(
            logging.ERROR if seen.refetched else logging.WARNING,
            "partition_stalled",
            **owned.life.log_fields,
            position=seen.position,
            end=seen.end,
            refetched=seen.refetched,
        )
        seen.refetched += 1
        self._fetcher.seek(owned)


def _waits_for_fetcher(owned: OwnedPartition) -> bool:
    """Return whether nothing but the fetcher holds a partition up."""
    idle = owned.life.state is PartitionState.WAITING and not owned.progress.buffer.complete
    return idle and not (
        owned.progress.outstanding or owned.progress.pending or owned.progress.buffer.records
    )


#: The part of ``batch_timeout`` after which a callback or a batch counts as slow. Early enough for
#: an operator to look while it hangs, late enough for what only takes its time.
SHARE = 0.5

#: Seconds between two dumps of all threads: what hangs may have a hundred partitions hang with it.
DUMP_INTERVAL = 300.0


class HangReports:
    """Logs each hang once. Used by one thread, again and again.

    All threads are logged with the first, but no more often than each ``DUMP_INTERVAL``: what the
    stuck one waits for is done, or not done, by another.
    """

    def __init__(self, channel: str, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        #: What was told already, by partition: since when the callback runs, the batch's deadline.
        self._reported: dict[int, tuple[float | None, float | None]] = {}
        self._next_dump = -inf

    def report_hangs(
        self,
        partitions: Iterable[OwnedPartition],
        timeout: float,
        now: float,
        stood_still: Mapping[RunningCallback, float],
    ) -> None:
        """Report what has taken more than its share of ``timeout`` seconds; ``now`` is monotonic.

        ``stood_still``: seconds that do not count against a callback.

        Does not block: what a thread is in, and what the partition is doing, is read as it is.
        """
        reported: dict[int, tuple[float | None, float | None]] = {}
        for owned in partitions:
            slow = (
                _slow_callback(owned, timeout, now, stood_still),
                _slow_batch(owned, timeout, now),
            )
            callback, batch = self._reported.get(id(owned), (None, None))
            if slow[0] is not None and slow[0] != callback:
                self._report("worker_stuck", owned, now)
            elif slow[0] is None and slow[1] is not None and slow[1] != batch:
                # the processor answers it later, on a thread that we do not know
                seconds = round(now - (slow[1] - timeout), 1)
                self._report("batch_stuck", owned, now, seconds=seconds)
            if slow != (None, None):
                reported[id(owned)] = slow
        self._reported = reported

    def _report(self, event: str, owned: OwnedPartition, now: float, **facts: object) -> None:
        log.warning(event, **facts, **snapshot_of(self._channel, owned, self._clock).facts())
        if now >= self._next_dump:
            self._next_dump = now + DUMP_INTERVAL
            log_stacks(event)


def _slow_callback(
    owned: OwnedPartition,
    timeout: float,
    now: float,
    stood_still: Mapping[RunningCallback, float],
) -> float | None:
    callback = owned.hold.callback
    if callback is None:
        return None
    seconds = now - callback.since - stood_still.get(callback, 0.0)
    return callback.since if seconds > timeout * SHARE else None


def _slow_batch(owned: OwnedPartition, timeout: float, now: float) -> float | None:
    """Return the deadline of the oldest batch, where more than its share is over."""
    try:
        oldest = owned.progress.outstanding[0]
    except IndexError:  # answered just now
        return None
    left = oldest.deadline - now
    return oldest.deadline if not oldest.answer.done() and left < timeout * (1 - SHARE) else None


#: Worker threads a channel may lose to hung callbacks within ABANDONED_WINDOW before the process
#: has to be restarted: each one keeps its thread and whatever it holds.
MAX_ABANDONED = 2

#: Seconds for which a hang counts. What is broken for good hangs callbacks much more often; a
#: process that runs for months meets one now and then.
ABANDONED_WINDOW = 86_400.0

#: The part of ``batch_timeout`` that a callback may run over before it is given up.
GRACE = 0.1

#: Intervals after which a look is late: the process stood still as a whole, or its machine did.
LATE = 3


class CallbackWatchdog(PeriodicThread):
    """Looks at the running callbacks of a channel a few times within each ``batch_timeout``.

    While it could not look, callbacks could not run: that time does not count against them.
    """

    def __init__(
        self,
        *,
        batch_timeout: Callable[[], float],
        partitions: Callable[[], Iterable[OwnedPartition]],
        scheduler: Scheduler,
        workers: Workers,
        fail: Callable[[BaseException], None],
        metrics: Metrics,
        channel: str,
        clock: Clock,
    ) -> None:
        self._batch_timeout = batch_timeout
        self._slow = HangReports(channel, clock)
        self._partitions = partitions
        self._scheduler = scheduler
        self._workers = workers
        self._fail = fail
        self._abandoned_total = metrics.abandoned.labels(channel)
        self._channel = channel
        self._clock = clock
        self._abandoned: deque[tuple[float, str]] = deque()
        # seconds of the running callbacks for which the process stood still
        self._stood_still: dict[RunningCallback, float] = {}
        super().__init__(f"{channel}-watchdog", fail)

    @property
    def _limit(self) -> float:
        return self._batch_timeout() * (1 + GRACE)

    def _run(self) -> None:
        looked = self._clock.monotonic()
        while not self._stopping.wait(interval := min(1.0, self._limit / 4)):
            before, looked = looked, self._clock.monotonic()
            if looked - before > LATE * interval:
                self._count_off(looked - before - interval, looked)
            self.check_callbacks(looked)

    def _count_off(self, seconds: float, now: float) -> None:
        """Discount the seconds that the process stood still until just now."""
        running = {c for each in self._partitions() if (c := each.hold.callback) is not None}
        self._stood_still = {
            callback: self._stood_still.get(callback, 0.0) + min(seconds, now - callback.since)
            for callback in running
        }

    def check_callbacks(self, now: float) -> None:
        """Report callbacks that take long, and give up those that hang."""
        partitions = list(self._partitions())
        self._slow.report_hangs(partitions, self._batch_timeout(), now, self._stood_still)
        for owned in partitions:
            callback = owned.hold.callback
            if callback is None:
                continue
            if now - callback.since - self._stood_still.get(callback, 0.0) <= self._limit:
                continue
            doing = snapshot_of(self._channel, owned, self._clock)
            if self._scheduler.seize(owned, callback):
                self._abandoned_worker(owned, doing)

    def _abandoned_worker(self, owned: OwnedPartition, doing: PartitionSnapshot) -> None:
        """Put a new thread in the place of the one that hangs; too many in a day are a failure."""
        self._workers.replace()
        self._abandoned_total.inc()
        now = self._clock.monotonic()
        self._abandoned.append((now, str(owned.partition)))
        while self._abandoned[0][0] < now - ABANDONED_WINDOW:
            self._abandoned.popleft()
        log.error("worker_abandoned", seconds=round(self._limit, 1), **doing.facts())
        if len(self._abandoned) > MAX_ABANDONED:
            self._fail(
                FatalError(
                    f"channel {self._channel}: callbacks hung for longer than batch_timeout on "
                    f"{', '.join(name for _, name in self._abandoned)} within a day; "
                    "the process has to be restarted"
                )
            )
