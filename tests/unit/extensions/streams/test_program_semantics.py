"""Programs in this process against the semantics of topologies, row by row."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams.aggregates import total
from headrace.extensions.streams.expressions import key
from headrace.extensions.streams.inline.streams_test import StreamsTest
from headrace.extensions.streams.rows import Field, Row
from headrace.extensions.streams.topology import Topology
from headrace.extensions.streams.windows import hopping, session, sliding, tumbling
from tests.streams.reference import Record, Reference
from tests.streams.reference import Row as Value

if TYPE_CHECKING:
    from collections.abc import Sequence


class Left(Row):
    n: Field[int]
    s: Field[str]


class Right(Row):
    n: Field[int]
    s: Field[str]


class Made(Row):
    n: Field[int]
    s: Field[str]


#: Windows as the reference names them, and as a program does.
WINDOWS: dict[str, tuple[dict[str, Any] | None, Any]] = {
    "rows": (None, None),
    "tumbling": ({"kind": "tumbling", "size": 10, "grace": 5}, tumbling("10ms", grace="5ms")),
    "hopping": (
        {"kind": "hopping", "size": 12, "every": 4, "grace": 5},
        hopping("12ms", "4ms", grace="5ms"),
    ),
    "sliding": ({"kind": "sliding", "size": 10, "grace": 5}, sliding("10ms", grace="5ms")),
    "session": ({"kind": "session", "gap": 10, "grace": 5}, session("10ms", grace="5ms")),
}

JOINS = [
    *["join inner", "join left", "join outer", "stream_table inner", "stream_table left"],
    *["table_table inner", "table_table left", "table_table outer"],
    *["foreign_key inner", "foreign_key left"],
]

RECORDS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from("xyz"),
        st.none() | st.tuples(st.integers(0, 9), st.sampled_from("xyz")),
        st.sampled_from([0, 0, 1, 1, 2, 3, 7, 20]),
        st.sampled_from([0, 0, 0, 3, 5, 8, 14, 16, 40]),
    ),
    max_size=30,
)


def nodes_of(kind: str) -> list[dict[str, Any]]:
    """Return the document of a program for the reference."""
    if kind in WINDOWS:
        found: list[dict[str, Any]] = [
            {"name": "a", "op": "stream", "topic": "a"},
            {
                "name": "x",
                "op": "aggregate",
                "of": "a",
                "what": "total",
                "window": WINDOWS[kind][0],
            },
            {"name": "e", "op": "each", "of": "x"},
            {"name": "1", "op": "to", "of": "e", "topic": "each"},
        ]
        if kind != "rows":
            found += [
                {"name": "f", "op": "final", "of": "x"},
                {"name": "2", "op": "to", "of": "f", "topic": "final"},
            ]
        return found
    op, how = kind.split()
    left, right = {"join": ("stream", "stream"), "stream_table": ("stream", "table")}.get(
        op, ("table", "table")
    )
    join = {"op": op, "how": how, "left": "a", "right": "b", "before": 7, "after": 10, "grace": 5}
    emit = [] if left == "stream" else [{"name": "e", "op": "each", "of": "x"}]
    return [
        {"name": "a", "op": left, "topic": "a"},
        {"name": "b", "op": right, "topic": "b"},
        {"name": "x", **join},
        *emit,
        {"name": "1", "op": "to", "of": "e" if emit else "x", "topic": "each"},
    ]


def program_of(kind: str) -> Topology:
    """Return the same in the typed API."""
    app = Topology()
    if kind in WINDOWS:
        by: Any = app.stream("a", Left).group_by(key, name="x")
        windows = WINDOWS[kind][1]
        table = (by if windows is None else by.window(windows)).agg(Made, n=total(Left.n), s=key)
        table.each().to("each")
        if windows is not None:
            table.final().to("final")
        return app
    op, how = kind.split()
    fields = {
        "n": Left.n.or_else(0) + Right.n.or_else(0),
        "s": Left.s.or_else("-") + "+" + Right.s.or_else("-"),
    }
    left: Any = app.table("a", Left, name="a") if "table_" in op or "key" in op else None
    left = app.stream("a", Left) if left is None else left
    right: Any = app.stream("b", Right) if op == "join" else app.table("b", Right, name="b")
    options: dict[str, Any] = {"name": "x", "kind": how, **fields}
    if op == "join":
        left.join(right, Made, before="7ms", after="10ms", grace="5ms", **options).to("each")
    elif op == "stream_table":
        left.lookup(right, Made, **options).to("each")
    else:
        on = {"on": Left.s} if op == "foreign_key" else {}
        left.join(right, Made, **on, **options).each().to("each")
    return app


@pytest.mark.parametrize("kind", [*WINDOWS, *JOINS])
def test_a_program_writes_what_the_semantics_say(kind: str) -> None:
    """Each record makes the same outputs in the same order, with late ones and deletions."""

    @settings(max_examples=int(os.environ.get("HEADRACE_MODEL_EXAMPLES", "20")))
    @given(RECORDS)
    def check(steps: Sequence[Any]) -> None:
        reference = Reference({"nodes": nodes_of(kind)})
        test = StreamsTest(program_of(kind))
        read = {"a"} if kind in WINDOWS else {"a", "b"}
        now = 0
        for topic, name, row, step, late in steps:
            now += step
            if topic not in read:
                continue
            moment = max(0, now - late)
            value = None if row is None else Value(*row)
            expected: dict[str, list[Any]] = {"each": [], "final": []}
            for sink, record in reference.process(topic, Record(name, value, moment)):
                made = None if record.value is None else tuple(record.value)
                expected[sink].append((str(record.key).split("@")[0], made, record.time))
            test.pipe(
                topic, None if row is None else Left(n=row[0], s=row[1]), key=name, time=moment
            )
            for sink, outputs in expected.items():
                found = [
                    (each.key, each.value and (each.value["n"], each.value["s"]), each.time)
                    for each in test.read(sink)
                ]
                assert found == outputs

    check()
