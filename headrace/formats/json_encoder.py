"""Columns into objects in JSON, as a JSON schema has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats import pieces
from headrace.formats.errors import SchemaRefusedError
from headrace.formats.json_texts import SCALARS, scalar_texts, text_of
from headrace.formats.pieces import NOTHING, Misfits, chosen, joined, piece

if TYPE_CHECKING:
    from collections.abc import Iterator

_NULL = piece(b"null")


class JsonEncoder:
    """Makes objects of rows of one type. Any thread.

    Fields, their types and those that are required are as the schema has them; its other words are
    for readers. A field that is null is left out, unless the schema requires it.

    Raises:
        SchemaRefusedError: rows of the type are none of the schema; the text names each field.
    """

    def __init__(self, schema: Any, kind: pa.StructType) -> None:
        problems = list(_problems(schema, kind, ""))
        if problems:
            raise SchemaRefusedError("; ".join(problems))
        self._schema = schema

    def values(self, rows: pa.StructArray, misfits: Misfits) -> pa.Array:
        """Return the object of each row, of a null row anything.

        ``misfits`` has then what JSON, or the schema, cannot hold.
        """
        return _texts(self._schema, rows, pc.is_valid(rows), "", misfits)


def from_text(text: str) -> Any:
    """Return a JSON schema.

    Raises:
        SchemaRefusedError: it is none of an object.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaRefusedError(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, dict) or "object" not in _types(schema, "object"):
        raise SchemaRefusedError("the schema is none of an object")
    return schema


def _inner(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _member(schema: Any, word: str) -> Any:
    return schema.get(word) if isinstance(schema, dict) else None


def _types(schema: Any, otherwise: str) -> list[str]:
    """Return the types that a schema names, ``otherwise`` where it leaves them open."""
    found = _member(schema, "type")
    if isinstance(found, list):
        return [each for each in found if isinstance(each, str)]
    return [found if isinstance(found, str) else otherwise]


def _problems(schema: Any, kind: pa.DataType, place: str) -> Iterator[str]:
    named = f"field {place}" if place else "the value"
    found = _json_type(kind)
    if found is None:
        yield f"{named} is {kind}, which JSON does not have"
        return
    wanted = _types(schema, found)
    if found not in wanted and not (found == "integer" and "number" in wanted) and found != "null":
        yield f"{named} is {kind}, and the schema takes {' or '.join(wanted)}"
    elif pa.types.is_map(kind):
        yield from _problems(_member(schema, "additionalProperties"), kind.item_type, f"{place}[]")
    elif pa.types.is_struct(kind):
        yield from _problems_of_fields(schema, kind, place)
    elif pieces.is_list(kind):
        yield from _problems(_member(schema, "items"), kind.value_type, f"{place}[]")


def _problems_of_fields(schema: Any, kind: pa.StructType, place: str) -> Iterator[str]:
    there = [field.name for field in kind]
    found = _member(schema, "properties")
    properties = found if isinstance(found, dict) else {}
    for name in dict.fromkeys(there):
        inner = _inner(place, name)
        if there.count(name) > 1:
            yield f"field {inner} is there twice"
        elif name not in properties and _member(schema, "additionalProperties") is False:
            yield f"field {inner} is none of the schema's properties"
        else:
            yield from _problems(_member(properties, name), kind.field(name).type, inner)
    for name in _required(schema):
        if name not in there:
            yield f"field {_inner(place, name)} is missing, which the schema requires"


def _required(schema: Any) -> list[str]:
    found = _member(schema, "required")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _json_type(kind: pa.DataType) -> str | None:
    if pa.types.is_struct(kind):
        return "object"
    if pa.types.is_map(kind):
        return "object" if pieces.is_text(kind.key_type) else None
    if pieces.is_list(kind):
        return "array"
    if pa.types.is_null(kind):
        return "null"
    return next((name for is_of, name in SCALARS.items() if is_of(kind)), None)


def _texts(
    schema: Any, values: pa.Array, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    """Return values in JSON, anything for a null."""
    kind = values.type
    if pa.types.is_null(kind):
        return pa.repeat(_NULL, len(values))
    if pa.types.is_struct(kind):
        return _objects(schema, values, pc.and_(present, pc.is_valid(values)), place, misfits)
    if pa.types.is_map(kind):
        return _maps(_member(schema, "additionalProperties"), values, place, misfits)
    if pieces.is_list(kind):
        flat, lengths = pieces.items_of(values)
        items = _or_null(_member(schema, "items"), flat, f"{place}[]", misfits)
        return _listed(b"[", items, lengths, b"]")
    return scalar_texts(values, place, misfits).cast(pieces.PIECES)


def _or_null(schema: Any, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    valid = pc.is_valid(values)
    if "null" not in _types(schema, "null"):
        misfits.note(f"field {place} is null", pc.invert(valid))
    return chosen(valid, _texts(schema, values, valid, place, misfits), _NULL)


def _objects(
    schema: Any, rows: pa.StructArray, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    required = set(_required(schema))
    parts = [pa.repeat(NOTHING, len(rows))]
    for at, field in enumerate(rows.type):
        values, inner = pc.struct_field(rows, [at]), _inner(place, field.name)
        own = _member(_member(schema, "properties"), field.name)
        name = piece(f",{text_of(field.name)}:".encode())
        valid = pc.is_valid(values)
        made = joined(name, _texts(own, values, present, inner, misfits))
        absent: Any = NOTHING
        if field.name in required:
            absent = joined(name, pa.repeat(_NULL, len(rows)))
            if "null" not in _types(own, "null"):
                misfits.note(f"field {inner} is null", pc.and_not(present, valid))
        parts.append(chosen(valid, made, absent))
    inside = pc.binary_slice(joined(*parts), 1, _END)
    return joined(piece(b"{"), inside, piece(b"}"))


#: More bytes than a value has.
_END = (1 << 31) - 1


def _maps(items: Any, maps: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    flat, lengths = pieces.items_of(maps)
    keys = scalar_texts(pc.struct_field(flat, [0]), place, misfits).cast(pieces.PIECES)
    values = _or_null(items, pc.struct_field(flat, [1]), f"{place}[]", misfits)
    return _listed(b"{", joined(keys, piece(b":"), values), lengths, b"}")


def _listed(before: bytes, items: pa.Array, lengths: pa.Array, after: bytes) -> pa.Array:
    inside = pieces.concatenated(joined(piece(b","), items), lengths)
    return joined(piece(before), pc.binary_slice(inside, 1, _END), piece(after))
