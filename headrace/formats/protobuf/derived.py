"""Descriptors of messages that are made of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from google.protobuf import descriptor_pb2

from headrace.formats import pieces
from headrace.formats.derived import require_name
from headrace.formats.errors import SchemaRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        FieldDescriptorProto,
        FileDescriptorProto,
    )

_P = descriptor_pb2.FieldDescriptorProto

_SCALARS: dict[Callable[[pa.DataType], bool], int] = {
    pa.types.is_boolean: _P.TYPE_BOOL,
    pa.types.is_int8: _P.TYPE_INT32,
    pa.types.is_int16: _P.TYPE_INT32,
    pa.types.is_int32: _P.TYPE_INT32,
    pa.types.is_int64: _P.TYPE_INT64,
    pa.types.is_uint8: _P.TYPE_UINT32,
    pa.types.is_uint16: _P.TYPE_UINT32,
    pa.types.is_uint32: _P.TYPE_UINT32,
    pa.types.is_uint64: _P.TYPE_UINT64,
    pa.types.is_float16: _P.TYPE_FLOAT,
    pa.types.is_float32: _P.TYPE_FLOAT,
    pa.types.is_float64: _P.TYPE_DOUBLE,
    pieces.is_text: _P.TYPE_STRING,
    pieces.is_binary: _P.TYPE_BYTES,
}

_TIMESTAMP = "google/protobuf/timestamp.proto"


def file_of_columns(kind: pa.StructType, name: str) -> FileDescriptorProto:
    """Return the file of one message with these fields, each of which may be missing.

    Fields have the numbers of their places, so that a column may be added after the others.

    Raises:
        SchemaRefusedError: a field has a type that Protobuf does not have, or no name.
    """
    package, _, short = name.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(
        name="derived.proto", package=package, syntax="proto3"
    )
    _Message(file, file.message_type.add(name=short), f".{name}").fill(kind, "")
    return file


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of a file, as it is made. ``full`` is its name as fields have it."""

    file: FileDescriptorProto
    made: DescriptorProto
    full: str

    def fill(self, kind: pa.StructType, place: str) -> None:
        for at, each in enumerate(kind, 1):
            inner = f"{place}.{each.name}" if place else each.name
            require_name(each.name, inner)
            field = self.made.field.add(name=each.name, number=at, label=_P.LABEL_OPTIONAL)
            if pa.types.is_map(each.type):
                self._map(field, each.type, inner)
            elif pieces.is_list(each.type):
                field.label = _P.LABEL_REPEATED
                self.add_type(field, each.type.value_type, f"{inner}[]", f"{each.name}_message")
            else:
                self.add_type(field, each.type, inner, f"{each.name}_message")
                if field.type != _P.TYPE_MESSAGE:
                    field.proto3_optional = True
                    field.oneof_index = len(self.made.oneof_decl)
                    self.made.oneof_decl.add(name=f"_{each.name}")

    def _inside(self, short: str) -> _Message:
        made = self.made.nested_type.add(name=short)
        return _Message(self.file, made, f"{self.full}.{short}")

    def add_type(
        self, field: FieldDescriptorProto, kind: pa.DataType, place: str, message: str
    ) -> None:
        """Set the type of a field; a struct is a message of this name in this one."""
        if pa.types.is_struct(kind):
            inner = self._inside(message)
            field.type, field.type_name = _P.TYPE_MESSAGE, inner.full
            inner.fill(kind, place)
        elif pa.types.is_timestamp(kind) and kind.tz is not None:
            field.type, field.type_name = _P.TYPE_MESSAGE, ".google.protobuf.Timestamp"
            if _TIMESTAMP not in self.file.dependency:
                self.file.dependency.append(_TIMESTAMP)
        else:
            found = next((each for is_of, each in _SCALARS.items() if is_of(kind)), None)
            if found is None:
                raise SchemaRefusedError(
                    f"field {place} is {kind}, which Protobuf does not have; cast it"
                )
            field.type = found

    def _map(self, field: FieldDescriptorProto, kind: pa.MapType, place: str) -> None:
        parts = field.name.split("_")
        entry = self._inside("".join(part[:1].upper() + part[1:] for part in parts) + "Entry")
        field.label, field.type, field.type_name = _P.LABEL_REPEATED, _P.TYPE_MESSAGE, entry.full
        entry.made.options.map_entry = True
        columns = (("key", kind.key_type, "[key]"), ("value", kind.item_type, "[]"))
        for number, (name, each, at) in enumerate(columns, 1):
            own = entry.made.field.add(name=name, number=number, label=_P.LABEL_OPTIONAL)
            # an entry has no messages in itself
            self.add_type(own, each, f"{place}{at}", f"{field.name}_message")
