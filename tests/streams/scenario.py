"""Random topologies with records, as JSON: what the oracle, the reference and Headrace run alike.

A scenario is ``{"seed", "kind", "nodes", "records"}``. A record is ``[topic, key, row, time]``; a
row is null or ``{"n": whole number, "s": words}``, in every stream and table. A node has a name, an
``op`` and the names of the nodes that it reads, as ``of`` or as ``left`` and ``right``:

=============  ==================================================================================
``stream``     a ``topic``, record by record
``table``      a ``topic``, by key
``filter``     the rows ``where`` holds: ``[field, "<", ">=" or "=", value]``; never a null
``select``     ``n * times + plus``, and ``s`` with a ``suffix``
``explode``    a row for each word of ``s``; none for a null
``key_by``     the key is ``s``, and the records go by a topic; nulls are dropped
``branch``     two streams, ``NAME.yes`` where the condition holds, and ``NAME.no``; without nulls
``merge``      both streams
``aggregate``  ``count``, ``total`` of ``n`` or the three best ``n`` (``top``), by key and by
               ``window``: null, tumbling, hopping, sliding or session
``each``       each change of a table as a record
``final``      each window's last change, when it is over
``join``       two streams: inner, left or outer, with ``before``, ``after`` and ``grace``
``group_table``  the ``count`` or ``total`` of a table's rows as they are, by their ``s``
``stream_table``, ``table_table``, ``foreign_key``  (the left row's ``s`` is the right key)
``to``         writes to a ``topic``
=============  ==================================================================================

All spans and times are milliseconds. A row after an aggregate has the key in ``s``; its own key is
``KEY@BEGIN-END`` after a windowed one. No two inputs of a node have a source in common, so that the
order in which two topics are read never matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Scenario = dict[str, Any]

WINDOWS = ("tumbling", "hopping", "sliding", "session")
AGGREGATES = ("count", "total", "top")

#: Operators of a scenario at most, sources and sinks not counted.
MOST_OPERATORS = 8

#: What a scenario can be about: it has at least one operator of its kind.
KINDS = (
    "stateless",
    "key_by",
    *AGGREGATES,
    *(f"{window}_{emit}" for window in WINDOWS for emit in ("each", "final")),
    *(f"join_{how}" for how in ("inner", "left", "outer")),
    *(f"stream_table_{how}" for how in ("inner", "left")),
    *(f"table_table_{how}" for how in ("inner", "left", "outer")),
    *(f"foreign_key_{how}" for how in ("inner", "left")),
    *(f"group_table_{what}" for what in ("count", "total")),
    "mixed",
)

_LETTERS = "abcd"


@dataclass(frozen=True, slots=True)
class _Result:
    """The stream, table or windowed table that a node makes, and how it may be read."""

    name: str
    what: str
    sources: frozenset[str]
    #: Whether its key is a source's or a text's: not that of a window.
    plain: bool = True
    #: Whether its rows are words and numbers: not a list of the best ones.
    usual: bool = True
    #: Whether it is made of tables that are topics: each record changes one row of it once.
    stored: bool = False


def scenario(seed: int, kind: str = "mixed", *, records: int = 60) -> Scenario:
    """Return the scenario of a seed."""
    return _Builder(Random(f"{kind} {seed}"), kind).build(seed, records)


def in_task_order(scenario: Scenario) -> Scenario:
    """Return the scenario with its records as one task would read them, topic by topic.

    The next one is that with the lowest time among the heads of the topics, of equal ones that of
    the topic named first.
    """
    topics = [node["topic"] for node in scenario["nodes"] if node["op"] in {"stream", "table"}]
    latest: dict[str, int] = {}
    placed = []
    for record in scenario["records"]:
        topic, _, _, time = record
        latest[topic] = max(latest.get(topic, time), time)
        placed.append((latest[topic], topics.index(topic), record))
    placed.sort(key=lambda place: place[:2])
    return {**scenario, "records": [record for _, _, record in placed]}


class _Builder:
    """Draws the nodes of one scenario, each from what is there, and then its records."""

    def __init__(self, random: Random, kind: str) -> None:
        self._random = random
        self._kind = kind
        self._nodes: list[dict[str, Any]] = []
        self._results: list[_Result] = []
        self._read: set[str] = set()
        #: Times and spans are multiples of it, but for a few that are 1 ms off.
        self._unit = random.choice([1, 1, 1, 1_000, 60_000])
        self._begin = random.choice([0, 0, 1_000, 1_600_000_000_000])

    def build(self, seed: int, records: int) -> Scenario:
        """Return the scenario."""
        self._add_sources()
        for _ in range(self._random.choice([0, 0, 1, 2])):
            self._add_any(self._stateless())
        self._add_kind()
        more = 7 if self._kind == "mixed" else self._random.choice([0, 0, 1, 3])
        for _ in range(more):
            if self._operators() < MOST_OPERATORS:
                self._add_any([*self._stateless(), *self._stateful()])
        self._add_sinks()
        return {
            "seed": seed,
            "kind": self._kind,
            "nodes": self._nodes,
            "records": self._records(records),
        }

    def _operators(self) -> int:
        return sum(node["op"] not in {"stream", "table", "to"} for node in self._nodes)

    def _add_sources(self) -> None:
        ops = {
            "join": ["stream", "stream"],
            "stream_table": ["stream", "table"],
            "table_table": ["table", "table"],
            "foreign_key": ["table", "table"],
            "group_table": ["table"],
            "mixed": ["stream", self._random.choice(["stream", "table"])],
        }.get(self._kind.removesuffix(f"_{self._suffix()}"), ["stream"])
        if self._random.random() < 0.3:
            ops = [*ops, self._random.choice(["stream", "table"])]
        for letter, op in zip("pqr", ops, strict=False):
            self._nodes.append({"name": letter, "op": op, "topic": f"in-{letter}"})
            stored = op == "table"
            self._results.append(_Result(letter, op, frozenset({letter}), stored=stored))

    def _suffix(self) -> str:
        return self._kind.rpartition("_")[2]

    def _add(self, made: _Result, **fields: Any) -> _Result:
        self._nodes.append({"name": made.name, **fields})
        self._read.update(fields[side] for side in ("of", "left", "right") if side in fields)
        if fields["op"] != "branch":
            self._results.append(made)
        return made

    def _name(self, op: str) -> str:
        return f"{op.replace('_', '-')}-{len(self._nodes)}"

    def _of(self, what: str, *, plain: bool = False) -> list[_Result]:
        """Return the results that an operator may read, those that none has read first."""
        found = [
            result
            for result in self._results
            if result.what == what and result.usual and (result.plain or not plain)
        ]
        return sorted(found, key=lambda result: result.name in self._read)

    def _pairs(
        self, left: str, right: str, *, stored: bool = False
    ) -> list[tuple[_Result, _Result]]:
        return [
            (one, other)
            for one in self._of(left, plain=True)
            for other in self._of(right, plain=True)
            if not one.sources & other.sources and (not stored or (one.stored and other.stored))
        ]

    def _add_any(self, moves: Sequence[Callable[[], None]]) -> None:
        if moves:
            self._random.choice(moves)()

    def _add_kind(self) -> None:
        kind, suffix = self._kind, self._suffix()
        if kind in AGGREGATES:
            self._aggregate(self._keyed(), kind, None)
        elif kind.removesuffix(f"_{suffix}") in WINDOWS:
            window = self._window(kind.removesuffix(f"_{suffix}"))
            what = self._random.choice(AGGREGATES)
            self._emit(self._aggregate(self._keyed(), what, window), suffix)
        elif kind.startswith("join_"):
            self._join(suffix)
        elif kind.startswith("stream_table_"):
            self._pair("stream_table", suffix, "stream", "table", "stream")
        elif kind.startswith("table_table_"):
            self._pair("table_table", suffix, "table", "table", "table")
        elif kind.startswith("foreign_key_"):
            self._pair("foreign_key", suffix, "table", "table", "table", stored=True)
        elif kind.startswith("group_table_"):
            self._group_table(suffix)
        elif kind == "key_by":
            self._key_by(self._random.choice(self._of("stream")))
        else:
            self._add_any(self._stateless())

    def _group_table(self, what: str) -> None:
        """Group a table that is a topic, a join of two, or an aggregate."""
        if self._pairs("table", "table") and self._random.random() < 0.5:
            self._pair("table_table", "outer", "table", "table", "table")
        elif self._of("stream", plain=True) and self._random.random() < 0.5:
            self._aggregate(self._keyed(), "total", None)
        of = self._random.choice(self._of("table", plain=True)[:3])
        # of a group without rows there is no total
        made = _Result(self._name("group_table"), "table", of.sources, usual=False)
        self._add(made, op="group_table", of=of.name, what=what)

    def _keyed(self) -> _Result:
        """Return a stream that can be grouped by its key; the source is always there."""
        return self._of("stream", plain=True)[0]

    def _stateless(self) -> list[Callable[[], None]]:
        streams = self._of("stream")
        if not streams:
            return []
        stream = self._random.choice(streams[:3])
        moves: list[Callable[[], None]] = [
            lambda: self._filter(stream),
            lambda: self._select(stream),
            lambda: self._explode(stream),
            lambda: self._branch(stream),
            lambda: self._key_by(stream),
        ]
        merged = [
            (one, other)
            for one in streams
            for other in streams
            if not one.sources & other.sources and one.plain == other.plain
        ]
        if merged:
            left, right = self._random.choice(merged)
            moves.append(lambda: self._merge(left, right))
        return moves

    def _stateful(self) -> list[Callable[[], None]]:
        moves: list[Callable[[], None]] = []
        if self._of("stream", plain=True):
            kind = self._random.choice([None, *WINDOWS])
            moves.append(lambda: self._aggregate_and_emit(kind))
        if self._pairs("stream", "stream"):
            moves.append(lambda: self._join(self._random.choice(["inner", "left", "outer"])))
        how = self._random.choice(["inner", "left"])
        if self._pairs("stream", "table"):
            moves.append(lambda: self._pair("stream_table", how, "stream", "table", "stream"))
        if self._pairs("table", "table"):
            any_how = self._random.choice(["inner", "left", "outer"])
            moves.append(lambda: self._pair("table_table", any_how, "table", "table", "table"))
        if self._pairs("table", "table", stored=True):
            moves.append(
                lambda: self._pair("foreign_key", how, "table", "table", "table", stored=True)
            )
        tables = self._of("table")
        if tables:
            moves.append(lambda: self._emit(self._random.choice(tables), "each"))
        return moves

    def _unary(self, of: _Result, op: str, what: str = "stream", **fields: Any) -> _Result:
        made = _Result(self._name(op), what, of.sources, plain=of.plain)
        return self._add(made, op=op, of=of.name, **fields)

    def _filter(self, of: _Result) -> None:
        self._unary(of, "filter", where=self._where())

    def _where(self) -> list[Any]:
        if self._random.random() < 0.3:
            return ["s", "=", self._random.choice(_LETTERS)]
        return ["n", self._random.choice(["<", ">="]), self._random.randrange(2, 18)]

    def _select(self, of: _Result) -> None:
        self._unary(
            of,
            "select",
            times=self._random.choice([-1, 1, 2]),
            plus=self._random.randrange(5),
            suffix=self._random.choice(["", "", "!", " a"]),
        )

    def _explode(self, of: _Result) -> None:
        self._unary(of, "explode")

    def _key_by(self, of: _Result) -> None:
        made = _Result(self._name("key_by"), "stream", of.sources)
        self._add(made, op="key_by", of=of.name)

    def _branch(self, of: _Result) -> None:
        name = self._unary(of, "branch", where=self._where()).name
        for part in ("yes", "no"):
            self._results.append(_Result(f"{name}.{part}", "stream", of.sources, plain=of.plain))

    def _merge(self, left: _Result, right: _Result) -> None:
        made = _Result(
            self._name("merge"), "stream", left.sources | right.sources, plain=left.plain
        )
        self._add(made, op="merge", left=left.name, right=right.name)

    def _aggregate_and_emit(self, kind: str | None) -> None:
        stream = self._random.choice(self._of("stream", plain=True)[:3])
        what = self._random.choice(AGGREGATES)
        table = self._aggregate(stream, what, None if kind is None else self._window(kind))
        if kind is None:
            if self._random.random() < 0.5:
                self._emit(table, "each")
            return
        self._emit(table, self._random.choice(["each", "final"]))

    def _aggregate(self, of: _Result, what: str, window: dict[str, Any] | None) -> _Result:
        made = _Result(
            self._name(window["kind"] if window else what),
            "windows" if window else "table",
            of.sources,
            plain=window is None,
            usual=what != "top",
        )
        return self._add(made, op="aggregate", of=of.name, what=what, window=window)

    def _window(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": kind}
        if kind == "session":
            found["gap"] = self._span([1, 3, 10])
        else:
            size = self._random.choice([3, 9, 10])
            found["size"] = size * self._unit
        if kind == "hopping":
            found["every"] = self._random.choice([1, 2, 3]) * self._unit
        found["grace"] = self._span([0, 0, 1, 5, 12])
        return found

    def _span(self, choices: Sequence[int]) -> int:
        return self._random.choice(choices) * self._unit

    def _emit(self, of: _Result, how: str) -> None:
        made = _Result(self._name(how), "stream", of.sources, plain=of.plain, usual=of.usual)
        self._add(made, op=how, of=of.name)

    def _join(self, how: str) -> None:
        left, right = self._random.choice(self._pairs("stream", "stream")[:3])
        before = self._span([0, 3, 10])
        self._both(
            "join",
            left,
            right,
            "stream",
            how=how,
            before=before,
            after=self._random.choice([before, before, self._span([0, 3, 10])]),
            grace=self._span([0, 1, 5, 12]),
        )

    def _pair(
        self, op: str, how: str, left: str, right: str, what: str, *, stored: bool = False
    ) -> None:
        one, other = self._random.choice(self._pairs(left, right, stored=stored)[:3])
        self._both(op, one, other, what, how=how)

    def _both(self, op: str, left: _Result, right: _Result, what: str, **fields: Any) -> None:
        made = _Result(self._name(op), what, left.sources | right.sources)
        self._add(made, op=op, left=left.name, right=right.name, **fields)

    def _add_sinks(self) -> None:
        for result in list(self._results):
            if result.what in {"table", "windows"} and result.name not in self._read:
                self._emit(result, "each")
        for result in list(self._results):
            if result.what == "stream" and (
                result.name not in self._read or self._random.random() < 0.1
            ):
                self._nodes.append(
                    {
                        "name": f"to-{result.name}",
                        "op": "to",
                        "of": result.name,
                        "topic": f"out-{result.name}",
                    }
                )

    def _records(self, number: int) -> list[list[Any]]:
        sources = [node for node in self._nodes if node["op"] in {"stream", "table"}]
        keys = _LETTERS[: self._random.randrange(1, 5)]
        lateness = self._random.choice([[0], [0, 0, 0, 1, 3], [0, 0, 0, 3, 5, 8, 14, 16, 40]])
        gaps = [0, 0, 1, 1, 2, 3, 7, 20, *([400] if self._random.random() < 0.3 else [])]
        nulls = {"stream": self._random.choice([0, 0.05]), "table": 0.25}
        time, found = self._begin, []
        for _ in range(number):
            time += self._random.choice(gaps) * self._unit
            own = time - self._random.choice(lateness) * self._unit
            if self._unit > 1 and self._random.random() < 0.2:
                own += self._random.choice([-1, 1])
            source = self._random.choice(sources)
            null = self._random.random() < nulls[source["op"]]
            key = self._random.choice(keys)
            row = None if null else self._row()
            found.append([source["topic"], key, row, max(0, own)])
        if self._random.random() < 0.7:
            # all windows are over
            found += [
                [source["topic"], _LETTERS[0], self._row(), time + 1_000 * self._unit]
                for source in sources
            ]
        return found

    def _row(self) -> dict[str, Any]:
        words = self._random.choices(_LETTERS, k=self._random.choice([1, 1, 1, 2, 3]))
        return {"n": self._random.randrange(20), "s": " ".join(words)}
