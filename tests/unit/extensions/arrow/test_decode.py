from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError, UndecodableRecordError
from headrace.core.records import TopicPartition
from headrace.core.tables import Decode, Decoding, OnUndecodable, Timestamps
from headrace.extensions.arrow.decode import ArrowDecoder, parse_ddl
from headrace.testing import FakeRecord, records_table

if TYPE_CHECKING:
    from headrace.extensions.arrow.decode import Decoded


def decoded(schema: str, *values: bytes | None, skip: bool = False) -> Decoded:
    """Decode values of partition 0."""
    how = OnUndecodable.SKIP if skip else OnUndecodable.FAIL
    return ArrowDecoder(Decode(Decoding.JSON, schema, how)).apply(records_table(values))


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("id BIGINT, name STRING", [("id", pa.int64()), ("name", pa.string())]),
        ("a: int", [("a", pa.int32())]),
        ("`a b` Double , c DECIMAL(10,2)", [("a b", pa.float64()), ("c", pa.decimal128(10, 2))]),
        ("a DECIMAL, b DEC(5)", [("a", pa.decimal128(10, 0)), ("b", pa.decimal128(5, 0))]),
        ("t TIMESTAMP, d DATE", [("t", pa.timestamp("us", tz="UTC")), ("d", pa.date32())]),
        (
            "s STRUCT<x: INT, l: ARRAY<ARRAY<STRING>>>",
            [("s", pa.struct([("x", pa.int32()), ("l", pa.list_(pa.list_(pa.string())))]))],
        ),
    ],
)
def test_columns_are_read_as_spark_reads_them(ddl: str, columns: list[tuple[str, Any]]) -> None:
    """Names, types and what is inside of them, in any case."""
    assert parse_ddl(ddl) == pa.schema(columns)


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("", "a column's name is expected in place of the end"),
        ("a", "a type is expected in place of the end"),
        ("a INT,", "a column's name"),
        ("a INT b INT", "'b' is not expected"),
        ("a INTT", "INTT is not a type that is read from JSON; there are BOOLEAN"),
        ("a MAP<STRING, INT>", "MAP is not a type"),
        ("a ARRAY<INT", "'>' is missing"),
        ("a DECIMAL(x)", "'x' is no number"),
        ("a DECIMAL(40)", "no such digits"),
        ("a INT, a INT", "'a' is there twice"),
        ("a INT; b", "'; b' is not understood"),
    ],
)
def test_a_malformed_decode_schema_is_explained(ddl: str, told: str) -> None:
    """The message has the schema and the reason."""
    with pytest.raises(ConfigError) as raised:
        parse_ddl(ddl)
    assert f"decode schema {ddl!r} is not a list of columns" in str(raised.value)
    assert told in str(raised.value)


def test_a_reserved_name_is_refused() -> None:
    """The record's own fields need their place, and a schema has to be given."""
    for schema, told in [("_kafka INT", "reserved name '_kafka'"), (None, "needs a schema")]:
        with pytest.raises(ConfigError, match=told):
            ArrowDecoder(Decode(Decoding.JSON, schema))


def test_fields_become_columns_next_to_the_metadata() -> None:
    """The schema decides on types; other fields are ignored, and a tombstone gives nulls."""
    schema = "n INT, at TIMESTAMP, day DATE, cost DECIMAL(5,2), s STRUCT<days: ARRAY<DATE>>"
    whole = (
        b'{"n": 1, "at": "2013-01-02T03:04:05.678+01:00", "day": "2013-01-02", "cost": 1.5,\n'
        b' "s": {"days": ["2013-01-03"]}, "more": [1, {"a": 2}]}'
    )

    table = decoded(schema, whole, None, b"{}").table

    assert table.column_names == ["n", "at", "day", "cost", "s", "_kafka"]
    assert table.schema.field("day").type == pa.date32()
    first, tombstone, empty = table.to_pylist()
    assert (first["n"], str(first["cost"]), first["s"]["days"][0].day) == (1, "1.50", 3)
    assert first["at"].isoformat() == "2013-01-02T02:04:05.678000+00:00"
    assert [tombstone[name] for name in table.column_names[:-1]] == [None] * 5
    assert (empty["n"], empty["_kafka"]["offset"]) == (None, 2)
    assert set(first["_kafka"]) == {"key", "topic", "partition", "offset", "timestamp", "headers"}


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"rubbish",
        b"null",
        b"[1]",
        b"1",
        b'{"n": "1"}',
        b'{"n": 1.5}',
        b'{"n": 3000000000}',
        b'{"n": 1} {"n": 2}',
        b'{"n": 1}}\n{"v":{"n": 2}',
        b'{"s": "\xff"}',
        b'{"day": "tomorrow"}',
        b'{"n": 1',
        b'{"c": 1000}',
    ],
)
def test_a_record_that_does_not_fit_is_named_or_left_out(bad: bytes) -> None:
    """A value that does not fit costs no other record its row or its offset."""
    schema = "n INT, s STRING, day DATE, c DECIMAL(5,2)"
    values = [b'{"n": 1}', b"{}", bad, b'{"n": 4}', None]
    with pytest.raises(UndecodableRecordError, match="record at offset 2: the value does not fit"):
        decoded(schema, *values)

    found = decoded(schema, *values, skip=True)

    rows = [(row["_kafka"]["offset"], row["n"]) for row in found.table.to_pylist()]
    assert rows == [(0, 1), (1, None), (3, 4), (4, None)]
    assert found.skipped == {TopicPartition("events", 0): [2]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ("v DECIMAL(12, 2)", '"19.99"', '"19,99"'),
        ("v TIMESTAMP", '"2026-03-29T10:00:00Z"', "1774778400000"),
        ("v TIMESTAMP", '"9999-12-31"', '"9999-12-31T23:59:59-01:00"'),
        ("v TIMESTAMP_NTZ", '"2026-03-29T01:30:00"', '"2026-03-29T01:30:00+02:00"'),
        ("v DATE", '"0001-01-01"', '"0000-01-01"'),
    ],
)
def test_a_number_or_time_is_taken_for_no_other(schema: str, good: str, bad: str) -> None:
    """A number or time of another meaning is undecodable, in structs and lists as well."""
    name, kind = schema.split(maxsplit=1)
    for form, shape in (
        ("%s", kind),
        ('{"x": %s}', f"STRUCT<x: {kind}>"),
        ("[%s]", f"ARRAY<{kind}>"),
    ):
        values = [f'{{"v": {form % value}}}'.encode() for value in (good, bad, good)]
        found = decoded(f"{name} {shape}", *values, None, skip=True)
        assert list(found.skipped.values()) == [[1]]
        assert found.table["v"].null_count == 1


def test_moments_as_numbers_keep_their_microseconds() -> None:
    """Each unit is cut to whole microseconds, below zero as well."""
    for unit, text in (
        ("seconds", "-1.5000019"),
        ("millis", "-1500.0019"),
        ("micros", "-1500001.9"),
    ):
        how = Decode(Decoding.JSON, "at TIMESTAMP", timestamps=Timestamps(unit))
        table = ArrowDecoder(how).apply(records_table([f'{{"at": {text}}}'.encode()])).table
        assert table["at"].cast(pa.int64()).to_pylist() == [-1500001]


def test_bad_records_are_told_by_partition() -> None:
    """Several of several partitions are all left out, also where nothing else is."""
    table = records_table([FakeRecord(partition_=p, value_=b"x") for p in (0, 1, 0)])
    how = Decode(Decoding.JSON, "n INT", OnUndecodable.SKIP)

    found = ArrowDecoder(how).apply(table)

    assert found.table.num_rows == 0
    assert found.table.schema.field("n").type == pa.int32()
    assert found.skipped == {TopicPartition("events", 0): [0, 1], TopicPartition("events", 1): [0]}


def test_without_decoding_the_table_is_as_it_was() -> None:
    """The reducer sees bytes."""
    table = records_table([b"x"])
    assert ArrowDecoder(Decode()).apply(table).table is table


@pytest.mark.parametrize(
    "value",
    [
        b'{"id":1},"w":{"id":5}',
        b'{"id":1} , "w":{"id":5}',
        b'{"id":1}\n,\t"w":5',
        b'{"id":1},"w":[{"id":5}]',
        b'{"id":1},"list":[{"id":1}',
        b'{"id":1},"w":[{"id":1}',
        b'{"id":1},"w":{"x":1',
        b'{"id":1},"w":"',
        b'{"id":1},"w":"\\',
        b'{"id":1},"v":{"id":5}',
        b'{"id":1}}\n{"v":{"id":2}',
        b'{"id":1},"w":2}\n{"v":{"id":2},"w":3',
        b'{"id":1}],"w":[{"id":5}',
        b'{"id":1},"list":[1]}\n{"v":{"id":1},"list":[{"id":1}',
        b'{"id":1},',
        b'{"id":1} {"id":2}',
    ],
)
def test_a_value_of_several_json_documents_is_undecodable(value: bytes) -> None:
    """Text after the first document makes a value undecodable, in any batch."""
    nested = b'{"id": 7, "more": {"x": [{}, {"y": "},\\""}]}, "id2": 1}'
    for before, after in (([], []), ([nested], [nested]), ([b'{"id":8}'], [b'{"id":9}'])):
        found = decoded("id BIGINT", *before, value, *after, skip=True)
        assert list(found.skipped.values()) == [[len(before)]]
        assert found.table.num_rows == len(before) + len(after)


_PIECES = [
    ',"w":1',
    ',"w":',
    ',"list":[',
    '{"v":',
    "}",
    "{",
    "]",
    "[",
    ",",
    " ",
    '"',
    "\\",
    "\n",
    "1",
    "{}",
]


@given(st.lists(st.sampled_from(_PIECES), max_size=8).map("".join))
def test_a_value_is_decoded_only_if_it_is_a_document_to_python(rest: str) -> None:
    """A value that is decoded is one JSON object, whatever text follows an object."""
    value = '{"id":"a"}' + rest
    if decoded("id STRING", value.encode(), skip=True).table.num_rows:
        assert isinstance(json.loads(value), dict)


_MIXED: list[bytes | None] = [
    b'{"n": 1, "s": "a"}', b"{}", None, b"", b" ", b"rubbish", b'{"n": "1"}', b'{"n": 1, "n": 2}',
    b'{"n": 1} {"n": 2}', b'{"d": NaN}', b'{"s": "\xff"}', b'{"n": 3000000000}', b"null",
]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(_MIXED), min_size=1, max_size=40), st.integers(1, 20))
def test_values_are_read_together_as_each_is_alone(some: list[bytes | None], times: int) -> None:
    """Neighbours do not change a value's row, its offset, or whether it is decoded."""
    values, schema = some * times, "n INT, s STRING, d DOUBLE"
    alone = {value: decoded(schema, value, skip=True).table.num_rows for value in set(some)}

    found = decoded(schema, *values, skip=True)

    kept = [place for place, value in enumerate(values) if alone[value]]
    assert [row["_kafka"]["offset"] for row in found.table.to_pylist()] == kept
    skipped = [place for place in range(len(values)) if place not in set(kept)]
    assert found.skipped == ({TopicPartition("events", 0): skipped} if skipped else {})
    rows = found.table.to_pylist()
    assert all((row["n"], row["s"]) == (1, "a") for row in rows if row["s"] == "a")
