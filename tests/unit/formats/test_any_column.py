from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.errors import AvroSchemaError, ProtobufSchemaError, SchemaRefusedError
from headrace.formats.pieces import Misfits
from headrace.formats.protobuf.writer import schema_of_files
from headrace.formats.writer import avro_of, json_of

if TYPE_CHECKING:
    from headrace.formats.writer import WriterSchema

_P = descriptor_pb2.FieldDescriptorProto

#: What a column has that fits into no schema, or a schema that is none to write by.
REFUSED = (AvroSchemaError, ProtobufSchemaError, SchemaRefusedError)

_UNITS = ("s", "ms", "us", "ns")
_ZONES = (None, "UTC", "Europe/Berlin", "+02:00")

#: Types of which any bytes are a value.
WIDE: list[pa.DataType] = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in _UNITS for zone in _ZONES),
    *(pa.duration("s"), pa.month_day_nano_interval(), pa.binary(2)),
]

DECIMALS = st.sampled_from(
    [(38, 0), (38, 2), (9, 2), (20, 0), (38, 38), (5, -2), (38, -20), (38, 45)]
)

#: Numbers at the ends of types, and others.
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]),
    st.integers(-(10**38) + 1, 10**38 - 1),
)

TEXTS = st.one_of(
    st.sampled_from(["", "A", "ZERO", "0", "-2", "--5", "5-", "²", "٣", "9" * 5000, '"\\']),
    st.text(max_size=4),
)


@st.composite
def wide(draw: st.DrawFn) -> pa.Array:
    """Return a column of a type of which any bytes are a value."""
    kind = draw(st.sampled_from(WIDE))
    size = kind.bit_width // 8
    count = draw(st.integers(0, 3))
    numbers = draw(st.lists(NUMBERS, min_size=count, max_size=count))
    data = b"".join((number % (1 << 8 * size)).to_bytes(size, "little") for number in numbers)
    given = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
    return pa.concat_arrays([given, pa.nulls(draw(st.integers(0, 1)), kind)])


@st.composite
def decimals(draw: st.DrawFn) -> pa.Array:
    """Return decimals of as many digits as their type has."""
    precision, scale = draw(DECIMALS)
    make = draw(st.sampled_from([pa.decimal128, pa.decimal256]))
    kind = make(precision, scale)
    size, most = kind.bit_width // 8, 10**precision
    numbers = draw(st.lists(NUMBERS, max_size=3))
    # the sign of a number stays
    whole = [abs(number) % most * (-1 if number < 0 else 1) for number in numbers]
    data = b"".join(number.to_bytes(size, "little", signed=True) for number in whole)
    given = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(data)])
    return pa.concat_arrays([given, pa.nulls(draw(st.integers(0, 1)), kind)])


@st.composite
def texts(draw: st.DrawFn) -> pa.Array:
    """Return texts or bytes."""
    values = draw(st.lists(st.none() | TEXTS, max_size=3))
    kinds = [pa.string(), pa.large_string(), pa.string_view()]
    kinds += [pa.binary(), pa.large_binary(), pa.binary_view()]
    made = pa.array(values, pa.string()).cast(draw(st.sampled_from(kinds)))
    is_plain = made.type in {pa.string(), pa.binary()}
    return made.dictionary_encode() if is_plain and draw(st.booleans()) else made


def _others() -> st.SearchStrategy[pa.Array]:
    """Return flags, or nulls alone."""
    flags = st.lists(st.none() | st.booleans(), max_size=3).map(lambda it: pa.array(it, pa.bool_()))
    return flags | st.integers(0, 3).map(pa.nulls)


@st.composite
def nested(draw: st.DrawFn, inner: st.SearchStrategy[pa.Array]) -> pa.Array:
    """Return a list, a map or a struct with a column in it."""
    items = draw(inner)
    match draw(st.sampled_from(["list", "large", "fixed", "map", "struct"])):
        case "list":
            return pa.ListArray.from_arrays([0, 0, len(items)], items)
        case "large":
            return pa.LargeListArray.from_arrays([0, len(items)], items)
        case "fixed":
            return pa.FixedSizeListArray.from_arrays(items, 1)
        case "map":
            keys = pa.array([str(at) for at in range(len(items))], pa.string())
            return pa.MapArray.from_arrays([0, 0, len(items)], keys, items)
    return pa.StructArray.from_arrays([items], names=["a"])


COLUMNS = st.recursive(wide() | decimals() | texts() | _others(), nested, max_leaves=2)

AVRO: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "fixed", "name": "X", "size": 2},
    {"type": "enum", "name": "E", "symbols": ["A", "B"]},
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    *(
        {"type": "long", "logicalType": each}
        for each in (
            "time-micros",
            "timestamp-millis",
            "timestamp-micros",
            "local-timestamp-millis",
            "local-timestamp-micros",
        )
    ),
    *(
        {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        for precision, scale in ((9, 2), (38, 38), (38, 0), (40, 2), (1, 0))
    ),
    {
        "type": {"type": "fixed", "name": "Y", "size": 4},
        "logicalType": "decimal",
        "precision": 9,
        "scale": 2,
    },
]


def avro_types(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return types that have others in them."""
    return st.one_of(
        inner.map(lambda it: {"type": "array", "items": it}),
        inner.map(lambda it: {"type": "map", "values": it}),
        inner.map(lambda it: it if it == "null" or isinstance(it, list) else ["null", it]),
        st.just(["null"]),
        inner.map(
            lambda it: {"type": "record", "name": "R", "fields": [{"name": "a", "type": it}]}
        ),
    )


@st.composite
def avro(draw: st.DrawFn) -> WriterSchema:
    """Return a schema with one field of any type."""
    kind = draw(st.recursive(st.sampled_from(AVRO), avro_types, max_leaves=1))
    fields = [{"name": "it", "type": kind}]
    return avro_of(json.dumps({"type": "record", "name": "V", "fields": fields}))


@st.composite
def protobuf(draw: st.DrawFn) -> WriterSchema:
    """Return a message with one field of any type."""
    imports = ("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto")
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax=syntax, dependency=imports)
    enum = file.enum_type.add(name="E")
    enum.value.add(name="ZERO", number=0)
    enum.value.add(name="A", number=-2)
    own = file.message_type.add(name="M")
    inner = file.message_type.add(name="I")
    into, name, number = own, "it", 1
    label = draw(st.sampled_from([_P.LABEL_OPTIONAL, _P.LABEL_REPEATED]))
    if draw(st.booleans()):
        own.field.add(name="it", number=1, label=label, type=_P.TYPE_MESSAGE, type_name=".I")
        into, name, label = inner, "a", draw(st.sampled_from([1, 3]))
    elif draw(st.booleans()):
        into = own.nested_type.add(name="ItEntry")
        into.options.map_entry = True
        into.field.add(name="key", number=1, label=1, type=_P.TYPE_STRING)
        own.field.add(name="it", number=1, label=3, type=_P.TYPE_MESSAGE, type_name=".M.ItEntry")
        name, number, label = "value", 2, 1
    kind = draw(st.sampled_from([each for each in range(1, 19) if each != _P.TYPE_GROUP]))
    field = into.field.add(name=name, number=number, label=label, type=kind)
    if kind == _P.TYPE_ENUM:
        field.type_name = ".E"
    elif kind == _P.TYPE_MESSAGE:
        known = ("Timestamp", "Int64Value", "UInt64Value", "FloatValue", "StringValue", "BoolValue")
        field.type_name = f".google.protobuf.{draw(st.sampled_from(known))}"
    return schema_of_files([file], "M")


@st.composite
def json_schemas(draw: st.DrawFn) -> WriterSchema:
    """Return a schema with one field of any type, also one that is odd."""
    names = ("integer", "number", "string", "boolean", "array", "object", "null")
    word = st.sampled_from(names)
    kinds = st.recursive(
        st.one_of(st.just({}), st.just(5), word.map(lambda it: {"type": it})),
        lambda inner: st.fixed_dictionaries(
            {"type": word | st.lists(word, max_size=7)},
            optional={
                "items": inner,
                "properties": st.fixed_dictionaries({"a": inner}) | inner,
                "additionalProperties": st.booleans() | inner,
                "required": st.lists(st.sampled_from(["a", "b"])) | st.none(),
            },
        ),
        max_leaves=2,
    )
    return json_of(json.dumps({"type": "object", "properties": {"it": draw(kinds)}}))


@pytest.mark.parametrize("schemas", [avro(), protobuf(), json_schemas()], ids=["a", "p", "j"])
def test_any_column_is_written_or_refused_in_words_of_our_own(
    schemas: st.SearchStrategy[WriterSchema],
) -> None:
    """Any column by any schema is a value for each row, or misfits, or an error of schemas."""

    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        columns = data.draw(st.lists(COLUMNS, min_size=5, max_size=5))
        try:
            schema = data.draw(schemas)
        except REFUSED:
            return
        for column in columns:
            rows = pa.StructArray.from_arrays([column], names=["it"])
            try:
                made = schema.encoder(rows.type).values(rows, Misfits())
            except REFUSED:
                continue
            assert len(made) == len(rows)

    check()
