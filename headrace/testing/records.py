"""Records, batches and assignments made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.columns import SCHEMA, ColumnRun
from headrace.core.records import Batch, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.core.records import Record

#: When every made-up record was produced, in milliseconds since the Unix epoch.
TIMESTAMP = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class FakeRecord:
    """A record without a broker. Its fields are attributes with an underscore after the name."""

    topic_: str = "events"
    partition_: int = 0
    offset_: int = 0
    key_: bytes | None = None
    value_: bytes | None = b""
    headers_: Sequence[tuple[str, bytes | None]] | None = None
    timestamp_: int = TIMESTAMP

    def topic(self) -> str:
        return self.topic_

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def key(self) -> bytes | None:
        return self.key_

    def value(self) -> bytes | None:
        return self.value_

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None if self.headers_ is None else list(self.headers_)

    def timestamp(self) -> tuple[int, int]:
        """Return (1, milliseconds), or (0, -1) for a record without a time."""
        return (1, self.timestamp_) if self.timestamp_ >= 0 else (0, -1)

    def __len__(self) -> int:
        return len(self.value_ or b"")


@dataclass(slots=True, eq=False)
class FakeAssignment:
    """A partition held without a coordinator. Set ``current`` to False to take it away."""

    partition: TopicPartition = field(default_factory=lambda: TopicPartition("events", 0))
    identity: str = ""
    epoch: int = 1
    position: int = 0
    committed: int | None = 0
    high_watermark: int | None = None
    current: bool = True
    transactional_id: str | None = None
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        self.identity = self.identity or f"cluster/group/id/{self.partition}"

    @property
    def delivery_end(self) -> int | None:
        """Return the end of the log: it has no bound."""
        return self.high_watermark

    def is_current(self) -> bool:
        """Return ``current``."""
        return self.current


def make_batch(
    values: Iterable[bytes | FakeRecord | None],
    *,
    assignment: FakeAssignment | None = None,
    start: int = 0,
    next_offset: int | None = None,
    attempt: int = 1,
) -> Batch:
    """Return a batch of consecutive records from ``start`` on, one for each value.

    A FakeRecord among the values keeps its key, headers, timestamp and, if it is not 0, offset.
    """
    held = assignment or FakeAssignment()
    records = [_record(value, held.partition, start + index) for index, value in enumerate(values)]
    end = records[-1].offset() + 1 if records else start
    size = sum(map(len, records))
    return Batch(held, start, records, end if next_offset is None else next_offset, size, attempt)


def in_columns(
    records: Sequence[Record], partition: TopicPartition, *, pieces: int = 1
) -> ColumnRun:
    """Return records of one partition in columns, as they come from a broker; at least one.

    In so many pieces of even size, or one for each record where there are fewer.
    """
    step = -(-len(records) // pieces)
    return ColumnRun(
        partition,
        [_piece(records[start : start + step]) for start in range(0, len(records), step)],
    )


def _piece(records: Sequence[Record]) -> pa.RecordBatch:
    times = [record.timestamp() for record in records]
    columns = [
        [record.key() for record in records],
        [record.value() for record in records],
        [record.offset() for record in records],
        [milliseconds for _, milliseconds in times],
        [kind for kind, _ in times],
        # as the client has it: no headers are none
        [record.headers() or None for record in records],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _record(value: bytes | FakeRecord | None, where: TopicPartition, offset: int) -> FakeRecord:
    if not isinstance(value, FakeRecord):
        return FakeRecord(where.topic, where.partition, offset, value_=value)
    return FakeRecord(
        where.topic,
        where.partition,
        value.offset_ or offset,
        value.key_,
        value.value_,
        value.headers_,
        value.timestamp_,
    )
