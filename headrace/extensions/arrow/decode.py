"""Values in JSON into columns, without Spark, with the undecodable found one by one."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.decoders import decoded_rows
from headrace.core.errors import ConfigError, UndecodableRecordError
from headrace.core.misfits import custom_reason
from headrace.core.records import TopicPartition
from headrace.core.tables import (
    FIX_UNDECODABLE,
    KAFKA_COLUMN,
    KAFKA_FIELDS,
    Decode,
    Decoding,
    OnUndecodable,
    whole,
    with_kafka_column,
)
from headrace.core.undecodable import UndecodableRows
from headrace.formats.json_schema import with_columns
from headrace.formats.json_values import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from headrace.core.undecodable import Undecodable


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


def parse_ddl(ddl: str, kind: Decoding = Decoding.JSON) -> pa.Schema:
    """Return the columns of a text such as ``id BIGINT, tags ARRAY<STRING>``.

    Raises:
        ConfigError: it is no list of columns, or has a type that is not decoded to here.
    """
    try:
        return pa.schema(_Reader(ddl, kind).all_columns())
    except ValueError as error:
        raise ConfigError([f"decode schema {ddl!r} is not a list of columns: {error}"]) from error


class _Reader:
    """Reads a text from left to right; every method begins where the one before it ended."""

    def __init__(self, text: str, kind: Decoding) -> None:
        self._types = _SIMPLE | {"BINARY": pa.binary()} if kind is Decoding.CUSTOM else _SIMPLE
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
        if kind not in self._types:
            read = "decoded to" if "BINARY" in self._types else "read from JSON"
            raise ValueError(
                f"{name} is not a type that is {read}; there are "
                f"{', '.join([*self._types, *nested])}"
            )
        return self._types[kind]

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


@dataclass(frozen=True, slots=True)
class Decoded:
    """The reducer's table, and what it leaves out: offsets, or records for the dead letters."""

    table: pa.Table
    skipped: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    rejected: Undecodable = field(default_factory=dict)


def schema_of(kind: Decoding, ddl: str | None) -> pa.Schema:
    """Return the columns that values are decoded to.

    Raises:
        ConfigError: the schema is missing, cannot be read, or uses a reserved name.
    """
    if ddl is None:
        raise ConfigError([f"decode: {kind.value} needs a schema, as in 'id LONG, name STRING'"])
    schema = parse_ddl(ddl, kind)
    if KAFKA_COLUMN in schema.names:
        raise ConfigError([f"decode schema {ddl!r} uses the reserved name {KAFKA_COLUMN!r}"])
    return schema


class ArrowDecoder:
    """Applies a :class:`Decode` to the tables of micro-batches. Any thread.

    Raises:
        ConfigError: the schema is missing, cannot be read, or uses a reserved name.
        ImportPathError: the decoder that it names cannot be made.
    """

    def __init__(self, decode: Decode) -> None:
        self._treating = decode.on_undecodable
        self._custom = decode.custom
        self._kind: pa.StructType | None = None
        self._json: JsonDecoder | None = None
        if decode.custom is not None and decode.schema is None:
            decode.custom.load()
            self._kind = decode.custom.kind
        if decode.kind is not Decoding.NONE and self._kind is None:
            self._kind = pa.struct(list(schema_of(decode.kind, decode.schema)))
        if decode.kind is Decoding.JSON_SCHEMA and decode.custom is not None:
            self._custom = with_columns(decode.custom, self._kind, decode.timestamps)
        if self._custom is not None:
            self._custom.load()
        if decode.kind is Decoding.JSON:
            self._json = JsonDecoder(self._kind, decode.timestamps)

    def treating(self, undecodable: OnUndecodable) -> ArrowDecoder:
        """Return one with the same schema that treats undecodable records so. Any thread."""
        other = copy(self)
        other._treating = undecodable  # noqa: SLF001 - one of our own
        return other

    def apply(self, table: pa.Table) -> Decoded:
        """Return the schema's columns and the record's own. A tombstone is a row of nulls.

        Raises:
            UndecodableRecordError: a value does not fit the schema, and is not to be skipped.
            RetryableError: the decoder that is named cannot work now.
        """
        if self._kind is None:
            return Decoded(table)
        rows, bad = self._columns(table)
        if not bad:
            return Decoded(with_kafka_column(rows, table))
        if self._treating is OnUndecodable.FAIL:
            first = min(bad)
            value = table.column("value")[first].as_py()
            raise _undecodable(table, first, self._reason(value, bad[first]))
        others = _others(bad, table.num_rows)
        own = table.select(KAFKA_FIELDS).filter(others)
        readable = with_kafka_column(rows.filter(others), own)
        if self._treating is OnUndecodable.SKIP:
            return Decoded(readable, _offsets(table, sorted(bad)))
        return Decoded(readable, rejected=self._rejected(table, bad))

    def _rejected(self, table: pa.Table, bad: Mapping[int, str]) -> Undecodable:
        """Return the records at these positions, and why each is none."""
        positions = sorted(bad)
        said = [bad[position] for position in positions]
        return UndecodableRows(table.take(pa.array(positions, pa.int64())), said, self._reason)

    def _reason(self, value: bytes | None, said: str) -> str:
        return custom_reason(said) if self._json is None else self._json.why_bad(value, said)

    def _columns(self, table: pa.Table) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a row for each value, null where there is none, and what is said of bad ones."""
        values = whole(table.column("value"))
        if self._json is not None:
            return self._json.read(values)
        assert self._custom is not None, "there are two kinds"
        return decoded_rows(self._custom, values, self._kind, whole(table.column("headers")))


def _others(positions: Collection[int], count: int) -> pa.Array:
    """Return of so many positions whether each is none of these."""
    bits = bytearray(b"\xff") * (-(-count // 8))
    for position in positions:
        bits[position // 8] &= ~(1 << position % 8)
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bits)])


def _undecodable(table: pa.Table, position: int, reason: str) -> UndecodableRecordError:
    ((partition, (offset,)),) = _offsets(table, [position]).items()
    return UndecodableRecordError(partition, offset, f"{reason}; {FIX_UNDECODABLE}")


def _offsets(table: pa.Table, positions: Sequence[int]) -> dict[TopicPartition, list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    rows = table.select(["topic", "partition", "offset"]).take(pa.array(positions, pa.int64()))
    for topic, partition, offset in zip(*(each.to_pylist() for each in rows.columns), strict=True):
        found.setdefault((topic, partition), []).append(offset)
    return {TopicPartition(*where): offsets for where, offsets in found.items()}
