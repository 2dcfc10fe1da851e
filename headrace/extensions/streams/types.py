"""The types of fields and of expressions: in Python, in columns, and in a plan."""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import pyarrow as pa

if TYPE_CHECKING:
    from headrace.extensions.streams.rows import Row

#: Digits of a decimal, as many as a column of 128 bits has.
DIGITS = 38

LEAST_INT, MOST_INT = -(2**63), 2**63 - 1


class Kind(Enum):
    """The kind of a value. The text stands in plans and in errors."""

    TEXT = "str"
    """Unicode text."""
    INT = "int"
    """A whole number of 64 bits."""
    FLOAT = "float"
    """A number of IEEE 754 with 64 bits."""
    BOOL = "bool"
    """True or false."""
    BYTES = "bytes"
    """Bytes, which JSON does not have."""
    DATETIME = "datetime"
    """A moment in microseconds, in UTC."""
    DECIMAL = "Decimal"
    """A decimal number of 38 digits, ``scale`` of them after the point."""
    LIST = "list"
    """Values of one type, none of them null."""
    ROW = "Row"
    """The fields of another row."""


_SCALARS: dict[type, Kind] = {
    str: Kind.TEXT,
    int: Kind.INT,
    float: Kind.FLOAT,
    bool: Kind.BOOL,
    bytes: Kind.BYTES,
    datetime: Kind.DATETIME,
    Decimal: Kind.DECIMAL,
}

_ARROW: dict[Kind, pa.DataType] = {
    Kind.TEXT: pa.string(),
    Kind.INT: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.BYTES: pa.binary(),
    Kind.DATETIME: pa.timestamp("us", tz="UTC"),
}

#: Kinds that have an order, which is the same in Python and in columns.
ORDERED = {Kind.TEXT, Kind.INT, Kind.FLOAT, Kind.BYTES, Kind.DATETIME, Kind.DECIMAL}
#: Kinds of which two values can be compared.
COMPARABLE = ORDERED | {Kind.BOOL}
NUMBERS = {Kind.INT, Kind.FLOAT, Kind.DECIMAL}
#: Kinds that a record's key may have: the same value is the same bytes, in any process.
KEYS = {Kind.TEXT, Kind.INT, Kind.BOOL}


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a field or of an expression.

    ``item`` is what a list has, ``row`` the class of a row, ``scale`` the digits after the point of
    a decimal. ``nullable`` says that a value may be missing.
    """

    kind: Kind
    nullable: bool = False
    item: Type | None = None
    row: type[Row] | None = None
    scale: int | None = None

    def __str__(self) -> str:
        return f"{self._name} | None" if self.nullable else self._name

    @property
    def _name(self) -> str:
        if self.kind is Kind.LIST:
            return f"list[{self.item}]"
        if self.row is not None:
            return self.row.__name__
        return self.kind.value if self.scale is None else f"Decimal(scale={self.scale})"

    @property
    def required(self) -> Type:
        """Return the type without null."""
        return replace(self, nullable=False) if self.nullable else self

    def or_null(self, nullable: bool = True) -> Type:
        """Return the type, with null where that is so."""
        return replace(self, nullable=True) if nullable and not self.nullable else self

    def accepts(self, other: Type) -> bool:
        """Return whether each value of ``other`` is one of this type."""
        return self.required == other.required and (self.nullable or not other.nullable)

    def arrow(self) -> pa.DataType:
        """Return the type of the column that holds such values."""
        if self.item is not None:
            return pa.list_(self.item.arrow())
        if self.row is not None:
            return pa.struct([(name, each.arrow()) for name, each in row_types(self.row).items()])
        if self.scale is not None:
            return pa.decimal128(DIGITS, self.scale)
        return _ARROW[self.kind]

    def document(self) -> dict[str, Any]:
        """Return the type as a plan has it."""
        found: dict[str, Any] = {"type": self.kind.value}
        if self.item is not None:
            found["item"] = self.item.document()
        if self.row is not None:
            found["row"] = self.row.__name__
        if self.scale is not None:
            found["scale"] = self.scale
        if self.nullable:
            found["nullable"] = True
        return found


TEXT, INT, FLOAT, BOOL = Type(Kind.TEXT), Type(Kind.INT), Type(Kind.FLOAT), Type(Kind.BOOL)
BYTES, DATETIME = Type(Kind.BYTES), Type(Kind.DATETIME)


def list_of(item: Type) -> Type:
    """Return the type of lists of such values."""
    return Type(Kind.LIST, item=item)


def row_types(row: type[Row]) -> dict[str, Type]:
    """Return the types of a row's fields by their names, in the order of the class."""
    return {name: each.type for name, each in row.__fields__.items()}


def type_of_annotation(annotation: Any, scale: int | None = None) -> Type:
    """Return the type that an annotation of a field names.

    Raises:
        TypeError: no field can have it; the text says what it may have.
    """
    nullable = False
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [each for each in get_args(annotation) if each is not type(None)]
        if len(members) != 1 or len(members) == len(get_args(annotation)):
            raise TypeError(f"{_name_of(annotation)} has several types; take one, or one | None")
        annotation, nullable = members[0], True
    found = _required_type(annotation, scale)
    return found.or_null(nullable)


def _required_type(annotation: Any, scale: int | None) -> Type:
    if get_origin(annotation) is list:
        item = type_of_annotation(get_args(annotation)[0], scale)
        if item.nullable:
            raise TypeError(
                f"{_name_of(annotation)} may have null among its items; "
                f"write list[{item.required}], and leave nulls out of it"
            )
        return list_of(item)
    if isinstance(annotation, type) and hasattr(annotation, "__fields__"):
        return Type(Kind.ROW, row=annotation)
    kind = _SCALARS.get(annotation) if isinstance(annotation, type) else None
    if kind is None:
        more = "list[str], or the like" if annotation is list else None
        raise TypeError(
            f"{_name_of(annotation)} is no type of a field; take "
            f"{more or 'str, int, float, bool, bytes, datetime, Decimal, a list or a Row'}"
        )
    if kind is not Kind.DECIMAL:
        return Type(kind)
    if scale is None or not 0 <= scale <= DIGITS:
        raise TypeError("a Decimal needs its digits after the point, 0 to 38, as in field(scale=2)")
    return Type(kind, scale=scale)


def _name_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def type_of_value(value: object) -> Type | None:
    """Return the type of a constant, None where it has none. A decimal has its own scale."""
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return Type(Kind.DECIMAL, scale=max(0, -exponent)) if isinstance(exponent, int) else None
    kind = _SCALARS.get(type(value))
    return None if kind is None else Type(kind)
