"""Made-up schemas of Protobuf, messages of them, and the rows that Google's own reader gives."""

from __future__ import annotations

import math
import struct
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from headrace.formats.protobuf.decoder import MessageReader
from headrace.formats.protobuf.descriptors import message_of
from headrace.formats.protobuf.plan import WRAPPERS

if TYPE_CHECKING:
    from random import Random

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

Proto = descriptor_pb2.FieldDescriptorProto

_SCALARS = [
    each
    for each in range(Proto.TYPE_DOUBLE, Proto.TYPE_SINT64 + 1)
    if each not in {Proto.TYPE_GROUP, Proto.TYPE_MESSAGE, Proto.TYPE_ENUM}
]
_KEYS = [
    each for each in _SCALARS if each not in {Proto.TYPE_DOUBLE, Proto.TYPE_FLOAT, Proto.TYPE_BYTES}
]
_TIMESTAMP = "google.protobuf.Timestamp"
_KNOWN = [_TIMESTAMP, "google.protobuf.Duration", *sorted(WRAPPERS)]


def schema(random: Random) -> Descriptor:
    """Return a message with fields of all kinds, by the rules of proto2 or of proto3."""
    file = descriptor_pb2.FileDescriptorProto(name="made.proto", package="made")
    file.syntax = random.choice(["proto2", "proto3"])
    file.dependency.extend(
        f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers")
    )
    enum = file.enum_type.add(name="Colour")
    for number in (0, 1, 2, 7, -3):
        enum.value.add(name=f"C{number}".replace("-", "M"), number=number)
    inner = [_message(random, file, f"Inner{at}", []) for at in range(2)]
    _message(random, file, "Outer", inner)
    return message_of([file], "made.Outer")


def _message(
    random: Random, file: descriptor_pb2.FileDescriptorProto, name: str, inner: list[str]
) -> str:
    made = file.message_type.add(name=name)
    numbers = random.sample([*range(1, 40), 2047, 2048, (1 << 29) - 1], random.randint(1, 9))
    in_oneof = random.sample(numbers, random.randint(0, len(numbers)))[:3]
    if in_oneof:
        made.oneof_decl.add(name="one")
    optional = []
    for number in numbers:
        field = made.field.add(name=f"f{number}", number=number, label=Proto.LABEL_OPTIONAL)
        kind = random.random()
        if kind < 0.1 and number not in in_oneof:
            _map(random, made, field, inner)
            continue
        _type(random, field, inner)
        if number in in_oneof:
            field.oneof_index = 0
        elif kind < 0.4:
            field.label = Proto.LABEL_REPEATED
            if field.type in _SCALARS and random.random() < 0.3:
                packed = field.type not in {Proto.TYPE_STRING, Proto.TYPE_BYTES}
                field.options.packed = packed and random.random() < 0.5
        elif kind < 0.6 and file.syntax == "proto3":
            optional.append(field)
    for field in optional:
        field.proto3_optional = True
        field.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{field.name}")
    return f".made.{name}"


def _map(
    random: Random,
    made: descriptor_pb2.DescriptorProto,
    field: descriptor_pb2.FieldDescriptorProto,
    inner: list[str],
) -> None:
    entry = made.nested_type.add(name=f"{field.name.capitalize()}Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=random.choice(_KEYS), label=Proto.LABEL_OPTIONAL)
    value = entry.field.add(name="value", number=2, label=Proto.LABEL_OPTIONAL)
    _type(random, value, inner)
    field.label, field.type = Proto.LABEL_REPEATED, Proto.TYPE_MESSAGE
    field.type_name = f".made.{made.name}.{entry.name}"


def _type(
    random: Random,
    field: descriptor_pb2.FieldDescriptorProto,
    inner: list[str],
) -> None:
    kind = random.random()
    if kind < 0.65:
        field.type = random.choice(_SCALARS)
    elif kind < 0.75:
        field.type, field.type_name = Proto.TYPE_ENUM, ".made.Colour"
    elif kind < 0.9 and inner:
        field.type, field.type_name = Proto.TYPE_MESSAGE, random.choice(inner)
    else:
        field.type, field.type_name = Proto.TYPE_MESSAGE, f".{random.choice(_KNOWN)}"


def fill(random: Random, message: Message) -> None:
    """Give some of the fields of a message values."""
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.3:
            continue
        if field.is_repeated:
            for _ in range(random.choice([0, 1, 1, 2, 5, 20])):
                _add(random, message, field)
        elif field.message_type is not None:
            inside = getattr(message, field.name)
            inside.SetInParent()
            fill(random, inside)
        else:
            setattr(message, field.name, _scalar(random, field))


def _add(random: Random, message: Message, field: FieldDescriptor) -> None:
    values = getattr(message, field.name)
    if field.message_type is None:
        values.append(_scalar(random, field))
    elif not field.message_type.GetOptions().map_entry:
        fill(random, values.add())
    else:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        if value.message_type is None:
            values[_scalar(random, key)] = _scalar(random, value)
        else:
            fill(random, values[_scalar(random, key)])


def _scalar(random: Random, field: FieldDescriptor) -> Any:  # noqa: PLR0911 - by kind
    kind = field.type
    name = field.containing_type.full_name
    if name == _TIMESTAMP and random.random() < 0.9:
        seconds = random.choice([0, 1, -62135596800, 253402300799, 1_790_000_000])
        return seconds if field.name == "seconds" else random.randrange(10**9)
    if kind == FieldDescriptor.TYPE_BOOL:
        return random.random() < 0.5
    if kind == FieldDescriptor.TYPE_STRING:
        return random.choice(["", "a", "Tür", "x" * 200, "\0", "\U0001f600"])
    if kind == FieldDescriptor.TYPE_BYTES:
        return random.randbytes(random.choice([0, 1, 3, 200]))
    if kind in {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}:
        return random.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -1e30])
    if kind == FieldDescriptor.TYPE_ENUM:
        return random.choice([0, 1, 2, 7, -3])
    bits = 32 if field.cpp_type in {field.CPPTYPE_INT32, field.CPPTYPE_UINT32} else 64
    if field.cpp_type in {field.CPPTYPE_UINT32, field.CPPTYPE_UINT64}:
        return random.choice([0, 1, 127, 128, (1 << bits) - 1, random.randrange(1 << bits)])
    half = 1 << bits - 1
    return random.choice([0, 1, -1, 127, 128, half - 1, -half, random.randrange(-half, half)])


def row_of(message: Message) -> dict[str, Any]:
    """Return the row of a message as Google's reader has it; maps are dictionaries.

    Raises:
        ValueError: it has what no column holds.
    """
    return {each.name: _value(message, each) for each in message.DESCRIPTOR.fields}


def _value(message: Message, field: FieldDescriptor) -> Any:
    if field.is_repeated:
        values = getattr(message, field.name)
        kind = field.message_type
        if kind is None or not kind.GetOptions().map_entry:
            return [_single(each, field) for each in values]
        key, value = (kind.fields_by_name[name] for name in ("key", "value"))
        return {_single(name, key): _single(values[name], value) for name in values}
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(getattr(message, field.name), field)


def _single(value: Any, field: FieldDescriptor) -> Any:  # noqa: PLR0911 - by kind
    if field.message_type is not None:
        name = field.message_type.full_name
        if name in WRAPPERS:
            return _single(value.value, value.DESCRIPTOR.fields[0])
        if name == _TIMESTAMP:
            if not -62135596800 <= value.seconds <= 253402300799 or not 0 <= value.nanos < 10**9:
                raise ValueError("no time")
            return value.seconds * 1_000_000 + value.nanos // 1000
        return row_of(value)
    if field.type in {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64}:
        return Decimal(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if field.type == FieldDescriptor.TYPE_STRING and not isinstance(value, str):
        raise ValueError("no text")
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    return value


def comparable(value: Any, kind: pa.DataType) -> Any:
    """Return a column's value as :func:`row_of` has it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: comparable(value[each.name], each.type) for each in kind}
    if pa.types.is_map(kind):
        made = {
            comparable(key, kind.key_type): comparable(item, kind.item_type) for key, item in value
        }
        assert len(made) == len(value), "a key is twice in a map"
        return made
    if pa.types.is_list(kind):
        return [comparable(each, kind.value_type) for each in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    return value


def damaged(random: Random, data: bytes) -> bytes:
    """Return bytes that are changed, cut, doubled, or put together anew."""
    made = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 4])):
        at = random.randrange(len(made) + 1)
        how = random.random()
        if how < 0.4 and at < len(made):
            made[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
        elif how < 0.55:
            del made[at:]
        elif how < 0.7:
            made[at:at] = random.randbytes(random.randint(1, 12))
        elif how < 0.8:
            del made[at : at + random.randint(1, 5)]
        else:
            made += made[:at]
    return bytes(made)


def compare(random: Random, count: int, most_items: int = 1 << 30) -> Counter[str]:
    """Read so many messages of a made-up schema as one batch, and return how they came out.

    Raises:
        AssertionError: a row is another one than Google's, or only one of both refuses it.
    """
    descriptor = schema(random)
    reader = MessageReader(descriptor, most_items)
    made = GetMessageClass(descriptor)
    values: list[bytes | None] = []
    for _ in range(count):
        message = made()
        fill(random, message)
        data = message.SerializePartialToString()
        values.append(damaged(random, data) if random.random() < 0.5 else data)
    values[random.randrange(count)] = None
    rows, bad = reader.read(pa.array(values, random.choice([pa.binary(), pa.large_binary()])))
    rows.validate(full=True)
    kind = _without_times(rows.type)
    found = rows.cast(kind).to_pylist()
    counts: Counter[str] = Counter()
    for at, value in enumerate(values):
        if value is None:
            assert found[at] is None
            assert at not in bad
            continue
        message = made()
        try:
            message.MergeFromString(value)
            expected = row_of(message)
        except (DecodeError, ValueError):
            assert at in bad, (value, found[at])
            assert found[at] is None
            counts["the same refusal"] += 1
            continue
        assert at not in bad, (value, bad[at], expected)
        assert comparable(found[at], kind) == expected, value
        counts["the same row"] += 1
    return counts


def _without_times(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers in place of times."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_without_times(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_times(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return kind
