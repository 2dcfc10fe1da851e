"""Joins by a foreign key as channels run them: two sides that ask and answer through topics."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.letter_headers import LetterHeaders
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.streams import Field, Row, StreamsTest, Topology, key
from headrace.testing.streams import InMemoryPart, TopicRecord, check_topology
from tests.streams.program import write_topology
from tests.streams.scenario import scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.streams.plan import Plan

Kind = Literal["inner", "left"]

KINDS: tuple[Kind, ...] = ("inner", "left")

#: What a record is in a test: topic, key, value and time.
Given = tuple[str, str, "dict[str, Any] | None", int]

RULES = RejectRules(LetterHeaders("headrace", "g"), "skip")


class Order(Row):
    customer: Field[str | None]
    n: Field[int]


class Customer(Row):
    who: Field[str]


class Named(Row):
    order: Field[str]
    n: Field[int]
    who: Field[str | None]


def program(kind: Kind, *, version: int = 1, doubled: bool = False) -> Topology:
    """Return a topology that joins orders and their customers, and filters what comes out."""
    app = Topology()
    orders = app.table("orders", Order, name="orders")
    customers = app.table("customers", Customer, name="customers")
    named = orders.join(
        customers,
        Named,
        name="named",
        on=Order.customer,
        kind=kind,
        version=version,
        order=key,
        n=Order.n * 2 if doubled else Order.n,
        who=Customer.who,
    )
    named.each().to("named")
    named.filter(Named.n > 2).each().to("many")
    return app


class Circle:
    """The parts of a topology on one partition each, with the topics between them. One thread.

    ``waiting`` are records that were sent, by topic; each part has read ``positions`` of them.
    """

    def __init__(self, plan: Plan, rules: RejectRules = RULES) -> None:
        self.runs = [InMemoryPart(plan, part, rules) for part in plan.channels_in_order]
        self.topics: dict[str, list[TopicRecord]] = {}
        self.positions: list[dict[str, int]] = [
            dict.fromkeys(run.part.topics, 0) for run in self.runs
        ]

    def send(self, *records: Given) -> None:
        """Write records to topics."""
        for topic, name, value, time in records:
            text = None if value is None else json.dumps(value).encode()
            self.topics.setdefault(topic, []).append(TopicRecord(topic, name.encode(), text, time))

    def waits(self) -> list[tuple[int, str]]:
        """Return the topics that have records for a part, with the part's number."""
        return [
            (number, topic)
            for number, positions in enumerate(self.positions)
            for topic, at in positions.items()
            if len(self.topics.get(topic, ())) > at
        ]

    def step(self, number: int, topic: str, size: int, *, commits: bool = True) -> None:
        """Run some records of a topic through a part."""
        run, positions = self.runs[number], self.positions[number]
        at = positions[topic]
        some = self.topics[topic][at : at + size]
        run.run(some, commits=commits)
        if commits:
            positions[topic] += len(some)
            for written in run.part.writes:
                self.topics[written] = run.written.get(written, [])

    def drain(self) -> None:
        """Run all that waits, to the end."""
        while waits := self.waits():
            self.step(*waits[0], 1)

    def read(self, topic: str) -> list[tuple[str, Any, int]]:
        """Return all records of a topic."""
        return [
            ((each.key or b"").decode(), each.value and json.loads(each.value), each.time)
            for each in self.topics.get(topic, [])
        ]


def facts(seed: int, size: int) -> list[Given]:
    """Return changes of few orders and customers, deletions among them, some out of order."""
    random = Random(seed)
    found: list[Given] = []
    for at in range(size):
        time = max(0, 10 * at - random.choice([0, 0, 25]))
        if random.random() < 0.6:
            customer = random.choice(["a", "b", "ü", None])
            value = {"customer": customer, "n": random.randrange(6)}
            found.append(
                ("orders", random.choice("123"), random.choice([value, value, None]), time)
            )
        else:
            value = {"who": f"w{at}"}
            found.append(
                ("customers", random.choice("abü"), random.choice([value, value, None]), time)
            )
    return found


def piped(topology: Topology, records: Sequence[Given]) -> StreamsTest:
    """Return the same topology in the test kit, with all records."""
    test = StreamsTest(topology, on_poison="drop")
    for topic, name, value, time in records:
        test.pipe(topic, value, key=name, time=time)
    return test


def read(test: StreamsTest, topic: str) -> list[tuple[str | None, Any, int]]:
    """Return what the test kit wrote to a topic."""
    return [(each.key, each.value, each.time) for each in test.read(topic)]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 25), restarts=st.booleans())
def test_each_change_that_is_answered_gives_what_the_test_kit_does(
    kind: Kind, seed: int, size: int, restarts: bool
) -> None:
    """Results are equal one by one where each record is processed to the end before the next."""
    records = facts(seed, size)
    circle = Circle(program(kind).plan("shop"))
    for record in records:
        circle.send(record)
        circle.drain()
        if restarts:
            for run in circle.runs:
                run.restart()
    test = piped(program(kind), records)
    assert circle.read("named") == read(test, "named")
    assert circle.read("many") == read(test, "many")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_a_scenario_in_channels_gives_what_the_test_kit_does(
    kind: Kind, data: st.DataObject
) -> None:
    """Random topologies around the join, each record processed to the end before the next."""
    found = scenario(data.draw(st.integers(0, 10**9)), f"foreign_key_{kind}", records=25)
    plan = write_topology(found).plan("shop")
    records = [(topic, name, row, time) for topic, name, row, time in found["records"]]
    circle = Circle(plan)
    test = StreamsTest(write_topology(found), on_poison="drop")
    for topic, name, row, time in records:
        circle.send((topic, name, row, time))
        circle.drain()
        test.pipe(topic, row, key=name, time=time)
    for topic in {each for channel in plan.channels for each in channel.writes}:
        if topic not in plan.internal_topics:
            assert circle.read(topic) == read(test, topic)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_results_are_those_of_the_last_rows_however_the_sides_are_cut(
    kind: Kind, data: st.DataObject
) -> None:
    """The sides run at random speeds, with drops and restarts; the last results are the same."""
    records = facts(data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 25)))
    circle = Circle(program(kind).plan("shop"))
    random = Random(data.draw(st.integers(0, 10**6)))
    left = list(records)
    while left or circle.waits():
        if left and random.random() < 0.5:
            count = random.randint(1, 6)
            circle.send(*left[:count])
            del left[:count]
        waits = circle.waits()
        if not waits:
            continue
        number, topic = random.choice(waits)
        if random.random() < 0.2:
            circle.step(number, topic, random.randint(1, 6), commits=False)
        if random.random() < 0.2:
            circle.runs[number].restart()
        circle.step(number, topic, random.randint(1, 6))
    test = piped(program(kind), records)
    wanted = test.store("named")
    asking = next(run for run in circle.runs if "orders" in run.part.topics)
    rows = {
        name.decode().removeprefix("named/"): json.loads(value or b"")["row"]
        for name, value in asking.rows(b"named/").items()
    }
    assert rows == wanted
    last = {name: value for name, value, _ in circle.read("many")}
    told = {name: value for name, value, _ in read(test, "many")}
    assert {name: value for name, value in last.items() if value} == {
        name: value for name, value in told.items() if value
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_has_the_time_that_the_test_kit_gives_it(kind: Kind) -> None:
    """It is that of the right row where that is later, in an inner join."""
    records: list[Given] = [
        ("customers", "a", {"who": "x"}, 100),
        ("orders", "1", {"customer": "a", "n": 1}, 50),
        ("orders", "1", None, 60),
    ]
    circle = Circle(program(kind).plan("shop"))
    for record in records:
        circle.send(record)
        circle.drain()
        for run in circle.runs:
            run.restart()
    assert [time for _, _, time in circle.read("named")] == [100, 100 if kind == "inner" else 60]
    assert circle.read("named") == read(piped(program(kind), records), "named")


def test_an_answer_for_another_foreign_key_is_of_no_use() -> None:
    """The row has moved on meanwhile, and is told with what it names now."""
    circle = Circle(program("inner").plan("shop"))
    asking = next(n for n, run in enumerate(circle.runs) if "orders" in run.part.topics)
    circle.send(("customers", "a", {"who": "x"}, 1), ("customers", "b", {"who": "y"}, 1))
    circle.send(("orders", "1", {"customer": "a", "n": 1}, 2))
    circle.drain()
    circle.send(("customers", "a", {"who": "z"}, 3))
    circle.step(1 - asking, "customers", 1)
    circle.send(("orders", "1", {"customer": "b", "n": 1}, 4))
    circle.step(asking, "orders", 1)
    circle.drain()
    assert [(row["who"], time) for _, row, time in circle.read("named")] == [("x", 2), ("y", 4)]


def test_subscriptions_are_those_of_the_left_rows() -> None:
    """There is one for each row with a foreign key, none of rows that moved or are gone."""
    circle = Circle(program("inner").plan("shop"))
    circle.send(
        ("orders", "1", {"customer": "a", "n": 1}, 1),
        ("orders", "2", {"customer": "a", "n": 1}, 2),
        ("orders", "3", {"customer": "b", "n": 1}, 3),
        ("orders", "1", {"customer": "b/c", "n": 1}, 4),
        ("orders", "3", None, 5),
        ("orders", "2", {"customer": None, "n": 1}, 6),
    )
    circle.drain()
    answering = next(run for run in circle.runs if "customers" in run.part.topics)
    assert set(answering.rows(b"named.subscriptions/")) == {b"named.subscriptions/3/b/c/1"}


@pytest.mark.parametrize("kind", KINDS)
def test_another_version_asks_for_all_rows_again(kind: Kind) -> None:
    """Rows of the left table that were there before are joined, once the part has a record."""
    circle = Circle(program(kind).plan("shop"))
    circle.send(
        ("customers", "a", {"who": "x"}, 1),
        ("orders", "1", {"customer": "a", "n": 1}, 2),
        ("orders", "2", {"customer": "b", "n": 5}, 3),
    )
    circle.drain()
    plan = program(kind, version=2, doubled=True).plan("shop")
    for run, part in zip(circle.runs, plan.channels_in_order, strict=True):
        run.plan, run.part = plan, part
        run.written.clear()
        run.restart()
    circle.positions = [dict.fromkeys(run.part.topics, 0) for run in circle.runs]
    circle.topics = {}
    circle.send(("orders", "3", {"customer": "a", "n": 4}, 9))
    circle.drain()
    wanted = {"1": (2, "x"), "3": (8, "x")} | ({"2": (10, None)} if kind == "left" else {})
    found = circle.read("named")
    assert {name: (row["n"], row["who"]) for name, row, _ in found} == wanted
    circle.send(("customers", "b", {"who": "y"}, 10))
    circle.drain()
    assert circle.read("named")[-1] == ("2", {"order": "2", "n": 10, "who": "y"}, 10)


class Ratio(Row):
    customer: Field[str]
    by: Field[int]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_foreign_key_is_at_fault_is_as_if_it_was_gone(kind: Kind) -> None:
    """The result is deleted; the next row of the key is joined, and is not to blame."""

    def build() -> Topology:
        app = Topology()
        ratios = app.table("ratios", Ratio, name="ratios")
        customers = app.table("customers", Customer, name="customers")
        joined = ratios.join(
            customers,
            Named,
            name="named",
            on=(100 // Ratio.by).cast(str),
            kind=kind,
            order=key,
            n=Ratio.by,
            who=Customer.who,
        )
        joined.each().to("named")
        return app

    records: list[Given] = [
        ("customers", "50", {"who": "x"}, 1),
        ("ratios", "1", {"customer": "", "by": 2}, 2),
        ("ratios", "1", {"customer": "", "by": 0}, 3),
        ("ratios", "1", {"customer": "", "by": 2}, 4),
    ]
    test = piped(build(), records)
    told = read(test, "named")
    assert [(time, value and value["who"]) for _, value, time in told] == [
        (2, "x"),
        (3, None),
        (4, "x"),
    ]
    assert [error.offset for error in test.poison] == [1]
    circle = Circle(build().plan("shop"))
    for record in records:
        circle.send(record)
        circle.drain()
    assert circle.read("named") == told
    assert [sum(each.rejected for each in run.counts) for run in circle.runs] == [0, 1]


class Amount(Row):
    n: Field[int]


def test_a_row_after_one_that_a_filter_failed_on_is_not_to_blame() -> None:
    """The former row of its key was noted when it came."""
    app = Topology()
    amounts = app.table("amounts", Amount, name="amounts")
    amounts.filter(10 // Amount.n > 1).each().to("out")
    test = StreamsTest(app, on_poison="drop")
    for at, n in enumerate((2, 0, 5)):
        test.pipe("amounts", {"n": n}, key="k", time=at + 1)
    assert [(each.value and each.value["n"], each.time) for each in test.read("out")] == [
        (2, 1),
        (None, 2),
        (5, 3),
    ]
    assert [error.offset for error in test.poison] == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_topology_with_a_join_by_a_foreign_key_is_checked(kind: Kind) -> None:
    """Random cuts, drops and restarts of both parts end with the same results."""
    check_topology(lambda: program(kind), facts(7, 60), runs=8)
