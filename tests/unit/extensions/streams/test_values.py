from __future__ import annotations

import json
import math
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.extensions.streams.decode import check_codec, decode_values
from headrace.extensions.streams.encode import encode_rows
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.rows import Field, Row, field
from tests.unit.extensions.streams.test_columns import ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping


class Plain(Row):
    text: Field[str]
    number: Field[float | None] = field(name="no-1")
    count: Field[int] = field(default=7)


class Holder(Row):
    plain: Field[Plain]
    lists: Field[list[list[int]] | None]
    rows: Field[list[Plain] | None]


class Bytes(Row):
    data: Field[bytes]


class Text(Row):
    data: Field[str]


def columns_of(values: list[bytes | None], row: type[Row], *names: str, codec: str = "json") -> Any:
    """Return decoded fields as lists by their names, and the places at fault with the reasons."""
    array = pa.array(values, pa.binary())
    found = decode_values(array, row, names or tuple(row.__fields__), codec)
    lists = {
        node.name: values.to_pylist()
        for node, values in found.columns.items()
        if isinstance(node, FieldNode)
    }
    return lists, dict(found.faults)


def test_a_missing_field_has_its_default_or_null_or_is_a_fault() -> None:
    """Default and null stand in for a field; a record without either is named, no tombstone is."""
    values = [b'{"text": "a", "no-1": 1.5, "count": 2}', b'{"text": "b"}', b'{"no-1": 1}', None]
    columns, faults = columns_of(values, Plain)
    assert columns["number"] == [1.5, None, 1.0, None]
    assert columns["count"][:2] == [2, 7]
    assert list(faults) == [2]
    assert faults[2].startswith("field text is missing or null; declare str | None")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (b'{"text": 1}', "field text"),
        (b'{"text": "a", "count": "1"}', "field count"),
        (b'{"text": "a", "count": 1.5}', "field count"),
        (b'{"text": "a", "count": 9223372036854775808}', "field count"),
        (b'{"text": "a", "no-1": true}', "field no-1"),
        (b'["a"]', "a JSON object is expected"),
        (b"", "is empty"),
        (b'{"text": "a"', "at byte 12"),
        (b'{"text": "\xff"}', "no UTF-8"),
    ],
)
def test_a_value_of_another_type_is_a_fault_among_good_ones(value: bytes, part: str) -> None:
    """The place and the reason are told, and records before and after it are read."""
    columns, faults = columns_of([b'{"text": "a"}', value, b'{"text": "b"}'], Plain)
    assert list(faults) == [1]
    assert part in faults[1]
    assert [columns["text"][0], columns["text"][2]] == ["a", "b"]


def test_a_field_that_is_not_in_use_is_not_read() -> None:
    """A wrong type in a field that no expression names is no fault."""
    columns, faults = columns_of([b'{"text": "a", "count": "x"}'], Plain, "text")
    assert (columns, faults) == ({"text": ["a"]}, {})


def test_no_field_in_use_reads_no_value() -> None:
    """Values that are no JSON are no fault where only keys and times are used."""
    found = decode_values(pa.array([b"\xff"]), Plain, [])
    assert (found.columns, found.faults) == ({}, {})


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (b'{"plain": {"no-1": 1}}', "field plain.text is missing"),
        (b'{"plain": {"text": "a"}, "lists": [[1], [null]]}', "field lists[] has a null"),
        (b'{"plain": {"text": "a"}, "lists": [null]}', "field lists has a null"),
        (b'{"plain": {"text": "a"}, "rows": [{"text": "b"}, {}]}', "field rows[].text is missing"),
        (b"{}", "field plain is missing"),
    ],
)
def test_a_part_that_is_missing_inside_is_a_fault(value: bytes, part: str) -> None:
    """Fields of inner rows and items of lists are complete, or the record is named."""
    good = b'{"plain": {"text": "a"}, "lists": [[], [1, 2]], "rows": [{"text": "x"}]}'
    columns, faults = columns_of([good, value, good], Holder)
    assert list(faults) == [1]
    assert faults[1].startswith(part)
    assert columns["rows"][2] == [{"text": "x", "number": None, "count": 7}]
    assert columns["lists"][2] == [[], [1, 2]]


def test_codecs_other_than_json_have_one_field() -> None:
    """Bytes and text are the whole value; what is no UTF-8 is a fault."""
    assert columns_of([b"\xff", None], Bytes, codec="bytes") == ({"data": [b"\xff", None]}, {})
    columns, faults = columns_of([b"\xff", b"a"], Text, codec="string")
    assert columns == {"data": [None, "a"]}
    assert list(faults) == [0]
    check_codec("bytes", Bytes, "x")
    for codec, row in [("bytes", Text), ("string", Plain), ("json", Bytes), ("avro", Text)]:
        with pytest.raises(TypeError, match=r"^stream 'x': "):
            check_codec(codec, row, "stream 'x'")


class Written(Row):
    i: Field[int | None]
    f: Field[float | None]
    t: Field[str | None]
    b: Field[bool | None]
    d: Field[Decimal | None] = field(scale=2)
    m: Field[datetime | None]
    texts: Field[list[str] | None]
    numbers: Field[list[float] | None]


@given(st.lists(ROWS, max_size=6))
def test_rows_come_back_from_json_as_they_were(rows: list[Mapping[str, Any]]) -> None:
    """Rows that are written are read again equal, and only numbers that JSON lacks are faults."""
    columns = {
        name: pa.array([row[name] for row in rows], each.type.arrow())
        for name, each in Written.__fields__.items()
    }
    written = encode_rows(Written, columns, len(rows))
    infinite = {
        place
        for place, row in enumerate(rows)
        if any(
            each is not None and not math.isfinite(each)
            for each in [row["f"], *(row["numbers"] or [])]
        )
    }
    assert set(written.faults) == infinite
    kept = [place for place in range(len(rows)) if place not in infinite]
    for place in kept:
        json.loads(written.values[place].as_py())
    found = decode_values(written.values.take(pa.array(kept, pa.int64())), Written, columns)
    assert not found.faults
    for node, values in found.columns.items():
        assert isinstance(node, FieldNode)
        expected = columns[node.name].take(pa.array(kept, pa.int64()))
        assert values.to_pylist() == expected.to_pylist()
