"""Offsets of a channel on their way into the store, which commits them.

The stores are kafka/offsets.py, and coordinators/offset_nodes.py for ZooKeeper.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from threading import Event, Lock
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.channel.events import OffsetCommitted, PartitionErrorEvent
from headrace.core.clock import Clock, Deadline
from headrace.core.errors import CommitFailedError
from headrace.core.spans import NO_SPAN
from headrace.core.supervision import PeriodicThread
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import CommitRefusal
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.channel.partition import OwnedPartition
    from headrace.channel.topics import KnownTopics
    from headrace.core.records import Batch
    from headrace.core.spans import Span
    from headrace.kafka.ports import CommitFailure, OffsetStore, StoredOffset
    from headrace.telemetry.metrics import Metrics


log = structlog.get_logger(__name__)

#: Seconds between two looks at the offsets of all partitions that are held: one request, answered
#: from the coordinator's memory. A wrong offset stands for as long at most, while the owner lives.
CHECK_INTERVAL = 5.0

#: Seconds after which a look is too old to commit upon.
FRESH = 1.0

#: Seconds that a look may take. Commits wait after it.
CHECK_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class AcknowledgedOffsets:
    """The offset that the store last confirmed of one partition, and when (monotonic seconds)."""

    offset: int
    epoch: int
    sequence: int
    at: float
    leader_epoch: int | None = None


class OffsetVerdict(Enum):
    """The verdict on a stored offset. The values are labels of a metric."""

    INTACT = "intact"
    """It is what we stored."""
    MISSING = "missing"
    """There is none: it expired, or was deleted. It is stored again."""
    LATE = "late"
    """An earlier commit of this claim was executed after a later one. It is stored again."""
    STALE = "stale"
    """A former owner's commit came after ours. It is stored again."""
    FOREIGN = "foreign"
    """Another program stored it. It is stored again."""
    SUPERSEDED = "superseded"
    """It has a higher epoch: the partition has a new owner, and it is not us."""


def judge(
    stored: StoredOffset | None, believed: AcknowledgedOffsets, *, in_doubt: bool
) -> OffsetVerdict:
    """Compare what is stored with what we stored.

    ``in_doubt``: a commit of ours is to be tried again. Then an offset of our own epoch may be
    its first try, and whatever it is, the next one replaces it.
    """
    if stored is None:
        return OffsetVerdict.MISSING
    if stored.epoch > believed.epoch:
        return OffsetVerdict.SUPERSEDED
    if stored.epoch == 0:
        return OffsetVerdict.FOREIGN
    if stored.epoch < believed.epoch:
        return OffsetVerdict.STALE
    return (
        OffsetVerdict.INTACT if in_doubt or stored.offset == believed.offset else OffsetVerdict.LATE
    )


class OffsetGuard:
    """Looks at the stored offsets now and then. Used by the committer's thread."""

    def __init__(self, store: OffsetStore, *, metrics: Metrics, channel: str, clock: Clock) -> None:
        self._store = store
        self._metrics = metrics
        self._channel = channel
        self._clock = clock
        self._looked_at = clock.monotonic()

    def is_due(self, *, before_commit: bool) -> bool:
        """Return whether it is time to look: at an interval, and earlier when a commit is to
        follow.
        """
        age = self._clock.monotonic() - self._looked_at
        return age >= (FRESH if before_commit else CHECK_INTERVAL)

    def find_changed(
        self,
        believed: Mapping[OwnedPartition, AcknowledgedOffsets],
        staged: Collection[OwnedPartition],
    ) -> Mapping[OwnedPartition, OffsetVerdict]:
        """Return what is not as we stored it; each is logged and counted. Blocks.

        ``staged`` are the partitions of which another commit is to come.
        """
        self._looked_at = self._clock.monotonic()
        if not believed:
            return {}
        deadline = Deadline.after(CHECK_TIMEOUT, self._clock)
        try:
            found = self._store.read_many([owned.partition for owned in believed], deadline)
        except OffsetStoreError as error:
            # commits fail likewise, loudly; the next look tells what came of them
            log.info("offset_check_failed", channel=self._channel, reason=str(error))
            return {}
        findings = {}
        for owned, acknowledged in believed.items():
            stored = found.get(owned.partition)
            finding = judge(stored, acknowledged, in_doubt=owned in staged)
            if finding is not OffsetVerdict.INTACT:
                findings[owned] = finding
                self._report(owned, acknowledged, stored, finding)
        return findings

    def _report(
        self,
        owned: OwnedPartition,
        acknowledged: AcknowledgedOffsets,
        stored: StoredOffset | None,
        finding: OffsetVerdict,
    ) -> None:
        topic = owned.partition.topic
        self._metrics.foreign_commits.labels(self._channel, topic, finding.value).inc()
        log.warning(
            "foreign_commit_found",
            **{**owned.life.log_fields, "epoch": acknowledged.epoch},
            finding=finding.value,
            offset=acknowledged.offset,
            stored_offset=None if stored is None else stored.offset,
            stored_epoch=None if stored is None else stored.epoch,
            stored_by=None if stored is None else stored.by,
        )


T = TypeVar("T")


#: Seconds one commit may take. Short of the 45 s that a synchronous commit of librdkafka blocks
#: for without a group coordinator, and long enough for a coordinator that moves.
COMMIT_TIMEOUT = 10.0

#: Seconds without a turn after which the thread counts as hung. A turn looks and commits once, and
#: each of these has a deadline; what outlasts three of both does not keep to it.
STALL_TIMEOUT = 3 * (COMMIT_TIMEOUT + CHECK_TIMEOUT)

#: Seconds after which an unchanged offset is stored again. Brokers forget the offsets of a group
#: without subscribed members ``offsets.retention.minutes`` (a week by default, never less than a
#: minute) after each partition's last commit; an hour leaves room for brokers set to a day.
REFRESH_INTERVAL = 3600.0

#: Batches of one partition whose traces show the commit that they share; the others show none.
MOST_SPANS = 16


@dataclass(frozen=True, slots=True)
class _Staged:
    """The newest offset that one partition wants stored, numbered by the partition.

    ``leader_epoch`` is one under which the log was seen to lead to the offset. ``spans`` are those
    of batches whose commit this is.
    """

    offset: int
    sequence: int
    leader_epoch: int | None = None
    spans: tuple[Span, ...] = ()


class Committer(PeriodicThread):
    """Owns the offset store and the loop that commits to it.

    ``flush`` and ``forget`` may be called on any thread; these and ``enqueue`` do not block.
    ``lose`` is told of partitions that turn out to be another member's. ``interval`` is in seconds,
    and is asked for each time. Offsets of missing topics stay staged: a commit with one of them
    fails as a whole.
    """

    def __init__(
        self,
        store: OffsetStore,
        topics: KnownTopics,
        *,
        interval: Callable[[], float],
        touch: Callable[[OwnedPartition], None],
        lose: Callable[[OwnedPartition, CommitRefusal], None],
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
        self._acknowledged: dict[OwnedPartition, AcknowledgedOffsets] = {}
        self._commit_at = 0.0
        self._last_beat = clock.monotonic()
        self._wake = Event()
        super().__init__(f"{channel}-committer", fail)

    @property
    def last_beat(self) -> float:
        return self._last_beat

    @property
    def stall_timeout(self) -> float | None:
        return STALL_TIMEOUT if self._thread.is_alive() else None

    def enqueue(
        self,
        partition: OwnedPartition,
        offset: int,
        batch: Batch | None = None,
        span: Span = NO_SPAN,
    ) -> int:
        """Stage ``offset`` for the next commit, in place of what was staged before it.

        That commit comes at once where a caller waits for the partition to rest or to end: it has
        no other turn until it is committed. ``batch`` is kept until then, and ``span`` is that of
        the batch that advanced to it. For the partition's holder.

        Returns:
            the offset's number among those of the partition that are staged.
        """
        sequence = partition.pending_commits.enqueue(batch)
        with self._lock:
            spans: tuple[Span, ...] = (span,) if span.recording else ()
            before = self._staged.get(partition)
            if before is not None and before.spans:
                spans = (*before.spans, *spans)[:MOST_SPANS]
            epoch = partition.progress.leader_epoch_at(offset)
            self._staged[partition] = _Staged(offset, sequence, epoch, spans)
        # asked after the staging: a pause or an ending that begins only now flushes by itself
        if self._interval() == 0 or partition.is_urgent:
            self._wake.set()
        return sequence

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
        if self._thread.ident is None:
            self._store.close()
        return super().stop(deadline)

    def _wake_up(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        time = self._metrics.thread_time(self._channel, ThreadRole.COMMITTER)
        try:
            while not self._stopping.is_set():
                flushed = self._wake.wait(self.until_next_pass())
                with time.during(ThreadActivity.COMMIT):
                    self.run_once(flushed=flushed)
        finally:
            self._metrics.forget_thread(time)
            self._store.close()

    def until_next_pass(self) -> float:
        """Return the seconds to the next look at what is stored or the next commit, if sooner."""
        interval = self._interval() or 1.0
        commit_in = self._commit_at - self._clock.monotonic()
        return min(interval, CHECK_INTERVAL, commit_in if commit_in > 0 else interval)

    def run_once(self, *, flushed: bool) -> None:
        """Check what is stored, and commit what is staged if it is due. Blocks.

        For the committer's thread, and for tests that have no such thread.
        """
        self._last_beat = self._clock.monotonic()
        with self._lock:
            # one that came when the wait was just over counts, too
            flushed = flushed or self._wake.is_set()
            self._wake.clear()
        self._store.serve()
        self._refresh()
        with self._lock:
            before_commit = bool(self._staged) and self._commits(flushed=flushed)
        if self._guard.is_due(before_commit=before_commit):
            self._check_stored()
        if self._commits(flushed=flushed):
            self._commit_at = self._clock.monotonic() + self._interval()
            self._commit()

    def _commits(self, *, flushed: bool) -> bool:
        """Return whether this turn commits."""
        return flushed or self._clock.monotonic() >= self._commit_at

    def _refresh(self) -> None:
        """Stage again what was stored so long ago that the broker might forget it."""
        before = self._clock.monotonic() - REFRESH_INTERVAL
        with self._lock:
            for partition, known in self._acknowledged.items():
                if known.at < before:
                    self._staged.setdefault(partition, _staged_again(known))

    def _check_stored(self) -> None:
        """Store again what another client changed, and drop partitions of other members.

        What is staged for a partition is newer than what was found, and fixes it as well. Its
        commit asks the claim's lease like any other: only an owner repairs.
        """
        with self._lock:
            believed, staged = self._existing(self._acknowledged), set(self._staged)
        for partition, finding in self._guard.find_changed(believed, staged).items():
            if finding is OffsetVerdict.SUPERSEDED:
                self._lose(partition, CommitRefusal.CLAIM)
                self.forget(partition)
                continue
            known = believed[partition]
            with self._lock:
                if partition in self._acknowledged:
                    self._staged.setdefault(partition, _staged_again(known))
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
        lease = min(partition.life.claim.lease.remaining() for partition in current)
        deadline = Deadline.after(min(COMMIT_TIMEOUT, lease), self._clock)
        commits = {
            p: p.life.claim.commit(staged.offset, p.life.topic_id, staged.leader_epoch)
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
            if not partition.life.final:
                self._acknowledged[partition] = AcknowledgedOffsets(
                    staged.offset, epoch, staged.sequence, now, staged.leader_epoch
                )
        partition.post(OffsetCommitted(staged.offset, staged.sequence))

    def _failed(self, partition: OwnedPartition, staged: _Staged, failure: CommitFailure) -> None:
        """Keep it staged for the next interval, unless a newer offset was staged meanwhile."""
        self._metrics.commit_failures.labels(self._channel, partition.partition.topic).inc()
        log.warning(
            "commit_failed",
            **partition.life.log_fields,
            offset=staged.offset,
            reason=failure.reason,
            refusal=failure.refusal.value,
        )
        if failure.refusal is not CommitRefusal.NONE:
            self._lose(partition, failure.refusal)
            self.forget(partition)
            return
        if failure.topic_missing:
            self._topics.request_check()
        with self._lock:
            if not partition.life.final:
                self._staged.setdefault(partition, staged)
        partition.post(PartitionErrorEvent(_error(partition, staged, failure)))


def _staged_again(known: AcknowledgedOffsets) -> _Staged:
    return _Staged(known.offset, known.sequence, known.leader_epoch)


def _error(partition: OwnedPartition, staged: _Staged, failure: CommitFailure) -> CommitFailedError:
    return CommitFailedError(partition.partition, staged.offset, failure.reason)
