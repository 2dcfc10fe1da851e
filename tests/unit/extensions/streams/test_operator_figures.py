"""Figures of operators: what is counted of micro-batches, and what a running part has."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.store import RocksStore
from headrace.extensions.streams.runtime.operator_figures import OperatorFigures, store_prefixes
from headrace.streams import Field, Row, StreamsTest, Topology, count, key, tumbling, window_start
from tests.unit.extensions.streams.test_fold import InMemory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Click(Row):
    n: Field[int]


class Order(Row):
    amount: Field[int]
    who: Field[str | None]


class Payment(Row):
    paid: Field[int]


class Minute(Row):
    key: Field[str]
    begin: Field[int]
    n: Field[int]


class Settled(Row):
    amount: Field[int | None]
    paid: Field[int | None]
    who: Field[str | None]


class Named(Row):
    who: Field[str | None]


class Person(Row):
    name: Field[str]


class Both(Row):
    one: Field[str | None]
    paid: Field[int | None]


def value(**fields: Any) -> bytes:
    """Return a record's value."""
    return json.dumps(fields).encode()


def windows(way: str) -> Topology:
    """Return counts in windows of 10 s."""
    app = Topology()
    by_key = app.stream("clicks", Click).group_by(key, name="minutes")
    made = by_key.window(tumbling("10s", grace="5s")).agg(
        Minute, key=key, begin=window_start, n=count()
    )
    (made.final() if way == "final" else made.updates()).to("minutes-out")
    return app


def settled() -> Topology:
    """Return a join, whose rows look for who it was."""
    app = Topology()
    pairs = app.stream("orders", Order).join(
        app.stream("payments", Payment),
        Settled,
        name="settled",
        kind="outer",
        within="2s",
        grace="1s",
        amount=Order.amount,
        paid=Payment.paid,
        who=Order.who,
    )
    people = app.table("people", Person, name="people")
    pairs.lookup(people, Named, name="named", kind="left", who=Person.name).to("out")
    return app


def tables() -> Topology:
    """Return an outer join of two tables."""
    app = Topology()
    people = app.table("people", Person, name="people")
    payments = app.table("pay", Payment, name="pay")
    both = people.join(
        payments, Both, name="both", kind="outer", one=Person.name, paid=Payment.paid
    )
    both.updates().to("both-out")
    return app


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """Return a store that counts nothing yet, which a test opens."""
    found = RocksStore(tmp_path / "db", groups={"minutes": b"minutes/"})
    found.open()
    yield found
    found.close()


@pytest.mark.parametrize("way", ["final", "updates"])
def test_windows_count_late_records_deletions_and_what_is_over(way: str) -> None:
    """A micro-batch that is dropped counts nothing, and one that comes again counts once."""
    plan = windows(way).plan()
    run = InMemory(plan, plan.part("clicks"))
    first = [(b"a", value(n=1), 0), (b"b", value(n=1), 9_000), (b"a", None, 9_500)]
    run.run("clicks", first, commits=False)
    run.run("clicks", first)
    assert run.named == {"minutes": {"records": 3, "skipped": 1}}
    run.run("clicks", [(b"a", value(n=1), 15_000), (b"a", value(n=1), 1_000)])
    counts = {"records": 5, "skipped": 1, "late": 1, "closed": 2}
    assert run.named == {"minutes": counts}


def test_joins_count_what_is_alone_late_and_left_out() -> None:
    """Rows of a join go on to a lookup, which counts them by itself; a table has its changes."""
    plan = settled().plan()
    run = InMemory(plan, plan.part("orders"))
    topics = ["people", "people", "orders", "payments", "orders", "orders"]
    run.run(
        topics,
        [
            (b"a", value(name="Ada"), 0),
            (b"b", None, 0),
            (b"a", value(amount=1), 0),
            (b"a", value(paid=1), 1_000),
            (b"b", value(amount=2), 1_500),
            (b"b", None, 9_000),
        ],
    )
    # the order of b is told alone by the first record that is later, which has a value
    run.run("orders", [(b"c", value(amount=3), 9_000), (b"c", value(amount=4), 0)])
    assert run.named == {
        "people": {"records": 2},
        "settled": {"records": 6, "skipped": 1, "late": 1, "alone": 2},
        "named": {"records": 3, "alone": 2},
    }


def test_a_join_of_tables_counts_changes_of_both_and_what_is_alone() -> None:
    """A change of either side is one; it is alone while the other side has no row."""
    plan = tables().plan()
    run = InMemory(plan, plan.part("pay"))
    records = [(b"a", value(name="x"), 0), (b"a", value(paid=1), 1), (b"a", None, 2)]
    run.run(["people", "pay", "pay"], records)
    assert run.named["both"] == {"records": 3, "alone": 2}


def test_a_part_shows_its_operators_with_rows_and_times(store: RocksStore) -> None:
    """Rows are those of the store; the time is the oldest of the partitions that have one."""
    plan = windows("final").plan()
    part = plan.part("clicks")
    assert store_prefixes(plan, part) == {"minutes": b"minutes/"}
    sink = SimpleNamespace(named_totals={"minutes": {"late": 3, "records": 8}})
    state = LayeredState(store)
    figures = OperatorFigures(plan, part, state, store, cast("Any", sink))
    (before,) = figures.read([0, 1, 2], 100.0)
    assert (before.rows, before.bytes, before.time_lag) == (None, None, None)
    rows = {
        (0, b"minutes/0000000000000000000/a"): b"[0,1]",
        (1, b"minutes/0000000000000000000/b"): b"[0,1]",
        (0, b"minutes:time"): b"40000",
        (1, b"minutes:time"): b"60000",
    }
    changes = [(PartitionKey(*at), RowChange(None, KeyRow(row))) for at, row in rows.items()]
    store.put([ChangedRows.of(changes)])
    for number in (0, 1, 2):
        state.admit(number)
        for _ in store.measure(number):
            pass
    (found,) = figures.read([0, 1, 2], 100.0)
    assert (found.topology, found.name, found.kind) == (plan.name, "minutes", "aggregate")
    assert found.store == "windows"
    assert found.counts == {"records": 8, "skipped": 0, "late": 3, "closed": 0}
    assert (found.rows, found.time_lag) == (2, 60.0)
    own = [(name, row) for (_, name), row in rows.items() if name.startswith(b"minutes/")]
    assert found.bytes == sum(len(name) + 4 + len(row) for name, row in own)
    state.release(0)
    (given_up,) = figures.read([0, 1], 100.0)
    assert given_up.time_lag == 40.0


def test_a_test_of_a_topology_counts_as_a_channel_does() -> None:
    """The kit's late records are those of the operator's counter."""
    test, plan = StreamsTest(windows("final")), windows("final").plan()
    run = InMemory(plan, plan.part("clicks"))
    records = [(b"a", value(n=1), time) for time in (0, 20_000, 3_000, 21_000, 4_000)]
    for name, data, time in records:
        test.pipe("clicks", data, key=name, time=time)
    run.run("clicks", records)
    assert run.named["minutes"]["late"] == test.late("minutes") == 2
