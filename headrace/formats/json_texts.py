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
    """Return times of days by ISO 8601, without quotes."""
    return pc.replace_substring(
        values.cast(pa.string()), pattern=" ", replacement="T", max_replacements=1
    )


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
