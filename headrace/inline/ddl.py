"""Columns in Spark's DDL as a schema of Arrow, without Spark: what JSON can hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:`(?P<quoted>[^`]+)`|(?P<word>\w+)|(?P<sign>[<>(),:]))")

_SIMPLE = {
    "BOOLEAN": pa.bool_(),
    **dict.fromkeys(("BYTE", "TINYINT"), pa.int8()),
    **dict.fromkeys(("SHORT", "SMALLINT"), pa.int16()),
    **dict.fromkeys(("INT", "INTEGER"), pa.int32()),
    **dict.fromkeys(("LONG", "BIGINT"), pa.int64()),
    **dict.fromkeys(("FLOAT", "REAL"), pa.float32()),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}

#: What Spark takes for a decimal without numbers, and the most digits that it has.
_DECIMAL = (10, 0)
_DIGITS = 38


def parse_ddl(ddl: str) -> pa.Schema:
    """Return the columns of a text such as ``id BIGINT, tags ARRAY<STRING>``.

    Raises:
        ConfigError: it is no list of columns, or has a type that is not read from JSON here.
    """
    try:
        return pa.schema(_Reader(ddl).all_columns())
    except ValueError as error:
        raise ConfigError([f"decode schema {ddl!r} is not a list of columns: {error}"]) from error


class _Reader:
    """Reads a text from left to right; every method begins where the one before it ended."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"{text[position:].strip()[:20]!r} is not understood")
            name = match["quoted"] or match["word"]
            self._tokens.append((name or match["sign"], name is not None))
            position = match.end()
        self._tokens.reverse()

    def all_columns(self) -> list[pa.Field]:
        columns = self._columns()
        if self._tokens:
            raise ValueError(f"{self._tokens[-1][0]!r} is not expected")
        names = [column.name for column in columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is there twice")
        return columns

    def _columns(self) -> list[pa.Field]:
        columns = [self._column()]
        while self._took(","):
            columns.append(self._column())
        return columns

    def _column(self) -> pa.Field:
        name = self._name("a column's name")
        self._took(":")
        return pa.field(name, self._type())

    def _type(self) -> pa.DataType:
        name = self._name("a type")
        kind = name.upper()
        nested: dict[str, Callable[[], pa.DataType]] = {
            "ARRAY": lambda: pa.list_(self._inside(self._type)),
            "STRUCT": lambda: pa.struct(self._inside(self._columns)),
            "DECIMAL": self._decimal,
            "DEC": self._decimal,
            "NUMERIC": self._decimal,
        }
        if kind in nested:
            return nested[kind]()
        if kind not in _SIMPLE:
            raise ValueError(
                f"{name} is not a type that is read from JSON; there are "
                f"{', '.join([*_SIMPLE, *nested])}"
            )
        return _SIMPLE[kind]

    def _inside(self, read: Callable[[], pa.DataType]) -> pa.DataType:
        self._expect("<")
        found = read()
        self._expect(">")
        return found

    def _decimal(self) -> pa.DataType:
        digits, scale = _DECIMAL
        if self._took("("):
            digits, scale = self._number(), 0
            if self._took(","):
                scale = self._number()
            self._expect(")")
        if not 0 < digits <= _DIGITS or scale > digits:
            raise ValueError(f"DECIMAL({digits}, {scale}) has no such digits")
        return pa.decimal128(digits, scale)

    def _number(self) -> int:
        text = self._name("a number")
        if not text.isdecimal():
            raise ValueError(f"{text!r} is no number")
        return int(text)

    def _name(self, what: str) -> str:
        if not self._tokens or not self._tokens[-1][1]:
            found = repr(self._tokens[-1][0]) if self._tokens else "the end"
            raise ValueError(f"{what} is expected in place of {found}")
        return self._tokens.pop()[0]

    def _took(self, sign: str) -> bool:
        if self._tokens and self._tokens[-1] == (sign, False):
            self._tokens.pop()
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._took(sign):
            raise ValueError(f"{sign!r} is missing")
