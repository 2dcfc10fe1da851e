"""The JSON schema of the file, for editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema

from headrace.config.kinds.base import REFERENCE_SCHEMA
from headrace.config.model.root import Config

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Shows defaults as they are written in the file, and references where a word is expected."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        value = super().get_default_value(schema)
        serialization: Any = schema["schema"].get("serialization", {})
        write = serialization.get("function")
        return write(value) if write is not None and isinstance(value, (int, float)) else value

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        own = super().literal_schema(schema)
        return {"anyOf": [own, REFERENCE_SCHEMA]} if "enum" in own else own

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave titles out: they only repeat the field's name."""
        del schema
        return False


def schema() -> dict[str, Any]:
    """Return the JSON schema. ``hot`` tells of each field whether a change is applied in place."""
    own = Config.model_json_schema(schema_generator=_Generator)
    for section in own["$defs"].values():
        _require_type(section)
    return {"$schema": _DIALECT, **own}


def _require_type(section: dict[str, Any]) -> None:
    """Let ``type`` choose the member of a union; its default is for models built in code."""
    kind = section.get("properties", {}).get("type", {})
    if "const" in kind and kind["const"] != "dynamic":
        section["required"] = [*section.get("required", []), "type"]
