"""Callbacks and batches that take long: the log says what they hang in before they are given up."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import structlog

from headrace.channel.activity import activity_of
from headrace.stacks import log_stacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.channel.callbacks import RunningCallback
    from headrace.channel.partition import OwnedPartition

log = structlog.get_logger(__name__)

#: The part of ``batch_timeout`` after which a callback or a batch counts as slow. Early enough for
#: somebody to look while it hangs, late enough for what only takes its time.
SHARE = 0.5

#: Seconds between two dumps of all threads: what hangs may have a hundred partitions hang with it.
DUMP_INTERVAL = 300.0


class SlowReports:
    """Logs each hang once. Used by one thread, again and again.

    All threads are logged with the first, but no more often than each ``DUMP_INTERVAL``: what the
    stuck one waits for is done, or not done, by another.
    """

    def __init__(self, channel: str) -> None:
        self._channel = channel
        #: What was told already, by partition: since when the callback runs, the batch's deadline.
        self._told: dict[int, tuple[float | None, float | None]] = {}
        self._next_dump = -inf

    def look(
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
        told: dict[int, tuple[float | None, float | None]] = {}
        for owned in partitions:
            slow = (
                _slow_callback(owned, timeout, now, stood_still),
                _slow_batch(owned, timeout, now),
            )
            callback, batch = self._told.get(id(owned), (None, None))
            if slow[0] is not None and slow[0] != callback:
                self._report_callback(owned, now)
            elif slow[0] is None and slow[1] is not None and slow[1] != batch:
                self._report_batch(owned, now, slow[1] - timeout)
            if slow != (None, None):
                told[id(owned)] = slow
        self._told = told

    def _report_callback(self, owned: OwnedPartition, now: float) -> None:
        log.warning("worker_stuck", **activity_of(self._channel, owned, now).facts())
        self._dump("worker_stuck", now)

    def _report_batch(self, owned: OwnedPartition, now: float, since: float) -> None:
        """Report a batch that the processor answers later, on a thread that we do not know."""
        doing = activity_of(self._channel, owned, now).facts()
        log.warning("batch_stuck", seconds=round(now - since, 1), **doing)
        self._dump("batch_stuck", now)

    def _dump(self, because: str, now: float) -> None:
        if now >= self._next_dump:
            self._next_dump = now + DUMP_INTERVAL
            log_stacks(because)


def _slow_callback(
    owned: OwnedPartition,
    timeout: float,
    now: float,
    stood_still: Mapping[RunningCallback, float],
) -> float | None:
    callback = owned.callback
    if callback is None:
        return None
    seconds = now - callback.since - stood_still.get(callback, 0.0)
    return callback.since if seconds > timeout * SHARE else None


def _slow_batch(owned: OwnedPartition, timeout: float, now: float) -> float | None:
    """Return the deadline of the oldest batch, where more than its share is over."""
    try:
        oldest = owned.outstanding[0]
    except IndexError:  # answered just now
        return None
    left = oldest.deadline - now
    return oldest.deadline if not oldest.answer.done() and left < timeout * (1 - SHARE) else None
