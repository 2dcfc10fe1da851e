"""Schemas of Avro and of JSON that are made of columns."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.formats import pieces
from headrace.formats.errors import SchemaRefusedError
from headrace.formats.json_texts import SCALARS

if TYPE_CHECKING:
    from collections.abc import Callable

#: Names in Avro and in Protobuf.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_AVRO: dict[Callable[[pa.DataType], bool], str] = {
    pa.types.is_boolean: "boolean",
    pa.types.is_int8: "int",
    pa.types.is_int16: "int",
    pa.types.is_int32: "int",
    pa.types.is_uint8: "int",
    pa.types.is_uint16: "int",
    pa.types.is_int64: "long",
    pa.types.is_uint32: "long",
    pa.types.is_float16: "float",
    pa.types.is_float32: "float",
    pa.types.is_float64: "double",
    pieces.is_text: "string",
    pieces.is_binary: "bytes",
}


def name_of(topic: str) -> str:
    """Return the name that a record of a topic has where none is given."""
    made = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    return made if _NAME.fullmatch(made) else f"_{made}"


def require_name(name: str, place: str) -> str:
    """Return a name as it is.

    Raises:
        SchemaRefusedError: Avro and Protobuf have no such names.
    """
    if _NAME.fullmatch(name) is None:
        raise SchemaRefusedError(
            f"field {place} is no name of letters, digits and _; give the column an alias"
        )
    return name


def avro_schema(kind: pa.StructType, name: str) -> str:
    """Return the schema of a record with these fields, each of which may be null.

    Raises:
        SchemaRefusedError: a field has a type that Avro does not have, or no name.
    """
    return json.dumps(_avro_record(kind, name, ""))


def _avro_record(kind: pa.StructType, name: str, place: str) -> dict[str, Any]:
    fields = []
    for each in kind:
        inner = f"{place}.{each.name}" if place else each.name
        require_name(each.name, inner)
        fields.append({"name": each.name, **_avro_field(each.type, f"{name}_{each.name}", inner)})
    if not fields:
        raise SchemaRefusedError(f"{place or 'the value'} has no fields")
    return {"type": "record", "name": name, "fields": fields}


def _avro_field(kind: pa.DataType, name: str, place: str) -> dict[str, Any]:
    return {"type": ["null", _avro(kind, name, place)], "default": None}


def _avro(kind: pa.DataType, name: str, place: str) -> Any:  # noqa: PLR0911 - one for each kind
    if pa.types.is_struct(kind):
        return _avro_record(kind, name, place)
    if pa.types.is_map(kind) and pieces.is_text(kind.key_type):
        return {"type": "map", "values": ["null", _avro(kind.item_type, name, f"{place}[]")]}
    if pieces.is_list(kind):
        return {"type": "array", "items": ["null", _avro(kind.value_type, name, f"{place}[]")]}
    if pa.types.is_decimal128(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_time(kind):
        is_short = pa.types.is_time32(kind)
        unit = ("int", "time-millis") if is_short else ("long", "time-micros")
        return dict(zip(("type", "logicalType"), unit, strict=True))
    if pa.types.is_timestamp(kind):
        local = "" if kind.tz is not None else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    found = next((word for is_of, word in _AVRO.items() if is_of(kind)), None)
    if found is None:
        raise SchemaRefusedError(f"field {place} is {kind}, which Avro does not have; cast it")
    return found


def json_schema(kind: pa.StructType, name: str) -> str:
    """Return the JSON schema of objects with these members, each of which may be missing.

    Raises:
        SchemaRefusedError: a field has a type that JSON does not have.
    """
    return json.dumps({"title": name, **_json_object(kind, "")})


def _json_object(kind: pa.StructType, place: str) -> dict[str, Any]:
    properties = {
        each.name: _json(each.type, f"{place}.{each.name}" if place else each.name) for each in kind
    }
    return {"type": "object", "properties": properties}


def _json(kind: pa.DataType, place: str) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        made = _json_object(kind, place)
    elif pa.types.is_map(kind) and pieces.is_text(kind.key_type):
        made = {"type": "object", "additionalProperties": _json(kind.item_type, f"{place}[]")}
    elif pieces.is_list(kind):
        made = {"type": "array", "items": _json(kind.value_type, f"{place}[]")}
    else:
        found = next((word for is_of, word in SCALARS.items() if is_of(kind)), None)
        if found is None:
            raise SchemaRefusedError(f"field {place} is {kind}, which JSON does not have; cast it")
        made = {"type": found}
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            made["format"] = "date-time"
        elif pa.types.is_date(kind):
            made["format"] = "date"
    return {**made, "type": [made["type"], "null"]}
