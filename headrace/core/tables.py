"""Records as Arrow tables, and what becomes of their values there.

The columns are those of Spark's Kafka source, built without a loop per record.

Records that came in columns stay in them. Of others, 100,000 of 160 bytes take about 0.05 s on one
core; all of it may run on a worker thread while the previous micro-batch is in Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import HEADERS, POOL, ColumnRun, constant, integer
from headrace.core.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.core.decoders import CustomDecoder
    from headrace.core.records import Batch, Record

    #: Calls the method of that name on every record of a batch, in order.
    Each = Callable[[str], Iterator[Any]]

#: The columns of every micro-batch by value. Spark keeps microseconds, so the conversion from
#: Kafka's milliseconds is done here, once, instead of in the hand-over.
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS),
    ]
)

#: Where the record's own fields are found beside the schema's columns, and which these are.
KAFKA_COLUMN = "_kafka"
KAFKA_FIELDS = ("key", "topic", "partition", "offset", "timestamp", "headers")


class Decoding(Enum):
    """The way a record's value becomes columns."""

    NONE = "none"
    """Not at all: the columns are those of Spark's Kafka source."""

    JSON = "json"
    """One JSON object to a value, read by a schema."""

    JSON_SCHEMA = "json_schema"
    """The same in the frame of a schema registry."""

    CUSTOM = "custom"
    """One mapping to a value, which a decoder of users' own returns."""


class Timestamps(Enum):
    """The form of a ``TIMESTAMP`` in JSON."""

    ISO = "iso"
    """As text, by ISO 8601, as in 2013-01-02T03:04:05.678Z."""

    SECONDS = "seconds"
    """As the number of seconds since 1970 in UTC, which may have a fraction."""

    MILLIS = "millis"
    """As the number of milliseconds."""

    MICROS = "micros"
    """As the number of microseconds."""


#: The bounds of times in JSON, in microseconds since 1970: the years from 1 to 9999, in UTC. Python
#: has no others, and no client of a database takes them.
FIRST_MICROSECOND = -62_135_596_800_000_000
LAST_MICROSECOND = 253_402_300_799_999_999

#: What to do about an undecodable record.
FIX_UNDECODABLE = (
    "fix the schema or the producer, write rejects.undecodable: dead_letter, or skip, which "
    "leaves such records out"
)


class OnUndecodable(Enum):
    """The policy for a record whose value does not fit the schema."""

    FAIL = "fail"
    """The batch fails with an UndecodableRecordError that names the record."""

    SKIP = "skip"
    """The record is left out, counted and logged."""

    DEAD_LETTER = "dead_letter"
    """The record is left out, and in the dead-letter topic before the others are stored."""


@dataclass(frozen=True, slots=True)
class Decode:
    """The decoding of values.

    ``schema`` is a DDL string; ``custom`` decodes for CUSTOM and JSON_SCHEMA, and ``timestamps`` is
    for JSON and JSON_SCHEMA.
    """

    kind: Decoding = Decoding.NONE
    schema: str | None = None
    on_undecodable: OnUndecodable = OnUndecodable.FAIL
    custom: CustomDecoder | None = None
    timestamps: Timestamps = Timestamps.ISO


_MICROSECONDS = integer(1000, pa.int64())
_ZERO = integer(0, pa.int64())
_UNKNOWN = pa.nulls(1, pa.int64())[0]

#: The last millisecond whose microseconds are a number of 64 bits, in the year 294247.
_LAST_MILLISECOND = integer((2**63 - 1) // 1000, pa.int64())


def table_of(batch: Batch) -> pa.Table:
    """Return the batch's records with the columns of :data:`SCHEMA`. Any thread.

    In one chunk, or in those that the records came in (``BatchProcessor.in_columns``); then keys,
    values and headers are not copied, and what keeps a slice of them keeps the fetched memory.
    """
    if isinstance(batch.records, ColumnRun):
        pieces = [_rows(piece, batch.partition) for piece in batch.records.pieces]
        return pa.Table.from_batches(pieces, schema=SCHEMA)
    if not batch.records:
        return SCHEMA.empty_table()
    records, count = batch.records, len(batch)
    each = _reader(records)
    columns = [
        _array(each("key"), pa.binary()),
        _array(each("value"), pa.binary()),
        *_place_columns(batch.partition, count),
        _offsets(batch, each),
        _timestamps(_array(map(itemgetter(1), each("timestamp")), pa.int64())),
        _headers(each, count),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _rows(piece: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch:
    """Return a piece of a run with the columns of :data:`SCHEMA`."""
    columns = [
        piece.column("key"),
        piece.column("value"),
        *_place_columns(partition, piece.num_rows),
        piece.column("offset"),
        _timestamps(piece.column("timestamp")),
        piece.column("headers"),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _place_columns(partition: TopicPartition, count: int) -> tuple[pa.Array, pa.Array]:
    """Return the columns that are the same in every record of a partition."""
    topic = constant(pa.string(), partition.topic.encode())
    number = integer(partition.partition, pa.int32())
    return tuple(pa.repeat(each, count, memory_pool=POOL) for each in (topic, number))


def merge(tables: Sequence[pa.Table], chunks: int) -> pa.Table:
    """Return the rows of all tables in at most ``chunks`` chunks of even size.

    Every chunk becomes one Spark task; the chunks as they came, one for each batch, would become
    as many small tasks.
    """
    rows = sum(table.num_rows for table in tables)
    step = max(1, -(-rows // chunks))
    whole = pa.concat_tables(tables).combine_chunks(memory_pool=POOL)
    batches = [
        part for start in range(0, rows, step) for part in whole.slice(start, step).to_batches()
    ]
    return pa.Table.from_batches(batches, schema=SCHEMA)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, which is a copy only where it has several."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def with_kafka_column(rows: pa.StructArray, table: pa.Table) -> pa.Table:
    """Return decoded rows as columns, with the fields of the records that they are of."""
    own = [whole(table.column(name)) for name in KAFKA_FIELDS]
    names: list[Any] = [each.name for each in rows.type]
    fields = pa.StructArray.from_arrays(own, names=list(KAFKA_FIELDS))
    return pa.Table.from_arrays([*rows.flatten(), fields], names=[*names, KAFKA_COLUMN])


def _reader(records: Sequence[Record]) -> Each:
    """Return what calls one method of every record.

    Through their class where all have the same: that takes a third less.
    """
    kinds = set(map(type, records))
    if len(kinds) > 1:
        return lambda method: map(methodcaller(method), records)
    kind = kinds.pop()
    return lambda method: map(getattr(kind, method), records)


def _array(values: Iterator[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(list(values), kind, memory_pool=POOL)


def _offsets(batch: Batch, each: Each) -> pa.Array:
    """Return the records' offsets; they rise, so where none is missing the ends say them all."""
    first, last = batch.first_offset, batch.last_offset
    if last - first + 1 == len(batch):
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(batch), memory_pool=POOL)
        return pc.cumulative_sum(ones, start=first - 1, memory_pool=POOL)
    return _array(each("offset"), pa.int64())


def _timestamps(millis: pa.Array) -> pa.Array:
    """Return the records' times, null for those that are none.

    The client says -1 where the broker kept none. A producer may send any number of 64 bits, and
    one beyond what microseconds can say would come out as a time that looks like another.
    """
    is_known = pc.and_(
        pc.greater_equal(millis, _ZERO, memory_pool=POOL),
        pc.less_equal(millis, _LAST_MILLISECOND, memory_pool=POOL),
        memory_pool=POOL,
    )
    known = pc.if_else(is_known, millis, _UNKNOWN, memory_pool=POOL)
    micros = pc.multiply(known, _MICROSECONDS, memory_pool=POOL)
    return micros.cast(SCHEMA.field("timestamp").type, memory_pool=POOL)


def _headers(each: Each, count: int) -> pa.Array:
    if not any(each("headers")):
        return pa.nulls(count, HEADERS, memory_pool=POOL)
    return _array(each("headers"), HEADERS)


_LEFT_OUT = b"headrace.left_out"


def with_left_out(result: pa.Table, records: pa.Table) -> pa.Table:
    """Return a result that says which records nothing was made of, by choice."""
    named = ("topic", "partition", "offset")
    found = list(zip(*(records.column(name).to_pylist() for name in named), strict=True))
    return result.replace_schema_metadata({_LEFT_OUT: json.dumps(found).encode()})


def left_out(result: object) -> Mapping[TopicPartition, Sequence[int]]:
    """Return the offsets that :func:`with_left_out` put there, by partition."""
    metadata = result.schema.metadata if isinstance(result, pa.Table) else None
    found: dict[TopicPartition, list[int]] = {}
    for topic, partition, offset in json.loads((metadata or {}).get(_LEFT_OUT, b"[]")):
        found.setdefault(TopicPartition(topic, partition), []).append(offset)
    return found
