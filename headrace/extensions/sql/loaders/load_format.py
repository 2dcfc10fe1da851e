"""The text that LOAD DATA reads: a line for each row, made from Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from headrace.extensions.sql.columns import bound_type, is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Rows that are text at a time.
_CHUNK = 16_384

_NULL, _NOTHING, _TAB, _LINE_END = (
    pa.scalar(text, pa.large_string()) for text in ("\\N", "", "\t", "\n")
)

#: What means something in a line, and what stands there for it.
_ESCAPED = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\x00", "\\0"))

#: The two digits of each byte.
_DIGITS = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)


@dataclass(frozen=True, slots=True)
class Encoding:
    """The way in which values of a column are written: ``encode`` makes text of all that are not
    null, and ``read_by`` is the function that has the server read it, where it is not the column.
    """

    encode: Callable[[pa.Array], pa.Array]
    read_by: str | None = None


def encoding_of(kind: pa.DataType, column: sa.Column[Any], dialect: sa.Dialect) -> Encoding | None:
    """Return how values of an Arrow type are written for a column, None where they are bound.

    What the column makes of the text has to be what it makes of a parameter.
    """
    own = column.type
    if isinstance(own, sa.JSON):
        return Encoding(_json(column, kind, dialect))
    if is_text(kind):
        return Encoding(_text) if type(own) in _TEXTS else None
    if is_binary(kind) and not pa.types.is_null(kind):
        return Encoding(_digits, "UNHEX") if isinstance(own, _BINARIES) else None
    return next(
        (found for is_one, types, found in _PAIRS if is_one(kind) and isinstance(own, types)), None
    )


def lines(rows: pa.Table, encodings: Sequence[Encoding]) -> Iterator[memoryview]:
    """Yield the rows as text. Values that have no text raise ValueError."""
    for batch in rows.to_batches(max_chunksize=_CHUNK):
        fields = [
            pc.fill_null(pc.cast(encoding.encode(column), pa.large_string()), _NULL)
            for column, encoding in zip(batch.columns, encodings, strict=True)
        ]
        found = pc.binary_join_element_wise(*fields, _TAB)
        yield _bytes_of(pc.binary_join_element_wise(found, _NOTHING, _LINE_END))


def _bytes_of(values: pa.Array) -> memoryview:
    """Return the text of values without nulls, one after the other."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int64)[values.offset :]
    return memoryview(data)[bounds[0] : bounds[len(values)]]


def _text(values: pa.Array) -> pa.Array:
    found = pc.cast(values, pa.large_string())
    for special, written in _ESCAPED:
        found = pc.replace_substring(found, special, written)
    return found


def _plain(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.large_string())


def _truths(values: pa.Array) -> pa.Array:
    return pc.if_else(values, "1", "0")


def _digits(values: pa.Array) -> pa.Array:
    """Write bytes as two digits each."""
    found = pc.cast(values, pa.large_binary())
    sizes = pc.fill_null(pc.binary_length(found), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(found) + 1, np.int64)
    np.cumsum(sizes * 2, out=offsets[1:])
    data = _bytes_of(pc.fill_null(found, b""))
    digits = _DIGITS[np.frombuffer(data, np.uint8)]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    text = pa.Array.from_buffers(pa.large_string(), len(found), buffers)
    return pc.if_else(found.is_valid(), text, pa.scalar(None, pa.large_string()))


def _json(
    column: sa.Column[Any], kind: pa.DataType, dialect: sa.Dialect
) -> Callable[[pa.Array], pa.Array]:
    """Return what writes JSON as it is bound. ValueError for a value that has none."""
    process: Callable[[Any], str] | None = (
        bound_type(column, kind, dialect.name).dialect_impl(dialect).bind_processor(dialect)
    )

    def encode(values: pa.Array) -> pa.Array:
        assert process is not None, "JSON is always made, or checked"
        try:
            found = [None if each is None else process(each) for each in values.to_pylist()]
        except (TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            raise ValueError(str(error)) from error
        return _text(pa.array(found, pa.large_string()))

    return encode


#: Types of text without a meaning of its own.
_TEXTS = frozenset(
    {sa.TEXT, sa.VARCHAR, sa.CHAR, mysql.TEXT, mysql.VARCHAR, mysql.CHAR}
    | {mysql.TINYTEXT, mysql.MEDIUMTEXT, mysql.LONGTEXT}
)

_BINARIES = (sa.LargeBinary, sa.BINARY, sa.VARBINARY)
_DECIMALS = (sa.DECIMAL, sa.NUMERIC, mysql.DECIMAL, mysql.NUMERIC)
_FLOATS = (mysql.DOUBLE, mysql.FLOAT)

_PAIRS: tuple[tuple[Callable[[pa.DataType], bool], Any, Encoding], ...] = (
    (pa.types.is_boolean, sa.Integer, Encoding(_truths)),
    (pa.types.is_integer, (sa.Integer, *_DECIMALS, *_FLOATS), Encoding(_plain)),
    (pa.types.is_floating, _FLOATS, Encoding(_plain)),
    (pa.types.is_decimal, _DECIMALS, Encoding(_plain)),
    (pa.types.is_date, sa.Date, Encoding(_plain)),
    (pa.types.is_timestamp, sa.DateTime, Encoding(_plain)),
    (pa.types.is_time, sa.Time, Encoding(_plain)),
)
