"""The thread that stores offsets: the newest of each partition, while its claim holds."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event, Lock
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.channel.news import Committed, Trouble
from headrace.channel.offset_guard import (
    CHECK_INTERVAL,
    CHECK_TIMEOUT,
    Acknowledged,
    Finding,
    OffsetGuard,
)
from headrace.channel.threads import guarded_thread
from headrace.clock import Clock, Deadline
from headrace.errors import CommitFailedError
from headrace.kafka.ports import Refusal
from headrace.spans import NO_SPAN
from headrace.thread_time import Activity, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.channel.known_topics import KnownTopics
    from headrace.channel.partition import OwnedPartition
    from headrace.kafka.ports import Failure, OffsetStore
    from headrace.metrics import Metrics
    from headrace.spans import Span

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: Seconds one commit may take. Short of the 45 s that a synchronous commit of librdkafka blocks
#: for without a group coordinator, and long enough for a coordinator that moves.
COMMIT_TIMEOUT = 10.0

#: Seconds without a turn after which the thread counts as hung. A turn looks and commits once, and
#: each of these has a deadline; what outlasts three of both does not keep to it.
TURN_LIMIT = 3 * (COMMIT_TIMEOUT + CHECK_TIMEOUT)

#: Seconds after which an unchanged offset is stored again. Brokers forget the offsets of a group
#: without subscribed members ``offsets.retention.minutes`` (a week by default, never less than a
#: minute) after each partition's last commit; an hour leaves room for brokers set to a day.
REFRESH_INTERVAL = 3600.0

#: Batches of one partition whose traces show the commit that they share; the others show none.
MOST_SPANS = 16


@dataclass(frozen=True, slots=True)
class _Staged:
    """What one partition wants stored: its newest offset, numbered by the partition.

    ``leader_epoch`` is one under which the log was seen to lead to the offset. ``spans`` are those
    of batches whose commit this is.
    """

    offset: int
    sequence: int
    leader_epoch: int | None = None
    spans: tuple[Span, ...] = ()


class Committer:
    """Owns the offset store and the loop that commits to it.

    ``stage``, ``flush`` and ``forget`` may be called on any thread and do not block. ``lose`` is
    told of partitions that turn out to be somebody else's. ``interval`` is in seconds, and is asked
    for each time. Offsets of missing topics stay staged:
    a commit with one of them fails as a whole.
    """

    def __init__(
        self,
        store: OffsetStore,
        topics: KnownTopics,
        *,
        interval: Callable[[], float],
        touch: Callable[[OwnedPartition], None],
        lose: Callable[[OwnedPartition, Refusal], None],
        metrics: Metrics,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._interval = interval
        self._touch = touch
        self._lose = lose
        self._metrics = metrics
        self._channel = channel
        self._clock = clock
        self._guard = OffsetGuard(store, metrics=metrics, channel=channel, clock=clock)
        self._lock = Lock()
        self._staged: dict[OwnedPartition, _Staged] = {}
        self._acknowledged: dict[OwnedPartition, Acknowledged] = {}
        self._commit_at = 0.0
        self._turned_at = clock.monotonic()
        self._wake = Event()
        self._stopping = Event()
        self._thread = guarded_thread(f"{channel}-committer", self._run, fail)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def last_turn(self) -> float:
        """Monotonic time of the last sign of progress."""
        return self._turned_at

    @property
    def turn_limit(self) -> float | None:
        """Seconds within which there has to be another turn; None unless it runs."""
        return TURN_LIMIT if self._thread.is_alive() else None

    def stage(
        self, partition: OwnedPartition, offset: int, sequence: int, span: Span = NO_SPAN
    ) -> None:
        """Have ``offset`` stored with the next commit, in place of what was staged before it.

        That commit comes at once where somebody waits for the partition to rest or to end: it has
        no other turn until it is committed. ``span`` is that of the batch that advanced to it.
        """
        with self._lock:
            spans: tuple[Span, ...] = (span,) if span.recording else ()
            before = self._staged.get(partition)
            if before is not None and before.spans:
                spans = (*before.spans, *spans)[:MOST_SPANS]
            epoch = partition.leader_epoch_at(offset)
            self._staged[partition] = _Staged(offset, sequence, epoch, spans)
        # asked behind the staging: a pause or an ending that begins only now flushes by itself
        if self._interval() == 0 or partition.hurries:
            self._wake.set()

    def flush(self) -> None:
        """Commit now instead of at the end of the interval."""
        with self._lock:
            self._wake.set()

    def forget(self, partition: OwnedPartition) -> None:
        """Drop what is staged for a partition that ended."""
        with self._lock:
            self._staged.pop(partition, None)
            self._acknowledged.pop(partition, None)

    def stop(self, deadline: Deadline) -> bool:
        """Commit what is staged, end the thread and close the store; False if it overran."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is None:
            self._store.close()
        return deadline.joined(self._thread)

    def _run(self) -> None:
        time = self._metrics.thread_time(self._channel, Role.COMMITTER)
        try:
            while not self._stopping.is_set():
                flushed = self._wake.wait(self.until_next_turn())
                with time.during(Activity.COMMIT):
                    self.turn(flushed=flushed)
        finally:
            self._metrics.forget_thread(time)
            self._store.close()

    def until_next_turn(self) -> float:
        """Return the seconds to the next look at what is stored or the next commit, if sooner."""
        interval = self._interval() or 1.0
        commit_in = self._commit_at - self._clock.monotonic()
        return min(interval, CHECK_INTERVAL, commit_in if commit_in > 0 else interval)

    def turn(self, *, flushed: bool) -> None:
        """Do what is due: look at what is stored, and commit what is staged. Blocks.

        For the committer's thread, and for tests that have no such thread.
        """
        self._turned_at = self._clock.monotonic()
        with self._lock:
            # one that came when the wait was just over counts, too
            flushed = flushed or self._wake.is_set()
            self._wake.clear()
        self._store.serve()
        self._refresh()
        with self._lock:
            before_commit = bool(self._staged) and self._commits(flushed=flushed)
        if self._guard.is_due(before_commit=before_commit):
            self._look()
        if self._commits(flushed=flushed):
            self._commit_at = self._clock.monotonic() + self._interval()
            self._commit()

    def _commits(self, *, flushed: bool) -> bool:
        """Whether this turn commits."""
        return flushed or self._clock.monotonic() >= self._commit_at

    def _refresh(self) -> None:
        """Stage again what was stored so long ago that the broker might forget it."""
        before = self._clock.monotonic() - REFRESH_INTERVAL
        with self._lock:
            for partition, known in self._acknowledged.items():
                if known.at < before:
                    self._staged.setdefault(partition, _again(known))

    def _look(self) -> None:
        """Store again what somebody else changed, and let go of what is somebody else's.

        What is staged for a partition is newer than what was found, and mends it as well. Its
        commit asks the claim's lease like any other: only an owner repairs.
        """
        with self._lock:
            believed, staged = self._existing(self._acknowledged), set(self._staged)
        for partition, finding in self._guard.look(believed, staged).items():
            if finding is Finding.SUPERSEDED:
                self._lose(partition, Refusal.CLAIM)
                self.forget(partition)
                continue
            known = believed[partition]
            with self._lock:
                if partition in self._acknowledged:
                    self._staged.setdefault(partition, _again(known))
            self._commit_at = 0.0

    def _existing(self, items: Mapping[OwnedPartition, T]) -> dict[OwnedPartition, T]:
        missing = self._topics.is_missing
        return {p: item for p, item in items.items() if not missing(p.partition.topic)}

    def _commit(self) -> None:
        """Store the offsets of every partition whose claim holds at this moment."""
        with self._lock:
            existing = self._existing(self._staged)
            current = {p: staged for p, staged in existing.items() if p.may_commit()}
            for partition in current:
                del self._staged[partition]
        if not current:
            return
        lease = min(partition.claim.lease.remaining() for partition in current)
        deadline = Deadline.after(min(COMMIT_TIMEOUT, lease), self._clock)
        commits = {
            p: p.claim.commit(staged.offset, p.topic_id, staged.leader_epoch)
            for p, staged in current.items()
        }
        spans = {
            p: [span.child("commit", offset=staged.offset) for span in staged.spans]
            for p, staged in current.items()
        }
        with self._metrics.stage(self._channel, "commit"):
            failures = self._store.commit({p.partition: c for p, c in commits.items()}, deadline)
        for partition, staged in current.items():
            failure = failures.get(partition.partition)
            for span in spans[partition]:
                span.end(None if failure is None else _error(partition, staged, failure))
            if failure is None:
                self._succeeded(partition, staged, commits[partition].epoch)
            else:
                self._failed(partition, staged, failure)
            self._touch(partition)

    def _succeeded(self, partition: OwnedPartition, staged: _Staged, epoch: int) -> None:
        self._metrics.commits.labels(self._channel, partition.partition.topic).inc()
        now = self._clock.monotonic()
        with self._lock:
            if not partition.final:
                self._acknowledged[partition] = Acknowledged(
                    staged.offset, epoch, staged.sequence, now, staged.leader_epoch
                )
        partition.tell(Committed(staged.offset, staged.sequence))

    def _failed(self, partition: OwnedPartition, staged: _Staged, failure: Failure) -> None:
        """Keep it staged for the next interval, unless a newer offset was staged meanwhile."""
        self._metrics.commit_failures.labels(self._channel, partition.partition.topic).inc()
        log.warning(
            "commit_failed",
            channel=self._channel,
            topic=partition.partition.topic,
            partition=partition.partition.partition,
            epoch=partition.epoch,
            offset=staged.offset,
            reason=failure.reason,
            refusal=failure.refusal.value,
        )
        if failure.refusal is not Refusal.NONE:
            self._lose(partition, failure.refusal)
            self.forget(partition)
            return
        if failure.topic_missing:
            self._topics.look()
        with self._lock:
            if not partition.final:
                self._staged.setdefault(partition, staged)
        partition.tell(Trouble(_error(partition, staged, failure)))


def _again(known: Acknowledged) -> _Staged:
    return _Staged(known.offset, known.sequence, known.leader_epoch)


def _error(partition: OwnedPartition, staged: _Staged, failure: Failure) -> CommitFailedError:
    return CommitFailedError(partition.partition, staged.offset, failure.reason)
