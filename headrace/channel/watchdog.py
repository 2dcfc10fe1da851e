"""The thread that reports callbacks that hang, and gives up on them in the end, so that one
partition stops no other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import structlog

from headrace.channel.activity import activity_of
from headrace.channel.slow import SlowReports
from headrace.channel.threads import Patrol
from headrace.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.channel.activity import Activity
    from headrace.channel.callbacks import RunningCallback
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.workers import Workers
    from headrace.clock import Clock
    from headrace.metrics import Metrics

log = structlog.get_logger(__name__)

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


class Watchdog(Patrol):
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
        self._slow = SlowReports(channel)
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
            self.look(looked)

    def _count_off(self, seconds: float, now: float) -> None:
        """Take it that the process stood still for so many seconds until just now."""
        running = {c for each in self._partitions() if (c := each.callback) is not None}
        self._stood_still = {
            callback: self._stood_still.get(callback, 0.0) + min(seconds, now - callback.since)
            for callback in running
        }

    def look(self, now: float) -> None:
        """Report callbacks that take long, and give up those that hang."""
        partitions = list(self._partitions())
        self._slow.look(partitions, self._batch_timeout(), now, self._stood_still)
        for owned in partitions:
            callback = owned.callback
            if callback is None:
                continue
            if now - callback.since - self._stood_still.get(callback, 0.0) <= self._limit:
                continue
            doing = activity_of(self._channel, owned, now)
            if self._scheduler.seize(owned, callback):
                self._abandoned_worker(owned, doing)

    def _abandoned_worker(self, owned: OwnedPartition, doing: Activity) -> None:
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
