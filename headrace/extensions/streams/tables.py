"""Operators' rows in tables: a topic of the topology's own, and the columns that it has.

An aggregate's updates take the place of rows with the same key, its finals are appended. They go by
a topic, so that the table is another channel, exactly once by the sink's own offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError
from headrace.extensions.streams.decode import has_bytes
from headrace.extensions.streams.expressions import KeyNode, Part, PartNode
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.names import table_topic
from headrace.extensions.streams.operators import Aggregate, Emitted, Output, Sink
from headrace.extensions.streams.types import DIGITS, Kind
from headrace.extensions.streams.windows import SessionWindows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from headrace.extensions.streams.operators import Operator
    from headrace.extensions.streams.rows import Field
    from headrace.extensions.streams.types import Type
    from headrace.sinks.micro_batch import MicroBatch

_DDL = {
    Kind.TEXT: "STRING",
    Kind.INT: "BIGINT",
    Kind.FLOAT: "DOUBLE",
    Kind.BOOL: "BOOLEAN",
    Kind.DATETIME: "TIMESTAMP",
}


def rows_of(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return the decoded columns. The reducer of channels that write tables."""
    del batch
    return table.drop_columns(["_kafka"]) if "_kafka" in table.column_names else table


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of an aggregate, for a table: columns in Spark's DDL, and those that are the key."""

    ddl: str
    key: tuple[str, ...]


def with_tables(
    operators: Sequence[Operator], tables: Mapping[str, Emit], group: str
) -> list[Operator]:
    """Return the operators, and those that write rows of aggregates for tables.

    Raises:
        ConfigError: there is no such aggregate, or its rows do not go so.
    """
    made = list(operators)
    problems: list[str] = []
    for name, emit in tables.items():
        found = find_aggregate(operators, name)
        if found is None:
            named = [each.name for each in operators if isinstance(each, Aggregate)]
            known = ", ".join(named) or "none"
            problems.append(f"has no aggregate {name} for a table; there are {known}")
            continue
        place, operator = found
        problem = _misfit(operator, emit)
        if problem is not None:
            problems.append(problem)
            continue
        assert operator.output is not None, "rows come out"
        output = Output(operator.output.row, operator.output.key, operator.output.by)
        made.append(Emitted(inputs=(place,), output=output, emit=emit))
        topic = table_topic(group, name)
        made.append(Sink(inputs=(len(made) - 1,), topic=topic, codec="json"))
    if problems:
        raise ConfigError(problems)
    return made


def find_aggregate(operators: Sequence[Operator], name: str) -> tuple[int, Aggregate] | None:
    """Return an aggregate by its name, with its place; None where there is none."""
    for place, operator in enumerate(operators):
        if isinstance(operator, Aggregate) and operator.name == name:
            return place, operator
    return None


def _misfit(operator: Aggregate, emit: Emit) -> str | None:
    """Return why rows of an aggregate do not go to a table so, None where they do."""
    if (found := _misfit_of_fields(operator)) is not None:
        return found
    if emit is Emit.FINAL:
        if operator.windows is None:
            return (
                f"has {operator.label} without windows, whose rows are never final; take mode: "
                "upsert, or group in windows"
            )
        return None
    if isinstance(operator.windows, SessionWindows):
        return (
            f"has {operator.label} in sessions, which are withdrawn as they grow; take mode: "
            "append, which gets each session once it is over"
        )
    if not table_rows(operator).key:
        return (
            f"has {operator.label}, whose rows do not name all of their key; give a field key, or "
            "each part of it, and one window_start"
        )
    return None


def _misfit_of_fields(operator: Aggregate) -> str | None:
    """Return why no table takes a field of an aggregate's rows, None where one takes all."""
    assert operator.output is not None, "rows come out"
    for name, each in operator.output.row.__fields__.items():
        shown = f"has {operator.label} with {operator.output.row.__name__}.{name}"
        if has_bytes(each.type):
            return f"{shown}, which has bytes, and a table's rows are JSON first; take text"
        if not all(map(_is_column, _names_in(each))):
            return f"{shown}, which JSON names with a `, as no column can be; take another name"
    return None


def _is_column(name: str) -> bool:
    """Return whether a table's column can have a name."""
    return bool(name) and "`" not in name


def _names_in(field: Field[Any]) -> Iterator[str]:
    """Yield the names of a field in JSON, and of what is in it."""
    yield field.name
    kind = field.type if field.type.item is None else field.type.item
    if kind.row is not None:
        for each in kind.row.__fields__.values():
            yield from _names_in(each)


def table_rows(operator: Aggregate) -> TableRows:
    """Return the rows of an aggregate as a table has them.

    Their key is the parts of the group and a bound of the window, empty where they do not say it.
    """
    assert operator.output is not None, "rows come out"
    fields = operator.output.row.__fields__
    ddl = ", ".join(f"`{each.name}` {_ddl_of(each.type)}" for each in fields.values())
    by_node = {node: name for name, node in operator.fields.items()}
    parts = [by_node.get(node) for node in _key_nodes(operator, len(operator.output.key))]
    if operator.windows is not None:
        bounds = (by_node.get(PartNode(part)) for part in (Part.WINDOW_START, Part.WINDOW_END))
        parts.append(next(filter(None, bounds), None))
    named = [each for each in parts if each is not None]
    is_whole = len(named) == len(parts)
    return TableRows(ddl, tuple(fields[each].name for each in named) if is_whole else ())


def _key_nodes(operator: Aggregate, size: int) -> Iterator[PartNode | KeyNode]:
    """Yield the nodes that are the parts of the key."""
    whole = PartNode(Part.KEY)
    if size == 1 and whole in operator.fields.values():
        yield whole
    else:
        yield from map(KeyNode, range(size))


def _ddl_of(kind: Type) -> str:
    if kind.item is not None:
        return f"ARRAY<{_ddl_of(kind.item)}>"
    if kind.row is not None:
        inner = kind.row.__fields__.values()
        return f"STRUCT<{', '.join(f'`{e.name}`: {_ddl_of(e.type)}' for e in inner)}>"
    if kind.scale is not None:
        return f"DECIMAL({DIGITS},{kind.scale})"
    return _DDL[kind.kind]
