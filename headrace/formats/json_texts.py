"""Columns as texts in JSON, without a call for each value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats import pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.formats.pieces import Misfits

#: What JSON writes with a backslash.
_ESCAPED = r'["\\\x00-\x1f]'

#: The first and the last day of the years 1 to 9999, since 1970.
_DAYS = (-719_162, 2_932_896)

#: The largest number of 64 bits.
_LARGEST = (1 << 63) - 1


def text_of(text: str) -> str:
    """Return a text as JSON has it."""
    return json.dumps(text, ensure_ascii=False)


def quoted(values: pa.Array) -> pa.Array:
    """Return texts as JSON has them."""
    is_escaped = pc.match_substring_regex(values, pattern=_ESCAPED)
    if not pc.any(is_escaped, min_count=0).as_py():
        return pc.binary_join_element_wise('"', values, '"', "")
    different = values.dictionary_encode()
    made = pa.array(map(text_of, different.dictionary.to_pylist()), different.dictionary.type)
    return made.take(different.indices)


def with_point(numbers: pa.Array) -> pa.Array:
    """Return fractions as texts, of which a reader that tells them from whole numbers is sure."""
    return pc.replace_substring_regex(
        numbers.cast(pa.string()), pattern="^(-?[0-9]+)$", replacement=r"\1.0"
    )


def iso_texts(values: pa.Array) -> pa.Array:
    """Return times of days by ISO 8601, without quotes; those that have a zone in UTC."""
    if values.type.tz is not None:
        # Arrow writes another zone as +0100, which RFC 3339 does not have
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    return pc.replace_substring(
        values.cast(pa.string()), pattern=" ", replacement="T", max_replacements=1
    )


def _outside(values: pa.Array) -> pa.Array:
    """Return where times are of no year from 1 to 9999, or of no day."""
    kind = values.type
    if pa.types.is_date(kind):
        parts_of_day = 1 if pa.types.is_date32(kind) else 86_400_000
    else:
        parts_of_day = 86_400 * pieces.PARTS[kind.unit]
    first, last = (0, 0) if pa.types.is_time(kind) else _DAYS
    numbers = (values.cast(pa.int32()) if kind.bit_width == 32 else values).cast(pa.int64())  # noqa: PLR2004 - bits
    least, most = max(first * parts_of_day, -_LARGEST), min((last + 1) * parts_of_day, _LARGEST)
    outside = pc.or_(pc.less(numbers, least), pc.greater_equal(numbers, most))
    return pc.fill_null(outside, False)


def scalar_texts(values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    """Return values that are no lists and have no fields, as texts, anything for a null."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return scalar_texts(values.dictionary_decode(), place, misfits)
    if pieces.is_text(kind):
        return quoted(values.cast(pa.string()))
    if pa.types.is_floating(kind):
        finite = pc.is_finite(values.cast(pa.float64()))
        misfits.note(f"field {place} is no number of JSON", pc.invert(pc.fill_null(finite, True)))
        return with_point(values)
    if pa.types.is_temporal(kind):
        misfits.note(f"field {place} is no time from year 1 to 9999", _outside(values))
    if pa.types.is_timestamp(kind):
        return pc.binary_join_element_wise('"', iso_texts(values), '"', "")
    texts = values.cast(pa.string())
    if pa.types.is_temporal(kind):
        return pc.binary_join_element_wise('"', texts, '"', "")
    return texts


#: Types of values without fields and items, and what a JSON schema calls them.
SCALARS: dict[Callable[[pa.DataType], bool], str] = {
    pa.types.is_boolean: "boolean",
    pa.types.is_integer: "integer",
    pa.types.is_floating: "number",
    pa.types.is_decimal: "number",
    pa.types.is_date: "string",
    pa.types.is_time: "string",
    pa.types.is_timestamp: "string",
    pieces.is_text: "string",
}
