"""The columns of a reader's schema: their types in Arrow, and how the part in C keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.formats.avro.schema import AvroType
from headrace.formats.errors import AvroSchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shape(IntEnum):
    """The form in which a column keeps a value; as in ``avro.c``."""

    NONE = 0
    """Nothing: each is null."""
    BITS = 1
    """One bit."""
    INT32 = 2
    """Four bytes of a whole number."""
    INT64 = 3
    """Eight bytes of one."""
    FLOAT32 = 4
    """Four bytes of a fraction."""
    FLOAT64 = 5
    """Eight bytes of one."""
    WIDE = 6
    """Sixteen bytes of a decimal."""
    TEXT = 7
    """Characters or bytes, and where they end."""
    ITEMS = 8
    """The end of its items, which are columns of their own."""
    STRUCT = 9
    """Nothing but the columns in it."""


@dataclass(eq=False, slots=True)
class Column:
    """A column. ``avro`` is its type without null; ``index`` its place among all, parents first."""

    avro: AvroType
    shape: Shape
    kind: pa.DataType
    nullable: bool
    index: int
    inner: list[Column] = field(default_factory=list)

    @property
    def span(self) -> int:
        """Return how many columns it is with those in it."""
        return 1 + sum(each.span for each in self.inner)

    def all(self) -> Iterator[Column]:
        """Yield it and those in it, parents first."""
        yield self
        for each in self.inner:
            yield from each.all()


def columns_of(reader: AvroType) -> Column:
    """Return the columns of a reader's schema, of which the first is the row itself.

    Raises:
        AvroSchemaError: the schema is none of a record, or has what columns cannot hold: a type in
            itself, or a union of two types beside null.
    """
    if reader.kind != "record":
        raise AvroSchemaError(f"the reader's schema is {reader}; it must be a record")
    if not reader.fields:
        raise AvroSchemaError(f"the reader's schema {reader.name} has no fields")
    return _Layout().column(reader, reader.name)


_PLAIN = {
    "null": (Shape.NONE, pa.null()),
    "boolean": (Shape.BITS, pa.bool_()),
    "int": (Shape.INT32, pa.int32()),
    "long": (Shape.INT64, pa.int64()),
    "float": (Shape.FLOAT32, pa.float32()),
    "double": (Shape.FLOAT64, pa.float64()),
    "bytes": (Shape.TEXT, pa.binary()),
    "fixed": (Shape.TEXT, pa.binary()),
    "string": (Shape.TEXT, pa.string()),
    "enum": (Shape.TEXT, pa.string()),
}

_MOMENT, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_LOGICAL = {
    "date": (Shape.INT32, pa.date32()),
    "time-millis": (Shape.INT32, pa.time32("ms")),
    "time-micros": (Shape.INT64, pa.time64("us")),
    "timestamp-millis": (Shape.INT64, _MOMENT),
    "timestamp-micros": (Shape.INT64, _MOMENT),
    "local-timestamp-millis": (Shape.INT64, _LOCAL),
    "local-timestamp-micros": (Shape.INT64, _LOCAL),
}

#: The most digits of a decimal.
_DIGITS = 38


class _Layout:
    """Numbers columns while it makes them, and knows which types it is in."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[AvroType] = []

    def column(self, given: AvroType, place: str) -> Column:
        avro, nullable = _without_null(given, place)
        if avro in self._open:
            raise AvroSchemaError(
                f"{place} has {avro.name} in itself, which columns cannot hold; give a reader's "
                "schema without it"
            )
        index = self._count
        self._count += 1
        self._open.append(avro)
        try:
            return self._made(avro, place, nullable=nullable, index=index)
        finally:
            self._open.pop()

    def _made(self, avro: AvroType, place: str, *, nullable: bool, index: int) -> Column:
        if avro.kind == "record":
            inner = [self.column(each.type, f"{place}.{each.name}") for each in avro.fields]
            if not inner:
                raise AvroSchemaError(f"{place} is a record without fields, which is no column")
            kind = pa.struct(
                [pa.field(f.name, c.kind) for f, c in zip(avro.fields, inner, strict=True)]
            )
            return Column(avro, Shape.STRUCT, kind, nullable, index, inner)
        if avro.items is not None:
            of_map = avro.kind == "map"
            inner = [self.column(AvroType("string"), f"{place}[key]")] if of_map else []
            inner.append(self.column(avro.items, f"{place}[]"))
            last = inner[-1].kind
            kind = pa.map_(pa.string(), last) if of_map else pa.list_(last)
            return Column(avro, Shape.ITEMS, kind, nullable, index, inner)
        if avro.logical == "decimal":
            if avro.precision > _DIGITS:
                raise AvroSchemaError(
                    f"{place} is a decimal of {avro.precision} digits; a column has {_DIGITS} "
                    "at most"
                )
            decimal = pa.decimal128(avro.precision, avro.scale)
            return Column(avro, Shape.WIDE, decimal, nullable, index)
        shape, kind = _LOGICAL.get(avro.logical or "") or _PLAIN[avro.kind]
        return Column(avro, shape, kind, nullable, index)


def _without_null(given: AvroType, place: str) -> tuple[AvroType, bool]:
    """Return the type that is not null, and whether there may be null beside it."""
    if given.kind != "union":
        return given, given.kind == "null"
    others = [each for each in given.branches if each.kind != "null"]
    if len(others) > 1:
        raise AvroSchemaError(
            f"{place} is a union of {' and '.join(map(str, others))}, which no column holds; give "
            "a reader's schema with one of them, or leave the field out of it"
        )
    nullable = len(others) < len(given.branches)
    return (others[0] if others else given.branches[0]), nullable
