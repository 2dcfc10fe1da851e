"""The operators of a topology: what each does with what comes in, as values.

An operator names those that it reads by their places in the order of the code. Nothing that is kept
hangs on a place: state and topics have the names that the author gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.extensions.streams.expressions import FieldNode, document_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.extensions.streams.aggregates import Agg
    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.kernels.rows import Emit
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.types import Type
    from headrace.extensions.streams.windows import JoinWindows, Windows


class Join(Enum):
    """The treatment of a row without a partner."""

    INNER = "inner"
    """Nothing."""
    LEFT = "left"
    """A left row comes out alone, with null for the right one."""
    OUTER = "outer"
    """So does a right row."""


@dataclass(frozen=True, slots=True)
class Output:
    """The rows that come out of an operator.

    ``key`` has the types of the parts of the key; ``by`` the expressions over the row that are
    equal to them, none where they are not known. ``windows`` are those of a windowed table.
    """

    row: type[Row]
    key: tuple[Type, ...] = ()
    by: tuple[Node, ...] = ()
    is_table: bool = False
    windows: Windows | None = None

    @property
    def key_fields(self) -> tuple[str | None, ...]:
        """Return the fields that are equal to the parts of the key, by their names in JSON."""
        fields = self.row.__fields__
        known = [fields[each.name].name for each in self.by if isinstance(each, FieldNode)]
        return tuple(known) if known else (None,) * len(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator; ``inputs`` are the places of those that it reads."""

    op: ClassVar[str]
    inputs: tuple[int, ...] = ()
    output: Output | None = None

    @property
    def label(self) -> str:
        """Return what the operator is called in errors and pictures."""
        name = self.own_name
        return self.op if name is None else f"{self.op} {name!r}"

    @property
    def own_name(self) -> str | None:
        """Return the name that the author gave, None where none is asked for."""
        return None

    @property
    def expressions(self) -> tuple[Node, ...]:
        """Return the expressions over the rows that come in."""
        return ()

    @property
    def needs_whole_rows(self) -> bool:
        """Return whether all fields of the rows that come in are read."""
        return False

    def document(self) -> dict[str, Any]:
        """Return what the operator has beside inputs and rows, as a plan has it."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Operator):
    """An operator on whose name state or a topic hangs."""

    name: str

    @property
    def own_name(self) -> str | None:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Operator):
    """Records of a topic; ``time`` of each in place of the record's own."""

    op = "stream"
    topic: str
    codec: str
    time: Node | None = None

    @property
    def expressions(self) -> tuple[Node, ...]:
        return () if self.time is None else (self.time,)

    def document(self) -> dict[str, Any]:
        time = None if self.time is None else document_of(self.time)
        return {"topic": self.topic, "codec": self.codec, "time": time}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(Named):
    """A compacted topic by key; ``shared``: whole in each member, whatever the partition."""

    op = "table"
    topic: str
    codec: str
    shared: bool = False

    @property
    def needs_whole_rows(self) -> bool:
        return True

    def document(self) -> dict[str, Any]:
        return {"topic": self.topic, "codec": self.codec, "shared": self.shared}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Operator):
    """Rows of which a condition is true."""

    op = "filter"
    where: Node

    @property
    def expressions(self) -> tuple[Node, ...]:
        return (self.where,)

    def document(self) -> dict[str, Any]:
        return {"where": document_of(self.where)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Operator):
    """Rows of other fields; ``exploded`` is the field that has each item of a list."""

    op = "select"
    fields: Mapping[str, Node]
    exploded: str | None = None

    @property
    def expressions(self) -> tuple[Node, ...]:
        return tuple(self.fields.values())

    def document(self) -> dict[str, Any]:
        return {"fields": _documents(self.fields), "exploded": self.exploded}


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply(Operator):
    """Rows that a Python function makes: of a row, or of a batch in Arrow."""

    op = "map"
    function: Callable[..., Any]
    batches: bool = False

    @property
    def needs_whole_rows(self) -> bool:
        return True

    def document(self) -> dict[str, Any]:
        return {"function": function_name(self.function), "batches": self.batches}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Operator):
    """Rows as they are, each shown to a Python function."""

    op = "peek"
    function: Callable[..., Any]

    @property
    def needs_whole_rows(self) -> bool:
        return True

    def document(self) -> dict[str, Any]:
        return {"function": function_name(self.function)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Operator):
    """Rows of several streams."""

    op = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBy(Named):
    """Records by another key, in a topic of the topology's own."""

    op = "key_by"
    parts: tuple[Node, ...]

    @property
    def expressions(self) -> tuple[Node, ...]:
        return self.parts

    @property
    def needs_whole_rows(self) -> bool:
        return True

    def document(self) -> dict[str, Any]:
        return {"parts": [document_of(each) for each in self.parts]}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanges(KeyBy):
    """Changes of a table by the group of each row: of one that moves, in both groups."""

    op = "group_by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateful(Named):
    """An operator with a store; ``version`` is raised to begin with an empty one."""

    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """One aggregate of a group: what it is computed of, and the type of its value."""

    aggregate: Agg[Any]
    arguments: tuple[Node, ...]
    types: tuple[Type, ...]
    result: Type

    def document(self) -> dict[str, Any]:
        """Return the aggregate as a plan has it."""
        return {
            **self.aggregate.describe(),
            "arguments": [document_of(each) for each in self.arguments],
            "result": self.result.document(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Stateful):
    """A table of a row for each key, and window: ``fields`` of the group, and aggregates."""

    op = "aggregate"
    windows: Windows | None
    group: tuple[Node, ...]
    fields: Mapping[str, Node]
    aggregates: Mapping[str, Aggregated]
    folds: bool = False

    @property
    def expressions(self) -> tuple[Node, ...]:
        return tuple(part for each in self.aggregates.values() for part in each.arguments)

    @property
    def needs_whole_rows(self) -> bool:
        return self.folds

    def document(self) -> dict[str, Any]:
        return {
            "windows": windows_document(self.windows),
            "group": [document_of(each) for each in self.group],
            "fields": _documents(self.fields),
            "aggregates": {name: each.document() for name, each in self.aggregates.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateChanges(Aggregate):
    """A table of a row for each group of a table: new rows are added, former ones taken away."""

    rows: type[Row]

    @property
    def needs_whole_rows(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted(Operator):
    """The changes of a table as a stream."""

    op = "emit"
    emit: Emit

    def document(self) -> dict[str, Any]:
        return {"emit": self.emit.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Stateful):
    """The outputs of a keyed reducer, whose state is by key."""

    op = "reduce"
    reducer: Callable[..., Any]

    @property
    def needs_whole_rows(self) -> bool:
        return True

    def document(self) -> dict[str, Any]:
        return {"reducer": function_name(self.reducer)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoin(Stateful):
    """Pairs of two streams by key and time: the first of ``inputs`` is the left one."""

    op = "join"
    windows: JoinWindows
    join: Join
    fields: Mapping[str, Node]

    @property
    def expressions(self) -> tuple[Node, ...]:
        return tuple(self.fields.values())

    def document(self) -> dict[str, Any]:
        windows = self.windows
        return {
            "join": self.join.value,
            "before": windows.before,
            "after": windows.after,
            "grace": windows.grace,
            "fields": _documents(self.fields),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(Named):
    """Rows of a stream with what a table knows of their key, or of ``on`` in a shared table."""

    op = "lookup"
    join: Join
    fields: Mapping[str, Node]
    on: Node | None = None

    @property
    def expressions(self) -> tuple[Node, ...]:
        return _match_expressions(self)

    def document(self) -> dict[str, Any]:
        return _match_document(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(Stateful):
    """A table of two, by key, or by ``on``, a field of the left one that is the right one's key."""

    op = "table_join"
    join: Join
    fields: Mapping[str, Node]
    on: Node | None = None

    @property
    def expressions(self) -> tuple[Node, ...]:
        return _match_expressions(self)

    def document(self) -> dict[str, Any]:
        return _match_document(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Operator):
    """Rows that are written to a topic, by their key."""

    op = "to"
    topic: str
    codec: str

    @property
    def label(self) -> str:
        return f"to {self.topic!r}"

    @property
    def needs_whole_rows(self) -> bool:
        return True

    def document(self) -> dict[str, Any]:
        return {"topic": self.topic, "codec": self.codec}


def _match_expressions(operator: Lookup | TableJoin) -> tuple[Node, ...]:
    """Return the expressions of what finds a table's row by key or by a field."""
    return (*operator.fields.values(), *(() if operator.on is None else (operator.on,)))


def _match_document(operator: Lookup | TableJoin) -> dict[str, Any]:
    """Return it as a plan has it."""
    on = None if operator.on is None else document_of(operator.on)
    return {"join": operator.join.value, "on": on, "fields": _documents(operator.fields)}


def _documents(fields: Mapping[str, Node]) -> dict[str, Any]:
    return {name: document_of(node) for name, node in fields.items()}


def windows_document(windows: Windows | None) -> dict[str, Any] | None:
    """Return windows as a plan has them, in milliseconds."""
    if windows is None:
        return None
    kind = type(windows).__name__.removesuffix("Windows").lower()
    fields = {name: getattr(windows, name) for name in type(windows).__dataclass_fields__}
    return {"kind": kind, **fields}


def function_name(function: Callable[..., Any]) -> str:
    """Return where a function is found, as ``package.module:name``."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{name}"
