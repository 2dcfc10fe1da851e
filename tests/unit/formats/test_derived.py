from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headrace.formats.avro.encoder import AvroEncoder
from headrace.formats.avro.layout import columns_of
from headrace.formats.avro.schema import parse_schema
from headrace.formats.derived import avro_schema, json_schema, name_of
from headrace.formats.errors import SchemaRefusedError
from headrace.formats.protobuf.decoder import MessageReader
from headrace.formats.protobuf.derived import file_of_columns
from headrace.formats.protobuf.descriptors import message_of
from headrace.formats.protobuf.encoder import ProtobufEncoder

_MOMENT = pa.timestamp("us", tz="UTC")
COLUMNS = pa.struct(
    [
        ("yes", pa.bool_()),
        ("small", pa.int32()),
        ("large", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("when", _MOMENT),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("to", pa.struct([("street", pa.string()), ("since", _MOMENT)])),
        ("lines", pa.list_(pa.struct([("id", pa.int64())]))),
    ]
)


def test_an_avro_schema_of_columns_gives_the_columns_again() -> None:
    """A reader with the schema has the same columns, and rows of them are written by it."""
    more = [("day", pa.date32()), ("amount", pa.decimal128(9, 2)), ("at", pa.time64("us"))]
    kind = pa.struct([*COLUMNS, *more])
    schema = parse_schema(avro_schema(kind, "shop.Order"))
    assert columns_of(schema).kind == kind
    assert schema.name == "shop.Order"
    AvroEncoder(schema, kind)


def test_a_message_of_columns_gives_the_columns_again() -> None:
    """A reader with the descriptor has the same columns, and rows of them are written by it."""
    message = message_of([file_of_columns(COLUMNS, "shop.Order")], "shop.Order")
    assert MessageReader(message).kind == COLUMNS
    ProtobufEncoder(message, COLUMNS)


def test_a_map_of_structs_has_their_message_outside_of_its_entries() -> None:
    """An entry has no messages in itself, which Protobuf forbids, and the columns come back."""
    inner = pa.struct(
        [("street", pa.string()), ("by", pa.map_(pa.string(), pa.struct([("n", pa.int32())])))]
    )
    kind = pa.struct([("to", pa.map_(pa.string(), inner))])
    file = file_of_columns(kind, "shop.Order")
    order = file.message_type[0]
    assert [each.name for each in order.nested_type] == ["ToEntry", "to_message"]
    assert [each.name for each in order.nested_type[1].nested_type] == ["ByEntry", "by_message"]
    assert not order.nested_type[0].nested_type
    message = message_of([file], "shop.Order")
    assert MessageReader(message).kind == kind
    ProtobufEncoder(message, kind)


def test_a_json_schema_of_columns_names_their_types() -> None:
    """Each field may be null, and has the name of its type in JSON."""
    kind = pa.struct([("id", pa.int64()), ("tags", pa.list_(pa.string()))])
    found = json.loads(json_schema(kind, "Order"))
    assert found["title"] == "Order"
    assert found["properties"] == {
        "id": {"type": ["integer", "null"]},
        "tags": {"items": {"type": ["string", "null"]}, "type": ["array", "null"]},
    }


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.struct([("a-b", pa.int64())]), "field a-b is no name of letters, digits and _"),
        (pa.struct([("a", pa.month_day_nano_interval())]), "field a is month_day_nano_interval"),
        (pa.struct([("a", pa.uint64())]), "field a is uint64, which Avro does not have; cast it"),
    ],
)
def test_columns_that_avro_does_not_have_are_refused(kind: pa.StructType, said: str) -> None:
    """The error names the field."""
    with pytest.raises(SchemaRefusedError, match=said):
        avro_schema(kind, "It")


def test_a_topic_gives_a_name() -> None:
    """Each character that no name in Avro has becomes _."""
    assert [name_of(each) for each in ("late-flights", "1.a")] == ["late_flights", "_1_a"]
