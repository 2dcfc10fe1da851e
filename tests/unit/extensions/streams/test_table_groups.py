"""Groups of a table, whose rows change: what was counted before is taken away again."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.streams import (
    Field,
    Row,
    StreamsTest,
    Table,
    Topology,
    approx_quantile,
    collect,
    count,
    distinct,
    first,
    fold,
    key,
    last,
    least,
    mean,
    most,
    time,
    top,
    total,
    tumbling,
)
from headrace.testing.streams import check_topology

if TYPE_CHECKING:
    from collections.abc import Callable


class Order(Row):
    region: Field[str | None]
    cents: Field[int | None]
    weight: Field[float]


class Region(Row):
    region: Field[str]
    orders: Field[int]
    cents: Field[int | None]
    mean: Field[float | None]
    weight: Field[float | None]


def regions(table: Table[Order], name: str = "regions") -> Table[Region]:
    """Return the aggregates of a table by region."""
    return table.group_by(Order.region, name=name).agg(
        Region,
        region=Order.region,
        orders=count(),
        cents=total(Order.cents),
        mean=mean(Order.cents),
        weight=total(Order.weight),
    )


def by_region() -> Topology:
    """Return a topology that tells each change of a region."""
    app = Topology()
    regions(app.table("orders", Order, name="orders")).each().to("regions")
    return app


#: A record of the table: key, row or deletion, time.
_CHANGES = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.none()
        | st.fixed_dictionaries(
            {
                "region": st.sampled_from(["n", "s"]),
                "cents": st.none() | st.integers(-(2**60), 2**60),
                "weight": st.sampled_from([0.1, 0.2, 1e16, -1e16]),
            }
        ),
        st.integers(0, 50),
    ),
    max_size=25,
)


def of_rows(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a group of rows comes to."""
    cents = [row["cents"] for row in rows if row["cents"] is not None]
    return {
        "region": name,
        "orders": len(rows),
        "cents": sum(cents) if cents else None,
        "mean": sum(cents) / len(cents) if cents else None,
        "weight": float(sum(map(Fraction, (row["weight"] for row in rows)))) if rows else None,
    }


@settings(max_examples=60)
@given(changes=_CHANGES, batch=st.sampled_from([1, 3, 100]))
def test_each_group_is_that_of_the_rows_as_they_are(
    changes: list[tuple[str, dict[str, Any] | None, int]], batch: int
) -> None:
    """After each record, in whichever cuts: the former group first, then that of the new row."""
    test = StreamsTest(by_region(), batch=batch)
    table: dict[str, dict[str, Any]] = {}
    times: dict[str, int] = {}
    wanted = []
    for name, row, at in changes:
        test.pipe("orders", row, key=name, time=at)
        before = table.pop(name, None)
        if row is not None:
            table[name] = row
        moved = dict.fromkeys(each["region"] for each in (before, row) if each is not None)
        # while a row moves, the former group is told first, without it
        for region in moved:
            times[region] = max(times.get(region, 0), at)
            rows = [each for each in table.values() if each["region"] == region]
            wanted.append((region, of_rows(region, rows), times[region] or 1))
    found = [(out.key, out.value, out.time or 1) for out in test.read("regions")]
    assert found == wanted


def program(kind: str) -> Topology:
    """Return a topology that groups a table of a kind."""
    app = Topology()
    orders = app.table("orders", Order, name="orders")
    if kind == "filtered":
        orders = orders.filter(Order.weight > 1.0)
    if kind == "joined":
        others = app.table("others", Order2, name="others")
        orders = orders.join(
            others,
            Order,
            name="both",
            kind="left",
            region=Order.region,
            cents=Order2.cents.or_else(0) + Order.cents.or_else(0),
            weight=Order.weight,
        )
    found = regions(orders)
    if kind == "twice":
        sizes = found.group_by(Region.orders, name="sizes").agg(
            Sizes, size=Region.orders, regions=count()
        )
        sizes.each().to("sizes")
    if kind == "looked up":
        app.stream("events", Event).key_by(Event.region, name="by-region").lookup(
            found, Known, name="known", region=Event.region, orders=Region.orders
        ).to("known")
    found.each().to("regions")
    return app


class Order2(Row):
    cents: Field[int | None]


class Sizes(Row):
    size: Field[int]
    regions: Field[int]


class Event(Row):
    region: Field[str]


class Known(Row):
    region: Field[str]
    orders: Field[int | None]


@pytest.mark.parametrize("kind", ["plain", "filtered", "joined", "twice", "looked up"])
def test_results_and_rows_do_not_depend_on_cuts_restarts_and_failures(kind: str) -> None:
    """Groups of tables that are made of others, too; and those that are read by others."""
    random = Random(kind)
    records: list[tuple[str, str, dict[str, Any] | None, int]] = []
    for at in range(200):
        order = {
            "region": random.choice("nsw"),
            "cents": random.choice([None, random.randrange(100)]),
            "weight": random.uniform(0, 3),
        }
        choices: list[tuple[str, dict[str, Any] | None]] = [("orders", order), ("orders", None)]
        if kind == "joined":
            choices.append(("others", {"cents": random.randrange(9)}))
        if kind == "looked up":
            choices.append(("events", {"region": random.choice("nsw")}))
        topic, row = random.choice(choices)
        records.append((topic, random.choice("abcdefg"), row, 10 * at + 1))
    check_topology(lambda: program(kind), records, runs=8)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: least(Order.weight), "least"),
        (lambda: most(Order.weight), "most"),
        (lambda: first(Order.weight), "first"),
        (lambda: last(Order.weight), "last"),
        (lambda: top(2, by=Order.weight, of=Order.weight), "top"),
        (lambda: collect(Order.weight, limit=2), "collect"),
        (lambda: distinct(Order.weight, limit=2), "distinct"),
        (lambda: approx_quantile(Order.weight, 0.5), "approx_quantiles"),
        (lambda: fold(0, lambda held, _: held + 1, rows=Order), "fold"),
    ],
)
def test_an_aggregate_that_cannot_take_a_row_away_is_refused(
    make: Callable[[], Any], name: str
) -> None:
    """The error names the field and the aggregate, with the reason and what to write."""
    table = Topology().table("orders", Order, name="orders")
    with pytest.raises(ConfigError) as raised:
        table.group_by(Order.region, name="regions").agg(Region, weight=make())
    text = str(raised.value)
    assert f"agg of 'regions': field weight: {name} cannot take away" in text
    assert "take count, total or mean" in text


def test_a_group_of_a_table_that_cannot_be_kept_is_refused() -> None:
    """A total that is never null, the time of a row, windows, and bytes."""
    app = Topology()
    table = app.table("orders", Order, name="orders")
    with pytest.raises(ConfigError, match=r"field orders of Region is int and gets int \| None"):
        table.group_by(Order.region, name="a").agg(Region, orders=total(Order.cents))
    with pytest.raises(ConfigError, match="field cents: total: time"):
        table.group_by(Order.region, name="b").agg(Region, cents=total(time))
    windows = app.stream("orders2", Order2).group_by(key, name="c").window(tumbling("1m"))
    counted = windows.agg(Sums, n=count())
    with pytest.raises(ConfigError, match="a table with windows does not keep"):
        counted.group_by(Sums.n, name="d")
    held = app.stream("blobs", Blob, codec="bytes").group_by(key, name="e")
    with pytest.raises(ConfigError, match=r"Blob2\.blob has bytes"):
        held.agg(Blob2, blob=last(Blob.blob)).group_by(key, name="f")


class Sums(Row):
    n: Field[int]


class Blob(Row):
    blob: Field[bytes]


class Blob2(Row):
    blob: Field[bytes | None]


class Share(Row):
    region: Field[str | None]
    part: Field[int]
    of: Field[int]


class Shares(Row):
    region: Field[str]
    orders: Field[int]
    shares: Field[int | None]


def shares() -> Topology:
    """Return a topology whose sums may be at fault."""
    app = Topology()
    grouped = app.table("shares", Share, name="shares").group_by(Share.region, name="regions")
    grouped.agg(
        Shares, region=Share.region, orders=count(), shares=total(Share.part // Share.of)
    ).each().to("regions")
    return app


@pytest.mark.parametrize("batch", [1, 100])
def test_a_row_at_fault_is_not_counted_and_not_taken_away(batch: int) -> None:
    """One without a group, one whose expression has a fault; the row before it is taken away."""
    test = StreamsTest(shares(), batch=batch, on_poison="drop")
    test.pipe("shares", {"region": "n", "part": 8, "of": 2}, key="a")
    test.pipe("shares", {"region": "n", "part": 6, "of": 0}, key="a")
    test.pipe("shares", {"region": None, "part": 6, "of": 2}, key="a")
    test.pipe("shares", {"region": "n", "part": 6, "of": 2}, key="a")
    found = [(out.value["orders"], out.value["shares"]) for out in test.read("regions")]
    assert found == [(1, 4), (0, None), (1, 3)]
    reasons = [str(error) for error in test.poison]
    assert len(reasons) == 2
    assert any("group_by 'regions': the row has no key" in each for each in reasons)
    assert any("aggregate 'regions'" in each and "division by zero" in each for each in reasons)


@pytest.mark.parametrize("batch", [1, 100])
def test_a_sum_that_leaves_its_type_is_not_told_and_comes_back(batch: int) -> None:
    """The record is poison; the sum itself goes on, so that it is right once the row is gone."""
    test = StreamsTest(by_region(), batch=batch, on_poison="drop")
    for name in "abc":
        row = {"region": "n", "cents": 2**62, "weight": 1.0}
        test.pipe("orders", row, key=name)
    test.pipe("orders", None, key="a")
    test.pipe("orders", None, key="b")
    found = [(out.value["orders"], out.value["cents"]) for out in test.read("regions")]
    assert found == [(1, 2**62), (1, 2**62)]
    assert len(test.poison) == 3


def test_the_plan_has_a_topic_of_changes_and_a_store_of_its_own_kind() -> None:
    """A part for the groups; its fingerprint is not that of a stream's groups."""
    plan = by_region().plan("shop")
    assert [(each.name, each.topics, each.writes) for each in plan.channels] == [
        ("shop.orders", ("orders",), ("shop.regions.by-key",)),
        ("shop.regions", ("shop.regions.by-key",), ("regions",)),
    ]
    assert 'n1["group_by regions"]' in plan.mermaid()
    app = Topology()
    grouped = app.stream("orders", Order).group_by(Order.region, name="regions")
    grouped.agg(
        Region,
        region=Order.region,
        orders=count(),
        cents=total(Order.cents),
        mean=mean(Order.cents),
        weight=total(Order.weight),
    ).each().to("regions")
    streamed = {each.name: each.fingerprint for each in app.plan("shop").stores}
    stored = {each.name: each.fingerprint for each in plan.stores}
    assert stored["regions"] != streamed["regions"]
