from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from headrace.formats.avro.encoder import AvroEncoder, check_writable
from headrace.formats.avro.layout import columns_of
from headrace.formats.avro.schema import parse_schema
from headrace.formats.errors import AvroSchemaError
from headrace.formats.pieces import Misfits
from tests.unit.formats.avro.generated import Schemas, Values, parsed, read, written
from tests.unit.formats.sanitized import require_clean

if TYPE_CHECKING:
    from pathlib import Path


def record(*fields: Any) -> dict[str, Any]:
    """Return a schema with these fields, each by its name and its type."""
    made = [{"name": name, "type": kind} for name, kind in fields]
    return {"type": "record", "name": "Order", "fields": made}


def encoded(schema: Any, rows: pa.StructArray) -> tuple[list[bytes], list[str]]:
    """Return the values of rows, and what the schema cannot hold."""
    misfits = Misfits()
    made = AvroEncoder(parse_schema(json.dumps(schema)), rows.type).values(rows, misfits)
    return made.to_pylist(), misfits.sentences()


def one(schema: Any, values: pa.Array) -> tuple[list[Any], list[str]]:
    """Return what fastavro reads of values in the one field of records, and the misfits."""
    whole = record(("it", schema))
    made, misfits = encoded(whole, pa.StructArray.from_arrays([values], names=["it"]))
    if misfits:
        return [], misfits
    return [read(each, parsed(whole), parsed(whole), whole)["it"] for each in made], []


def require_same_rows(seed: int) -> None:
    """Assert that fastavro reads rows of a made-up schema as they are, also of part of a column."""
    random = Random(seed)
    schema = Schemas(random).reader()
    write = fastavro.parse_schema(json.loads(json.dumps(schema)))
    values = [Values(random).of(schema) for _ in range(8)]
    bodies = [written(write, each) for each in values]
    expected = [read(each, parsed(schema), parsed(schema), schema) for each in bodies]
    kind = columns_of(parse_schema(json.dumps(schema))).kind
    rows = pa.array(expected, kind)
    made, misfits = encoded(schema, pa.concat_arrays([rows[:3], rows])[3:])
    assert misfits == []
    assert [read(each, parsed(schema), parsed(schema), schema) for each in made] == expected


@pytest.mark.parametrize("seed", range(60))
def test_rows_that_are_written_are_read_by_fastavro(seed: int) -> None:
    """Rows of a made-up schema are read by fastavro as they are, also of a part of a column."""
    require_same_rows(seed)


#: Writes made-up rows with the library that is named first.
_SANITIZED = """
import sys
from pathlib import Path
from headrace.formats.native import library
library.PATH = Path(sys.argv[1])
from tests.unit.formats.avro.test_encoder import require_same_rows
for seed in range(100):
    require_same_rows(seed)
print("done")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sanitizers_find_nothing_in_what_is_written(tmp_path: Path) -> None:
    """The part in C writes nowhere but where it may, as the compiler's sanitizers see it."""
    require_clean(_SANITIZED, tmp_path)


@pytest.mark.parametrize(
    ("schema", "values", "expected"),
    [
        ("int", pa.array([-5, 7], pa.int8()), [-5, 7]),
        ("long", pa.array([(1 << 63) - 1], pa.uint64()), [(1 << 63) - 1]),
        ("double", pa.array([1.5], pa.float32()), [1.5]),
        ("string", pa.array(["a", "ü", "a"]).dictionary_encode(), ["a", "ü", "a"]),
        ("bytes", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        (["null", "long"], pa.nulls(2), [None, None]),
        (["long", "null"], pa.array([None, 3], pa.int64()), [None, 3]),
        ({"type": "array", "items": "int"}, pa.array([[], [1, 2]]), [[], [1, 2]]),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            pa.array([Decimal("1.5"), Decimal("-1.28")], pa.decimal128(3, 2)),
            [Decimal("1.50"), Decimal("-1.28")],
        ),
    ],
)
def test_columns_of_other_types_are_written_where_each_value_has_a_place(
    schema: Any, values: pa.Array, expected: list[Any]
) -> None:
    """Narrower numbers, dictionaries and nulls come out as the schema has them."""
    assert one(schema, values) == (expected, [])


def test_a_date_with_a_time_is_its_day() -> None:
    """Milliseconds that are not midnight are cut downward, before 1970 too."""
    values = pa.array([86_400_001, -1], pa.int64()).view(pa.date64())
    found = one({"type": "int", "logicalType": "date"}, values)
    assert found == ([date(1970, 1, 2), date(1969, 12, 31)], [])


def test_times_before_1970_are_cut_downward() -> None:
    """A microsecond before a whole millisecond belongs to the one before it."""
    moments = pa.array([-1, 1_999], pa.timestamp("us", tz="UTC"))
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    whole = record(("it", schema))
    made, _ = encoded(whole, pa.StructArray.from_arrays([moments], names=["it"]))
    assert made == [b"\x01", b"\x02"]


@pytest.mark.parametrize(
    ("schema", "values", "said"),
    [
        ("long", pa.array([1, None, None]), "field it is null in 2 values"),
        ("int", pa.array([1 << 31]), "field it is no number of 32 bits in 1 values"),
        ("long", pa.array([1 << 63], pa.uint64()), "field it is above 9223372036854775807 in 1"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            pa.array(["A", "B"]),
            "field it is none of the symbols of E in 1 values",
        ),
        (
            {"type": "fixed", "name": "F", "size": 2},
            pa.array([b"abc"]),
            "field it has not 2 bytes in 1 values",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2},
            pa.array([Decimal("10.00"), Decimal("9.99")], pa.decimal128(4, 2)),
            r"field it is no decimal\(3, 2\) in 1 values",
        ),
        ({"type": "array", "items": "long"}, pa.array([[1, None]]), r"field it\[\] is null in 1"),
    ],
)
def test_values_that_the_schema_cannot_hold_are_counted(
    schema: Any, values: pa.Array, said: str
) -> None:
    """Each problem names the field, and how many values have it."""
    made, misfits = one(schema, values)
    assert made == []
    assert len(misfits) == 1
    assert re.match(said, misfits[0])


def test_fields_of_rows_that_are_null_are_not_missing() -> None:
    """A struct that is null, in a field that may be, has no fields that are."""
    inner = {"type": "record", "name": "To", "fields": [{"name": "id", "type": "long"}]}
    column = pa.array([{"id": 1}, None], pa.struct([("id", pa.int64())]))
    assert one(["null", inner], column) == ([{"id": 1}, None], [])


def test_a_field_that_rows_lack_has_its_default() -> None:
    """A default of the schema stands for a column that there is not."""
    schema = record(("id", "long"))
    schema["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    rows = pa.array([{"id": 1}], pa.struct([("id", pa.int64())]))
    made, _ = encoded(schema, rows)
    assert made == [b"\x02\x00"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.struct([("it", pa.string())]), "field it is string, and the schema takes a whole"),
        (pa.struct([("id", pa.int64())]), "field id is none of the schema's Order; field it is"),
        (pa.struct([("it", pa.list_(pa.int64()))]), "field it is list<item: int64>, and"),
    ],
)
def test_columns_that_are_none_of_the_schema_are_refused_by_name(
    kind: pa.StructType, said: str
) -> None:
    """The error names each field, its type, and what the schema takes."""
    with pytest.raises(AvroSchemaError, match=said):
        AvroEncoder(parse_schema(json.dumps(record(("it", "long")))), kind)


def test_a_union_of_null_alone_takes_no_values() -> None:
    """A column of numbers is refused, in place of being written as nulls."""
    with pytest.raises(AvroSchemaError, match="field it is int64, and the schema takes nothing"):
        one(["null"], pa.array([1]))
    assert one(["null"], pa.nulls(1)) == ([None], [])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('"long"', "it must be a record"),
        (json.dumps(record(("it", ["int", "string"]))), "it is a union of int and string"),
        (
            json.dumps(
                record(
                    (
                        "it",
                        {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2},
                    )
                )
            ),
            "it is a decimal of 40 digits; at most 38 are written",
        ),
        (
            json.dumps(record(("next", ["null", "Order"]))),
            "next has Order in itself, which no column holds",
        ),
    ],
)
def test_schemas_that_no_columns_are_written_by_are_refused(schema: str, said: str) -> None:
    """The error says what no column has."""
    with pytest.raises(AvroSchemaError, match=said):
        check_writable(parse_schema(schema))
