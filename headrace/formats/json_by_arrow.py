"""Values in JSON into columns by Arrow's reader, with those that are no rows found one by one.

This is how they are decoded where the part in C was not compiled, or does not know a type.
"""

from __future__ import annotations

import io
import re
from json import loads as from_text
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from headrace.core.misfits import ExpectedObject
from headrace.formats.json_types import as_read, made

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.core.tables import Timestamps


#: Each value is read as the one field of an object, so that it can be neither none nor several.
_FRAME = b'{"v":', b"}"

#: What a value has in it that goes on as a second field of that object, after its own end. Most
#: with an object inside of theirs have it, too.
_MAY_GO_ON = re.compile(rb'\}\s*,\s*"')

#: A value that goes on so is none in a list, where no name can follow. In both places only one JSON
#: document can stand. It takes 1.7 times as long, so that it is for those alone that may need it.
_STRICT_FRAME = b'{"v":', b',"list":[', b"]}"


def read_by_arrow(
    values: pa.Array, kind: pa.StructType, timestamps: Timestamps
) -> tuple[pa.StructArray, list[int]]:
    """Return a row for each value, null where there is none, and the places of bad ones."""
    search = _Search(kind, timestamps)
    search.find(values)
    return search.rows(len(values)), sorted(search.bad)


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

    def rows(self, count: int) -> pa.StructArray:
        """Return as many rows as there are values, each in its value's place."""
        if len(self._pieces) == 1 and not self.bad:
            return self._pieces[0]
        if not self._pieces:
            return pa.nulls(count, self._kind)
        places: list[int | None] = [None] * count
        for at, place in enumerate(pa.concat_arrays(self._places).to_pylist()):
            places[place] = at
        return pa.concat_arrays(self._pieces).take(pa.array(places, pa.int64()))

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
