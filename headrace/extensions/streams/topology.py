"""Topologies: streams, groups and tables of rows, as a program writes them down.

Nothing is read or computed here. Each call appends an operator and checks what it can: that fields
are there, that types fit, that names are given. :meth:`Topology.plan` checks the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from headrace.extensions.streams import aggregates as declared
from headrace.extensions.streams.changes import change_row
from headrace.extensions.streams.checks import (
    TIME,
    by_of,
    by_of_key,
    check_version,
    describe_misfit,
    fits,
    is_key,
    named_errors,
    require_field,
    require_function,
    require_key,
    require_name,
    require_subtraction,
    require_topic,
    resolve_aggregate,
    resolve_condition,
    resolve_fields,
    resolve_key,
    resolve_time,
    scope_of,
    scope_of_join,
    windows_of_join,
)
from headrace.extensions.streams.decode import check_codec, has_bytes
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
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.operators import (
    Aggregate,
    AggregateChanges,
    Aggregated,
    Apply,
    Emitted,
    Filter,
    GroupChanges,
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
    INT,
    TEXT,
)
from headrace.extensions.streams.windows import (
    SessionWindows,
    SlidingWindows,
    Span,
    TimeWindows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from decimal import Decimal

    from headrace.extensions.keyed.api import Event, Fired, Timer
    from headrace.extensions.keyed.api import Output as Reduced
    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.inference import Resolved, Scope
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.windows import Windows

R = TypeVar("R", bound="Row")
S = TypeVar("S", bound="Row")
O = TypeVar("O", bound="Row")  # noqa: E741 - the rows that come out

#: What a field of a row gets: an expression, or a constant.
Value: TypeAlias = "Expr[Any] | str | int | float | bytes | datetime | Decimal | None"


#: The types of a record's key in a topic, by the Python type that names it.
_KEY_TYPES = {str: TEXT, int: INT, bytes: BYTES}


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
            codec: how values are written: json, string or bytes; or avro, protobuf or json_schema
                with ids of a schema registry.
        """
        with named_errors(f"stream {topic!r}"):
            require_topic(topic)
            check_codec(codec, rows, "the rows", is_read=True)
            if key not in _KEY_TYPES:
                raise TypeError(f"key={key!r}: a record's key is str, int or bytes")
            parts = (_KEY_TYPES[key],)
            node = None if time is None else resolve_time(time, rows, parts)
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
        with named_errors(label):
            require_name(name)
            require_topic(topic)
            check_codec(codec, rows, "the rows", is_read=True)
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
        return scope_of((self.handle.output.row,), self.handle.output, TIME)

    def _sink(self, topic: str, codec: str) -> None:
        with named_errors(f"to {topic!r}"):
            require_topic(topic)
            check_codec(codec, self.handle.output.row, "the rows")
        self.handle.append(Sink(inputs=(self.handle.place,), topic=topic, codec=codec))


class Stream(_Rows[R]):
    """Rows one after the other, by time."""

    __slots__ = ()

    def filter(self, where: Expr[bool | None]) -> Stream[R]:
        """Keep the rows of which the condition is true; where it is null, a row is left out."""
        with named_errors(f"filter of {self.handle.output.row.__name__}"):
            node = resolve_condition(where, self._scope())
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
        with named_errors(f"branch of {self.handle.output.row.__name__}"):
            for where in wheres:
                resolve_condition(where, self._scope())
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
        with named_errors(f"select of {rows.__name__}"):
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
        with named_errors(f"explode of {rows.__name__}"):
            found, by = self._selected(rows, fields, exploded=True)
            lists = [name for name, each in found.items() if not fits(rows, name, each.type)]
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
        with named_errors(f"{op} to {rows.__name__}"):
            require_function(function)
        output = Output(rows, self.handle.output.key)
        operator = Apply(
            inputs=(self.handle.place,), output=output, function=function, batches=batches
        )
        return Stream(self.handle.append(operator))

    def merge(self, *others: Stream[R]) -> Stream[R]:
        """Return the rows of this stream and of others, in the order of the task."""
        with named_errors(f"merge of {self.handle.output.row.__name__}"):
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
        with named_errors("peek"):
            require_function(function)
        operator = Peek(inputs=(self.handle.place,), output=self.handle.output, function=function)
        return Stream(self.handle.append(operator))

    def key_by(self, *by: Expr[Any], name: str) -> Stream[R]:
        """Write the rows by another key to a topic of the topology's own, and read them from there.

        The topic is called by ``name``. Several expressions make one key.
        """
        with named_errors(f"key_by {name!r}"):
            require_name(name)
            parts = resolve_key(by, self._scope())
        return self._keyed(parts, name)

    def group_by(self, *by: Expr[Any], name: str) -> Grouped[R]:
        """Group the rows by expressions; where that is not their key, they are written by it.

        State, and that topic, are called by ``name``.
        """
        with named_errors(f"group_by {name!r}"):
            require_name(name)
            parts = resolve_key(by, self._scope())
        is_keyed = is_key(parts, self.handle.output)
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
        with named_errors(f"join {name!r}"):
            require_name(name)
            inputs = self._inputs(other)
            windows = windows_of_join(within, before, after, grace)
            join, scope = scope_of_join(kind, self.handle.output, other.handle.output)
            found = resolve_fields(rows, fields, scope)
        output = Output(
            rows, self.handle.output.key, by_of_key(rows, found, self.handle.output.key)
        )
        operator = StreamJoin(
            inputs=inputs,
            output=output,
            name=name,
            version=check_version(name, version),
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
        with named_errors(f"lookup {name!r}"):
            require_name(name)
            inputs = self._inputs(table)
            right = table.handle.output
            node = None
            if on is not None:
                if not isinstance(table, SharedTable):
                    raise TypeError(
                        "on= is for a shared_table; key_by the stream, so that rows and table "
                        "are in the same partition, and leave on= out"
                    )
                node = resolve_key((on,), self._scope())[0]
            if kind not in {"inner", "left"}:
                raise TypeError(f"kind={kind!r}: a lookup is inner or left")
            left = (
                self.handle.output
                if node is None
                else Output(self.handle.output.row, (node.type.required,))
            )
            join, scope = scope_of_join(kind, left, right, self.handle.output)
            found = resolve_fields(rows, fields, scope)
        output = Output(
            rows, self.handle.output.key, by_of_key(rows, found, self.handle.output.key)
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
        self,
        reducer: Callable[
            [Any, Any, list[Event[R] | Fired], int],
            tuple[Any, Sequence[S] | Sequence[Reduced], Mapping[str, Timer]],
        ],
        *,
        name: str,
        rows: type[S],
        version: int = 1,
    ) -> Stream[S]:
        """Apply a keyed reducer: a Python function with a state and timers for each key.

        ``reducer(key, state, [fact], now)`` is called for each row, and for each timer that is due,
        in the order of the task. It returns the new state, rows, and all timers of the key by name,
        which are of event time. ``now`` is the operator time. Deletions are left out.

        Args:
            reducer: the function; see :mod:`headrace.keyed`. Its state is kept as JSON.
            name: what its store is called by.
            rows: the rows that it returns, by themselves or as the value of an ``Output``, which
                may have a time of its own.
            version: raise it for a new, empty store.
        """
        with named_errors(f"reduce {name!r}"):
            require_name(name)
            require_function(reducer)
            require_key(self.handle.output)
        operator = Reduce(
            inputs=(self.handle.place,),
            output=Output(rows, self.handle.output.key),
            name=name,
            version=check_version(name, version),
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
        found = resolve_fields(rows, fields, self._scope(), lists=exploded)
        by = by_of(rows, found, self.handle.output.by) or by_of_key(
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
        with named_errors(f"window of {self._name!r}"):
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
        source = self._stream.handle.output
        with named_errors(f"agg of {self._name!r}"):
            scope = scope_of((source.row,), source, TIME)
            plain, made = _fields_of_group(
                rows, fields, source, self._group, scope=scope, windows=self._windows
            )
        output = Output(
            rows,
            source.key,
            by_of_key(rows, plain, source.key),
            is_table=True,
            windows=self._windows,
        )
        operator = Aggregate(
            inputs=(self._stream.handle.place,),
            output=output,
            name=self._name,
            version=check_version(self._name, version),
            windows=self._windows,
            group=self._group,
            fields={name: each.node for name, each in plain.items()},
            aggregates=made,
            folds=any(isinstance(each.aggregate, declared.Fold) for each in made.values()),
        )
        return Table(self._stream.handle.append(operator))


def _fields_of_group(
    rows: type[Row],
    fields: Mapping[str, declared.Agg[Any] | Value],
    source: Output,
    group: tuple[Node, ...],
    *,
    scope: Scope,
    windows: Windows | None = None,
    may_empty: bool = False,
) -> tuple[dict[str, Resolved], dict[str, Aggregated]]:
    """Return the fields of a row that are of its group, and those that are aggregates.

    ``source`` is what comes out by the key of the group. ``may_empty`` says that a group may come
    to have no row, and so no value.
    """
    made: dict[str, Aggregated] = {}
    plain: dict[str, Expr[Any]] = {}
    for name, each in fields.items():
        if not isinstance(each, declared.Agg):
            plain[name] = _of_group(name, each, group)
            continue
        require_field(rows, name)
        kind = rows.__fields__[name].type
        made[name] = resolve_aggregate(name, each, scope, kind, windows)
        if may_empty and not isinstance(each, declared.Count):
            made[name] = replace(made[name], result=made[name].result.or_null())
        if not kind.accepts(made[name].result):
            raise TypeError(describe_misfit(rows, name, made[name].result))
    windowed = ((Part.WINDOW_START, INT), (Part.WINDOW_END, INT)) if windows is not None else ()
    of_group = replace(scope_of((), source, windowed), keys=source.key)
    return resolve_fields(rows, plain, of_group, given=made), made


def _of_group(name: str, found: Any, group: tuple[Node, ...]) -> Expr[Any]:
    """Return an expression of the group, in which its own expressions are parts of the key."""
    if len(group) == 1:
        keys: dict[Node, Node] = {group[0]: PartNode(Part.KEY)}
    else:
        keys = {node: KeyNode(place) for place, node in enumerate(group)}
    node = substitute(node_of(found), keys)
    for each in walk(node):
        if isinstance(each, FieldNode):
            shown = describe(each)
            raise TypeError(
                f"field {name}: {shown} has a value in each row of the group; aggregate it, as "
                f"in last({shown}), or group by it as well"
            )
        if isinstance(each, PartNode) and each.part is Part.TIME:
            raise TypeError(f"field {name}: each row has a time; aggregate it, as in most(time)")
    return Expr(node)


class GroupedTable(Generic[R]):
    """Rows of a table by group, of which aggregates are made that follow their changes."""

    __slots__ = ("_by", "_group", "_name", "_table")

    def __init__(
        self, table: Table[R], name: str, by: tuple[Resolved, ...], group: tuple[Node, ...]
    ) -> None:
        self._table = table
        self._name = name
        self._by = by
        self._group = group

    def agg(
        self, rows: type[S], /, *, version: int = 1, **fields: declared.Agg[Any] | Value
    ) -> Table[S]:
        """Return a table of a row for each group: of the table's rows as they are now.

        A field is count, total or mean, or an expression of what the group is the same in. A row
        that changes is taken away as it was and added as it is, in another group if that changes.

        Args:
            rows: what a row of the table is.
            version: raise it for a new, empty store after a change that the old one does not allow.
            **fields: the fields of ``rows``, by aggregates and expressions of the group.
        """
        source = self._table.handle.output
        nodes = tuple(each.node for each in self._by)
        key = tuple(each.type.required for each in self._by)
        grouped = Output(change_row(source.row), key)
        with named_errors(f"agg of {self._name!r}"):
            scope = scope_of((source.row,), grouped)
            for name, each in fields.items():
                require_subtraction(name, each)
            plain, made = _fields_of_group(
                rows, fields, grouped, self._group, scope=scope, may_empty=True
            )
        changes = self._table.handle.append(
            GroupChanges(
                inputs=(self._table.handle.place,), output=grouped, name=self._name, parts=nodes
            )
        )
        operator = AggregateChanges(
            inputs=(changes.place,),
            output=Output(rows, key, by_of_key(rows, plain, key), is_table=True),
            name=self._name,
            version=check_version(self._name, version),
            windows=None,
            group=self._group,
            fields={name: each.node for name, each in plain.items()},
            aggregates=made,
            rows=source.row,
        )
        return Table(changes.append(operator))


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
        with named_errors(f"final of {self.handle.output.row.__name__}"):
            if self.handle.output.windows is None:
                raise TypeError(
                    "the table has no windows, so no row of it is the last; take updates() or "
                    "each(), or group with .window(...)"
                )
        return self._emitted(Emit.FINAL)

    def group_by(self, *by: Expr[Any], name: str) -> GroupedTable[R]:
        """Group the rows as they are now by expressions; changes are written by them to a topic.

        State, and that topic, are called by ``name``.
        """
        with named_errors(f"group_by {name!r}"):
            require_name(name)
            source = self.handle.output
            if source.windows is not None:
                raise TypeError(
                    "a table with windows does not keep what its rows were before; group what "
                    "final() tells, or updates(), as a stream"
                )
            for field, each in source.row.__fields__.items():
                if has_bytes(each.type):
                    raise TypeError(
                        f"{source.row.__name__}.{field} has bytes, and changes are written as "
                        "JSON; leave it out, or have text in its place"
                    )
            parts = resolve_key(by, scope_of((source.row,), source))
        return GroupedTable(self, name, parts, tuple(node_of(each) for each in by))

    def _emitted(self, emit: Emit) -> Stream[R]:
        output = Output(self.handle.output.row, self.handle.output.key, self.handle.output.by)
        operator = Emitted(inputs=(self.handle.place,), output=output, emit=emit)
        return Stream(self.handle.append(operator))

    def filter(self, where: Expr[bool | None]) -> Table[R]:
        """Keep the rows of which the condition is true; one that is no more is a deletion."""
        with named_errors(f"filter of {self.handle.output.row.__name__}"):
            scope = scope_of((self.handle.output.row,), self.handle.output)
            node = resolve_condition(where, scope)
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
        with named_errors(f"join {name!r}"):
            require_name(name)
            inputs = self._inputs(other)
            if isinstance(other, SharedTable):
                raise TypeError(
                    "a shared_table is for lookups of streams; read the topic as app.table(...)"
                )
            left, right = self.handle.output, other.handle.output
            for each in (left, right):
                if each.windows is not None:
                    raise TypeError("tables with windows are joined as streams: take .each()")
            node = None
            if on is not None:
                if kind == "outer":
                    raise TypeError("with on= a join is inner or left")
                scope = scope_of((left.row,), left)
                node = resolve_key((on,), scope)[0]
                left = Output(left.row, (node.type.required,))
            join, scope = scope_of_join(kind, left, right, self.handle.output)
            found = resolve_fields(rows, fields, scope)
        output = Output(
            rows,
            self.handle.output.key,
            by_of_key(rows, found, self.handle.output.key),
            is_table=True,
        )
        operator = TableJoin(
            inputs=inputs,
            output=output,
            name=name,
            version=check_version(name, version),
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


__all__ = ["Grouped", "GroupedTable", "SharedTable", "Stream", "Table", "Topology"]
