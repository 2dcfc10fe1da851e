"""The check of a result's schema against the table's, before anything is committed."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any

from deltalake import Schema

from headrace.core.errors import ResultMisfitError
from headrace.sinks.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deltalake import DeltaTable, Field


#: Features of a table that ask nothing of a commit that only adds files and moves offsets.
#: Constraints, generated and identity columns and column mapping are found where they are used.
_HARMLESS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)


class SchemaChanges(Enum):
    """The policy for a result whose columns are not those of the table."""

    REFUSE = "refuse"
    """The micro-batch fails."""

    ADD_COLUMNS = "add_columns"
    """New columns are added to the table, and columns that the result lacks are null in its rows;
    another type is refused all the same."""


#: Types of columns that a table can have, as Delta and Spark spell them. Decimals have numbers.
_STORED = frozenset(("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")) | {
    "byte", "short", "integer", "long", "float", "double",
}  # fmt: skip


def require_storable(place: object, schema: dict[str, Any]) -> None:
    """Return if a table can have the columns of a result, whose schema is as in Spark's JSON.

    Raises:
        ResultMisfitError: a column has a type that Delta does not know, or two have one name, or
            names that differ by case alone, which are one to Delta.
    """
    problems = list(_unstorable("", schema))
    if problems:
        raise ResultMisfitError(
            f"{place}: the result cannot be stored in a Delta table: {'; '.join(problems)}; change "
            "the reducer"
        )


def _unstorable(path: str, kind: Any) -> Iterator[str]:
    if isinstance(kind, str):
        if kind not in _STORED and not kind.startswith("decimal"):
            known = "string" if kind.startswith(("char", "varchar")) else "a type that Delta has"
            yield f"column {path!r} is {kind}, which no table has; have it cast to {known}"
    elif kind["type"] == "struct":
        yield from _unstorable_fields(path, kind["fields"])
    else:
        for inside in ("elementType", "keyType", "valueType"):
            if inside in kind:
                yield from _unstorable(path, kind[inside])


def _unstorable_fields(path: str, fields: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield why the fields of a struct, or the columns of a table, cannot be stored."""
    if path and not fields:
        yield f"column {path!r} is a struct without fields, which no file holds; leave it out"
    seen: dict[str, str] = {}
    for field in fields:
        name = f"{path}.{field['name']}" if path else field["name"]
        if "\0" in name:
            yield f"column {name!r} has a NUL in its name, where files end it; rename it"
        twin = seen.get(name.lower())
        if twin == name:
            yield f"column {name!r} is there twice"
        elif twin is not None:
            yield f"columns {twin!r} and {name!r} differ by case alone, and are one to Delta"
        seen[name.lower()] = name
        yield from _unstorable(name, _kind(field))


def _kind(field: dict[str, Any]) -> Any:
    """Return a field's type; a text of limited length is a text with a note in Spark's schemas."""
    return field.get("metadata", {}).get("__CHAR_VARCHAR_TYPE_STRING", field["type"])


def delta_schema(schema: str) -> Schema:
    """Return the schema of a new table: every column nullable, whatever this result happens to be.

    A count is never null, a maximum may be: with Spark's own flags the first result would decide
    what later ones may hold. ``schema`` is the result's in JSON, as Delta and Spark spell it.
    """
    return Schema.from_json(json.dumps(_nullable(json.loads(schema))))


def check_schema(
    folder: Path, table: DeltaTable, schema: str | None, changes: SchemaChanges
) -> list[Field]:
    """Compare names and types; order does not matter, because Parquet is read by name.

    Returns the columns that the table has to get first. That of origins is the sink's own: it is
    added wherever a result has it, and never left out where the table has it.

    Raises:
        ResultMisfitError: a column is of another type, or is missing or new where that is
            refused, or the table has rules that files written aside could break.
    """
    if schema is None:
        return []
    ours = _columns(json.loads(schema))
    theirs = _columns(json.loads(table.schema().to_json()))
    new, missing = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
    problems = []
    if ORIGIN in missing:
        problems.append(f"column {ORIGIN!r} is missing, which the sink adds with origin: true")
        missing -= {ORIGIN}
    if changes is SchemaChanges.REFUSE:
        problems += [f"column {name!r} is not in the table" for name in new - {ORIGIN}]
        problems += [f"column {name!r} is missing" for name in missing]
    for name in ours.keys() & theirs.keys():
        problems += _differences(name, ours[name], theirs[name])
    twins = {name.lower(): name for name in theirs}
    problems += [
        f"column {name!r} and the table's {twins[name.lower()]!r} differ by case alone, and are "
        "one to Delta"
        for name in new
        if name.lower() in twins
    ]
    problems += _rules(table)
    if problems:
        raise ResultMisfitError(
            f"{folder}: the result does not fit the table: {'; '.join(sorted(problems))}; "
            "change the reducer, or write to another table"
        )
    return [field for field in delta_schema(schema).fields if field.name in new]


def _differences(path: str, ours: Any, theirs: Any) -> Iterator[str]:
    """Yield what tells the types of a column, or of something inside of it, from the table's."""
    if ours == theirs:
        return
    if isinstance(ours, str) or isinstance(theirs, str) or ours["type"] != theirs["type"]:
        yield f"column {path!r} is {_text(ours)}, in the table {_text(theirs)}"
    elif ours["type"] == "struct":
        own, found = _columns(ours), _columns(theirs)
        for name in own.keys() - found.keys():
            yield f"column {path!r} has the field {name!r}, which it has not in the table"
        for name in found.keys() - own.keys():
            yield f"column {path!r} lacks the field {name!r}, which it has in the table"
        for name in own.keys() & found.keys():
            yield from _differences(f"{path}.{name}", own[name], found[name])
        if own == found:
            yield f"column {path!r} has its fields in another order than in the table"
    else:
        for inside in ("elementType", "keyType", "valueType"):
            if inside in ours:
                yield from _differences(path, ours[inside], theirs[inside])


def _rules(table: DeltaTable) -> list[str]:
    settings = table.metadata().configuration
    rules = [name for name in settings if name.startswith("delta.constraints.")]
    if settings.get("delta.columnMapping.mode", "none") != "none":
        rules.append("delta.columnMapping.mode")
    rules += [f"feature {name}" for name in {*(table.protocol().writer_features or ())} - _HARMLESS]
    fields = table.schema().fields
    rules += [f"column {field.name!r} NOT NULL" for field in fields if not field.nullable]
    rules += [
        f"{name} on column {field.name!r}"
        for field in fields
        for name in field.metadata
        if name.startswith("delta.")
    ]
    return [f"the table has {rule}, which this sink cannot observe" for rule in rules]


def _columns(struct: dict[str, Any]) -> dict[str, Any]:
    return {column["name"]: _nullable(column["type"]) for column in struct["fields"]}


def _nullable(kind: Any) -> Any:
    """Return a type in Spark's JSON with everything nullable and without metadata."""
    if isinstance(kind, list):
        return [_nullable(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    loose = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {key: loose.get(key, _nullable(value)) for key, value in kind.items()}


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
