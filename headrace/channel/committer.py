"""The thread that stores offsets: the newest of each partition, while its claim holds."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event, Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.news import Committed, Trouble
from headrace.channel.threads import guarded_thread
from headrace.clock import Clock, Deadline
from headrace.errors import CommitFailedError
from headrace.kafka.ports import StoredOffset

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.kafka.ports import OffsetStore
    from headrace.metrics import Metrics

log = structlog.get_logger(__name__)

#: Seconds one commit may take. Short of the 45 s that a synchronous commit of librdkafka blocks
#: for without a group coordinator, and long enough for a coordinator that moves.
COMMIT_TIMEOUT = 10.0

#: Seconds after which an unchanged offset is stored again. Brokers forget the offsets of a group
#: without subscribed members ``offsets.retention.minutes`` (a week by default, never less than a
#: minute) after each partition's last commit; an hour leaves room for brokers set to a day.
REFRESH_INTERVAL = 3600.0


@dataclass(frozen=True, slots=True)
class _Staged:
    """What one partition wants stored: its newest offset, numbered by the partition."""

    offset: int
    sequence: int


class Committer:
    """Owns the offset store and the loop that commits to it.

    ``stage``, ``flush`` and ``forget`` may be called on any thread and do not block.
    """

    def __init__(
        self,
        store: OffsetStore,
        *,
        interval: float,
        touch: Callable[[OwnedPartition], None],
        metrics: Metrics,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._interval = interval
        self._touch = touch
        self._metrics = metrics
        self._channel = channel
        self._clock = clock
        self._lock = Lock()
        self._staged: dict[OwnedPartition, _Staged] = {}
        self._stored_at: dict[OwnedPartition, float] = {}
        self._wake = Event()
        self._stopping = Event()
        self._thread = guarded_thread(f"{channel}-committer", self._run, fail)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stage(self, partition: OwnedPartition, offset: int, sequence: int) -> None:
        """Have ``offset`` stored with the next commit, in place of what was staged before it."""
        with self._lock:
            self._staged[partition] = _Staged(offset, sequence)
        if self._interval == 0:
            self._wake.set()

    def flush(self) -> None:
        """Commit now instead of at the end of the interval."""
        self._wake.set()

    def forget(self, partition: OwnedPartition) -> None:
        """Drop what is staged for a partition that ended."""
        with self._lock:
            self._staged.pop(partition, None)
            self._stored_at.pop(partition, None)

    def stop(self, deadline: Deadline) -> bool:
        """Commit what is staged, end the thread and close the store; False if it overran."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is None:
            self._store.close()
            return True
        self._thread.join(deadline.remaining)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wake.wait(self._interval or 1.0)
                self._wake.clear()
                self._store.serve()
                self._refresh()
                self._commit()
        finally:
            self._store.close()

    def _refresh(self) -> None:
        """Stage again what was stored so long ago that the broker might forget it."""
        before = self._clock.monotonic() - REFRESH_INTERVAL
        with self._lock:
            for partition, at in self._stored_at.items():
                if (
                    at < before
                    and partition not in self._staged
                    and partition.committed is not None
                ):
                    self._staged[partition] = _Staged(partition.committed, partition.staged)

    def _commit(self) -> None:
        """Store the offsets of every partition whose claim holds at this moment."""
        with self._lock:
            current = {p: staged for p, staged in self._staged.items() if p.may_commit()}
            for partition in current:
                del self._staged[partition]
        if not current:
            return
        lease = min(partition.claim.lease.remaining() for partition in current)
        deadline = Deadline.after(min(COMMIT_TIMEOUT, lease), self._clock)
        offsets = {p.partition: StoredOffset(s.offset, p.epoch) for p, s in current.items()}
        with self._metrics.stage(self._channel, "commit"):
            failures = self._store.commit(offsets, deadline)
        for partition, staged in current.items():
            reason = failures.get(partition.partition)
            if reason is None:
                self._succeeded(partition, staged)
            else:
                self._failed(partition, staged, reason)
            self._touch(partition)

    def _succeeded(self, partition: OwnedPartition, staged: _Staged) -> None:
        self._metrics.commits.labels(self._channel, partition.partition.topic).inc()
        with self._lock:
            if not partition.final:
                self._stored_at[partition] = self._clock.monotonic()
        partition.tell(Committed(staged.offset, staged.sequence))

    def _failed(self, partition: OwnedPartition, staged: _Staged, reason: str) -> None:
        """Keep it staged for the next interval, unless a newer offset was staged meanwhile."""
        self._metrics.commit_failures.labels(self._channel, partition.partition.topic).inc()
        log.warning(
            "commit_failed",
            channel=self._channel,
            topic=partition.partition.topic,
            partition=partition.partition.partition,
            offset=staged.offset,
            reason=reason,
        )
        with self._lock:
            if not partition.final:
                self._staged.setdefault(partition, staged)
        partition.tell(Trouble(CommitFailedError(partition.partition, staged.offset, reason)))
