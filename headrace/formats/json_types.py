"""The types that Arrow's JSON reader is given for columns, and the columns made of what it read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.tables import FIRST_MICROSECOND, LAST_MICROSECOND, Timestamps

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds since 1970 up to beyond the year 9999, and what fractions a double of such has.
_EPOCH = pa.decimal128(30, 12)
_DIGITS = _EPOCH.precision


def _read_decimal(kind: pa.Decimal128Type) -> pa.Decimal256Type:
    """Return the type to read decimals as: Arrow does not see that a number exceeds 128 bits."""
    return pa.decimal256(kind.precision, kind.scale)


#: The digits behind the point that are microseconds, where the unit is the second and so on.
_SCALES = {Timestamps.SECONDS: 6, Timestamps.MILLIS: 3, Timestamps.MICROS: 0}

_MICROSECONDS_A_DAY = 24 * 3600 * 1_000_000


def as_read(kind: pa.DataType, timestamps: Timestamps) -> pa.DataType:
    """Return the type to read a column of ``kind`` as.

    The reader knows no dates, no moments as numbers, and moves a local time by an offset beside it.
    """
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            return pa.string()
        return kind if timestamps is Timestamps.ISO else _read_decimal(_EPOCH)
    if pa.types.is_decimal(kind):
        return _read_decimal(kind)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(as_read(each.type, timestamps)) for each in kind])
    return pa.list_(as_read(kind.value_type, timestamps)) if pa.types.is_list(kind) else kind


def made(values: pa.Array, kind: pa.DataType, timestamps: Timestamps) -> pa.Array:
    """Return a column of ``kind`` of what was read for it.

    Raises:
        pa.ArrowException: a value is none of ``kind``, or a time of no year from 1 to 9999.
    """
    if pa.types.is_struct(kind):
        fields = [
            made(values.field(at), field.type, timestamps) for at, field in enumerate(_fields(kind))
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=values.is_null())
    if pa.types.is_list(kind):
        items = made(values.values, kind.value_type, timestamps)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())
    if pa.types.is_decimal(values.type) and pa.types.is_timestamp(kind):
        values = _microseconds(values.cast(_EPOCH), timestamps)
    found = values.cast(kind)
    if pa.types.is_temporal(kind):
        _require_years(found)
    return found


def _fields(kind: pa.StructType) -> Iterator[pa.Field]:
    return iter(kind)


def _microseconds(values: pa.Array, timestamps: Timestamps) -> pa.Array:
    """Return numbers as microseconds, without what is smaller.

    A decimal number is stored as a whole one and the place of its point, so that with the point
    left out it is the number of the smallest units.
    """
    scale = _SCALES[timestamps]
    cut = pc.round(values, ndigits=scale, round_mode="towards_zero")
    cut = cut.cast(pa.decimal128(_DIGITS, scale))
    whole = pa.decimal128(_DIGITS, 0)
    return pa.Array.from_buffers(whole, len(cut), cut.buffers(), offset=cut.offset).cast(pa.int64())


def _require_years(times: pa.Array) -> None:
    """Return if each time is one of Python, and of most databases; raises ArrowInvalid."""
    is_date = pa.types.is_date(times.type)
    bounds = pc.min_max(times.cast(pa.int32() if is_date else pa.int64()))
    unit = _MICROSECONDS_A_DAY if is_date else 1
    for end in ("min", "max"):
        found = bounds[end].as_py()
        if found is not None and not FIRST_MICROSECOND <= found * unit <= LAST_MICROSECOND:
            raise pa.ArrowInvalid("a time is of no year from 1 to 9999")
