"""What a channel does to the records of a round: processors and reducers."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, cast

import orjson
from confluent_kafka import Message

from benchmarks.summing import value_bytes
from headrace.core.tables import table_of
from headrace.processors import BatchProcessor, BatchResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from benchmarks.peer_sides.wire import Meter
    from headrace.config import Config
    from headrace.core.records import Batch, Record
    from headrace.spark import MicroBatch


#: The client's own way to a value, which is faster than a look-up on each record.
_VALUE = cast("Callable[[Record], bytes]", Message.value)


class Round:
    """The round that runs in this process. One thread counts: a lane, or the only worker."""

    def __init__(self) -> None:
        self.meter: Meter
        self.finished = Event()

    def begin(self, meter: Meter) -> None:
        """Begin a new one."""
        self.meter = meter
        self.finished.clear()

    def took(self, complete: bool) -> None:
        """Note whether all have come."""
        if complete:
            self.finished.set()


#: Of this process.
ROUND = Round()


class Summing(BatchProcessor):
    """Sums the values' lengths."""

    in_columns = True

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Sum one batch."""
        ROUND.took(ROUND.meter.lengths(len(batch), value_bytes(table_of(batch))))
        return BatchResponse.advance()


class CountingKeys(BatchProcessor):
    """Counts JSON by its field ``key``."""

    in_columns = True

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Count one batch."""
        loads = orjson.loads
        keys = [loads(value)["key"] for value in table_of(batch)["value"].to_pylist()]
        ROUND.took(ROUND.meter.each_key(keys, len(keys)))
        return BatchResponse.advance()


class SummingRecords(BatchProcessor):
    """Sums the values' lengths, record by record."""

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Sum one batch."""
        ROUND.took(ROUND.meter.lengths(len(batch), sum(map(len, batch.records))))
        return BatchResponse.advance()


class CountingKeysOfRecords(BatchProcessor):
    """Counts JSON by its field ``key``, record by record."""

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Count one batch."""
        loads = orjson.loads
        keys = [loads(value)["key"] for value in map(_VALUE, batch.records)]
        ROUND.took(ROUND.meter.each_key(keys, len(keys)))
        return BatchResponse.advance()


def sum_in_arrow(table: pa.Table, batch: MicroBatch) -> None:
    """Sum the values' lengths."""
    ROUND.took(ROUND.meter.lengths(batch.records, value_bytes(table)))


def count_in_arrow(table: pa.Table, batch: MicroBatch) -> None:
    """Count by key."""
    del batch
    counted = table.group_by("key").aggregate([([], "count_all")])
    keys, counts = counted["key"].to_pylist(), counted["count_all"].to_pylist()
    ROUND.took(ROUND.meter.key_counts(dict(zip(keys, counts, strict=True))))


def sum_in_spark(df: DataFrame, batch: MicroBatch) -> None:
    """Sum the values' lengths."""
    total = df.selectExpr("sum(octet_length(value)) as total").collect()[0]["total"]
    ROUND.took(ROUND.meter.lengths(batch.records, total))


def count_in_spark(df: DataFrame, batch: MicroBatch) -> None:
    """Count by key."""
    del batch
    counts = {row["key"]: row["count"] for row in df.groupBy("key").count().collect()}
    ROUND.took(ROUND.meter.key_counts(counts))


def for_round(config: Config, topic: str, group: str) -> Config:
    """Return the configuration with the channel on another topic and in another group."""
    channel = config.channels["bench"]
    changed = channel.model_copy(update={"topics": (topic,), "group": group})
    return config.model_copy(update={"channels": {"bench": changed}})
