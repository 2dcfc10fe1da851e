"""Topologies: streams, groups and tables of rows, as a program writes them down.

Nothing is read or computed here. Each call appends an operator and checks what it can: that fields
are there, that types fit, that names are given. :meth:`Topology.plan` checks the whole.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from headrace.core.errors import ConfigError
from headrace.extensions.streams import aggregates as declared
from headrace.extensions.streams.decode import check_codec
from headrace.extensions.streams.expressions import (
    Expr,
    FieldNode,
    KeyNode,
    Part,
    PartNode,
    ValueNode,
    describe,
    node_of,
    substitute,
    walk,
)
from headrace.extensions.streams.expressions import when as choose
from headrace.extensions.streams.inference import Resolved, Scope, resolve
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.operators import (
    Aggregate,
    Aggregated,
    Apply,
    Emitted,
    Filter,
    Join,
    KeyBy,
    Lookup,
    Merge,
    Operator,
    Output,
    Peek,
    Reduce,
    Select,
    Sink,
    Source,
    StreamJoin,
    TableJoin,
    TableSource,
)
from headrace.extensions.streams.plan import Plan, make_plan
from headrace.extensions.streams.types import (
    BOOL,
    BYTES,
    FLOAT,
    INT,
    KEYS,
    NUMBERS,
    ORDERED,
    TEXT,
    Kind,
    Type,
    list_of,
)
from headrace.extensions.streams.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    Span,
    TimeWindows,
    join_windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime
    from decimal import Decimal

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.windows import Windows

R = TypeVar("R", bound="Row")
S = TypeVar("S", bound="Row")
O = TypeVar("O", bound="Row")  # noqa: E741 - the rows that come out

#: What a field of a row gets: an expression, or a constant.
Value: TypeAlias = "Expr[Any] | str | int | float | bytes | datetime | Decimal | None"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: The types of a record's key in a topic, by the Python type that names it.
_KEY_TYPES = {str: TEXT, int: INT, bytes: BYTES}

_TIME = ((Part.TIME, INT),)


@contextmanager
def _called(label: str) -> Iterator[None]:
    """Raise errors as those of the operator that they are of."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError([f"{label}: {error}"]) from error


def _require_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TypeError(
            f"{name!r} is no name; state and topics are called by it, so take letters, digits, "
            "- and _, 100 at most"
        )


def _require_topic(topic: object) -> None:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise TypeError(f"{topic!r} is no name of a topic")


class Topology:
    """Operators from topics to topics. Not for several threads."""

    def __init__(self) -> None:
        self._operators: list[Operator] = []

    @property
    def operators(self) -> tuple[Operator, ...]:
        """Return the operators in the order of the code; each is named by its place."""
        return tuple(self._operators)

    def stream(
        self,
        topic: str,
        rows: type[R],
        *,
        key: type[str | int | bytes] = str,
        time: Expr[Any] | None = None,
        codec: str = "json",
    ) -> Stream[R]:
        """Read a topic as a stream of rows.

        Args:
            topic: its name.
            rows: what a record's value is.
            key: the type of a record's key: str in UTF-8, int as text, or bytes.
            time: the time of a record in milliseconds, or a datetime, in place of its own.
            codec: how values are written: json, string or bytes.
        """
        with _called(f"stream {topic!r}"):
            _require_topic(topic)
            check_codec(codec, rows, "the rows")
            if key not in _KEY_TYPES:
                raise TypeError(f"key={key!r}: a record's key is str, int or bytes")
            parts = (_KEY_TYPES[key],)
            node = None if time is None else _time_node(time, rows, parts)
        source = Source(output=Output(rows, parts), topic=topic, codec=codec, time=node)
        return Stream(self.append(source))

    def table(
        self,
        topic: str,
        rows: type[R],
        *,
        name: str,
        key: type[str | int | bytes] = str,
        codec: str = "json",
    ) -> Table[R]:
        """Read a compacted topic as a table: the last row of each key. It is its own changelog."""
        return Table(self._table(topic, rows, name, key, codec, shared=False))

    def shared_table(
        self,
        topic: str,
        rows: type[R],
        *,
        name: str,
        key: type[str | int | bytes] = str,
        codec: str = "json",
    ) -> SharedTable[R]:
        """Read a topic as a table that each member has whole, for lookups by any field.

        It is read at its latest state: it is not in the transaction, nor in the order of time.
        """
        return SharedTable(self._table(topic, rows, name, key, codec, shared=True))

    def append(self, operator: Operator) -> Handle:
        """Append an operator that was checked, and return where it stands."""
        self._operators.append(operator)
        return Handle(self, len(self._operators) - 1)

    def plan(self, name: str = "topology", group: str | None = None) -> Plan:
        """Return what is to be run: channels, topics, stores.

        Args:
            name: the topology's, as the configuration has it.
            group: what names of groups and topics begin with; the topology's name if not given.

        Raises:
            ConfigError: the whole does not fit together; each problem names its operator.
        """
        return make_plan(self.operators, name, group or name)

    def _table(
        self, topic: str, rows: type[Row], name: str, key: Any, codec: str, *, shared: bool
    ) -> Handle:
        label = f"{'shared_table' if shared else 'table'} {name!r}"
        with _called(label):
            _require_name(name)
            _require_topic(topic)
            check_codec(codec, rows, "the rows")
            if key not in _KEY_TYPES:
                raise TypeError(f"key={key!r}: a record's key is str, int or bytes")
        output = Output(rows, (_KEY_TYPES[key],), is_table=True)
        source = TableSource(output=output, name=name, topic=topic, codec=codec, shared=shared)
        return self.append(source)


@dataclass(frozen=True, slots=True)
class Handle:
    """An operator of a topology, by its place: what streams and tables are made of."""

    topology: Topology
    place: int

    @property
    def output(self) -> Output:
        """Return what comes out of the operator."""
        output = self.topology.operators[self.place].output
        assert output is not None, "sinks have no handle"
        return output

    def append(self, operator: Operator) -> Handle:
        """Append another operator to the topology."""
        return self.topology.append(operator)


class _Rows(Generic[R]):
    """Rows that come out of an operator."""

    __slots__ = ("handle",)

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def _inputs(self, *others: _Rows[Any]) -> tuple[int, ...]:
        if any(each.handle.topology is not self.handle.topology for each in others):
            raise TypeError("both sides have to be of one Topology()")
        return (self.handle.place, *(each.handle.place for each in others))

    def _scope(self) -> Scope:
        return _scope_of((self.handle.output.row,), self.handle.output, _TIME)

    def _sink(self, topic: str, codec: str) -> None:
        with _called(f"to {topic!r}"):
            _require_topic(topic)
            check_codec(codec, self.handle.output.row, "the rows")
        self.handle.append(Sink(inputs=(self.handle.place,), topic=topic, codec=codec))


class Stream(_Rows[R]):
    """Rows one after the other, by time."""

    __slots__ = ()

    def filter(self, where: Expr[bool | None]) -> Stream[R]:
        """Keep the rows of which the condition is true; where it is null, a row is left out."""
        with _called(f"filter of {self.handle.output.row.__name__}"):
            node = _condition(where, self._scope())
        return Stream(
            self.handle.append(
                Filter(inputs=(self.handle.place,), output=self.handle.output, where=node)
            ),
        )

    def branch(self, *wheres: Expr[bool | None]) -> tuple[Stream[R], ...]:
        """Divide the rows: each goes where the first condition is true, else into the last stream.

        Returns:
            One stream for each condition, and one for the others.
        """
        with _called(f"branch of {self.handle.output.row.__name__}"):
            for where in wheres:
                _condition(where, self._scope())
        chosen: list[Expr[Any]] = []
        for place in range(len(wheres) + 1):
            found = wheres[place] if place < len(wheres) else _ALWAYS
            for each in reversed(wheres[:place]):
                found = choose(each, False, found)
            chosen.append(found)
        return tuple(map(self.filter, chosen))

    def select(self, rows: type[S], /, **fields: Value) -> Stream[S]:
        """Make a row of other fields of each: ``select(Word, word=Line.text.lower())``.

        Fields that are left out have their default, or null.
        """
        with _called(f"select of {rows.__name__}"):
            found, by = self._selected(rows, fields, exploded=False)
        output = Output(rows, self.handle.output.key, by)
        nodes = {name: each.node for name, each in found.items()}
        return Stream(
            self.handle.append(Select(inputs=(self.handle.place,), output=output, fields=nodes))
        )

    def explode(self, rows: type[S], /, **fields: Value) -> Stream[S]:
        """Make a row of each item of a list: ``explode(Word, word=Line.text.split(" "))``.

        One of the fields gets a list of its type; the others are the same for all items. Of an
        empty list, or of null, nothing comes out.
        """
        with _called(f"explode of {rows.__name__}"):
            found, by = self._selected(rows, fields, exploded=True)
            lists = [name for name, each in found.items() if not _fits(rows, name, each.type)]
            if len(lists) != 1:
                several = f"{' and '.join(lists)} do" if lists else "none does"
                raise TypeError(f"one field has to get a list of its type, and {several}")
        output = Output(rows, self.handle.output.key, by)
        nodes = {name: each.node for name, each in found.items()}
        return Stream(
            self.handle.append(
                Select(inputs=(self.handle.place,), output=output, fields=nodes, exploded=lists[0])
            ),
        )

    def map(self, function: Callable[[R], S | Iterable[S] | None], rows: type[S]) -> Stream[S]:
        """Apply a Python function to each row; it returns a row, several, or None.

        It is called for each row, which takes a hundred times as long as an expression.
        """
        return self._applied(function, rows, "map", batches=False)

    def map_batches(self, function: Callable[[Any], Any], rows: type[S]) -> Stream[S]:
        """Apply a Python function to a record batch of Arrow; it returns one of as many rows.

        Columns have the fields' names. A row that is null throughout is left out.
        """
        return self._applied(function, rows, "map_batches", batches=True)

    def _applied(
        self, function: Callable[..., Any], rows: type[S], op: str, *, batches: bool
    ) -> Stream[S]:
        with _called(f"{op} to {rows.__name__}"):
            _require_function(function)
        output = Output(rows, self.handle.output.key)
        operator = Apply(
            inputs=(self.handle.place,), output=output, function=function, batches=batches
        )
        return Stream(self.handle.append(operator))

    def merge(self, *others: Stream[R]) -> Stream[R]:
        """Return the rows of this stream and of others, in the order of the task."""
        with _called(f"merge of {self.handle.output.row.__name__}"):
            inputs = self._inputs(*others)
            outputs = [each.handle.output for each in (self, *others)]
            for each in outputs:
                if each.row is not self.handle.output.row:
                    raise TypeError(
                        f"{outputs[0].row.__name__} and {each.row.__name__} are two rows, and "
                        "one stream has one; turn one into the other first"
                    )
            if len({each.key for each in outputs}) > 1:
                raise TypeError("the streams have keys of several types; key_by each by the same")
            by = self.handle.output.by if len({each.by for each in outputs}) == 1 else ()
        output = Output(self.handle.output.row, self.handle.output.key, by)
        return Stream(self.handle.append(Merge(inputs=inputs, output=output)))

    def peek(self, function: Callable[[R], object]) -> Stream[R]:
        """Show each row to a Python function, for logs and counters; a row may be shown again."""
        with _called("peek"):
            _require_function(function)
        operator = Peek(inputs=(self.handle.place,), output=self.handle.output, function=function)
        return Stream(self.handle.append(operator))

    def key_by(self, *by: Expr[Any], name: str) -> Stream[R]:
        """Write the rows by another key to a topic of the topology's own, and read them from there.

        The topic is called by ``name``. Several expressions make one key.
        """
        with _called(f"key_by {name!r}"):
            _require_name(name)
            parts = _key_parts(by, self._scope())
        return self._keyed(parts, name)

    def group_by(self, *by: Expr[Any], name: str) -> Grouped[R]:
        """Group the rows by expressions; where that is not their key, they are written by it.

        State, and that topic, are called by ``name``.
        """
        with _called(f"group_by {name!r}"):
            _require_name(name)
            parts = _key_parts(by, self._scope())
        is_keyed = _is_key(parts, self.handle.output)
        stream = self if is_keyed else self._keyed(parts, name)
        group = tuple(node_of(each) for each in by)
        return Grouped(stream, name, group)

    def _keyed(self, parts: tuple[Resolved, ...], name: str) -> Stream[R]:
        nodes = tuple(each.node for each in parts)
        key = tuple(each.type.required for each in parts)
        output = Output(self.handle.output.row, key, nodes)
        operator = KeyBy(inputs=(self.handle.place,), output=output, name=name, parts=nodes)
        return Stream(self.handle.append(operator))

    def join(
        self,
        other: Stream[S],
        rows: type[O],
        /,
        *,
        name: str,
        within: Span | None = None,
        before: Span | None = None,
        after: Span | None = None,
        grace: Span = "0s",
        kind: Literal["inner", "left", "outer"] = "inner",
        version: int = 1,
        **fields: Value,
    ) -> Stream[O]:
        """Return the pairs of two streams that have the same key and times close to each other.

        Args:
            other: the right side; this stream is the left one.
            rows: what a pair becomes.
            name: what state is called by.
            within: how far apart the times of a pair may be.
            before: in place of ``within``: how much earlier the right row may be.
            after: how much later.
            grace: how long a late row is waited for.
            kind: inner; left and outer have rows without a partner too, with null for the other.
            version: raise it for a new, empty store after a change that the old one does not allow.
            **fields: the fields of ``rows``, by expressions over fields of both sides.
        """
        with _called(f"join {name!r}"):
            _require_name(name)
            inputs = self._inputs(other)
            windows = _join_windows(within, before, after, grace)
            join, scope = _join_scope(kind, self.handle.output, other.handle.output)
            found = _row_fields(rows, fields, scope)
        output = Output(
            rows, self.handle.output.key, _by_of_key(rows, found, self.handle.output.key)
        )
        operator = StreamJoin(
            inputs=inputs,
            output=output,
            name=name,
            version=_version(name, version),
            windows=windows,
            join=join,
            fields={field: each.node for field, each in found.items()},
        )
        return Stream(self.handle.append(operator))

    def lookup(
        self,
        table: Table[S] | SharedTable[S],
        rows: type[O],
        /,
        *,
        name: str,
        on: Expr[Any] | None = None,
        kind: Literal["inner", "left"] = "left",
        **fields: Value,
    ) -> Stream[O]:
        """Return each row with what a table knows of its key, as the table is then.

        Args:
            table: a table by the same key, or a shared one.
            rows: what a row becomes.
            name: what it is called in the plan.
            on: of a shared table, the expression that is its key; the row's key if not given.
            kind: left: a row whose key the table lacks has null there; inner: it is left out.
            **fields: the fields of ``rows``, by expressions over fields of both sides.
        """
        with _called(f"lookup {name!r}"):
            _require_name(name)
            inputs = self._inputs(table)
            right = table.handle.output
            node = None
            if on is not None:
                if not isinstance(table, SharedTable):
                    raise TypeError(
                        "on= is for a shared_table; key_by the stream, so that rows and table "
                        "are in the same partition, and leave on= out"
                    )
                node = _key_parts((on,), self._scope())[0]
            if kind not in {"inner", "left"}:
                raise TypeError(f"kind={kind!r}: a lookup is inner or left")
            left = (
                self.handle.output
                if node is None
                else Output(self.handle.output.row, (node.type.required,))
            )
            join, scope = _join_scope(kind, left, right, self.handle.output)
            found = _row_fields(rows, fields, scope)
        output = Output(
            rows, self.handle.output.key, _by_of_key(rows, found, self.handle.output.key)
        )
        operator = Lookup(
            inputs=inputs,
            output=output,
            name=name,
            join=join,
            fields={field: each.node for field, each in found.items()},
            on=None if node is None else node.node,
        )
        return Stream(self.handle.append(operator))

    def reduce(
        self, reducer: Callable[..., Any], *, name: str, rows: type[S], version: int = 1
    ) -> Stream[S]:
        """Apply a reducer with state by key, as of a keyed channel; its outputs are rows."""
        with _called(f"reduce {name!r}"):
            _require_name(name)
            _require_function(reducer)
            _require_key(self.handle.output)
        operator = Reduce(
            inputs=(self.handle.place,),
            output=Output(rows, self.handle.output.key),
            name=name,
            version=_version(name, version),
            reducer=reducer,
        )
        return Stream(self.handle.append(operator))

    def to(self, topic: str, *, codec: str = "json") -> None:
        """Write the rows to a topic, by their key."""
        self._sink(topic, codec)

    def _selected(
        self, rows: type[Row], fields: Mapping[str, Value], *, exploded: bool
    ) -> tuple[dict[str, Resolved], tuple[Node, ...]]:
        """Return the fields of a row of others, and those that are the key still."""
        found = _row_fields(rows, fields, self._scope(), lists=exploded)
        by = _by_of(rows, found, self.handle.output.by) or _by_of_key(
            rows, found, self.handle.output.key
        )
        return found, by


class Grouped(Generic[R]):
    """Rows by key, of which aggregates are made."""

    __slots__ = ("_group", "_name", "_stream", "_windows")

    def __init__(
        self, stream: Stream[R], name: str, group: tuple[Node, ...], windows: Windows | None = None
    ) -> None:
        self._stream = stream
        self._name = name
        self._group = group
        self._windows = windows

    def window(self, windows: Windows) -> Grouped[R]:
        """Group by time as well: ``window(tumbling("5m", grace="30s"))``."""
        with _called(f"window of {self._name!r}"):
            if self._windows is not None:
                raise TypeError("there are windows already; group once for each")
            if not isinstance(windows, (TimeWindows, SlidingWindows, SessionWindows)):
                raise TypeError(
                    f"{windows!r} are no windows; take tumbling, hopping, sliding or session"
                )
        return Grouped(self._stream, self._name, self._group, windows)

    def agg(
        self, rows: type[S], /, *, version: int = 1, **fields: declared.Agg[Any] | Value
    ) -> Table[S]:
        """Return a table of a row for each key, and window.

        A field is an aggregate, or an expression of what the group is the same in: its expressions,
        ``key``, ``window_start``, ``window_end``.

        Args:
            rows: what a row of the table is.
            version: raise it for a new, empty store after a change that the old one does not allow.
            **fields: the fields of ``rows``, by aggregates and expressions of the group.
        """
        with _called(f"agg of {self._name!r}"):
            plain, made = self._fields(rows, fields)
        source = self._stream.handle.output
        output = Output(
            rows,
            source.key,
            _by_of_key(rows, plain, source.key),
            is_table=True,
            windows=self._windows,
        )
        operator = Aggregate(
            inputs=(self._stream.handle.place,),
            output=output,
            name=self._name,
            version=_version(self._name, version),
            windows=self._windows,
            group=tuple(map(node_of, self._parts())),
            fields={name: each.node for name, each in plain.items()},
            aggregates=made,
            folds=any(isinstance(each.aggregate, declared.Fold) for each in made.values()),
        )
        return Table(self._stream.handle.append(operator))

    def _parts(self) -> tuple[Expr[Any], ...]:
        return tuple(map(Expr, self._group))

    def _fields(
        self, rows: type[Row], fields: Mapping[str, declared.Agg[Any] | Value]
    ) -> tuple[dict[str, Resolved], dict[str, Aggregated]]:
        source = self._stream.handle.output
        scope = _scope_of((source.row,), source, _TIME)
        made: dict[str, Aggregated] = {}
        plain: dict[str, Expr[Any]] = {}
        for name, each in fields.items():
            if not isinstance(each, declared.Agg):
                plain[name] = self._of_group(name, each)
                continue
            _require_field(rows, name)
            kind = rows.__fields__[name].type
            made[name] = _aggregated(name, each, scope, kind, self._windows)
            if not kind.accepts(made[name].result):
                raise TypeError(_misfit(rows, name, made[name].result))
        windowed = (
            ()
            if self._windows is None
            else (
                (Part.WINDOW_START, INT),
                (Part.WINDOW_END, INT),
            )
        )
        group = replace(_scope_of((), source, windowed), keys=source.key)
        return _row_fields(rows, plain, group, given=made), made

    def _of_group(self, name: str, found: Any) -> Expr[Any]:
        """Return an expression of the group, in which its own expressions are parts of the key."""
        if len(self._group) == 1:
            keys: dict[Node, Node] = {self._group[0]: PartNode(Part.KEY)}
        else:
            keys = {node: KeyNode(place) for place, node in enumerate(self._group)}
        node = substitute(node_of(found), keys)
        for each in walk(node):
            if isinstance(each, FieldNode):
                shown = describe(each)
                raise TypeError(
                    f"field {name}: {shown} has a value in each row of the group; aggregate it, as "
                    f"in last({shown}), or group by it as well"
                )
            if isinstance(each, PartNode) and each.part is Part.TIME:
                raise TypeError(
                    f"field {name}: each row has a time; aggregate it, as in most(time)"
                )
        return Expr(node)


class Table(_Rows[R]):
    """A row for each key, which changes."""

    __slots__ = ()

    def updates(self) -> Stream[R]:
        """Return the last change of each key in a micro-batch; which these are depends on cuts."""
        return self._emitted(Emit.UPDATES)

    def each(self) -> Stream[R]:
        """Return a change for each record, as Kafka Streams without caches does."""
        return self._emitted(Emit.EACH)

    def final(self) -> Stream[R]:
        """Return the row of each window once, when the window is over."""
        with _called(f"final of {self.handle.output.row.__name__}"):
            if self.handle.output.windows is None:
                raise TypeError(
                    "the table has no windows, so no row of it is the last; take updates() or "
                    "each(), or group with .window(...)"
                )
        return self._emitted(Emit.FINAL)

    def _emitted(self, emit: Emit) -> Stream[R]:
        output = Output(self.handle.output.row, self.handle.output.key, self.handle.output.by)
        operator = Emitted(inputs=(self.handle.place,), output=output, emit=emit)
        return Stream(self.handle.append(operator))

    def filter(self, where: Expr[bool | None]) -> Table[R]:
        """Keep the rows of which the condition is true; one that is no more is a deletion."""
        with _called(f"filter of {self.handle.output.row.__name__}"):
            scope = _scope_of((self.handle.output.row,), self.handle.output)
            node = _condition(where, scope)
        operator = Filter(inputs=(self.handle.place,), output=self.handle.output, where=node)
        return Table(self.handle.append(operator))

    def join(
        self,
        other: Table[S],
        rows: type[O],
        /,
        *,
        name: str,
        on: Expr[Any] | None = None,
        kind: Literal["inner", "left", "outer"] = "inner",
        version: int = 1,
        **fields: Value,
    ) -> Table[O]:
        """Return a table of two: a row changes with either.

        Args:
            other: the right table; this one is the left.
            rows: what a pair becomes.
            name: what state is called by.
            on: a field of the left row that is the key of the right one (a foreign key).
            kind: inner; left and outer have rows without a partner too, with null for the other.
            version: raise it for a new, empty store after a change that the old one does not allow.
            **fields: the fields of ``rows``, by expressions over fields of both sides.
        """
        with _called(f"join {name!r}"):
            _require_name(name)
            inputs = self._inputs(other)
            left, right = self.handle.output, other.handle.output
            for each in (left, right):
                if each.windows is not None:
                    raise TypeError("tables with windows are joined as streams: take .each()")
            node = None
            if on is not None:
                if kind == "outer":
                    raise TypeError("with on= a join is inner or left")
                scope = _scope_of((left.row,), left)
                node = _key_parts((on,), scope)[0]
                left = Output(left.row, (node.type.required,))
            join, scope = _join_scope(kind, left, right, self.handle.output)
            found = _row_fields(rows, fields, scope)
        output = Output(
            rows,
            self.handle.output.key,
            _by_of_key(rows, found, self.handle.output.key),
            is_table=True,
        )
        operator = TableJoin(
            inputs=inputs,
            output=output,
            name=name,
            version=_version(name, version),
            join=join,
            fields={field: each.node for field, each in found.items()},
            on=None if node is None else node.node,
        )
        return Table(self.handle.append(operator))

    def to(self, topic: str, *, codec: str = "json") -> None:
        """Write the table's updates to a topic, a deletion as a tombstone."""
        self.updates().to(topic, codec=codec)


class SharedTable(_Rows[R]):
    """A table that each member has whole, for lookups."""

    __slots__ = ()


#: A condition that is true of all rows.
_ALWAYS: Expr[bool] = Expr(ValueNode(True, BOOL))


# --- checks of what an operator is given ----------------------------------------------------------


def _require_function(function: object) -> None:
    if not callable(function):
        raise TypeError(f"{function!r} is no function")


def _version(name: str, version: object) -> int:
    if type(version) is not int or version < 1:
        raise ConfigError([f"{name!r}: version={version!r} is no number from 1"])
    return version


def _scope_of(
    rows: tuple[type[Row], ...], output: Output, parts: tuple[tuple[Part, Type], ...] = ()
) -> Scope:
    """Return what an expression may name: rows, the key of ``output``, and other parts."""
    if len(output.key) == 1:
        return Scope(rows, parts=((Part.KEY, output.key[0]), *parts))
    hint = f"the key has {len(output.key)} parts; name one as it was grouped by"
    return Scope(rows, parts=parts, hints=((Part.KEY, hint),))


def _time_node(time: Expr[Any], rows: type[Row], key: tuple[Type, ...]) -> Node:
    scope = Scope((rows,), parts=((Part.KEY, key[0]), *_TIME))
    found = resolve(node_of(time), scope)
    if found.type.kind not in {Kind.INT, Kind.DATETIME}:
        raise TypeError(f"time={describe(found.node)} is {found.type}; give int or datetime")
    return found.node


def _condition(where: object, scope: Scope) -> Node:
    found = resolve(node_of(where), scope)
    if found.type.kind is not Kind.BOOL:
        raise TypeError(f"{describe(found.node)} is {found.type}, which is no condition")
    return found.node


def _key_parts(by: tuple[object, ...], scope: Scope) -> tuple[Resolved, ...]:
    if not by:
        raise TypeError("give an expression, as in Order.id")
    found = tuple(resolve(node_of(each), scope) for each in by)
    for each in found:
        is_bytes = each.type.kind is Kind.BYTES and len(found) == 1
        if each.type.kind not in KEYS and not is_bytes:
            raise TypeError(
                f"{describe(each.node)} is {each.type}, which is no key; keys are str, int, bool, "
                "or bytes alone"
            )
    return found


def _is_key(parts: tuple[Resolved, ...], output: Output) -> bool:
    nodes = tuple(each.node for each in parts)
    return nodes == output.by or nodes == (PartNode(Part.KEY),)


def _require_key(output: Output) -> None:
    if not output.key:
        raise TypeError(f"{output.row.__name__} rows have no known key; key_by them first")


def _require_field(rows: type[Row], name: str) -> None:
    if name not in rows.__fields__:
        known = ", ".join(rows.__fields__) or "none"
        raise TypeError(f"{rows.__name__} has no field {name!r}; its fields: {known}")


def _fits(rows: type[Row], name: str, found: Type) -> bool:
    return rows.__fields__[name].type.accepts(found)


def _misfit(rows: type[Row], name: str, found: Type) -> str:
    kind = rows.__fields__[name].type
    if kind.required == found.required:
        step = "give .or_else(...), or declare the field with | None"
    else:
        step = "cast the value, or declare the field so"
    return f"field {name} of {rows.__name__} is {kind} and gets {found}; {step}"


def _row_fields(
    rows: type[Row],
    fields: Mapping[str, object],
    scope: Scope,
    *,
    lists: bool = False,
    given: Iterable[str] = (),
) -> dict[str, Resolved]:
    """Return the fields of a row as they are computed, in the order of its class.

    With ``lists`` a field may get a list of its type. ``given`` are computed otherwise.
    """
    for name in fields:
        _require_field(rows, name)
    found: dict[str, Resolved] = {}
    for name, each in rows.__fields__.items():
        if name in given:
            continue
        if name not in fields:
            if each.is_required:
                raise TypeError(f"field {name} of {rows.__name__} is missing; give {name}=...")
            found[name] = Resolved(ValueNode(each.default, each.type), each.type)
            continue
        try:
            found[name] = _with_constant(fields[name], each.type, scope)
        except TypeError as error:
            raise TypeError(f"field {name}: {error}") from error
        kind = found[name].type
        is_list = kind.item is not None and each.type.accepts(kind.item)
        if not each.type.accepts(kind) and not (lists and is_list):
            raise TypeError(_misfit(rows, name, kind))
    return found


def _with_constant(value: object, kind: Type, scope: Scope) -> Resolved:
    """Return an expression, or a constant as one of the field's type where it fits."""
    node = node_of(value)
    if isinstance(node, ValueNode) and node.type is None and kind.nullable:
        return Resolved(ValueNode(None, kind.required), kind)
    if kind.kind is Kind.FLOAT and isinstance(node, ValueNode) and type(node.value) is int:
        node = ValueNode(float(node.value), FLOAT)
    return resolve(node, scope)


def _by_of_key(
    rows: type[Row], found: Mapping[str, Resolved], key: tuple[Type, ...]
) -> tuple[Node, ...]:
    """Return the fields of a row that are the parts of its key; none unless all are there."""
    parts: list[Node] = [KeyNode(place) for place in range(len(key))]
    if len(key) == 1:
        parts = [PartNode(Part.KEY)]
    return _by_of(rows, found, parts)


def _by_of(
    rows: type[Row], found: Mapping[str, Resolved], parts: Iterable[Node]
) -> tuple[Node, ...]:
    """Return the fields of a row that are these expressions of another; none unless all are."""
    by = []
    for part in parts:
        same = [name for name, each in found.items() if each.node == part]
        if not same:
            return ()
        by.append(FieldNode(rows, same[0]))
    return tuple(by)


def _join_windows(
    within: Span | None, before: Span | None, after: Span | None, grace: Span
) -> JoinWindows:
    if (within is None) == (before is None and after is None):
        raise TypeError('give within="10m", or before= and after=')
    if within is not None:
        before = after = within
    return join_windows(before=before or "0s", after=after or "0s", grace=grace)


def _join_scope(
    kind: str, left: Output, right: Output, source: Output | None = None
) -> tuple[Join, Scope]:
    """Return the kind of a join, and what its fields may name."""
    if kind not in {each.value for each in Join}:
        raise TypeError(f"kind={kind!r}: a join is inner, left or outer")
    if left.row is right.row:
        raise TypeError(
            f"both sides are {left.row.__name__}, so a field says not which one is meant; select "
            "one side into a row of another class"
        )
    for each in (left, right):
        _require_key(each)
    if left.key != right.key:
        names = [", ".join(map(str, each.key)) for each in (left, right)]
        raise TypeError(
            f"{left.row.__name__} has the key {names[0]} and {right.row.__name__} {names[1]}, so "
            "that no key of one is that of the other; key_by both alike"
        )
    join = Join(kind)
    missing = set()
    if join is not Join.INNER:
        missing.add(right.row)
    if join is Join.OUTER:
        missing.add(left.row)
    scope = _scope_of((left.row, right.row), source or left, _TIME)
    return join, replace(scope, missing=frozenset(missing))


# --- aggregates -----------------------------------------------------------------------------------


def _aggregated(
    name: str,
    aggregate: declared.Agg[Any],
    scope: Scope,
    declaration: Type,
    windows: Windows | None,
) -> Aggregated:
    """Return an aggregate with the types of what it is computed of."""
    kind = type(aggregate).__name__.lower()
    try:
        found = tuple(resolve(node_of(each), scope) for each in aggregate.arguments)
    except TypeError as error:
        raise TypeError(f"field {name}: {kind}: {error}") from error
    types = tuple(each.type for each in found)
    try:
        result = _result_of(aggregate, types, scope, declaration, windows)
    except TypeError as error:
        shown = ", ".join(describe(each.node) for each in found)
        raise TypeError(f"field {name}: {kind}({shown}): {error}") from None
    return Aggregated(
        aggregate=aggregate,
        arguments=tuple(each.node for each in found),
        types=types,
        result=result,
    )


def _result_of(
    aggregate: declared.Agg[Any],
    types: tuple[Type, ...],
    scope: Scope,
    declaration: Type,
    windows: Windows | None,
) -> Type:
    match aggregate:
        case declared.Count():
            return INT
        case declared.Fold():
            if aggregate.rows not in scope.rows:
                raise TypeError(f"rows={aggregate.rows.__name__} is not what is grouped")
            one_row = windows is None or (isinstance(windows, TimeWindows) and windows.tumbling)
            if aggregate.merge is None and not one_row:
                raise TypeError("these windows are made of parts; give merge=")
            return declaration
        case declared.Total() | declared.Mean():
            _require_kind(types[0], NUMBERS, "added up")
            is_mean = isinstance(aggregate, declared.Mean)
            return FLOAT.or_null(types[0].nullable) if is_mean else types[0]
        case declared.Least() | declared.Most():
            _require_kind(types[0], ORDERED | {Kind.BOOL}, "ordered")
            return types[0]
        case declared.First() | declared.Last():
            return types[0]
        case declared.Top():
            _require_kind(types[1], ORDERED | {Kind.BOOL}, "ordered")
        case declared.Distinct():
            _require_kind(types[0], ORDERED | {Kind.BOOL}, "ordered")
    return list_of(types[0].required)


def _require_kind(found: Type, kinds: set[Kind], doing: str) -> None:
    if found.kind not in kinds:
        names = ", ".join(sorted(each.value for each in kinds))
        raise TypeError(f"{found} is not {doing}; that is for {names}")


__all__ = ["Grouped", "SharedTable", "Stream", "Table", "Topology"]
