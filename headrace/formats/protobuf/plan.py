"""The columns of a message, and the plan by which the part in C fills them."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from headrace.formats.errors import ProtobufSchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor

#: Fields and oneofs that one message may have: bits of 8 words in ``protobuf.c``.
_MOST_FIELDS = 512


class Kind(IntEnum):
    """A way in which the bytes of a field are read, as in ``protobuf.c``."""

    VARINT32 = 0
    UNSIGNED32 = 1
    VARINT64 = 2
    UNSIGNED64 = 3
    ZIGZAG32 = 4
    ZIGZAG64 = 5
    BOOL = 6
    ENUM = 7
    FIXED32 = 8
    FIXED32_UNSIGNED = 9
    FIXED64 = 10
    FIXED64_UNSIGNED = 11
    STRING = 12
    BYTES = 13
    MESSAGE = 14
    WRAPPER = 15
    TIME = 16


_REPEATED, _IMPLICIT, _CLOSED = 1, 2, 4

#: The digits of the largest number without a sign.
_UNSIGNED = pa.decimal128(20, 0)

_SIMPLE = {
    FieldDescriptor.TYPE_DOUBLE: (Kind.FIXED64, pa.float64()),
    FieldDescriptor.TYPE_FLOAT: (Kind.FIXED32, pa.float32()),
    FieldDescriptor.TYPE_INT64: (Kind.VARINT64, pa.int64()),
    FieldDescriptor.TYPE_UINT64: (Kind.UNSIGNED64, _UNSIGNED),
    FieldDescriptor.TYPE_INT32: (Kind.VARINT32, pa.int32()),
    FieldDescriptor.TYPE_FIXED64: (Kind.FIXED64_UNSIGNED, _UNSIGNED),
    FieldDescriptor.TYPE_FIXED32: (Kind.FIXED32_UNSIGNED, pa.int64()),
    FieldDescriptor.TYPE_BOOL: (Kind.BOOL, pa.bool_()),
    FieldDescriptor.TYPE_STRING: (Kind.STRING, pa.string()),
    FieldDescriptor.TYPE_BYTES: (Kind.BYTES, pa.binary()),
    FieldDescriptor.TYPE_UINT32: (Kind.UNSIGNED32, pa.int64()),
    FieldDescriptor.TYPE_ENUM: (Kind.ENUM, pa.string()),
    FieldDescriptor.TYPE_SFIXED32: (Kind.FIXED32, pa.int32()),
    FieldDescriptor.TYPE_SFIXED64: (Kind.FIXED64, pa.int64()),
    FieldDescriptor.TYPE_SINT32: (Kind.ZIGZAG32, pa.int32()),
    FieldDescriptor.TYPE_SINT64: (Kind.ZIGZAG64, pa.int64()),
}

TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in (
        "Double",
        "Float",
        "Int64",
        "UInt64",
        "Int32",
        "UInt32",
        "Bool",
        "String",
        "Bytes",
    )
}


class FieldStruct(c.Structure):
    """A field of a message: ``plan_field_t``."""

    _fields_ = tuple(
        (name, c.c_int32)
        for name in ("number", "kind", "flags", "column", "message", "oneof", "names", "count")
    )


class MessageStruct(c.Structure):
    """A message, as it is used in one place: ``plan_message_t``."""

    _fields_ = tuple((name, c.c_int32) for name in ("first", "count", "is_map"))


class NameStruct(c.Structure):
    """A name of a number of an enum: ``plan_name_t``."""

    _fields_ = tuple((name, c.c_int32) for name in ("number", "start", "size"))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan that the part in C is given, for as long as this lives.

    ``kind`` is the type of a row; ``places`` has the name of each of ``fields``.
    """

    kind: pa.StructType
    fields: c.Array[FieldStruct]
    messages: c.Array[MessageStruct]
    names: c.Array[NameStruct]
    text: bytes
    places: tuple[str, ...]


def plan_of(message: Descriptor) -> Plan:
    """Return the plan of a message.

    Raises:
        ProtobufSchemaError: it has what columns cannot hold.
    """
    making = _Making()
    kind = making.message(message, ())
    fields = [each for part in making.parts for each in part]
    messages, first = (MessageStruct * len(making.parts))(), 0
    for struct, part in zip(messages, making.parts, strict=True):
        struct.first, struct.count = first, len(part)
        first += len(part)
    for number in making.maps:
        messages[number].is_map = 1
    return Plan(
        kind,
        (FieldStruct * len(fields))(*(struct for struct, _ in fields)),
        messages,
        (NameStruct * max(1, len(making.names)))(*making.names),
        bytes(making.text),
        tuple(place for _, place in fields),
    )


@dataclass(slots=True)
class _Making:
    """A plan as it is made: the fields of each message in each place where it is used."""

    parts: list[list[tuple[FieldStruct, str]]] = field(default_factory=list)
    maps: list[int] = field(default_factory=list)
    names: list[NameStruct] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    enums: dict[str, tuple[int, int]] = field(default_factory=dict)
    columns: int = 0

    def message(
        self, message: Descriptor, around: tuple[Descriptor, ...], place: str = ""
    ) -> pa.StructType:
        """Add a message whose column is the next one, and return its type."""
        name = place or message.full_name
        if any(each.full_name == message.full_name for each in around):
            raise ProtobufSchemaError(
                f"{name} has {message.full_name} in itself, which no column holds"
            )
        if not message.fields:
            raise ProtobufSchemaError(
                f"{name} is {message.full_name}, which has no fields; leave it out"
            )
        if len(message.fields) + len(message.oneofs) > _MOST_FIELDS:
            raise ProtobufSchemaError(f"{name} has more than {_MOST_FIELDS} fields")
        self.columns += 1
        part: list[tuple[FieldStruct, str]] = []
        self.parts.append(part)
        inside = (*around, message)
        fields = []
        for each in message.fields:  # columns are in the order of the schema
            struct, kind = self._field(each, inside, f"{place}.{each.name}".lstrip("."))
            part.append((struct, f"{place}.{each.name}".lstrip(".")))
            fields.append(pa.field(each.name, kind))
        part.sort(key=lambda each: each[0].number)
        return pa.struct(fields)

    def _field(
        self, of: FieldDescriptor, around: tuple[Descriptor, ...], place: str
    ) -> tuple[FieldStruct, pa.DataType]:
        struct = FieldStruct(number=of.number, column=self.columns, oneof=-1)
        in_entry = of.containing_type.GetOptions().map_entry
        if of.is_repeated:
            struct.flags |= _REPEATED
        elif not of.has_presence or in_entry:
            struct.flags |= _IMPLICIT
        if of.containing_oneof is not None:
            struct.oneof = len(of.containing_type.fields) + of.containing_oneof.index
        if of.is_repeated:
            self.columns += 1
        kind = self._type(of, struct, around, place)
        if of.is_repeated and not pa.types.is_map(kind):
            kind = pa.list_(kind)
        return struct, kind

    def _type(
        self,
        of: FieldDescriptor,
        struct: FieldStruct,
        around: tuple[Descriptor, ...],
        place: str,
    ) -> pa.DataType:
        """Return the type of a field's value, whose column is the next one."""
        if of.type == FieldDescriptor.TYPE_GROUP:
            raise ProtobufSchemaError(f"{place} is a group, which is not decoded; leave it out")
        if of.type != FieldDescriptor.TYPE_MESSAGE:
            struct.kind, kind = _SIMPLE[of.type]
            self.columns += 1
            if of.type == FieldDescriptor.TYPE_ENUM:
                self._enum(of, struct)
            return kind
        message = of.message_type
        if message.full_name == TIMESTAMP:
            struct.kind = Kind.TIME
            self.columns += 1
            return pa.timestamp("us", tz="UTC")
        struct.message = len(self.parts)
        if message.full_name in WRAPPERS:
            return self._wrapper(message, struct, around, place)
        struct.kind = Kind.MESSAGE
        if not message.GetOptions().map_entry:
            return self.message(message, around, place)
        self.maps.append(struct.message)
        entry = self.message(message, around, place)
        return pa.map_(entry.field("key").type, entry.field("value").type)

    def _wrapper(
        self,
        message: Descriptor,
        struct: FieldStruct,
        around: tuple[Descriptor, ...],
        place: str,
    ) -> pa.DataType:
        struct.kind = Kind.WRAPPER
        part: list[tuple[FieldStruct, str]] = []
        self.parts.append(part)
        inner, kind = self._field(message.fields[0], (*around, message), place)
        part.append((inner, place))
        return kind

    def _enum(self, of: FieldDescriptor, struct: FieldStruct) -> None:
        enum = of.enum_type
        struct.message = 0 if of.is_repeated else of.default_value
        if enum.is_closed:
            struct.flags |= _CLOSED
        struct.names, struct.count = self._names(enum)

    def _names(self, enum: EnumDescriptor) -> tuple[int, int]:
        found = self.enums.get(enum.full_name)
        if found is None:
            names: dict[int, str] = {}
            for value in enum.values:
                names.setdefault(value.number, value.name)
            found = self.enums[enum.full_name] = len(self.names), len(names)
            for number, name in sorted(names.items()):
                self.names.append(NameStruct(number, len(self.text), len(name)))
                self.text += name.encode()
        return found
