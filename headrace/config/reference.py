"""The reference of all fields in docs/configuration.md, and the JSON schema, from the models."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent, fill
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined

from headrace.config.errors import either
from headrace.config.models.base import ReloadEffect, effect_of
from headrace.config.models.channel import ChannelConfig
from headrace.config.models.rejects import MODELS
from headrace.config.models.root import Config
from headrace.config.problems import describe_type, field_shape, fields
from headrace.config.show import escaped, masked
from headrace.config.types.scalars import REFERENCE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

    from headrace.config.models.base import OnlyWith, Section


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def meanings(section: type[BaseModel]) -> dict[str, str]:
    """Return what the source says below each field, by the field's name in the file.

    pydantic would read it at every start of a process; only the reference and the schema ask.
    """
    said: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            said |= _said_in(each)
    named = section.model_fields.items()
    return {info.alias or name: said[name] for name, info in named if name in said}


def _said_in(section: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field that a class declares itself."""
    try:
        source = inspect.getsource(section)
    except (OSError, TypeError):  # a package may come without its source
        return {}
    (tree,) = ast.parse(dedent(source)).body
    assert isinstance(tree, ast.ClassDef), "it is the source of a class"
    return {
        field.target.id: inspect.cleandoc(text)
        for field, said in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(said, ast.Expr)
        and isinstance(said.value, ast.Constant)
        and isinstance(text := said.value.value, str)
    }


class _Generator(GenerateJsonSchema):
    """Shows defaults as they are written in the file, and references where a word is expected."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        value = super().get_default_value(schema)
        serialization: Any = schema["schema"].get("serialization", {})
        write = serialization.get("function")
        return write(value) if write is not None and isinstance(value, (int, float)) else value

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        own = super().model_schema(schema)
        hot = {name: is_hot(field) for name, field in fields(schema["cls"])}
        for name, meaning in meanings(schema["cls"]).items():
            own["properties"][name] |= {"hot": hot[name], "description": meaning}
        only: Mapping[str, tuple[OnlyWith, ...]] = schema["cls"].only
        conditions = [
            _absent_unless(place, needed)
            for place, needed in only.items()
            # what only code can tell of the values is no matter of the schema
            if all(each.place[0] in hot for each in needed)
        ]
        if schema["cls"] is ChannelConfig:
            conditions += _rejects_of_processors(own["properties"]["rejects"])
        if conditions:
            own["allOf"] = conditions
        return own

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        own = super().literal_schema(schema)
        return {"anyOf": [own, REFERENCE_SCHEMA]} if "enum" in own else own

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave titles out: they only repeat the field's name."""
        del schema
        return False


def _absent_unless(place: str, conditions: tuple[OnlyWith, ...]) -> dict[str, Any]:
    """Return the schema by which there is no key at a place unless a condition holds."""
    denied: Any = False
    for step in reversed(place.split(".")):
        denied = {"properties": {step: denied}}
    needed = [_schema_of(each) for each in conditions]
    return {"if": {"not": {"anyOf": needed}}, "then": denied}


def _schema_of(condition: OnlyWith) -> dict[str, Any]:
    values = list(condition.but or condition.values)
    found: dict[str, Any] = {"enum": values}
    if condition.but:
        found = {"not": found}
    found = {"anyOf": [found, REFERENCE_SCHEMA]}
    for step in reversed(condition.place):
        required = {} if condition.by_default else {"required": [step]}
        found = {"properties": {step: found}, **required}
    return found


def _rejects_of_processors(rejects: dict[str, Any]) -> list[dict[str, Any]]:
    """Return which model rejects have with each type of processor, and let ``rejects`` be any."""
    models = rejects.pop("oneOf")
    rejects["anyOf"] = models
    return [
        {
            "if": {
                "properties": {
                    "processor": {
                        "properties": {"type": {"enum": model.tag().split("|")}},
                        "required": ["type"],
                    }
                },
                "required": ["processor"],
            },
            "then": {"properties": {"rejects": found}},
        }
        for model, found in zip(MODELS, models, strict=True)
    ]


def schema() -> dict[str, Any]:
    """Return the JSON schema. ``hot`` tells of each field whether a change is applied in place."""
    own = Config.model_json_schema(schema_generator=_Generator)
    for section in own["$defs"].values():
        _require_type(section)
    return {"$schema": _DIALECT, **own}


def _require_type(section: dict[str, Any]) -> None:
    """Mark ``type`` as required in a union; its default is for models built in code."""
    kind = section.get("properties", {}).get("type", {})
    if "const" in kind and kind["const"] != "dynamic":
        section["required"] = [*section.get("required", []), "type"]


BEGIN = "<!-- fields: written by scripts/reference.py -->"
END = "<!-- end of fields -->"

_HEAD = "| field | accepts | default | change | meaning |\n|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Chapter:
    """One table of the reference: the section that stands at ``path``."""

    path: str
    section: type[Section]
    choice: str = ""

    @property
    def title(self) -> str:
        """Return what the table is headed by."""
        path = f"`{self.path}`" if self.path else "Top level"
        if "type" in self.section.model_fields or not self.choice:
            return f"{path}, `type: {self.choice}`" if self.choice else path
        kinds = self.choice.replace("|", "`, `")
        return f"{path}, with a processor of type `{kinds}`"


def chapters(
    section: type[Section] = Config, path: str = "", choice: str = ""
) -> Iterator[Chapter]:
    """Yield the section itself and all sections in it, in the order of the fields."""
    yield Chapter(path, section, choice)
    for name, field in fields(section):
        inner, at = field_shape(field), f"{path}.{name}".removeprefix(".")
        if inner.is_mapping and inner.items().sections:
            inner, at = inner.items(), f"{at}.<name>"
        for member in inner.sections:
            yield from chapters(member, at, member.tag() if len(inner.sections) > 1 else "")


def render() -> str:
    """Return the tables of all fields."""
    return "\n".join(_chapter(chapter) for chapter in chapters())


def update(page: str) -> str:
    """Return the page with the tables between its markers written again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n{END}{after}"


def _chapter(chapter: Chapter) -> str:
    said = meanings(chapter.section)
    only = {
        place: f"Only with {either(filter(None, (each.example for each in conditions)))}. "
        for place, conditions in chapter.section.only.items()
    }
    rows = "\n".join(
        _row(name, field, only.get(name, "") + said[name])
        for name, field in fields(chapter.section)
        if not (chapter.choice and name == "type")
    )
    about = fill(" ".join((chapter.section.__doc__ or "").split()), 120, break_on_hyphens=False)
    table = f"\n{_HEAD}\n{rows}\n" if rows else ""
    return f"### {chapter.title}\n\n{about}\n{table}"


def _row(name: str, field: FieldInfo, meaning: str) -> str:
    cells = (
        f"`{name}`",
        describe_type(field_shape(field)),
        _default(field),
        "by field" if len(field_shape(field).sections) == 1 else effect_of(field).value,
        " ".join(meaning.split()),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def is_hot(field: FieldInfo) -> bool:
    """Return whether a new value of the field is applied in place."""
    return effect_of(field) is ReloadEffect.IN_PLACE


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    shape = field_shape(field)
    if field.default is PydanticUndefined:
        return "its defaults" if shape.sections else "derived"
    value: Any = field.default
    if shape.sections and value is not None:
        return f"`{value.type}`" if len(shape.sections) > 1 else "its defaults"
    if shape.field_type is not None and value is not None:
        value = shape.field_type.write(value)
    text = yaml.safe_dump(escaped(masked(value)), default_flow_style=True, width=1000)
    written = text.removesuffix("...\n").strip()
    return f"`{written}`"
