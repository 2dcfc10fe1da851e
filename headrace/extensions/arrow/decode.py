"""Values in JSON into columns, without Spark, with the undecodable found one by one."""

from __future__ import annotations

import io
import re
from copy import copy
from dataclasses import dataclass, field
from json import loads as from_text
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from headrace.core.decoders import decoded_rows
from headrace.core.errors import ConfigError, UndecodableRecordError
from headrace.core.misfits import ExpectedObject, custom_reason
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
from headrace.core.undecodable import UndecodableRows
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
        self._timestamps = decode.timestamps
        self._kind: pa.StructType | None = None
        if decode.kind is not Decoding.NONE:
            self._kind = pa.struct(list(schema_of(decode.kind, decode.schema)))
        self._expected = ExpectedObject(self._kind, decode.timestamps)
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
        positions = sorted(bad)
        said = [bad[position] for position in positions]
        return UndecodableRows(table.take(pa.array(positions, pa.int64())), said, self._of_value)

    def _reason(self, table: pa.Table, position: int, said: str) -> str:
        return self._of_value(table.column("value")[position].as_py(), said)

    def _of_value(self, value: bytes | None, said: str) -> str:
        if self._custom is not None:
            return custom_reason(said)
        return self._expected.why_undecodable(value)

    def _read(
        self, values: pa.Array, kind: pa.StructType
    ) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return the rows of the values that are some, and why others are none, by position."""
        if self._custom is not None:
            rows, bad = decoded_rows(self._custom, values, kind)
            return (rows.take(_others(bad, len(rows))) if bad else rows), bad
        search = _Search(kind, self._timestamps)
        search.find(values)
        return search.rows(), dict.fromkeys(search.bad, "")


def read_rows(values: pa.Array, kind: pa.StructType) -> tuple[pa.StructArray, dict[int, str]]:
    """Return the rows of values in JSON, and why others are none, by their places. Any thread.

    The rows are those of the values that are some, in their order; a null is a row of null. Moments
    are text by ISO 8601.
    """
    search = _Search(kind, Timestamps.ISO)
    search.find(values)
    expected = ExpectedObject(kind)
    reasons = {place: expected.why_undecodable(values[place].as_py()) for place in search.bad}
    return search.rows(), reasons


def _others(positions: Collection[int], count: int) -> pa.Array:
    """Return all positions of so many but these."""
    return pa.array(sorted(set(range(count)).difference(positions)), pa.int64())


#: Of so many values the reader is asked which is the first that is none, again and again. More
#: would be copied too often for that: each time all that come after it.
_BLOCK = 512

#: How often values are left out of a block that have what an error quotes, and how many of them.
_MOST_QUOTES, _MOST_HAVING = 12, 32

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
        self._expected = ExpectedObject(kind, timestamps)
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

    def find(self, values: pa.Array) -> None:
        """Read all values."""
        places = pa.array(range(len(values)), pa.int64())
        if self._error_of(values, places) is None:
            return
        for start in range(0, len(values), _BLOCK):
            self._find_in_block(values.slice(start, _BLOCK), start)

    def _find_in_block(self, values: pa.Array, start: int) -> None:
        """Read values, the first of which is at ``start``, but those that the reader names.

        The row that it names is the value at that place if each before it made one row. Whatever
        was read did, and so did what is JSON; after anything else what is named is looked at again.
        """
        documents = _documents(values)
        named = _named_by_reader(documents, self._kind, self._timestamps)
        known = len(self.bad)
        self._find_quoted(values, documents, _others(named, len(values)), start)
        if all(_is_json(documents[place - start]) for place in self.bad[known:]):
            self.bad += [start + place for place in named]
            return
        for place in named:
            self.read_values(values.slice(place, 1), pa.array([start + place], pa.int64()))

    def _find_quoted(
        self, values: pa.Array, documents: Sequence[bytes], left: pa.Array, start: int
    ) -> None:
        """Read the values that are ``left``, first without those that have what errors quote."""
        for _ in range(_MOST_QUOTES):
            error = self._error_of(values.take(left), pc.add(left, start))
            if error is None:
                return
            quoted = _quoted_by(error)
            having = [
                at for at in left.to_pylist() if quoted is not None and quoted in documents[at]
            ]
            if not having or len(having) > _MOST_HAVING:
                break
            for at in having:
                self.read_values(values.slice(at, 1), pa.array([start + at], pa.int64()))
            left = left.filter(pc.invert(pc.is_in(left, pa.array(having, pa.int64()))))
        self.read_values(values.take(left), pc.add(left, start))

    def _error_of(self, values: pa.Array, places: pa.Array) -> str | None:
        """Keep the rows of values whose places among all are these; say why, if some are none."""
        if len(values) == 0:
            return None
        rows = _read(values, self._kind, self._timestamps)
        if isinstance(rows, str):
            return rows
        self._pieces.append(rows)
        self._places.append(places)
        return None

    def read_values(self, values: pa.Array, places: pa.Array) -> None:
        """Read values, whose places among all are these, and divide those that are no rows."""
        if self._error_of(values, places) is None:
            return
        if len(values) == 1:
            self.bad.append(places[0].as_py())
            return
        parts = self._by_looks(values) if len(values) <= _FEW else None
        if parts is None:
            step = -(-len(values) // _PARTS)
            for start in range(0, len(values), step):
                self.read_values(values.slice(start, step), places.slice(start, step))
            return
        for part in parts:
            self.read_values(values.take(part), places.take(part))

    def _by_looks(self, values: pa.Array) -> list[pa.Array] | None:
        """Return the values that look like rows together, and each other one by itself.

        None where all look alike, which tells nothing.
        """
        good: list[int] = []
        others: list[int] = []
        for place, value in enumerate(values.to_pylist()):
            looks_well = value is None or self._expected.misfit(value) is None
            (good if looks_well else others).append(place)
        if not good or not others:
            return None
        return [pa.array(each, pa.int64()) for each in (good, *([place] for place in others))]


def _read(values: pa.Array, kind: pa.DataType, timestamps: Timestamps) -> pa.StructArray | str:
    """Return the values as rows, or what the error is where not every one is a row."""
    try:
        read = _parsed(_documents(values), _parse_options(kind, timestamps))
        rows = read.column("v").combine_chunks()
        rows = made(rows, kind, timestamps)
        rows.validate(full=True)  # the reader lets bytes pass that are no text, and long decimals
    except pa.ArrowException as error:
        return str(error)
    if len(rows) != len(values):
        return "not one row a value"
    is_no_object = pc.any(pc.and_(pc.is_valid(values), pc.is_null(rows))).as_py()
    return "a value is no object" if is_no_object else rows


def _documents(values: pa.Array) -> list[bytes]:
    return [b"null" if value is None else value for value in values.to_pylist()]


def _parse_options(kind: pa.DataType, timestamps: Timestamps) -> json.ParseOptions:
    return json.ParseOptions(
        explicit_schema=pa.schema([("v", as_read(kind, timestamps))]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )


def _parsed(documents: Sequence[bytes], options: json.ParseOptions) -> pa.Table:
    text = _framed(documents)
    whole = json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    return json.read_json(io.BytesIO(text), read_options=whole, parse_options=options)


#: How the reader names the row that is no JSON, or has a field of another kind. Of what it fails to
#: convert it names none.
_ROW = re.compile(r"^JSON parse error: .* in row (\d+)$", re.DOTALL)


def _named_by_reader(
    documents: Sequence[bytes], kind: pa.DataType, timestamps: Timestamps
) -> list[int]:
    """Return the positions of values of which the reader says that they are none.

    It stops at the first, and reads on after it: all of them are read once, in as many pieces.
    """
    options = _parse_options(kind, timestamps)
    # nothing makes a value of white space
    named = [place for place, document in enumerate(documents) if not document.strip()]
    left = [place for place, document in enumerate(documents) if document.strip()]
    while left:
        try:
            _parsed([documents[place] for place in left], options)
        except pa.ArrowInvalid as error:
            row = _ROW.match(str(error))
            if row is None or int(row[1]) >= len(left):
                break
            named.append(left[int(row[1])])
            left = left[int(row[1]) + 1 :]
        else:
            break
    return sorted(named)


#: How errors quote the value of a field that is none of its type.
_QUOTES = re.compile(
    r"couldn't parse:(?P<a>.+)$|string: '(?P<b>.+)' as a scalar|The string '(?P<c>.+)' is not"
    r"|: (?P<d>\S+) requires precision",
    re.DOTALL,
)


def _quoted_by(error: str) -> bytes | None:
    """Return what an error quotes of a value, None where it quotes nothing."""
    found = _QUOTES.search(error)
    return None if found is None else next(filter(None, found.groups())).encode()


def _is_json(document: bytes) -> bool:
    try:
        from_text(document)
    except (ValueError, RecursionError):
        return False
    return True


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
