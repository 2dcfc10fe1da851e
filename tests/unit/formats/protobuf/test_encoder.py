from __future__ import annotations

import re
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message_factory import GetMessageClass

from headrace.formats.errors import ProtobufSchemaError
from headrace.formats.pieces import Misfits
from headrace.formats.protobuf.decoder import MessageReader
from headrace.formats.protobuf.descriptors import message_of
from headrace.formats.protobuf.encoder import ProtobufEncoder
from tests.unit.formats.protobuf.generated import fill, row_of, schema
from tests.unit.formats.protobuf.messages import file, message, orders

Proto = descriptor_pb2.FieldDescriptorProto


def encoded(descriptor: Any, rows: pa.StructArray) -> tuple[list[bytes], list[str]]:
    """Return the messages of rows, and what these cannot hold."""
    misfits = Misfits()
    made = ProtobufEncoder(descriptor, rows.type).values(rows, misfits)
    return made.to_pylist(), misfits.sentences()


@pytest.mark.parametrize("seed", range(60))
def test_rows_that_are_written_are_read_by_google(seed: int) -> None:
    """Rows of messages of a made-up schema become messages that Google reads as the same rows."""
    random = Random(seed)
    descriptor = schema(random)
    made = GetMessageClass(descriptor)
    messages = [made() for _ in range(8)]
    for each in messages:
        fill(random, each)
    values = [each.SerializePartialToString() for each in messages]
    rows, bad = MessageReader(descriptor).read(pa.array(values, pa.binary()))
    assert not {reason for reason in bad.values() if "time is of no year" not in reason}
    places = [at for at in range(8) if at not in bad]
    rows = rows.take(pa.array(places, pa.int64()))
    written, misfits = encoded(descriptor, pa.concat_arrays([rows[:2], rows])[2:])
    assert misfits == []
    for at, data in zip(places, written, strict=True):
        found = made()
        found.MergeFromString(data)
        assert row_of(found) == row_of(messages[at])


ORDER = message_of(orders(), "shop.Order")


def test_the_bytes_are_those_of_googles_writer() -> None:
    """A message without lists of messages is the same, byte by byte."""
    kind = pa.struct(
        [
            ("note", pa.string()),
            ("id", pa.int32()),
            ("to", pa.struct([("street", pa.string())])),
            ("tags", pa.list_(pa.string())),
            ("at", pa.timestamp("ms", tz="UTC")),
        ]
    )
    rows = pa.array(
        [
            {"id": 5, "note": "Tür", "to": {"street": "A"}, "tags": ["x", ""], "at": -1},
            {"id": 0, "note": None, "to": None, "tags": [], "at": None},
        ],
        kind,
    )
    first = GetMessageClass(ORDER)(id=5, note="Tür", tags=["x", ""])
    first.to.street = "A"
    first.at.seconds, first.at.nanos = -1, 999_000_000
    assert encoded(ORDER, rows) == ([first.SerializeToString(), b""], [])


def plain(*fields: str, syntax: str = "proto3") -> Any:
    """Return a message with these fields."""
    made = file(syntax=syntax)
    message(made, "It", *fields)
    return message_of([made], "shop.It")


@pytest.mark.parametrize(
    ("field", "values", "said"),
    [
        ("int32 it 1", pa.array([1 << 31]), "field it is no number from -2147483648 to"),
        (
            "uint64 it 1",
            pa.array([-1]),
            "field it is no number from 0 to 18446744073709551615",
        ),
        ("repeated string it 1", pa.array([["a", None]]), r"field it\[\] is null in 1 values"),
    ],
)
def test_values_that_the_message_cannot_hold_are_counted(
    field: str, values: pa.Array, said: str
) -> None:
    """Each problem names the field, and how many values have it."""
    rows = pa.StructArray.from_arrays([values], names=["it"])
    _, misfits = encoded(plain(field), rows)
    assert len(misfits) == 1
    assert re.match(said, misfits[0])


def test_the_largest_numbers_without_a_sign_are_written() -> None:
    """A column of them has values that no number with a sign holds."""
    rows = pa.array([{"it": 2**63}, {"it": 0}], pa.struct([("it", pa.uint64())]))
    assert encoded(plain("uint64 it 1"), rows) == ([b"\x08" + b"\x80" * 9 + b"\x01", b""], [])


def test_moments_that_no_message_holds_are_counted() -> None:
    """A second of no year, in a unit that has it, is counted as any other."""
    made = file()
    made.dependency.append("google/protobuf/timestamp.proto")
    message(made, "It", "google.protobuf.Timestamp it 1")
    rows = pa.array([{"it": 2**62}], pa.struct([("it", pa.timestamp("s", "UTC"))]))
    _, misfits = encoded(message_of([made], "shop.It"), rows)
    assert misfits == ["field it is a time of no year from 1 to 9999 in 1 values"]


def test_texts_that_are_no_names_of_an_enum_are_counted() -> None:
    """Only a number of 32 bits stands for itself."""
    made = file()
    made.enum_type.add(name="E").value.add(name="ZERO", number=0)
    field = message(made, "It").field.add(name="it", number=1, type=Proto.TYPE_ENUM)
    field.type_name, field.label = ".shop.E", Proto.LABEL_OPTIONAL
    rows = pa.array([{"it": each} for each in ("--5", "5-", "9" * 5000, "7", "ZERO")])
    written, misfits = encoded(message_of([made], "shop.It"), rows)
    assert written[3:] == [b"\x08\x07", b""]
    assert misfits == ["field it is none of the names of shop.E in 3 values"]


def test_a_required_field_that_is_null_is_told() -> None:
    """A row without what the message requires is counted."""
    made = file(syntax="proto2")
    message(made, "It", "int64 it 1").field[0].label = Proto.LABEL_REQUIRED
    rows = pa.StructArray.from_arrays([pa.array([1, None])], names=["it"])
    assert encoded(message_of([made], "shop.It"), rows)[1] == ["field it is null in 1 values"]


def test_two_fields_of_one_oneof_are_told() -> None:
    """Only one of them would be read."""
    made = file()
    into = message(made, "It", "int64 a 1", "int64 b 2")
    into.oneof_decl.add(name="choice")
    for each in into.field:
        each.oneof_index = 0
    rows = pa.array([{"a": 1, "b": None}, {"a": 1, "b": 2}])
    found = encoded(message_of([made], "shop.It"), rows)[1]
    assert found == ["oneof choice has several fields in 1 values"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.struct([("id", pa.string())]), "field id is string, and the message takes a whole"),
        (pa.struct([("other", pa.int64())]), "field other is none of the message shop.Order"),
        (pa.struct([("tags", pa.string())]), "field tags is string, and the message takes a list"),
        (
            pa.struct([("at", pa.timestamp("us"))]),
            r"field at is timestamp\[us\], and the message takes a timestamp with a time zone",
        ),
    ],
)
def test_columns_that_are_none_of_the_message_are_refused_by_name(
    kind: pa.StructType, said: str
) -> None:
    """The error names each field, its type, and what the message takes."""
    with pytest.raises(ProtobufSchemaError, match=said):
        ProtobufEncoder(ORDER, kind)
