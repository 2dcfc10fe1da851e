"""Values in JSON into columns, without Spark, with the undecodable found one by one."""

from __future__ import annotations

import io
import re
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from headrace.core.decoders import decoded_rows
from headrace.core.errors import ConfigError, UndecodableRecordError
from headrace.core.misfits import as_spelt, custom_reason, misfit, why_undecodable
from headrace.core.records import TopicPartition
from headrace.core.tables import (
    FIX_UNDECODABLE,
    KAFKA_COLUMN,
    Decode,
    Decoding,
    OnUndecodable,
    Timestamps,
    with_kafka_column,
)
from headrace.core.undecodable import UndecodableRecord
from headrace.extensions.arrow.json_types import as_read, made

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
        self._types = _SIMPLE if kind is Decoding.JSON else _SIMPLE | {"BINARY": pa.binary()}
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


#: Each value is read as the one field of an object, so that it can be neither none nor several.
_FRAME = b'{"v":', b"}"

#: What a value has in it that goes on as a second field of that object, after its own end. Most
#: with an object inside of theirs have it, too.
_MAY_GO_ON = re.compile(rb'\}\s*,\s*"')

#: A value that goes on so is none in a list, where no name can follow. In both places only one JSON
#: document can stand. It takes 1.7 times as long, so that it is for those alone that may need it.
_STRICT_FRAME = b'{"v":', b',"list":[', b"]}"


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the reducer gets, and what it does not: offsets, or records for the dead letters."""

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
        self._timestamps = decode.timestamps
        self._kind: pa.StructType | None = None
        if decode.kind is not Decoding.NONE:
            self._kind = pa.struct(list(schema_of(decode.kind, decode.schema)))
        if decode.custom is not None:
            decode.custom.load()

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
        rows, bad = self._read(table.column("value").combine_chunks(), self._kind)
        if not bad:
            return Decoded(with_kafka_column(rows, table))
        if self._treating is OnUndecodable.FAIL:
            first = min(bad)
            raise _undecodable(table, first, self._reason(table, first, bad[first]))
        part = table.take(_others(bad, table.num_rows))
        readable = with_kafka_column(rows, part)
        if self._treating is OnUndecodable.SKIP:
            return Decoded(readable, _offsets(table, sorted(bad)))
        return Decoded(readable, rejected=self._rejected(table, bad))

    def _rejected(self, table: pa.Table, bad: Mapping[int, str]) -> Undecodable:
        """Return the records at these positions, and why each is none."""
        found: dict[TopicPartition, list[UndecodableRecord]] = {}
        positions = sorted(bad)
        columns = table.take(pa.array(positions, pa.int64()))
        times = columns.column("timestamp").cast(pa.int64())
        columns = columns.set_column(columns.column_names.index("timestamp"), "timestamp", times)
        for position, row in zip(positions, columns.to_pylist(), strict=True):
            where = TopicPartition(row["topic"], row["partition"])
            time = -1 if row["timestamp"] is None else row["timestamp"] // 1000
            headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
            reason = self._of_value(row["value"], bad[position])
            found.setdefault(where, []).append(
                UndecodableRecord(row["offset"], row["key"], row["value"], headers, time, reason)
            )
        return found

    def _reason(self, table: pa.Table, position: int, said: str) -> str:
        return self._of_value(table.column("value")[position].as_py(), said)

    def _of_value(self, value: bytes | None, said: str) -> str:
        if self._custom is not None:
            return custom_reason(said)
        assert self._kind is not None, "it decodes"
        return why_undecodable(value, as_spelt(self._kind, self._timestamps))

    def _read(self, values: pa.Array, kind: pa.StructType) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the rows of the values that are some, and why others are none, by position."""
        if self._custom is not None:
            rows, bad = decoded_rows(self._custom, values, kind)
            return (rows.take(_others(bad, len(rows))) if bad else rows), bad
        search = _Search(kind, self._timestamps)
        search.look(values, pa.array(range(len(values)), pa.int64()))
        return search.rows(), dict.fromkeys(search.bad, "")


def _others(positions: Collection[int], count: int) -> pa.Array:
    """Return all positions of so many but these."""
    return pa.array(sorted(set(range(count)).difference(positions)), pa.int64())


#: Into how many parts values are divided of which some are none.
_PARTS = 16

#: Of so many values each is looked at by itself, to tell which are none: reading one takes as long
#: as looking at twenty.
_FEW = 256


class _Search:
    """Finds out which of some values are rows; whether one is says Arrow's reader alone."""

    def __init__(self, kind: pa.StructType, timestamps: Timestamps) -> None:
        self._kind = kind
        self._timestamps = timestamps
        self._spelt = as_spelt(kind, timestamps)
        self.bad: list[int] = []
        self._places: list[pa.Array] = []
        self._pieces: list[pa.StructArray] = []

    def rows(self) -> pa.StructArray:
        """Return the rows in the order of their values."""
        if not self._pieces:
            return pa.nulls(0, self._kind)
        rows = pa.concat_arrays(self._pieces)
        if len(self._pieces) == 1:
            return rows
        return rows.take(pc.sort_indices(pa.concat_arrays(self._places)))

    def look(self, values: pa.Array, places: pa.Array) -> None:
        """Read values, whose places among all are these, and divide those that are no rows."""
        if len(values) == 0:
            return
        rows = _read(values, self._kind, self._timestamps)
        if rows is not None:
            self._pieces.append(rows)
            self._places.append(places)
            return
        if len(values) == 1:
            self.bad.append(places[0].as_py())
            return
        parts = self._by_looks(values) if len(values) <= _FEW else None
        if parts is None:
            step = -(-len(values) // _PARTS)
            for start in range(0, len(values), step):
                self.look(values.slice(start, step), places.slice(start, step))
            return
        for part in parts:
            self.look(values.take(part), places.take(part))

    def _by_looks(self, values: pa.Array) -> list[pa.Array] | None:
        """Return the values that look like rows together, and each other one by itself.

        None where all look alike, which tells nothing.
        """
        good: list[int] = []
        others: list[int] = []
        for place, value in enumerate(values.to_pylist()):
            looks_well = value is None or misfit(value, self._spelt) is None
            (good if looks_well else others).append(place)
        if not good or not others:
            return None
        return [pa.array(each, pa.int64()) for each in (good, *([place] for place in others))]


def _read(values: pa.Array, kind: pa.DataType, timestamps: Timestamps) -> pa.StructArray | None:
    """Return the values as rows, None where not every one is a row."""
    if len(values) == 0:
        return pa.nulls(0, kind)
    text = _framed([b"null" if value is None else value for value in values.to_pylist()])
    try:
        read = json.read_json(
            io.BytesIO(text),
            read_options=json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=json.ParseOptions(
                explicit_schema=pa.schema([("v", as_read(kind, timestamps))]),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        rows = read.column("v").combine_chunks()
        rows = made(rows, kind, timestamps)
        rows.validate(full=True)  # the reader lets bytes pass that are no text, and long decimals
    except pa.ArrowException:
        return None
    if len(rows) != len(values):
        return None
    is_no_object = pc.any(pc.and_(pc.is_valid(values), pc.is_null(rows))).as_py()
    return None if is_no_object else rows


def _framed(values: Sequence[bytes]) -> bytes:
    """Return text whose lines are objects with one value each, if these are one JSON document."""
    before, after = _FRAME
    text = before + (after + b"\n" + before).join(values) + after
    if _MAY_GO_ON.search(text) is None:
        return text
    before, between, after = _STRICT_FRAME
    return b"\n".join([before + value + between + value + after for value in values])


def _undecodable(table: pa.Table, position: int, reason: str) -> UndecodableRecordError:
    ((partition, (offset,)),) = _offsets(table, [position]).items()
    return UndecodableRecordError(partition, offset, f"{reason}; {FIX_UNDECODABLE}")


def _offsets(table: pa.Table, positions: Sequence[int]) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    rows = table.select(["topic", "partition", "offset"]).take(pa.array(positions, pa.int64()))
    for row in rows.to_pylist():
        found.setdefault(TopicPartition(row["topic"], row["partition"]), []).append(row["offset"])
    return found
