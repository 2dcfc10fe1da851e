"""Programs: the values of one writer's schema, resolved once to the columns of the reader's.

The part in C runs them (``avro.c``); the rules are those of Avro's specification. A branch that the
reader has no type for is refused when a value has it; all else that does not resolve, at once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from headrace.core.tables import FIRST_MICROSECOND, LAST_MICROSECOND
from headrace.formats.avro.defaults import encoded
from headrace.formats.avro.layout import Column, Shape
from headrace.formats.avro.schema import MISSING, AvroType
from headrace.formats.errors import AvroSchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(IntEnum):
    """The value that an operation reads; as in ``avro.c``, which says more."""

    NOTHING = 0
    """Null."""
    INTEGER = 1
    """A whole number."""
    FLOAT = 2
    """Four bytes of a fraction."""
    DOUBLE = 3
    """Eight bytes of one."""
    BOOLEAN = 4
    """A byte that is 0 or 1."""
    BYTES = 5
    """Bytes or text after their length."""
    FIXED = 6
    """So many bytes."""
    DECIMAL = 7
    """Bytes of a whole number."""
    SYMBOL = 8
    """The place of a symbol."""
    RECORD = 9
    """The fields that follow."""
    LIST = 10
    """Items."""
    MAP = 11
    """Keys, and values."""
    UNION = 12
    """A branch."""
    REFUSED = 13
    """A branch that the reader does not take."""
    CONSTANT = 14
    """A default."""


#: Without a branch for null.
_NEVER = 2

#: The branches of the usual union.
_WITH_NULL = ("null", "another type")
_OP = struct.Struct("=BBhiiiqqq")


@dataclass(frozen=True, slots=True)
class Program:
    """The operations as the part in C takes them, and the place in the schema of each."""

    ops: bytes
    constants: bytes
    places: Sequence[str]

    @property
    def count(self) -> int:
        """Return how many operations there are."""
        return len(self.places)


def compiled(writer: AvroType, row: Column) -> Program:
    """Return the program of a writer's schema for the columns of the reader.

    Raises:
        AvroSchemaError: it does not resolve to the reader's schema.
    """
    made = _Compiler()
    made.read(writer, row, "")
    return made.program()


@dataclass(slots=True)
class _Op:
    kind: Kind
    place: str
    column: int = -1
    low: int = 0
    high: int = 0
    scale: int = 0
    constant: int = 0
    null_at: int = _NEVER
    span: int = 1

    def packed(self) -> bytes:
        return _OP.pack(
            self.kind,
            self.null_at,
            0,
            self.column,
            self.span,
            self.constant,
            self.low,
            self.high,
            self.scale,
        )


_INT, _LONG = (-(1 << 31), (1 << 31) - 1), (-(1 << 63), (1 << 63) - 1)
_WHOLE = {"int": _INT, "long": _LONG}

#: The days of the years from 1 to 9999, and the parts of a day.
_DATES = (-719_162, 2_932_896)
_DAY = 86_400_000

#: What a logical type's numbers may be, and how many of the column's units they are.
_TIMES = {
    "date": (_DATES, 1),
    "time-millis": ((0, _DAY - 1), 1),
    "time-micros": ((0, _DAY * 1000 - 1), 1),
    **{
        local + name: ((FIRST_MICROSECOND // scale, LAST_MICROSECOND // scale), scale)
        for name, scale in (("timestamp-millis", 1000), ("timestamp-micros", 1))
        for local in ("", "local-")
    },
}

#: The most steps that a program has: types that name others twice are long soon.
_MOST_OPS = 100_000

#: What may be read as what. Whole numbers go to wider ones, and text and bytes to each other.
_PROMOTED = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "double": {"double"},
    "string": {"string", "bytes"},
    "bytes": {"bytes", "string"},
}


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    aliases = {alias.rpartition(".")[2] for alias in reader.aliases} | set(reader.aliases)
    short = writer.short_name
    return short == reader.short_name or writer.name in aliases or short in aliases


class _Compiler:
    def __init__(self) -> None:
        self._ops: list[_Op] = []
        self._constants = bytearray()
        self._skipping: list[AvroType] = []

    def program(self) -> Program:
        ops = b"".join(each.packed() for each in self._ops)
        # never empty, so that it has an address
        return Program(ops, bytes(self._constants) or b"\0", [each.place for each in self._ops])

    def read(self, writer: AvroType, column: Column, place: str) -> None:
        """Add what reads a value of the writer's type into a column."""
        if writer.kind == "union":
            self._read_union(writer, column, place)
        elif writer.kind == "null":
            if not column.nullable:
                raise AvroSchemaError(f"{_at(place)} is null, and {column.avro} for the reader")
            self._add(_Op(Kind.NOTHING, place, column.index))
        else:
            self._read_type(writer, column, place)

    def _read_union(self, writer: AvroType, column: Column, place: str) -> None:
        kinds = [each.kind for each in writer.branches]
        if column.nullable and kinds.count("null") == 1 and len(kinds) == len(_WITH_NULL):
            null_at = kinds.index("null")
            start = len(self._ops)
            self._read_type(writer.branches[1 - null_at], column, place)
            self._ops[start].null_at = null_at
            return
        op = self._add(_Op(Kind.UNION, place, low=len(kinds)))
        errors = []
        for each in writer.branches:
            start = len(self._ops)
            try:
                self.read(each, column, place)
            except AvroSchemaError as error:
                errors.append(error)
                del self._ops[start:]
                self._add(_Op(Kind.REFUSED, place))
        if len(errors) == len(kinds):
            raise errors[0]
        self._end(op)

    def _read_type(self, writer: AvroType, column: Column, place: str) -> None:
        reader = column.avro
        if writer.kind == reader.kind == "record" and _same_name(writer, reader):
            self._read_record(writer, column, place)
        elif writer.kind == reader.kind and writer.items is not None:
            self._read_items(writer, column, place)
        elif writer.kind == reader.kind == "enum" and _same_name(writer, reader):
            self._read_enum(writer, column, place)
        elif reader.logical == "decimal":
            self._read_decimal(writer, column, place)
        elif writer.kind == reader.kind == "fixed":
            if writer.size != reader.size or not _same_name(writer, reader):
                raise _mismatch(writer, reader, place)
            self._add(_Op(Kind.FIXED, place, column.index, low=writer.size))
        elif writer.kind == reader.kind == "boolean":
            self._add(_Op(Kind.BOOLEAN, place, column.index))
        elif reader.kind in _PROMOTED.get(writer.kind, ()):
            self._read_promoted(writer, column, place)
        else:
            raise _mismatch(writer, reader, place)

    def _read_promoted(self, writer: AvroType, column: Column, place: str) -> None:
        reader = column.avro
        if writer.kind in ("string", "bytes"):
            is_text = int("string" in {writer.kind, reader.kind})
            self._add(_Op(Kind.BYTES, place, column.index, low=is_text))
        elif writer.kind in ("float", "double"):
            kind = Kind.FLOAT if writer.kind == "float" else Kind.DOUBLE
            self._add(_Op(kind, place, column.index))
        else:
            (low, high), scale = _WHOLE[writer.kind], 1
            if reader.logical in _TIMES:
                bounds, scale = _unit(writer, reader)
                low, high = max(low, bounds[0]), min(high, bounds[1])
            self._add(_Op(Kind.INTEGER, place, column.index, low=low, high=high, scale=scale))

    def _read_record(self, writer: AvroType, column: Column, place: str) -> None:
        op = self._add(_Op(Kind.RECORD, place, column.index))
        fields = column.avro.fields
        named = {each.name: k for k, each in enumerate(fields)}
        taken = {each.name: named[each.name] for each in writer.fields if each.name in named}
        left = set(named.values()) - set(taken.values())
        for name in (each.name for each in writer.fields if each.name not in taken):
            k = next((k for k in sorted(left) if name in fields[k].aliases), None)
            if k is not None:
                taken[name] = k
                left.discard(k)
        for each in writer.fields:
            inside = f"{place}.{each.name}" if place else each.name
            if each.name in taken:
                self.read(each.type, column.inner[taken[each.name]], inside)
            else:
                self._skip(each.type, inside)
        for k in sorted(left):
            self._read_default(column, k, place)
        self._end(op)

    def _read_default(self, column: Column, k: int, place: str) -> None:
        field = column.avro.fields[k]
        inside = f"{place}.{field.name}" if place else field.name
        if field.default is MISSING:
            raise AvroSchemaError(
                f"{inside} is not in the writer's schema, and has no default in the reader's"
            )
        constant = encoded(field.type, field.default, inside)
        place_of = len(self._constants)
        self._constants += constant
        op = self._add(_Op(Kind.CONSTANT, inside, low=len(constant), constant=place_of))
        self.read(field.type, column.inner[k], inside)
        self._end(op)

    def _read_items(self, writer: AvroType, column: Column, place: str) -> None:
        assert writer.items is not None, "an array or a map"
        _require_width(writer.items, place)
        kind = Kind.MAP if writer.kind == "map" else Kind.LIST
        op = self._add(_Op(kind, place, column.index))
        self.read(writer.items, column.inner[-1], f"{place}[]")
        self._end(op)

    def _read_enum(self, writer: AvroType, column: Column, place: str) -> None:
        reader = column.avro
        table, texts = b"", b""
        begin = len(self._constants) + 8 * len(writer.symbols)
        for each in writer.symbols:
            symbol = each if each in reader.symbols else reader.default
            text = (symbol or "").encode()
            length = -1 if symbol is None else len(text)
            table += struct.pack("=ii", begin + len(texts), length)
            texts += text
        count, constant = len(writer.symbols), len(self._constants)
        self._add(_Op(Kind.SYMBOL, place, column.index, low=count, constant=constant))
        self._constants += table + texts

    def _read_decimal(self, writer: AvroType, column: Column, place: str) -> None:
        reader = column.avro
        same_kind = writer.kind == reader.kind and writer.size == reader.size
        if writer.logical != "decimal" or writer.scale != reader.scale or not same_kind:
            raise _mismatch(writer, reader, place)
        limit = 10**reader.precision
        high, low = limit >> 64, limit & (1 << 64) - 1
        op = _Op(Kind.DECIMAL, place, column.index, _signed(low), _signed(high))
        op.scale = writer.size if writer.kind == "fixed" else -1
        self._add(op)

    def _skip(self, writer: AvroType, place: str) -> None:
        """Add what passes over a value."""
        if writer in self._skipping:
            raise AvroSchemaError(
                f"{place} has {writer.name} in itself, and the reader's schema leaves it out; "
                "such a value is not passed over"
            )
        self._skipping.append(writer)
        try:
            self._skip_type(writer, place)
        finally:
            self._skipping.pop()

    def _skip_type(self, writer: AvroType, place: str) -> None:
        match writer.kind:
            case "null":
                self._add(_Op(Kind.NOTHING, place))
            case "int" | "long" | "enum":
                low, high = _WHOLE.get(writer.kind, _INT)
                self._add(_Op(Kind.INTEGER, place, low=low, high=high, scale=1))
            case "float" | "double" | "boolean":
                self._add(_Op(Kind[writer.kind.upper()], place))
            case "string" | "bytes":
                self._add(_Op(Kind.BYTES, place))
            case "fixed":
                self._add(_Op(Kind.FIXED, place, low=writer.size))
            case "union":
                op = self._add(_Op(Kind.UNION, place, low=len(writer.branches)))
                for each in writer.branches:
                    self._skip(each, place)
                self._end(op)
            case "record":
                op = self._add(_Op(Kind.RECORD, place))
                for field in writer.fields:
                    self._skip(field.type, f"{place}.{field.name}")
                self._end(op)
            case _:
                assert writer.items is not None, "an array or a map"
                _require_width(writer.items, place)
                kind = Kind.MAP if writer.kind == "map" else Kind.LIST
                op = self._add(_Op(kind, place))
                self._skip(writer.items, f"{place}[]")
                self._end(op)

    def _add(self, op: _Op) -> int:
        if len(self._ops) == _MOST_OPS:
            raise AvroSchemaError(f"it has more than {_MOST_OPS:,} fields, one in the other")
        self._ops.append(op)
        return len(self._ops) - 1

    def _end(self, op: int) -> None:
        self._ops[op].span = len(self._ops) - op


def _unit(writer: AvroType, reader: AvroType) -> tuple[tuple[int, int], int]:
    """Return the bounds of a writer's numbers for a column of times, and what they are times.

    Columns of timestamps are in microseconds, and those of times in the reader's unit. A number
    without a logical type is of the reader's.
    """
    assert reader.logical is not None, "a column of times"
    if writer.logical is not None and writer.logical.endswith("-nanos"):
        raise AvroSchemaError(f"{writer} is in nanoseconds, which are not read as {reader}")
    if writer.logical == "time-millis" and reader.logical == "time-micros":
        return _TIMES[writer.logical][0], 1000
    of_both = {writer.logical, reader.logical}
    if all(each is not None and "timestamp-" in each for each in of_both):
        return _TIMES[str(writer.logical)]
    return _TIMES[reader.logical]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _at(place: str) -> str:
    return place or "the value"


def _mismatch(writer: AvroType, reader: AvroType, place: str) -> AvroSchemaError:
    return AvroSchemaError(f"{_at(place)} is {writer}, and {reader} for the reader")


def _require_width(items: AvroType, place: str) -> None:
    """Refuse items without a byte, of which a few bytes could say that there are billions."""
    if not _has_bytes(items, ()):
        raise AvroSchemaError(f"the items of {place} take no byte, which is not decoded")


def _has_bytes(kind: AvroType, within: tuple[AvroType, ...]) -> bool:
    if kind.kind == "record":
        inside = (*within, kind)
        return any(each.type in inside or _has_bytes(each.type, inside) for each in kind.fields)
    return kind.kind != "null" and (kind.kind != "fixed" or kind.size > 0)


#: The bytes of a value in columns that have some for each.
WIDTHS = {
    Shape.INT32: 4,
    Shape.INT64: 8,
    Shape.FLOAT32: 4,
    Shape.FLOAT64: 8,
    Shape.WIDE: 16,
}
