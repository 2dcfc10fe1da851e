"""Defaults of a reader's fields, as the bytes that a writer would have written for them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from headrace.formats.avro.schema import MISSING, AvroField, AvroType
from headrace.formats.errors import AvroSchemaError

if TYPE_CHECKING:
    from collections.abc import Callable


def encoded(kind: AvroType, value: Any, place: str) -> bytes:
    """Return a default as bytes of Avro. ``place`` is for the error.

    Raises:
        AvroSchemaError: it is none of the type.
    """
    try:
        return _encoded(kind, value)
    except (TypeError, ValueError, LookupError, struct.error, AttributeError) as error:
        raise AvroSchemaError(f"the default of {place} is no {kind}") from error


def check_defaults(reader: AvroType) -> None:
    """Check each default of a schema, whether a writer may leave it out or not.

    Raises:
        AvroSchemaError: one is none of its type.
    """
    seen: set[int] = set()

    def look(kind: AvroType) -> None:
        if id(kind) in seen:
            return
        seen.add(id(kind))
        for each in kind.fields:
            if each.default is not MISSING:
                encoded(each.type, each.default, f"{kind.name}.{each.name}")
            look(each.type)
        for inner in (*kind.branches, *([kind.items] if kind.items else [])):
            look(inner)

    look(reader)


#: Of each byte of a number: its bits, and the one that says that there is another byte.
_SEVEN_BITS, _MORE = 0x7F, 0x80


def number(value: int) -> bytes:
    """Return a whole number as Avro writes it."""
    left, out = (value << 1) ^ (value >> 63), bytearray()
    while left > _SEVEN_BITS:
        out.append(left & _SEVEN_BITS | _MORE)
        left >>= 7
    out.append(left)
    return bytes(out)


def _encoded(kind: AvroType, value: Any) -> bytes:
    return _WRITERS[kind.kind](kind, value)


def _wrong() -> bytes:
    raise ValueError


def _whole(kind: AvroType, value: Any) -> bytes:
    limit = 1 << (31 if kind.kind == "int" else 63)
    fits = type(value) is int and -limit <= value < limit
    return number(value) if fits else _wrong()


def _bytes(kind: AvroType, value: str) -> bytes:
    raw = value.encode("latin-1")
    if kind.kind == "fixed":
        return raw if len(raw) == kind.size else _wrong()
    return number(len(raw)) + raw


def _text(_: AvroType, value: str) -> bytes:
    raw = value.encode()
    return number(len(raw)) + raw


def _of_union(kind: AvroType, value: Any) -> bytes:
    for index, branch in enumerate(kind.branches):
        try:
            return number(index) + encoded(branch, value, "")
        except AvroSchemaError:
            continue
    return _wrong()


def _of_field(field: AvroField, value: dict[str, Any]) -> bytes:
    given = value.get(field.name, field.default)
    return _wrong() if given is MISSING else _encoded(field.type, given)


def _of_items(kind: AvroType, value: Any) -> bytes:
    assert kind.items is not None, "an array or a map"
    if kind.kind == "map":
        parts = [_text(kind, key) + _encoded(kind.items, each) for key, each in value.items()]
    else:
        parts = [_encoded(kind.items, each) for each in list(value)]
    return (number(len(parts)) + b"".join(parts) if parts else b"") + number(0)


_WRITERS: dict[str, Callable[[AvroType, Any], bytes]] = {
    "null": lambda _, value: b"" if value is None else _wrong(),
    "boolean": lambda _, value: bytes([value]) if isinstance(value, bool) else _wrong(),
    "int": _whole,
    "long": _whole,
    "float": lambda _, value: struct.pack("<f", value),
    "double": lambda _, value: struct.pack("<d", value),
    "bytes": _bytes,
    "fixed": _bytes,
    "string": _text,
    "enum": lambda kind, value: number(kind.symbols.index(value)),
    "union": _of_union,
    "record": lambda kind, value: b"".join(_of_field(each, value) for each in kind.fields),
    "array": _of_items,
    "map": _of_items,
}
