from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.formats.derived import json_schema
from headrace.formats.errors import SchemaRefusedError
from headrace.formats.json_encoder import JsonEncoder
from headrace.formats.pieces import Misfits


def encoded(schema: Any, rows: pa.StructArray) -> tuple[list[Any], list[str]]:
    """Return the objects of rows, and what JSON or the schema cannot hold."""
    misfits = Misfits()
    made = JsonEncoder(schema, rows.type).values(rows, misfits)
    return [json.loads(each) for each in made.to_pylist()], misfits.sentences()


def test_values_of_each_type_are_written_as_json_has_them() -> None:
    """Numbers, texts with quotes, times, lists, maps and structs come back by a reader of JSON."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    rows = pa.StructArray.from_arrays(
        [
            pa.array([True, False]),
            pa.array([-5, 1 << 40]),
            pa.array([1.0, 2.5e-9]),
            pa.array([Decimal("1.50"), Decimal("-2.00")], pa.decimal128(10, 2)),
            pa.array(['say "Tür"\n', ""]),
            pa.array(["a", "a"]).dictionary_encode(),
            pa.array([date(2026, 1, 2), date(1, 1, 1)]),
            pa.array([time(1, 2, 3), time(0)], pa.time64("us")),
            pa.array([moment, moment], pa.timestamp("us", tz="UTC")),
            pa.array([["x", None], []]),
            pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            pa.array([{"in": 1}, {"in": 2}]),
        ],
        names=["b", "i", "f", "d", "t", "e", "day", "at", "when", "l", "m", "s"],
    )
    schema = json.loads(json_schema(rows.type, "It"))
    found, misfits = encoded(schema, rows)
    assert misfits == []
    assert found[0] == {
        "b": True,
        "i": -5,
        "f": 1.0,
        "d": 1.5,
        "t": 'say "Tür"\n',
        "e": "a",
        "day": "2026-01-02",
        "at": "01:02:03.000000",
        "when": "2026-01-02T03:04:05.000006Z",
        "l": ["x", None],
        "m": {"k": 1},
        "s": {"in": 1},
    }
    assert found[1]["l"] == []
    assert found[1]["m"] == {}
    assert found[1]["i"] == 1 << 40


def test_a_null_is_left_out_unless_the_schema_requires_the_field() -> None:
    """A required field is written as null where the schema takes it, and is a misfit otherwise."""
    schema = {
        "type": "object",
        "required": ["a", "b"],
        "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "integer"}},
    }
    rows = pa.array([{"a": None, "b": 1, "c": None}, {"a": 1, "b": None, "c": "x"}])
    found, misfits = encoded(schema, rows)
    assert found[0] == {"a": None, "b": 1}
    assert misfits == ["field b is null in 1 values"]


def test_fractions_that_json_does_not_have_are_misfits() -> None:
    """Infinity and what is no number are counted."""
    misfits = Misfits()
    rows = pa.array([{"f": math.inf}, {"f": math.nan}, {"f": None}, {"f": 1.5}])
    JsonEncoder({}, rows.type).values(rows, misfits)
    assert misfits.sentences() == ["field f is no number of JSON in 2 values"]


@pytest.mark.parametrize("unit", ["s", "us"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "+02:00", "America/New_York"])
def test_moments_of_any_zone_are_in_utc(zone: str, unit: str) -> None:
    """The text is one of RFC 3339."""
    rows = pa.array([{"t": -1}, {"t": None}], pa.struct([("t", pa.timestamp(unit, zone))]))
    found, misfits = encoded({}, rows)
    assert found[0]["t"].endswith("Z")
    moment = datetime.fromisoformat(found[0]["t"])
    assert (moment, misfits) == (rows[0].as_py()["t"], [])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**62], pa.timestamp("s", "UTC")),
        pa.array([-(2**31)], pa.int32()).view(pa.date32()),
        pa.array([2**62], pa.int64()).view(pa.date64()),
        pa.array([-1], pa.int32()).view(pa.time32("s")),
    ],
)
def test_times_that_no_text_has_are_misfits(values: pa.Array) -> None:
    """A time of no year from 1 to 9999, or of no day, is counted."""
    rows = pa.StructArray.from_arrays([values], names=["t"])
    _, misfits = encoded({}, rows)
    assert misfits == ["field t is no time from year 1 to 9999 in 1 values"]


def test_a_map_of_lists_without_a_type_is_written() -> None:
    """Entries whose columns are null keep their lengths."""
    items = pa.LargeListArray.from_arrays([0, 2], pa.nulls(2))
    maps = pa.MapArray.from_arrays([0, 1], pa.array(["k"]), items)
    rows = pa.StructArray.from_arrays([maps], names=["m"])
    assert encoded({}, rows) == ([{"m": {"k": [None, None]}}], [])


@pytest.mark.parametrize(
    ("schema", "kind", "said"),
    [
        ({}, pa.struct([("b", pa.binary())]), "field b is binary, which JSON does not have"),
        (
            {"properties": {"a": {"type": "string"}}},
            pa.struct([("a", pa.int64())]),
            "field a is int64, and the schema takes string",
        ),
        (
            {"additionalProperties": False, "required": ["b"]},
            pa.struct([("a", pa.int64())]),
            "field a is none of the schema's properties; field b is missing, which the schema",
        ),
    ],
)
def test_columns_that_are_none_of_the_schema_are_refused_by_name(
    schema: Any, kind: pa.StructType, said: str
) -> None:
    """The error names each field, its type, and what the schema takes."""
    with pytest.raises(SchemaRefusedError, match=said):
        JsonEncoder(schema, kind)
