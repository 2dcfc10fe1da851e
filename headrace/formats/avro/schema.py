"""Schemas of Avro: from their JSON to types, with names resolved and references of others known."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.formats.errors import AvroSchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAMED = frozenset({"record", "error", "enum", "fixed"})

#: Stands for a default that there is not; null is one.
MISSING: Any = object()

#: How deep types may be in each other. The part in C goes as deep.
MOST_DEEP = 64


@dataclass(eq=False, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = MISSING


@dataclass(eq=False, slots=True)
class AvroType:
    """A type. ``kind`` is the word that Avro has for it, and ``union`` for a union.

    A named type that is mentioned again is the same object, so that types may be recursive.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None
    fields: list[AvroField] = field(default_factory=list)
    #: Of an array or a map.
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()

    def __str__(self) -> str:
        if self.kind == "union":
            return f"[{', '.join(map(str, self.branches))}]"
        named = f"{self.kind} {self.name}" if self.name else self.kind
        return f"{named} ({self.logical})" if self.logical else named

    @property
    def short_name(self) -> str:
        """Return the name without its namespace."""
        return self.name.rpartition(".")[2]


def parse_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """Return the type that a schema says. ``references`` are texts of schemas that it names.

    Raises:
        AvroSchemaError: one is no schema.
    """
    reader = _Reader()
    try:
        for each in references:
            reader.read(_from_json(each), "", "a reference")
        return reader.read(_from_json(text), "", "the schema")
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        # a part that is of another type than Avro has there: a registry may keep any JSON
        raise AvroSchemaError(f"the schema is none of Avro: {error}") from error


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        if text.strip() in PRIMITIVES:  # some registries keep these without quotes
            return text.strip()
        raise AvroSchemaError(f"the schema is not JSON: {error}") from error


class _Reader:
    """Reads schemas that know each other's names."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._depth = 0

    def read(self, given: Any, namespace: str, place: str) -> AvroType:
        if self._depth > MOST_DEEP:
            raise AvroSchemaError(f"{place} is more than {MOST_DEEP} types deep")
        self._depth += 1
        try:
            if isinstance(given, str):
                return self._mentioned(given, namespace, place)
            if isinstance(given, list):
                return self._union(given, namespace, place)
            if isinstance(given, dict):
                return self._written(given, namespace, place)
        finally:
            self._depth -= 1
        raise AvroSchemaError(f"{place} has no type of Avro, but {given!r}")

    def _mentioned(self, name: str, namespace: str, place: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self._named.get(_full(name, namespace)) or self._named.get(name)
        if found is None:
            raise AvroSchemaError(f"{place} has the type {name!r}, which nothing defines")
        return found

    def _union(self, given: list[Any], namespace: str, place: str) -> AvroType:
        branches = tuple(self.read(each, namespace, place) for each in given)
        if not branches or any(each.kind == "union" for each in branches):
            raise AvroSchemaError(f"{place} has a union that is empty, or directly in another")
        return AvroType("union", branches=branches)

    def _written(self, given: dict[str, Any], namespace: str, place: str) -> AvroType:
        kind = given.get("type")
        if isinstance(kind, str) and kind in _NAMED:
            return self._named_type(given, namespace, place)
        if isinstance(kind, str) and kind in {"array", "map"}:
            word = "items" if kind == "array" else "values"
            if word not in given:
                raise AvroSchemaError(f"{place} has {kind} without {word}")
            return AvroType(kind, items=self.read(given[word], namespace, f"{place}[]"))
        if isinstance(kind, str) and kind in PRIMITIVES:
            return _with_logical(AvroType(kind), given)
        return self.read(kind, namespace, place)

    def _named_type(self, given: dict[str, Any], namespace: str, place: str) -> AvroType:
        name = given.get("name")
        if not isinstance(name, str) or not name:
            raise AvroSchemaError(f"{place} has a {given['type']} without a name")
        full = _full(name, str(given.get("namespace", namespace) or ""))
        inside = full.rpartition(".")[0]
        if full in self._named:
            raise AvroSchemaError(f"{full} is defined twice")
        kind = "record" if given["type"] == "error" else given["type"]
        made = AvroType(kind, full, tuple(_full(a, inside) for a in given.get("aliases", ())))
        self._named[full] = made
        if kind == "record":
            self._add_fields(made, given, inside)
        elif kind == "enum":
            made.symbols, made.default = tuple(given.get("symbols", ())), given.get("default")
            if not made.symbols or not all(isinstance(each, str) for each in made.symbols):
                raise AvroSchemaError(f"{full} has no symbols")
            if made.default is not None and made.default not in made.symbols:
                raise AvroSchemaError(f"the default of {full} is none of its symbols")
        else:
            size = given.get("size")
            if type(size) is not int or not 0 <= size < 1 << 31:
                raise AvroSchemaError(f"{full} has no size")
            made.size = size
            _with_logical(made, given)
        return made

    def _add_fields(self, made: AvroType, given: Mapping[str, Any], namespace: str) -> None:
        fields = given.get("fields")
        if not isinstance(fields, list):
            raise AvroSchemaError(f"{made.name} has no fields")
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise AvroSchemaError(f"a field of {made.name} has no name")
            name = each["name"]
            kind = self.read(each.get("type"), namespace, f"{made.name}.{name}")
            aliases, default = tuple(each.get("aliases", ())), each.get("default", MISSING)
            made.fields.append(AvroField(name, kind, aliases, default))
        names = [each.name for each in made.fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise AvroSchemaError(f"{made.name} has the field {twice} twice")


#: The types that each logical type may be of. Others are passed over, as Avro has it.
_LOGICAL = {
    "decimal": {"bytes", "fixed"},
    "date": {"int"},
    "time-millis": {"int"},
    "time-micros": {"long"},
    "timestamp-millis": {"long"},
    "timestamp-micros": {"long"},
    "local-timestamp-millis": {"long"},
    "local-timestamp-micros": {"long"},
    "timestamp-nanos": {"long"},
    "local-timestamp-nanos": {"long"},
    "uuid": {"string"},
}


def _with_logical(made: AvroType, given: Mapping[str, Any]) -> AvroType:
    logical = given.get("logicalType")
    if not isinstance(logical, str) or made.kind not in _LOGICAL.get(logical, ()):
        return made
    if logical == "decimal":
        precision, scale = given.get("precision", 0), given.get("scale", 0)
        if not _is_decimal(made, precision, scale):
            return made  # the type without it, as Avro has it of logical types that are not valid
        made.precision, made.scale = precision, scale
    made.logical = logical
    return made


def _is_decimal(made: AvroType, precision: Any, scale: Any) -> bool:
    """Return whether a decimal of these digits is one of the type."""
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return False
    most = _digits_of(made.size) if made.kind == "fixed" else precision
    return 0 < precision <= most


def _digits_of(size: int) -> int:
    """Return how many digits each number may have that so many bytes hold."""
    return int((8 * size - 1) * math.log10(2)) if size else 0


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
