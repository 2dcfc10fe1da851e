from __future__ import annotations

import json
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import RetryableError
from headrace.formats.avro.decoder import AvroDecoder
from headrace.formats.avro.schema import parse_schema
from headrace.formats.errors import AvroSchemaError, UnknownSchemaError, UnknownYetError
from headrace.formats.registry import RegisteredSchema
from tests.unit.formats.avro.generated import framed, written


def record(*fields: tuple[Any, ...], name: str = "Order") -> dict[str, Any]:
    """Return a record; each field is a name, a type, and a default where there is one."""
    made = [{"name": n, "type": t, **({"default": d[0]} if d else {})} for n, t, *d in fields]
    return {"type": "record", "name": name, "fields": made}


class Schemas:
    """Writers' schemas by their ids; what is an error is raised."""

    def __init__(self, **by_id: Any) -> None:
        self._by_id: dict[int | str, Any] = {int(n[1:]): each for n, each in by_id.items()}

    def schema(self, number: int | str) -> RegisteredSchema:
        """Return one."""
        found = self._by_id.get(number)
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise UnknownSchemaError("it is not known")
        if isinstance(found, RegisteredSchema):
            return found
        return RegisteredSchema(int(number), "AVRO", json.dumps(found))


def decoder(reader: Any, **writers: Any) -> AvroDecoder:
    """Return a decoder to a reader's schema, which id 7 is, too."""
    return AvroDecoder(parse_schema(json.dumps(reader)), Schemas(**({"_7": reader} | writers)))


def decoded(of: AvroDecoder, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    """Return the rows and the reasons of values."""
    rows, bad = of.columns(pa.array(values, pa.binary()))
    rows.validate(full=True)
    return rows.to_pylist(), dict(bad)


ORDER = record(("id", "long"), ("note", ["null", "string"], None))


def order(number: int, note: str | None = None) -> bytes:
    """Return an order with its frame."""
    return framed(written(ORDER, {"id": number, "note": note}))


def test_each_bad_value_has_its_reason_and_the_others_are_rows() -> None:
    """Reasons name the schema's id, the field and the byte; a tombstone is a row of null."""
    body = written(ORDER, {"id": 1, "note": "abc"})
    values = [
        order(1),
        None,
        b"",
        b"\x01\0\0\0\x07\x02\0",
        framed(body[:-1]),
        framed(body + b"z"),
        framed(b"\x02\x02\x04\xff\xfe"),
        framed(b"\x02\x06"),
        framed(b"\xff" * 10 + b"\x01\0"),
        order(2, "Tür"),
    ]
    rows, bad = decoded(decoder(ORDER), *values)
    assert rows == [{"id": 1, "note": None}, *[None] * 8, {"id": 2, "note": "Tür"}]
    assert bad == {
        2: "it has no frame: a zero byte, and the id of its schema in four",
        3: "it has no frame: a zero byte, and the id of its schema in four",
        4: "schema id 7: field note: the value ends too early, at byte 7",
        5: "schema id 7: bytes are left over after the value, at byte 11",
        6: "schema id 7: field note: the text is not UTF-8, at byte 8",
        7: "schema id 7: field note: it has a branch of a union that is not in the schema, or not "
        "in the reader's, at byte 6",
        8: "schema id 7: field id: the number is out of range, at byte 5",
    }


def test_values_of_several_schemas_are_one_array_of_the_readers_columns() -> None:
    """A batch with several ids, old and new ones, comes out in the columns of the reader."""
    reader = record(("id", "long"), ("note", "string", "none"), ("price", "double", 1.5))
    old = record(("id", "int"))
    new = record(("more", {"type": "array", "items": "string"}), ("note", "string"), ("id", "long"))
    of = decoder(reader, _1=old, _2=new)
    values = [
        framed(written(old, {"id": 3}), 1),
        framed(written(new, {"id": 4, "note": "x", "more": ["a", "b"]}), 2),
        framed(written(reader, {"id": 5, "note": "y", "price": 0.5}), 7),
        framed(written(old, {"id": 6}), 1),
    ]
    rows, bad = decoded(of, *values)
    assert not bad
    assert [(row["id"], row["note"], row["price"]) for row in rows] == [
        (3, "none", 1.5),
        (4, "x", 1.5),
        (5, "y", 0.5),
        (6, "none", 1.5),
    ]


@pytest.mark.parametrize(
    ("writer", "reason"),
    [
        (record(("id", "string")), "id is string, and long for the reader"),
        (record(("number", "long")), "id is not in the writer's schema, and has no default"),
        (record(("id", ["null", "string"])), "id is null, and long for the reader"),
        (record(("id", "long"), name="Bill"), "the value is record Bill, and record Order"),
        (
            record(("id", "long"), ("empty", {"type": "array", "items": "null"})),
            "the items of empty take no byte",
        ),
        (RegisteredSchema(9, "PROTOBUF", "message Order {}"), "it is of type PROTOBUF, not AVRO"),
        (RegisteredSchema(9, "AVRO", "{"), "the schema is not JSON"),
    ],
)
def test_a_writers_schema_that_does_not_resolve_is_the_reason(writer: Any, reason: str) -> None:
    """Values by a schema that the reader's cannot read are bad, and the reason says the field."""
    rows, bad = decoded(decoder(record(("id", "long")), _9=writer), framed(b"\x02", 9))
    assert rows == [None]
    assert bad[0].startswith("schema id 9: ")
    assert reason in bad[0]


def test_an_unknown_id_is_the_fault_of_its_records_alone() -> None:
    """Records whose id the registry does not have are bad, and those beside them are not."""
    rows, bad = decoded(decoder(ORDER), framed(b"\x02", 5), order(1))
    assert rows == [None, {"id": 1, "note": None}]
    assert bad == {0: "schema id 5: it is not known"}


def test_all_ids_that_are_new_are_asked_for_before_one_is_waited_for() -> None:
    """The half minutes of several ids are the same: they do not follow each other."""
    asked: set[int | str] = set()

    class Registry:
        def schema(self, number: int | str) -> RegisteredSchema:
            asked.add(number)
            raise UnknownYetError("not yet")

    of = AvroDecoder(parse_schema(json.dumps(ORDER)), Registry())
    with pytest.raises(RetryableError, match="not yet"):
        of.columns(pa.array([framed(b"\x02", 5), framed(b"\x02", 6)], pa.binary()))
    assert asked == {5, 6}


@pytest.mark.parametrize(
    ("writer", "reader", "number", "row"),
    [
        (("int", "time-millis"), ("long", "time-micros"), 43_200_000, time(12)),
        (
            ("long", "timestamp-millis"),
            ("long", "local-timestamp-micros"),
            86_400_000,
            datetime(1970, 1, 2),  # noqa: DTZ001 - a local time
        ),
        (
            ("long", "local-timestamp-millis"),
            ("long", "timestamp-micros"),
            86_400_000,
            datetime(1970, 1, 2, tzinfo=UTC),
        ),
    ],
)
def test_times_of_another_unit_are_the_same_times(
    writer: tuple[str, str], reader: tuple[str, str], number: int, row: object
) -> None:
    """Milliseconds of a writer become microseconds, whatever the reader calls them."""

    def at(kind: tuple[str, str]) -> dict[str, Any]:
        return record(("at", {"type": kind[0], "logicalType": kind[1]}))

    plain = written(record(("at", writer[0])), {"at": number})
    rows, bad = decoded(decoder(at(reader), _5=at(writer)), framed(plain, 5))
    assert (rows, bad) == ([{"at": row}], {})


def test_a_block_that_no_column_has_is_passed_by_where_it_says_its_bytes() -> None:
    """A reader of fewer fields skips it by its size; a size beyond the record's end is refused."""
    reader = record(("after", "int"))
    writer = record(("before", {"type": "array", "items": "int"}), ("after", "int"))
    of = decoder(reader, _5=writer)
    three = b"\x05\x06" + b"\x02\x02\x02"  # three items, which take three bytes
    rows, bad = decoded(of, framed(three + b"\x00" + b"\x0a", 5))
    assert (rows, bad) == ([{"after": 5}], {})
    for size in (b"\x7f", b"\x01"):
        _, bad = decoded(of, framed(b"\x05" + size + b"\x02\x02\x02\x00\x0a", 5))
        assert "ends too early" in bad[0]


def test_times_in_nanoseconds_are_refused_by_name() -> None:
    """They are not read as if they were microseconds."""

    def at(name: str) -> dict[str, Any]:
        return record(("at", {"type": "long", "logicalType": name}))

    of = decoder(at("timestamp-micros"), _5=at("timestamp-nanos"))
    _, bad = decoded(of, framed(b"\x02", 5))
    assert "nanoseconds, which are not read as" in bad[0]


@pytest.mark.parametrize(
    "schema",
    [
        record(("a", {"type": {"type": "string"}})),
        record(("a", {"type": ["null", "int"]})),
        {**record(("a", "int")), "aliases": None},
        {"type": "enum", "name": "E", "symbols": 5},
        {"type": "fixed", "name": "F", "size": 1 << 63},
        record(("a", {"type": "bytes", "logicalType": "decimal"})),
        record(("a", "float", 1e39)),
    ],
)
def test_a_schema_that_is_none_makes_no_partition_wait(schema: Any) -> None:
    """A registry may keep any JSON: such values are bad, and are not tried for ever."""
    of = decoder(ORDER, _5=schema)
    _, bad = decoded(of, framed(b"\x02\x00", 5))
    assert set(bad) <= {0}


def test_a_registry_that_is_away_is_no_records_fault() -> None:
    """An id that cannot be asked for now fails the batch as a whole, to be tried again."""
    of = decoder(ORDER, _5=RetryableError("away"))
    with pytest.raises(RetryableError, match="away"):
        of.columns(pa.array([order(1), framed(b"\x02", 5)], pa.binary()))


#: Items of a byte each, which a reader's default makes ten thousand bytes of.
SMALL = record(("items", {"type": "array", "items": record(("a", "boolean"), name="Item")}))
LARGE = record(
    (
        "items",
        {
            "type": "array",
            "items": record(("a", "boolean"), ("b", "string", "x" * 10_000), name="Item"),
        },
    )
)


def small(items: int) -> bytes:
    """Return a value with so many items of a byte each."""
    return framed(written(SMALL, {"items": [{"a": True}] * items}), 5)


def limited(most_bytes: int) -> AvroDecoder:
    """Return a decoder to large items whose columns may take so many bytes."""
    return AvroDecoder(parse_schema(json.dumps(LARGE)), Schemas(_5=SMALL), most_bytes)


def test_a_value_that_takes_too_much_memory_is_bad_and_the_others_are_not() -> None:
    """A value of a thousand bytes that defaults make megabytes of is refused by its size."""
    values = [small(3), small(1000), None, small(2)]
    rows, bad = decoded(limited(1 << 20), *values)
    assert bad == {1: "schema id 5: it takes more than 1 MiB in columns"}
    assert [row and len(row["items"]) for row in rows] == [3, None, None, 2]


def test_a_batch_that_takes_too_much_memory_is_not_decoded() -> None:
    """Values that are too much together are no record's fault, and the error says what to set."""
    values = pa.array([small(50)] * 10, pa.binary())
    with pytest.raises(RetryableError, match=r"\d values take more than 1 MiB in columns; set"):
        limited(1 << 20).columns(values)


@pytest.mark.parametrize(
    "decimal",
    [
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 0},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5},
        {"type": "bytes", "logicalType": "decimal", "precision": "4"},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1},
        {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5},
        {"type": "int", "logicalType": "decimal", "precision": 4},
    ],
)
def test_a_decimal_that_is_none_is_its_type_without_it(decimal: dict[str, Any]) -> None:
    """A logical type that is not valid is passed over, as Avro's specification has it."""
    plain = {key: value for key, value in decimal.items() if key in ("type", "name", "size")}
    of, same = decoder(record(("a", decimal))), decoder(record(("a", plain)))
    assert of.kind == same.kind
    assert not pa.types.is_decimal(of.kind.field("a").type)


def test_a_decimal_of_the_most_digits_of_its_bytes_is_one() -> None:
    """Two bytes hold each number of four digits."""
    decimal = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4}
    assert decoder(record(("a", decimal))).kind.field("a").type == pa.decimal128(4, 0)


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        (record(("a", ["null", "int", "string"])), "Order.a is a union of int and string"),
        (record(("next", ["null", "Order"])), "Order.next has Order in itself"),
        ({"type": "array", "items": "int"}, "it must be a record"),
        (record(), "has no fields"),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39})),
            "a decimal of 39 digits",
        ),
        (record(("a", "int", "x")), "the default of Order.a is no int"),
        (record(("a", "Unknown")), "'Unknown', which nothing defines"),
    ],
)
def test_a_readers_schema_that_columns_cannot_hold_is_refused(reader: Any, reason: str) -> None:
    """A recursive type, a union of two types and the like are refused by the field's name."""
    with pytest.raises(AvroSchemaError, match=reason):
        decoder(reader)


def test_values_of_all_kinds_of_columns_come_out() -> None:
    """Nested records, arrays, maps, decimals, times and enums come out as Arrow has them."""
    place = record(("street", "string"), ("tags", {"type": "array", "items": "string"}), name="P")
    reader = record(
        ("place", ["null", place]),
        ("prices", {"type": "map", "values": ["null", "double"]}),
        ("sum", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"}),
        ("paid", "boolean"),
    )
    value = {
        "place": {"street": "Am Wehr", "tags": ["x", "y"]},
        "prices": {"a": 1.0, "b": None},
        "sum": Decimal("-12.34"),
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "kind": "B",
        "paid": True,
    }
    empty = {**value, "place": None, "prices": {}, "paid": False}
    values = [framed(written(reader, each)) for each in (value, empty, value)]
    rows, bad = decoded(decoder(reader), *values)
    assert not bad
    as_map = {**value, "prices": [("a", 1.0), ("b", None)]}
    assert rows == [as_map, {**empty, "prices": []}, as_map]


def test_values_of_large_binary_and_of_a_slice_are_decoded() -> None:
    """An array with offsets of 64 bits, and a part of another, come out alike."""
    of = decoder(ORDER)
    values = [order(number, "x" * number) for number in range(20)]
    whole, _ = of.columns(pa.array(values, pa.binary()))
    large, _ = of.columns(pa.array([*values, None], pa.large_binary()).slice(3, 9))
    part, _ = of.columns(pa.array(values, pa.binary()).slice(3, 9))
    assert part.to_pylist() == large.to_pylist() == whole.to_pylist()[3:12]
    assert of.columns(pa.array([], pa.binary()))[0].to_pylist() == []


def test_a_batch_with_more_ids_than_fit_at_once_is_decoded() -> None:
    """Values of thousands of schemas are decoded part by part, and reasons keep their places."""

    class Every:
        """The same schema by each id but those of a thousand."""

        def schema(self, number: int | str) -> RegisteredSchema:
            """Return it."""
            assert isinstance(number, int)
            if number % 1000 == 0:
                raise UnknownSchemaError("it is not known")
            return RegisteredSchema(number, "AVRO", json.dumps(ORDER))

    of = AvroDecoder(parse_schema(json.dumps(ORDER)), Every())
    body = written(ORDER, {"id": 1, "note": None})
    rows, bad = decoded(of, *[framed(body, number) for number in range(1, 5001)])
    assert [place + 1 for place in bad] == [1000, 2000, 3000, 4000, 5000]
    assert len(rows) == 5000
