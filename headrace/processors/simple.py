"""SimpleKafkaProcessor: batches or single records go to a function, offsets follow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.records import offset_of
from headrace.core.user_text import describe_error
from headrace.processors.contract import BatchProcessor, BatchResponse, ChannelContext
from headrace.processors.sections import SimpleProcessorConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import ChannelConfig
    from headrace.core.clock import Clock
    from headrace.core.records import Batch, Record

log = structlog.get_logger(__name__)


class Deliver(Enum):
    """The argument of one call of the function."""

    BATCH = "batch"
    """A whole Batch."""

    RECORD = "record"
    """One Record after the other."""


@dataclass(frozen=True, slots=True)
class SimpleOptions:
    """The options of a SimpleKafkaProcessor.

    ``max_read_rate`` is in records per second for the whole member. ``delay``, in seconds, holds a
    record back until its own timestamp is that old.
    """

    deliver: Deliver = Deliver.BATCH
    max_read_rate: float | None = None
    delay: float = 0.0

    @classmethod
    def of(cls, chosen: SimpleProcessorConfig) -> SimpleOptions:
        """Return what the configuration says."""
        return cls(Deliver(chosen.deliver), chosen.max_read_rate, chosen.delay)


class RateLimit:
    """Spreads records over time: each taker is told how long to wait before the next batch."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._lock = Lock()
        self._free_at = 0.0

    def take(self, records: int) -> float:
        """Count ``records`` just read; return the seconds to wait. Any thread."""
        with self._lock:
            now = self._clock.monotonic()
            self._free_at = max(self._free_at, now) + records / self._per_second
            return self._free_at - now


class SimpleKafkaProcessor(BatchProcessor):
    """Hands what it gets to ``function`` and advances.

    In ``Deliver.RECORD``, a failure at some record commits what came before it and delivers that
    record again, alone, so that the channel's error policy concerns this record and no other.
    """

    def __init__(
        self, function: Callable[[Any], object], options: SimpleOptions | None = None
    ) -> None:
        self._function = function
        self._options = options or SimpleOptions()
        self._context: ChannelContext | None = None
        self._rate: RateLimit | None = None

    def open(self, context: ChannelContext) -> None:
        """Store the channel's clock and metrics."""
        self._context = context
        self._rate = self._limit(self._options.max_read_rate)

    def on_reconfigured(self, channel: ChannelConfig) -> None:
        """Apply another rate or delay."""
        if not isinstance(channel.processor, SimpleProcessorConfig):
            return
        former, self._options = self._options, SimpleOptions.of(channel.processor)
        if self._options.max_read_rate != former.max_read_rate and self._context is not None:
            self._rate = self._limit(self._options.max_read_rate)

    def _limit(self, per_second: float | None) -> RateLimit | None:
        assert self._context is not None
        return None if per_second is None else RateLimit(per_second, self._context.clock)

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Process what is old enough and advance past it."""
        ripe = self._ripe(batch)
        if ripe == 0:
            wait = max(0.0, self._ripens_in(batch.records[0]))
            return BatchResponse.revert(offset=batch.start, wait=wait)
        return self._process(batch, ripe)

    def _process(self, batch: Batch, ripe: int) -> BatchResponse:
        if self._options.deliver is Deliver.RECORD:
            return self._each(batch, ripe)
        if ripe < len(batch):
            return BatchResponse.revert(offset=batch.start, max_records=ripe)
        self._function(batch)
        return self._advance(batch, ripe)

    def _each(self, batch: Batch, ripe: int) -> BatchResponse:
        for index, record in enumerate(batch.records[:ripe]):
            try:
                with batch.span.record(record):
                    self._function(record)
            except Exception as error:
                if len(batch) == 1:
                    raise
                return self._isolate(batch, index, error)
        return self._advance(batch, ripe)

    def _isolate(self, batch: Batch, index: int, error: Exception) -> BatchResponse:
        """Retry the failing record in a batch of its own."""
        offset = offset_of(batch.records[index])
        log.warning(
            "record_failed",
            channel=self._channel,
            topic=batch.partition.topic,
            partition=batch.partition.partition,
            offset=offset,
            error=describe_error(error),
        )
        if index == 0:
            return BatchResponse.revert(offset=batch.start, max_records=1)
        return BatchResponse.advance(offset=offset, max_records=1)

    def _advance(self, batch: Batch, count: int) -> BatchResponse:
        rate = self._rate
        wait = rate.take(count) if rate is not None else 0.0
        if count == len(batch):
            return BatchResponse.advance(wait=wait)
        young = batch.records[count]
        return BatchResponse.advance(
            offset=offset_of(young), wait=max(wait, self._ripens_in(young))
        )

    def _ripe(self, batch: Batch) -> int:
        """Return how many records from the front are old enough."""
        if self._options.delay <= 0:
            return len(batch)
        for index, record in enumerate(batch.records):
            if self._ripens_in(record) > 0:
                return index
        return len(batch)

    def _ripens_in(self, record: Record) -> float:
        assert self._context is not None
        _, milliseconds = record.timestamp()
        return milliseconds / 1000 + self._options.delay - self._context.clock.time()

    @property
    def _channel(self) -> str:
        assert self._context is not None
        return self._context.channel


class CommitFirstProcessor(SimpleKafkaProcessor):
    """Commits before it calls the function: at most once.

    A record is lost rather than delivered twice, when the process ends between the two or when
    the function fails; failures are counted and logged.
    """

    def _process(self, batch: Batch, ripe: int) -> BatchResponse:
        if ripe < len(batch):
            return BatchResponse.revert(offset=batch.start, max_records=ripe)
        return self._advance(batch, ripe)

    def on_batch_processed(self, batch: Batch) -> None:
        """Call the function, now that the batch will not be delivered again."""
        for item, records in self._items(batch):
            try:
                self._function(item)
            except Exception as error:  # noqa: BLE001 - committed already: it can only be counted
                self._dropped(batch, records, error)

    def _items(self, batch: Batch) -> list[tuple[Batch | Record, int]]:
        if self._options.deliver is Deliver.BATCH:
            return [(batch, len(batch))]
        return [(record, 1) for record in batch.records]

    def _dropped(self, batch: Batch, records: int, error: Exception) -> None:
        assert self._context is not None
        topic, number = batch.partition
        self._context.metrics.skipped.labels(self._channel, topic, "failing").inc(records)
        log.error(
            "committed_records_failed",
            channel=self._channel,
            topic=topic,
            partition=number,
            records=records,
            error=describe_error(error),
        )
