"""Looking at records as they pass: copies of some, which delay no delivery."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.core.errors import Refusal, RefusedError
from headrace.core.records import offset_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.clock import Clock
    from headrace.core.records import Batch, Record, TopicPartition

log = structlog.get_logger(__name__)

#: Taps of one channel at a time.
MOST_TAPS = 4

#: Records a second that a tap may show.
MOST_PER_SECOND = 1000.0

#: Records of a batch that are looked at for a key: more would take a worker's time.
_LOOKED_AT = 1000

#: Records that wait to be shown, and bytes of their keys, values and headers.
_QUEUED_RECORDS = 1000
_QUEUED_BYTES = 4 << 20

#: Bytes of a key, a value or a header that are copied.
MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TapFilter:
    """The records that a tap shows: all, a partition's, or those with a key. ``rate`` a second."""

    partition: TopicPartition | None = None
    key: bytes | None = None
    rate: float = 10.0


@dataclass(frozen=True, slots=True)
class TappedRecord:
    """A record as it was handed to the processor. What is longer than ``MOST_BYTES`` is cut.

    ``attempt`` counts the deliveries of its batch, ``timestamp`` is in milliseconds.
    """

    partition: TopicPartition
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value_bytes: int | None
    attempt: int

    @classmethod
    def of(cls, partition: TopicPartition, record: Record, attempt: int) -> TappedRecord:
        """Return a copy."""
        kind, time = record.timestamp()
        value = record.value()
        return cls(
            partition,
            offset_of(record),
            time if kind else None,
            _cut(record.key()),
            _cut(value),
            tuple((name, _cut(data)) for name, data in record.headers() or ()),
            None if value is None else len(value),
            attempt,
        )

    @property
    def size(self) -> int:
        """Return what it takes, in bytes."""
        parts = (self.key, self.value, *(data for _, data in self.headers))
        return sum(len(each) for each in parts if each is not None)


def _cut(data: bytes | None) -> bytes | None:
    return None if data is None else data[:MOST_BYTES]


@dataclass(slots=True)
class TapCounts:
    """The counts of a channel's records since a tap was opened, by what became of them.

    ``passed`` are all. Of those ``unseen`` were not looked at for their key, ``over_rate`` were not
    copied because of the rate, ``dropped`` because those before were not fetched.
    """

    passed: int = 0
    shown: int = 0
    unseen: int = 0
    over_rate: int = 0
    dropped: int = 0


class Tap:
    """One look at a channel. ``offer`` is for workers, ``take`` for who looks; any thread."""

    def __init__(self, wanted: TapFilter, by: str, clock: Clock) -> None:
        self.wanted = wanted
        self.by = by
        self._clock = clock
        self._lock = Lock()
        self._queue: deque[TappedRecord] = deque()
        self._bytes = 0
        self._counts = TapCounts()
        self._allowed = max(1.0, wanted.rate)
        self._refilled = clock.monotonic()

    def offer(self, batch: Batch) -> None:
        """Copy some of a batch's records; does not block."""
        wanted, records = self.wanted, batch.records
        if wanted.partition not in {None, batch.partition}:
            return
        unseen = max(0, len(records) - _LOOKED_AT) if wanted.key is not None else 0
        fitting: Sequence[Record] = records
        if wanted.key is not None:
            fitting = [each for each in islice(records, _LOOKED_AT) if each.key() == wanted.key]
        with self._lock:
            count = min(len(fitting), self._allowance())
            self._allowed -= count
            self._counts.passed += len(records)
            self._counts.unseen += unseen
            self._counts.over_rate += len(fitting) - count
        # spread over the batch: its first ones alone would be of one producer, or one key
        step = len(fitting) / count if count else 0
        for place in range(count):
            self._queue_copy(
                TappedRecord.of(batch.partition, fitting[int(place * step)], batch.attempt)
            )

    def _allowance(self) -> int:
        now = self._clock.monotonic()
        rate = self.wanted.rate
        self._allowed = min(max(1.0, rate), self._allowed + (now - self._refilled) * rate)
        self._refilled = now
        return int(self._allowed)

    def _queue_copy(self, record: TappedRecord) -> None:
        size = record.size
        with self._lock:
            if len(self._queue) >= _QUEUED_RECORDS or self._bytes + size > _QUEUED_BYTES:
                self._counts.dropped += 1
                return
            self._queue.append(record)
            self._bytes += size

    def take(self, most: int | None = None) -> list[TappedRecord]:
        """Return what has come, the oldest first, and no more than ``most``."""
        with self._lock:
            count = len(self._queue) if most is None else min(most, len(self._queue))
            found = [self._queue.popleft() for _ in range(count)]
            self._bytes -= sum(each.size for each in found)
            self._counts.shown += len(found)
            return found

    @property
    def counts(self) -> TapCounts:
        """Return what became of the records so far."""
        with self._lock:
            counts = self._counts
            return TapCounts(
                counts.passed, counts.shown, counts.unseen, counts.over_rate, counts.dropped
            )


class Taps:
    """The taps of one channel. False while there is none, which is all that delivery asks then."""

    def __init__(self, channel: str, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._lock = Lock()
        self._taps: tuple[Tap, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._taps)

    def open(self, wanted: TapFilter, by: str) -> Tap:
        """Start copying records; ``by`` names the user in the log.

        Raises:
            RefusedError: there are enough taps.
        """
        tap = Tap(wanted, by, self._clock)
        with self._lock:
            if len(self._taps) >= MOST_TAPS:
                others = ", ".join(sorted({each.by for each in self._taps}))
                raise RefusedError(
                    Refusal.TAP_REFUSED,
                    f"channel {self._channel} has {len(self._taps)} taps already, of {others}",
                    value=self._channel,
                    next_step="wait until one of them ends",
                )
            self._taps = (*self._taps, tap)
        partition = None if wanted.partition is None else str(wanted.partition)
        log.info("tap_opened", channel=self._channel, by=by, partition=partition, rate=wanted.rate)
        return tap

    def close(self, tap: Tap) -> None:
        """End a tap; harmless where it has ended."""
        with self._lock:
            if tap not in self._taps:
                return
            self._taps = tuple(each for each in self._taps if each is not tap)
        counts = tap.counts
        log.info(
            "tap_closed",
            channel=self._channel,
            by=tap.by,
            passed=counts.passed,
            shown=counts.shown,
            dropped=counts.dropped,
        )

    def offer(self, batch: Batch) -> None:
        """Show a batch to all taps. What goes wrong with one ends it, and never the batch."""
        for tap in self._taps:
            try:
                tap.offer(batch)
            except Exception:
                log.exception("tap_failed", channel=self._channel, by=tap.by)
                self.close(tap)
