"""Rows of Arrow tables in the binary format of PostgreSQL's COPY.

A row is its number of fields, and each field its length and its bytes, a null the length -1; all
numbers are big-endian. Each column becomes arrays of pieces, and Arrow joins the pieces of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from psycopg.pq import Format
from sqlalchemy.dialects import postgresql

from headrace.extensions.sql.columns import is_binary, is_text, json_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    #: A column's fields: one array, or several side by side, none of them with nulls.
    _Pieces = Sequence[pa.Array]

#: What a stream begins with: its signature, and two numbers for flags and extensions, none here.
SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)

#: What it ends with: a row of -1 fields.
TRAILER = b"\xff\xff"

#: What is between two pieces of a row.
_NOTHING = pa.scalar(b"", pa.large_binary())

#: Rows that are joined at a time. From some thousand on more make it no faster.
_AT_ONCE = 16_384

#: What text is sent as to columns that read it like a literal.
TEXT = "text"

#: PostgreSQL counts days and microseconds from 2000-01-01.
_EPOCH_DAYS = 10_957
_DAY = 86_400_000_000
_EPOCH = _EPOCH_DAYS * _DAY

#: The years that Python has, 1 to 9999, in Arrow's days: others are refused.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896

#: Of a timedelta of Python.
_MOST_DAYS = 999_999_999

#: The number of the type numeric, and those of arrays' elements.
_NUMERIC = 1700
_ELEMENTS: dict[type[sa.types.TypeEngine[Any]], int] = {
    sa.BOOLEAN: 16,
    postgresql.BYTEA: 17,
    sa.BIGINT: 20,
    sa.SMALLINT: 21,
    sa.INTEGER: 23,
    sa.TEXT: 25,
    sa.REAL: 700,
    sa.DOUBLE_PRECISION: 701,
    sa.VARCHAR: 1043,
    sa.DATE: 1082,
}


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of an Arrow type's values, and the type of what is sent.

    ``sent_as`` is a type's name in SQL where the server has to make the column's type of it, and
    None where it is the column's own. ``encode`` raises ValueError for a value that has no form.
    """

    encode: Callable[[pa.Array], _Pieces]
    sent_as: str | None = None


def stream(rows: pa.Table, encodings: Sequence[Encoding]) -> Iterator[memoryview | bytes]:
    """Yield the stream of the rows, piece by piece.

    Raises:
        ValueError: a value has no form in the format.
    """
    yield SIGNATURE
    count = pa.scalar(len(encodings).to_bytes(2, "big"), pa.large_binary())
    for batch in rows.to_batches(max_chunksize=_AT_ONCE):
        if not batch.num_rows:
            continue
        pieces = [count]
        for encoding, values in zip(encodings, batch.columns, strict=True):
            pieces += encoding.encode(values)
        joined = pc.binary_join_element_wise(*pieces, _NOTHING)
        yield _bytes_of(joined).data
    yield TRAILER


def encoding_of(kind: pa.DataType, column: sa.types.TypeEngine[Any]) -> Encoding | None:
    """Return how values of an Arrow type are sent to a column, None where that is not known.

    What becomes of them is what becomes of the same values as parameters of an INSERT.
    """
    if pa.types.is_dictionary(kind):
        of_values = encoding_of(kind.value_type, column)
        return of_values and Encoding(
            lambda values: of_values.encode(values.dictionary_decode()), of_values.sent_as
        )
    if pa.types.is_null(kind):
        return Encoding(lambda values: [_nulls(len(values))])
    if isinstance(column, sa.JSON):
        return Encoding(_json(kind, is_jsonb=isinstance(column, postgresql.JSONB)))
    if is_text(kind):
        return _of_text(column)
    if isinstance(column, postgresql.ARRAY):
        return _of_list(kind, column)
    own, has_zone = type(column), _has_zone(column)
    return next(
        (e for is_one, *rest, e in _PAIRS if is_one(kind) and rest == [own, has_zone]), None
    )


def _of_text(column: sa.types.TypeEngine[Any]) -> Encoding | None:
    """Return how text is sent: to columns that are no text as such, to be read like a literal."""
    if isinstance(column, sa.Enum) or type(column) in _TEXTS:
        return Encoding(_text)
    return None if isinstance(column, sa.String) else Encoding(_text, TEXT)


def _of_list(kind: pa.DataType, column: postgresql.ARRAY[Any]) -> Encoding | None:
    number = _ELEMENTS.get(type(column.item_type))
    is_list = (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
    if number is None or not is_list or pa.types.is_nested(kind.value_type):
        return None
    element = encoding_of(kind.value_type, column.item_type)
    if element is None or element.sent_as is not None:
        return None
    return Encoding(lambda values: _array(values, element, number))


def _bytes_of(values: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes of an array of binary values without nulls, one after the other."""
    _, offsets, data = values.buffers()
    if data is None:
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int64)[values.offset :]
    return np.frombuffer(data, np.uint8)[bounds[0] : bounds[len(values)]]


def _binary(offsets: NDArray[np.int64], data: NDArray[Any]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _alike(rows: NDArray[Any]) -> pa.Array:
    """Return one binary value for each of a numpy array's, all of the same size."""
    size = rows.dtype.itemsize
    return _binary(np.arange(0, (len(rows) + 1) * size, size, dtype=np.int64), rows)


def _nulls(count: int) -> pa.Array:
    return _alike(np.full(count, -1, ">i4"))


def _validity(values: pa.Array) -> NDArray[np.bool_] | None:
    if not values.null_count:
        return None
    return np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _fixed(numbers: NDArray[Any], valid: NDArray[np.bool_] | None) -> pa.Array:
    """Return fields of one size; ``numbers`` are in the order of bytes that they are sent in."""
    size = numbers.dtype.itemsize
    fields = np.empty(len(numbers), [("size", ">i4"), ("value", numbers.dtype)])
    fields["size"], fields["value"] = size, numbers
    if valid is None:
        return _alike(fields)
    fields["size"][~valid] = -1
    sent = np.ones((len(numbers), 4 + size), np.bool_)
    sent[~valid, 4:] = False
    offsets = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(np.where(valid, 4 + size, 4), out=offsets[1:])
    return _binary(offsets, fields.view(np.uint8).reshape(len(numbers), -1)[sent])


def _varying(values: pa.Array, prefix: bytes = b"") -> _Pieces:
    """Return fields of binary values, each with the same bytes before it."""
    sizes = pc.cast(pc.binary_length(values), pa.int64())
    sizes = pc.fill_null(pc.add(sizes, len(prefix)), -1).to_numpy(zero_copy_only=False)
    values = pc.cast(values, pa.large_binary())
    if prefix:
        values = pc.binary_join_element_wise(pa.scalar(prefix, pa.large_binary()), values, _NOTHING)
    if values.null_count:
        values = pc.fill_null(values, b"")
    return [_alike(sizes.astype(">i4")), values]


def _text(values: pa.Array) -> _Pieces:
    return _varying(pc.cast(values, pa.large_string()).cast(pa.large_binary()))


def _numbers(sent: str, kind: pa.DataType) -> Callable[[pa.Array], _Pieces]:
    """Return the encoding of numbers that Arrow casts to ``kind`` without a loss."""

    def encode(values: pa.Array) -> _Pieces:
        numbers = pc.fill_null(pc.cast(values, kind), 0).to_numpy(zero_copy_only=False)
        return [_fixed(numbers.astype(sent), _validity(values))]

    return encode


def _singles(values: pa.Array) -> _Pieces:
    """Return floating point numbers of half the size; ValueError where the server refuses one."""
    doubles = pc.fill_null(pc.cast(values, pa.float64()), 0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", under="ignore"):
        singles = doubles.astype(np.float32)
    if np.any(np.isinf(singles) & ~np.isinf(doubles)) or np.any((singles == 0) & (doubles != 0)):
        raise ValueError("a number is out of range")
    return [_fixed(singles.astype(">f4"), _validity(values))]


def _booleans(values: pa.Array) -> _Pieces:
    truths = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return [_fixed(truths.astype(np.uint8), _validity(values))]


def _counted(first: int, last: int, epoch: int, sent: str) -> Callable[[pa.Array], _Pieces]:
    """Return the encoding of numbers of days or microseconds, which Arrow counts from 1970."""

    def encode(counted: pa.Array) -> _Pieces:
        numbers = pc.fill_null(counted, epoch).to_numpy(zero_copy_only=False)
        if len(numbers) and not first <= numbers.min() <= numbers.max() <= last:
            raise ValueError("a date is out of range")
        return [_fixed((numbers - epoch).astype(sent), _validity(counted))]

    return encode


_days = _counted(_FIRST_DAY, _LAST_DAY, _EPOCH_DAYS, ">i4")
_microseconds = _counted(_FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1, _EPOCH, ">i8")


def _dates(values: pa.Array) -> _Pieces:
    return _days(pc.cast(pc.cast(values, pa.date32()), pa.int32()))


def _timestamps(values: pa.Array) -> _Pieces:
    instants = pc.cast(values, pa.timestamp("us", tz=values.type.tz))
    return _microseconds(pc.cast(instants, pa.int64()))


def _times(values: pa.Array) -> _Pieces:
    counted = pc.cast(pc.cast(values, pa.time64("us")), pa.int64())
    numbers = pc.fill_null(counted, 0).to_numpy(zero_copy_only=False)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < _DAY:
        raise ValueError("a time of day is out of range")
    return [_fixed(numbers.astype(">i8"), _validity(values))]


def _durations(values: pa.Array) -> _Pieces:
    """Encode spans of time as Python has them: microseconds of a day, and days."""
    counted = pc.cast(pc.cast(values, pa.duration("us")), pa.int64())
    days, rest = np.divmod(pc.fill_null(counted, 0).to_numpy(zero_copy_only=False), _DAY)
    if np.any(np.abs(days) > _MOST_DAYS):
        raise ValueError("a span of time is out of range")
    spans = np.zeros(len(days), [("rest", ">i8"), ("days", ">i4"), ("months", ">i4")])
    spans["rest"], spans["days"] = rest, days
    return [_fixed(spans, _validity(values))]


def _decimals(values: pa.Array) -> _Pieces:
    """Encode decimals, and whole numbers for columns of them, one by one."""
    dump = psycopg.adapters.get_dumper_by_oid(_NUMERIC, Format.BINARY)(int).dump
    return _one_by_one(values, lambda value: bytes(dump(value) or b""))


def _json(kind: pa.DataType, *, is_jsonb: bool) -> Callable[[pa.Array], _Pieces]:
    prefix = b"\x01" if is_jsonb else b""
    if is_text(kind):
        return lambda values: _varying(pc.cast(values, pa.large_string()), prefix)
    return lambda values: _one_by_one(values, lambda value: prefix + json_of(value).encode())


def _one_by_one(values: pa.Array, encode: Callable[[Any], bytes]) -> _Pieces:
    """Encode values as Python objects. ValueError for one that cannot be encoded, whatever it
    raises.
    """
    try:
        encoded = [None if value is None else encode(value) for value in values.to_pylist()]
    except (TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return _varying(pa.array(encoded, pa.large_binary()))


def _array(values: pa.Array, element: Encoding, number: int) -> _Pieces:
    """Encode lists as arrays of one dimension, counted from 1; an empty list has none."""
    lists = pc.cast(values, pa.large_list(values.type.value_type))
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    elements = lists.flatten()
    fields = pc.binary_join_element_wise(*element.encode(elements), _NOTHING)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int64())
    bodies = pc.binary_join(pa.LargeListArray.from_arrays(offsets, fields), _NOTHING)
    head = np.zeros(len(sizes), [(name, ">i4") for name in ("dimensions", "nulls", "type")])
    head["dimensions"], head["nulls"], head["type"] = sizes > 0, elements.null_count > 0, number
    of_dimension = np.empty(len(sizes), [("size", ">i4"), ("first", ">i4")])
    of_dimension["size"], of_dimension["first"] = sizes, 1
    filled = _sent_where(sizes > 0, of_dimension)
    whole = pc.binary_join_element_wise(_alike(head), filled, bodies, _NOTHING)
    return _varying(pc.if_else(values.is_valid(), whole, pa.scalar(None, pa.large_binary())))


def _sent_where(sent: NDArray[np.bool_], rows: NDArray[Any]) -> pa.Array:
    """Return one binary value for each of a numpy array's, empty where it is not sent."""
    size = rows.dtype.itemsize
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.where(sent, size, 0), out=offsets[1:])
    return _binary(offsets, rows[sent])


def _is_moment(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _is_clock_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None


def _has_zone(column: sa.types.TypeEngine[Any]) -> bool:
    return bool(getattr(column, "timezone", False))


#: Types whose values are the bytes of the text, which the server checks.
_TEXTS = frozenset({sa.TEXT, sa.VARCHAR, sa.CHAR, postgresql.CITEXT})

_integer = _numbers(">i8", pa.int64())
_double = _numbers(">f8", pa.float64())

#: How values of a kind are sent to a column of a type, with a zone or without.
_PAIRS: tuple[
    tuple[Callable[[pa.DataType], bool], type[sa.types.TypeEngine[Any]], bool, Encoding], ...
] = (
    (pa.types.is_boolean, sa.BOOLEAN, False, Encoding(_booleans)),
    (pa.types.is_integer, sa.SMALLINT, False, Encoding(_numbers(">i2", pa.int16()))),
    (pa.types.is_integer, sa.INTEGER, False, Encoding(_numbers(">i4", pa.int32()))),
    (pa.types.is_integer, sa.BIGINT, False, Encoding(_integer)),
    (pa.types.is_integer, sa.REAL, False, Encoding(_integer, "bigint")),
    (pa.types.is_integer, sa.DOUBLE_PRECISION, False, Encoding(_numbers(">f8", pa.int64()))),
    (pa.types.is_integer, sa.NUMERIC, False, Encoding(_integer, "bigint")),
    (pa.types.is_floating, sa.REAL, False, Encoding(_singles)),
    (pa.types.is_floating, sa.DOUBLE_PRECISION, False, Encoding(_double)),
    (pa.types.is_floating, sa.NUMERIC, False, Encoding(_double, "double precision")),
    (pa.types.is_decimal, sa.NUMERIC, False, Encoding(_decimals)),
    (is_binary, postgresql.BYTEA, False, Encoding(_varying)),
    (pa.types.is_date, sa.DATE, False, Encoding(_dates)),
    (_is_clock_time, postgresql.TIMESTAMP, False, Encoding(_timestamps)),
    (_is_clock_time, postgresql.TIMESTAMP, True, Encoding(_timestamps, "timestamp")),
    (_is_moment, postgresql.TIMESTAMP, True, Encoding(_timestamps)),
    (pa.types.is_time, postgresql.TIME, False, Encoding(_times)),
    (pa.types.is_duration, postgresql.INTERVAL, False, Encoding(_durations)),
)
