"""Rows of stores as readers of a changelog have them: what channels write is read again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headrace.extensions.keyed.api import at_event
from headrace.extensions.streams.aggregates import count, mean
from headrace.extensions.streams.expressions import key
from headrace.extensions.streams.inline.streams_test import StreamsTest
from headrace.extensions.streams.rows import Field, Row
from headrace.extensions.streams.runtime.stored_rows import StoredRow, StoredRows
from headrace.extensions.streams.topology import Topology
from headrace.extensions.streams.windows import hopping, session, sliding, tumbling
from headrace.testing.streams import InMemoryPart, TopicRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


class Click(Row):
    n: Field[int]


class Pages(Row):
    url: Field[str]
    n: Field[int]
    mean: Field[float | None]


class Pair(Row):
    n: Field[int | None]
    m: Field[int | None]


class View(Row):
    m: Field[int]


class Half(Row):
    parent: Field[str]
    n: Field[int]


class Whole(Row):
    n: Field[int]
    m: Field[int]


WINDOWS: dict[str, Any] = {
    "rows": None,
    "tumbling": tumbling("10s", grace="1h"),
    "hopping": hopping("10s", every="5s", grace="1h"),
    "sliding": sliding("4s", grace="1h"),
    "session": session("3s", grace="1h"),
}


def aggregated(kind: str) -> Topology:
    """Return a topology that counts clicks of urls."""
    app = Topology()
    grouped = app.stream("clicks", Click).group_by(key, name="pages")
    windows = WINDOWS[kind]
    made: dict[str, Any] = {"url": key, "n": count(), "mean": mean(Click.n)}
    if windows is None:
        grouped.agg(Pages, **made).updates().to("out")
    else:
        grouped.window(windows).agg(Pages, **made).updates().to("out")
    return app


def read_rows(
    app: Topology, store: str, records: Sequence[TopicRecord], part: int = 0
) -> tuple[StoredRows, list[StoredRow]]:
    """Return the rows of a store after a part processed records, as a reader has them."""
    plan = app.plan("shop")
    run = InMemoryPart(plan, plan.channels[part])
    run.run(records)
    (found,) = (each for each in plan.stores if each.name == store)
    rows = StoredRows(plan, found)
    return rows, [
        rows.read(name, value) for name, value in run.rows(rows.prefix).items() if value is not None
    ]


CLICKS = [
    TopicRecord("clicks", b"/a", b'{"n":1}', 0),
    TopicRecord("clicks", b"/b/c", b'{"n":5}', 2_000),
    TopicRecord("clicks", b"/a", b'{"n":4}', 8_000),
    TopicRecord("clicks", b"/a", b'{"n":9}', 12_000),
]


def test_rows_of_groups_have_the_values_of_their_aggregates() -> None:
    """The latest time stands beside them; a key with the separator in it is whole."""
    rows, found = read_rows(aggregated("rows"), "pages", CLICKS)
    assert {each.key: rows.show(each.value) for each in found} == {
        b"/a": {"time": 12_000, "n": 3, "mean": 14 / 3},
        b"/b/c": {"time": 2_000, "n": 1, "mean": 5.0},
    }
    assert all(each.place == () for each in found)


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_rows_of_windows_are_those_of_the_test_kit(kind: str) -> None:
    """Each by its key and begin, with what its aggregates come to."""
    app = aggregated(kind)
    test = StreamsTest(app)
    for record in CLICKS:
        test.pipe("clicks", record.value, key=record.key, time=record.time)
    rows, found = read_rows(app, "pages", CLICKS)
    by_begin = {(each.key.decode(), dict(each.place)["begin"]): each.value for each in found}
    wanted = test.store("pages")
    assert by_begin.keys() == wanted.keys()
    for name, value in by_begin.items():
        shown = rows.show(value)
        assert (shown["n"], shown["mean"]) == (wanted[name]["n"], wanted[name]["mean"])


def test_panes_of_hopping_windows_are_told_apart() -> None:
    """A row is one pane of a key, by its begin."""
    rows, found = read_rows(aggregated("hopping"), "pages", CLICKS)
    shown = {(each.key, each.place): rows.show(each.value)["n"] for each in found}
    assert shown == {
        (b"/a", (("begin", 0),)): 1,
        (b"/b/c", (("begin", 0),)): 1,
        (b"/a", (("begin", 5_000),)): 1,
        (b"/a", (("begin", 10_000),)): 1,
    }


def test_records_in_the_buffer_of_a_join_have_their_key_side_and_time() -> None:
    """The number under which the task keeps a record is left out."""
    app = Topology()
    clicks = app.stream("clicks", Click, key=bytes)
    views = app.stream("views", View, key=bytes)
    made: dict[str, Any] = {"n": Click.n, "m": View.m}
    clicks.join(views, Pair, within="10s", kind="outer", name="pairs", **made).to("out")
    sent = [CLICKS[0], TopicRecord("views", b"\xff", b'{"m":7}', 3_000)]
    rows, found = read_rows(app, "pairs", sent)
    assert {(each.key, each.place) for each in found} == {
        (b"/a", (("side", "left"), ("time", 0))),
        (b"\xff", (("side", "right"), ("time", 3_000))),
    }
    assert all(rows.show(each.value)["alone"] for each in found)


def test_rows_of_a_reducer_have_its_state_and_timers() -> None:
    """They are those that it returned last."""

    def counted(url: str, state: Any, facts: Any, now: int) -> Any:
        del url, now
        return (state or 0) + len(facts), [], {"end": at_event(99_000)}

    app = Topology()
    app.stream("clicks", Click).reduce(counted, name="seen", rows=Click).to("out")
    rows, found = read_rows(app, "seen", CLICKS)
    assert {each.key: rows.show(each.value) for each in found} == {
        b"/a": {"state": 3, "timers": {"end": 99_000}},
        b"/b/c": {"state": 1, "timers": {"end": 99_000}},
    }


def test_a_subscription_lies_with_the_right_key() -> None:
    """A row says by its key which right row it is for, and names the left one."""
    app = Topology()
    whole = app.table("wholes", View, name="wholes")
    half = app.table("halves", Half, name="halves")
    half.join(whole, Whole, name="joined", on=Half.parent, n=Half.n, m=View.m).to("out")
    plan = app.plan("shop")
    (store,) = (each for each in plan.stores if each.kind == "subscriptions")
    rows = StoredRows(plan, store)
    row = rows.read(rows.prefix + b"3/a/b/left/1", b"true")
    assert (row.key, row.place) == (b"a/b", (("wanted_by", "left/1"),))
    assert rows.show(row.value) is True


def test_rows_of_a_table_have_its_fields_and_their_time() -> None:
    """Both are read from JSON."""
    app = Topology()
    app.table("views", View, name="views").updates().to("out")
    plan = app.plan("shop")
    rows = StoredRows(plan, plan.stores[0])
    value = json.dumps({"time": 5, "row": {"m": 3}}, separators=(",", ":")).encode()
    row = rows.read(rows.prefix + b"/a", value)
    assert (row.key, row.place, rows.show(row.value)) == (b"/a", (), json.loads(value))
