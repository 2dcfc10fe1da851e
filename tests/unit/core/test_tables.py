from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.records import Batch, TopicPartition
from headrace.core.tables import SCHEMA, merge, table_of
from headrace.testing.records import (
    TIMESTAMP,
    FakeAssignment,
    FakeRecord,
    in_columns,
    make_batch,
)


def test_columns_are_those_of_sparks_kafka_source() -> None:
    """A record's parts arrive under the names and types that Spark's Kafka source uses."""
    record = FakeRecord(key_=b"k", value_=b"v", headers_=[("h", b"1"), ("n", None)])
    assignment = FakeAssignment(TopicPartition("a.topic-with.dots", 7))

    table = table_of(make_batch([record], assignment=assignment, start=41))

    assert table.schema == SCHEMA
    assert table.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "a.topic-with.dots",
            "partition": 7,
            "offset": 41,
            "timestamp": datetime.fromtimestamp(TIMESTAMP / 1000, UTC),
            "headers": [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
        }
    ]


def test_a_batch_without_records_is_a_table_without_rows() -> None:
    """A tick of a channel with state has none."""
    empty = Batch(FakeAssignment(TopicPartition("t", 0)), 5, (), 5, 0)
    assert table_of(empty).equals(SCHEMA.empty_table())


def test_absent_parts_of_a_record_are_null() -> None:
    """No key, no value, no headers and no timestamp are nulls, and empty bytes are not."""
    records = [FakeRecord(value_=None, timestamp_=-1), FakeRecord(key_=b"", value_=b"")]

    rows = table_of(make_batch(records)).to_pylist()

    assert [rows[0][name] for name in ("key", "value", "headers", "timestamp")] == [None] * 4
    assert (rows[1]["key"], rows[1]["value"]) == (b"", b"")


@pytest.mark.parametrize("columnar", [False, True])
def test_a_time_beyond_microseconds_is_null(*, columnar: bool) -> None:
    """The last millisecond in range is kept, and none becomes another time."""
    last = (2**63 - 1) // 1000
    times = [0, last, last + 1, 2**63 - 1, -(2**63), TIMESTAMP]
    records = [FakeRecord(timestamp_=time, offset_=at) for at, time in enumerate(times)]
    batch = make_batch(records)
    if columnar:
        batch = replace(batch, records=in_columns(batch.records, batch.partition))

    found = table_of(batch).column("timestamp").cast(pa.int64()).to_pylist()

    assert found == [0, last * 1000, None, None, None, TIMESTAMP * 1000]


def test_the_clients_own_messages_fit() -> None:
    """Messages of confluent-kafka become rows, a large value among them."""
    large = b"x" * (1 << 20)
    messages: list[Any] = [
        Message("t", 3, offset, b"k", value, None, None, (1, TIMESTAMP))
        for offset, value in enumerate([b"v", None, large])
    ]
    assignment = FakeAssignment(TopicPartition("t", 3))

    table = table_of(Batch(assignment, 0, messages, 3, len(large) + 1))

    assert table.column("value").to_pylist() == [b"v", None, large]
    assert table.column("offset").to_pylist() == [0, 1, 2]


def test_records_of_several_classes_fit() -> None:
    """A batch may hold records of different classes."""

    class Other(FakeRecord):
        pass

    table = table_of(make_batch([FakeRecord(value_=b"1")]))
    mixed = Batch(
        FakeAssignment(), 0, [FakeRecord(value_=b"1"), Other(offset_=1, value_=b"2")], 2, 2
    )

    assert table.num_rows == 1
    assert table_of(mixed).column("value").to_pylist() == [b"1", b"2"]


def test_gaps_between_offsets_stay() -> None:
    """Offsets are the records' own where compaction left gaps."""
    records = [FakeRecord(offset_=offset, value_=b"v") for offset in (5, 9, 30)]

    table = table_of(make_batch(records, start=3))

    assert table.column("offset").to_pylist() == [5, 9, 30]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 6))
def test_merge_keeps_rows_in_order_in_few_even_chunks(sizes: list[int], chunks: int) -> None:
    """Merged tables have all rows in order, in at most the chunks asked for, none of them empty."""
    tables = []
    offset = 0
    for size in sizes:
        tables.append(table_of(make_batch([b"v"] * size, start=offset)))
        offset += size

    merged = merge(tables, chunks)

    assert merged.column("offset").to_pylist() == list(range(offset))
    lengths = [len(batch) for batch in merged.to_batches()]
    assert len(lengths) <= chunks
    assert min(lengths) > 0
    assert max(lengths) <= -(-offset // chunks)


@pytest.mark.parametrize("with_headers", [True, False])
def test_merge_of_tables_with_and_without_headers(with_headers: bool) -> None:
    """Batches merge whether or not their records have headers."""
    headers = [("h", b"1")] if with_headers else None
    tables = [
        table_of(make_batch([FakeRecord(value_=b"v", headers_=headers)])),
        table_of(make_batch([b"v"], start=1)),
    ]

    merged = merge(tables, 2)

    assert merged.schema == SCHEMA
    assert isinstance(merged, pa.Table)
    assert merged.column("headers").null_count == (1 if with_headers else 2)


#: Makes a table of records that came in columns, and prints whether anything imported pandas.
_FIRST_TABLE = """
import sys
from array import array

import pyarrow as pa

from headrace.core.columns import SCHEMA, ColumnRun
from headrace.core.records import Batch, TopicPartition
from headrace.core.tables import merge, table_of
from headrace.testing.records import FakeAssignment


def numbers(kind, code, values):
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


ends = pa.py_buffer(array("i", [0, 1, 3]))
text = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"abc")])
columns = [
    text,
    text,
    numbers(pa.int64(), "q", [7, 9]),
    numbers(pa.int64(), "q", [-1, 1]),
    numbers(pa.int8(), "b", [0, 1]),
    pa.nulls(2, SCHEMA.field("headers").type),
]
piece = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
run = ColumnRun(TopicPartition("events", 3), [piece])
table = merge([table_of(Batch(FakeAssignment(run.partition), 7, run, 10, 3))], 2)
sizes = [len(record) for record in run]
print(sizes, table.select(["topic", "partition", "offset"]).to_pylist())
print(table.column("timestamp").cast(pa.int64()).to_pylist())
print("pandas" in sys.modules)
"""


def test_records_in_columns_become_a_table_without_pandas() -> None:
    """Arrow imports it for any object of Python's, which takes a second of a worker's thread."""
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_TABLE], capture_output=True, text=True, timeout=60, check=True
    )
    rows, times, pandas = done.stdout.splitlines()
    first, second = (f"{{'topic': 'events', 'partition': 3, 'offset': {n}}}" for n in (7, 9))
    assert rows == f"[1, 2] [{first}, {second}]"
    assert times == "[None, 1000]"
    assert pandas == "False"
