"""A scenario written down in Headrace's own API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.extensions.streams.aggregates import count, top, total
from headrace.extensions.streams.expressions import key, window_end, window_start
from headrace.extensions.streams.rows import Field, Row
from headrace.extensions.streams.topology import Stream, Table, Topology
from headrace.extensions.streams.windows import hopping, session, sliding, tumbling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.extensions.streams.windows import Windows
    from tests.streams.scenario import Scenario


def write_topology(scenario: Scenario) -> Topology:
    """Return the topology of a scenario; each node has a class of rows of its own."""
    program = _Program()
    for node in scenario["nodes"]:
        program.add(node)
    return program.app


class _Program:
    """The streams and tables of a topology by their nodes, as far as it is written down."""

    def __init__(self) -> None:
        self.app = Topology()
        self._made: dict[str, Any] = {}
        self._aggregates: dict[str, str] = {}

    def add(self, node: Mapping[str, Any]) -> None:
        """Write down one node more."""
        writers: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "stream": lambda node: self.app.stream(node["topic"], _rows(node)),
            "table": lambda node: self.app.table(node["topic"], _rows(node), name=node["name"]),
            "filter": lambda node: self._of(node).filter(_where(self._of(node), node["where"])),
            "select": self._select,
            "explode": self._explode,
            "key_by": lambda node: self._of(node).key_by(_row(self._of(node)).s, name=node["name"]),
            "aggregate": self._aggregate,
            "group_table": self._group_table,
            "each": lambda node: self._of(node).each(),
            "final": lambda node: self._of(node).final(),
            "join": self._join,
            "stream_table": self._lookup,
            "table_table": self._table_join,
            "foreign_key": self._table_join,
            "merge": self._merge,
            "to": lambda node: self._of(node).to(node["topic"]),
        }
        if node["op"] == "branch":
            of = self._of(node)
            yes, no = of.branch(_where(of, node["where"]))
            self._made |= {f"{node['name']}.yes": yes, f"{node['name']}.no": no}
        else:
            self._made[node["name"]] = writers[node["op"]](node)

    def _of(self, node: Mapping[str, Any]) -> Any:
        return self._made[node["of"]]

    def _sides(self, node: Mapping[str, Any]) -> tuple[Any, Any]:
        return self._made[node["left"]], self._made[node["right"]]

    def _select(self, node: Mapping[str, Any]) -> Stream[Any]:
        of = self._of(node)
        row = _row(of)
        made: Stream[Any] = of.select(
            _rows(node),
            n=row.n * node["times"] + node["plus"],
            s=row.s.concat(node["suffix"]),
        )
        return made

    def _explode(self, node: Mapping[str, Any]) -> Stream[Any]:
        of = self._of(node)
        made: Stream[Any] = of.explode(_rows(node), n=_row(of).n, s=_row(of).s.split(" "))
        return made

    def _aggregate(self, node: Mapping[str, Any]) -> Table[Any]:
        of = self._of(node)
        row = _row(of)
        grouped = of.group_by(key, name=node["name"])
        if node["window"] is not None:
            grouped = grouped.window(_windows(node["window"]))
        fields: dict[str, Any] = {"s": key}
        types: dict[str, Any] = {"s": Field[str]}
        if node["what"] == "top":
            types["best"], fields["best"] = Field[list[int]], top(3, by=row.n, of=row.n)
        else:
            types["n"] = Field[int]
            fields["n"] = count() if node["what"] == "count" else total(row.n)
        if node["window"] is not None:
            types |= {"begin": Field[int], "end": Field[int]}
            fields |= {"begin": window_start, "end": window_end}
        made: Table[Any] = grouped.agg(_rows(node, types), **fields)
        return made

    def _group_table(self, node: Mapping[str, Any]) -> Table[Any]:
        of = self._of(node)
        row = _row(of)
        found = count() if node["what"] == "count" else total(row.n)
        rows = _rows(node, {"n": Field[int | None], "s": Field[str]})
        made: Table[Any] = of.group_by(row.s, name=node["name"]).agg(rows, n=found, s=row.s)
        return made

    def _join(self, node: Mapping[str, Any]) -> Stream[Any]:
        left, right = self._sides(node)
        made: Stream[Any] = left.join(
            right,
            _rows(node),
            name=node["name"],
            kind=node["how"],
            before=f"{node['before']}ms",
            after=f"{node['after']}ms",
            grace=f"{node['grace']}ms",
            **_pair(left, right),
        )
        return made

    def _lookup(self, node: Mapping[str, Any]) -> Stream[Any]:
        left, right = self._sides(node)
        made: Stream[Any] = left.lookup(
            right, _rows(node), name=node["name"], kind=node["how"], **_pair(left, right)
        )
        return made

    def _table_join(self, node: Mapping[str, Any]) -> Table[Any]:
        left, right = self._sides(node)
        on = _row(left).s if node["op"] == "foreign_key" else None
        made: Table[Any] = left.join(
            right, _rows(node), name=node["name"], on=on, kind=node["how"], **_pair(left, right)
        )
        return made

    def _merge(self, node: Mapping[str, Any]) -> Stream[Any]:
        rows = _rows(node)
        left, right = (
            side.select(rows, n=_row(side).n, s=_row(side).s) for side in self._sides(node)
        )
        made: Stream[Any] = left.merge(right)
        return made


def _rows(node: Mapping[str, Any], types: Mapping[str, Any] | None = None) -> type[Row]:
    """Return the class of a node's rows: both sides of a join have to have one of their own."""
    fields = types or {"n": Field[int], "s": Field[str]}
    name = "".join(part.capitalize() for part in node["name"].split("-"))
    return type(name, (Row,), {"__annotations__": fields})


def _row(of: Stream[Any] | Table[Any]) -> Any:
    return of.handle.output.row


def _where(of: Stream[Any], where: Sequence[Any]) -> Any:
    name, operator, value = where
    field = getattr(_row(of), name)
    if operator == "<":
        return field < value
    return field >= value if operator == ">=" else field == value


def _pair(left: Any, right: Any) -> dict[str, Any]:
    one, other = _row(left), _row(right)
    return {
        "n": one.n.or_else(0) + other.n.or_else(0),
        "s": one.s.or_else("-").concat("+", other.s.or_else("-")),
    }


def _windows(window: Mapping[str, Any]) -> Windows:
    grace = f"{window['grace']}ms"
    match window["kind"]:
        case "tumbling":
            return tumbling(f"{window['size']}ms", grace=grace)
        case "hopping":
            return hopping(f"{window['size']}ms", f"{window['every']}ms", grace=grace)
        case "sliding":
            return sliding(f"{window['size']}ms", grace=grace)
        case _:
            return session(f"{window['gap']}ms", grace=grace)
