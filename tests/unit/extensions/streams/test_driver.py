from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import PoisonRecordError
from headrace.extensions.streams.aggregates import collect, count, fold, last, total
from headrace.extensions.streams.expressions import key, time, window_end, window_start
from headrace.extensions.streams.inline.streams_test import OutRecord, StreamsTest
from headrace.extensions.streams.rows import Field, Row
from headrace.extensions.streams.topology import Topology
from headrace.extensions.streams.windows import hopping, session, sliding, tumbling
from tests.unit.extensions.streams import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MINUTE = 60_000


class Click(Row):
    user: Field[str]
    n: Field[int]


class Mark(Row):
    user: Field[str]
    mark: Field[int]


class Both(Row):
    user: Field[str | None]
    n: Field[int | None]
    mark: Field[int | None]


class Sum(Row):
    user: Field[str]
    begin: Field[int | None]
    n: Field[int]
    all: Field[list[int] | None]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_words_are_counted(batch: int) -> None:
    """A text is divided into words, which are counted by key; updates are the last of a key."""
    test = StreamsTest(programs.word_count(), batch=batch)
    test.pipe("lines", {"text": "To be or not to be"}, time=5)
    test.pipe("lines", {"text": "be"}, time=7)
    found = test.read("word-counts")
    assert {each.key: (each.value, each.time) for each in found} == {
        "to": ({"word": "to", "n": 2}, 5),
        "be": ({"word": "be", "n": 3}, 7),
        "or": ({"word": "or", "n": 1}, 5),
        "not": ({"word": "not", "n": 1}, 5),
    }
    assert len(found) == (5 if batch == 1 else 4)
    assert test.store("words")["be"] == {"word": "be", "n": 3}
    assert test.read("word-counts") == []


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_visit_is_over_after_its_gap_and_grace(batch: int) -> None:
    """Clicks at most 30 minutes apart are a visit, which comes out once it is over."""
    test = StreamsTest(programs.sessions(), batch=batch)
    clicks = [("a", 0), ("b", 1), ("a", 20), ("a", 45), ("b", 100), ("a", 20), ("a", 200)]
    for user, minute in clicks:
        test.pipe("clicks", {"user": user, "url": "x"}, time=minute * MINUTE)
    visits = [
        (each.value["user"], each.value["begin"], each.value["clicks"], each.time)
        for each in test.read("visits")
    ]
    assert visits == [
        ("b", MINUTE, 1, MINUTE),
        ("a", 0, 3, 45 * MINUTE),
        ("b", 100 * MINUTE, 1, 100 * MINUTE),
    ]
    assert test.late("visits") == 1
    assert test.time("visits") == 200 * MINUTE
    assert list(test.store("visits")) == [("a", 200 * MINUTE)]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_orders_and_payments_are_settled(batch: int) -> None:
    """A pair comes out at once, and what is alone when no partner can come any more."""
    test = StreamsTest(programs.settle(), batch=batch)
    test.pipe("orders", programs.Order(id="1", amount=1.5), time=0)
    test.pipe("payments", programs.Payment(order="1", paid=1.0), time=1000)
    test.pipe("orders", {"id": "2", "amount": 2.5}, time=2000)
    test.pipe("payments", {"order": "3", "paid": 3.0}, time=3000)
    test.pipe("orders", {"id": "4", "amount": 3.5}, time=2_000_000)
    assert test.read("settled") == [
        OutRecord("1", {"order": "1", "amount": 1.5, "paid": 1.0}, 1000),
        OutRecord("2", {"order": "2", "amount": 2.5, "paid": None}, 2000),
        OutRecord("3", {"order": "3", "amount": None, "paid": 3.0}, 3000),
    ]
    assert test.buffered("settled") == [("4", 2_000_000, {"amount": 3.5})]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_clicks_have_what_the_table_knows_then(batch: int) -> None:
    """A row of the table is seen by the records after it, until it is deleted."""
    test = StreamsTest(programs.enrich(), batch=batch)
    test.pipe("users", {"country": "de", "premium": True}, key="u", time=0)
    test.pipe("clicks", {"user": "u", "url": "x"}, time=1)
    test.pipe("clicks", {"user": "v", "url": "y"}, time=2)
    test.pipe("users", None, key="u", time=3)
    test.pipe("clicks", {"user": "u", "url": "z"}, time=4)
    found = [(each.key, each.value["url"], each.value["country"]) for each in test.read("enriched")]
    assert found == [("u", "x", "de"), ("v", "y", None), ("u", "z", None)]
    assert test.store("users") == {}


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_the_most_clicked_pages_of_each_window_come_once(batch: int) -> None:
    """Windows of five minutes are final once they are over, and their pages are in order."""
    test = StreamsTest(programs.top_pages(), batch=batch)
    for place, url in enumerate("aabacca"):
        test.pipe("clicks", {"user": "u", "url": url}, time=place * 30_000)
    test.pipe("clicks", {"user": "u", "url": "q"}, time=60 * MINUTE)
    test.read("top-pages")
    assert {key: row["pages"] for key, row in test.store("top").items()} == {
        "0": ["a", "c", "b"],
        "60000": ["c", "a", "b"],
        "120000": ["c", "a"],
        "180000": ["a"],
    }
    assert test.time("pages") == 60 * MINUTE


def each_windowed(windows: Any) -> Callable[[Topology], None]:
    """Return a program that aggregates clicks in windows, in both ways that no cut changes."""

    def build(app: Topology) -> None:
        by = app.stream("clicks", Click).group_by(Click.user, name="sums").window(windows)
        table = by.agg(
            Sum, user=key, begin=window_start, n=total(Click.n), all=collect(Click.n, limit=5)
        )
        table.each().to("each")
        table.final().to("final")

    return build


def each_joined(kind: Any) -> Callable[[Topology], None]:
    """Return a program that joins clicks and marks."""

    def build(app: Topology) -> None:
        app.stream("clicks", Click).join(
            app.stream("marks", Mark),
            Both,
            before="20ms",
            after="30ms",
            grace="5ms",
            kind=kind,
            name="joined",
            user=Click.user,
            n=Click.n,
            mark=Mark.mark,
        ).to("joined")

    return build


def each_table(app: Topology) -> None:
    """Look up, join and filter tables of the last rows and of counts."""
    clicks = app.table("clicks", Click, name="clicks")
    marks = app.stream("marks", Mark)
    counts = marks.group_by(key, name="counts").agg(
        Sum, user=key, n=count(), all=collect(Mark.mark, limit=3)
    )
    counts.filter(Sum.n < 4).each().to("few")
    marks.lookup(
        clicks.filter(Click.n > 2), Both, name="seen", user=key, n=Click.n, mark=Mark.mark
    ).to("seen")
    clicks.join(counts, Both, name="both", kind="outer", user=key, n=Click.n, mark=Sum.n).each().to(
        "both"
    )


BUILDS: dict[str, Callable[[Topology], None]] = {
    "tumbling": each_windowed(tumbling("20ms", grace="5ms")),
    "hopping": each_windowed(hopping("30ms", "10ms", grace="7ms")),
    "session": each_windowed(session("10ms", grace="5ms")),
    "sliding": each_windowed(sliding("10ms", grace="5ms")),
    "inner": each_joined("inner"),
    "left": each_joined("left"),
    "outer": each_joined("outer"),
    "tables": each_table,
}

RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["clicks", "marks"]),
        st.sampled_from("ab"),
        st.integers(0, 9) | st.none(),
        st.integers(0, 15),
        st.booleans(),
    ),
    max_size=25,
)


def inputs(steps: Sequence[tuple[str, str, int | None, int, bool]]) -> Iterator[tuple[Any, ...]]:
    """Yield records in the order of the task: some are earlier than those before in their topic.

    The programs join topics as they are: between channels a record that is left out can let a late
    one after it come sooner, so that the order there depends on what was written by then.
    """
    highest = {"clicks": 0, "marks": 0}
    now = 0
    for topic, user, number, step, is_late in steps:
        now += step
        # what is out of order comes after what its topic had before
        moment = max(0, highest[topic] - step) if is_late else now
        highest[topic] = max(highest[topic], moment)
        field = "n" if topic == "clicks" else "mark"
        value = None if number is None else {"user": user, field: number}
        yield highest[topic], topic, user, value, moment


def run(name: str, records: Sequence[tuple[Any, ...]], cuts: Sequence[int]) -> dict[str, Any]:
    """Return all that a program writes, where micro-batches end at some records."""
    app = Topology()
    BUILDS[name](app)
    test = StreamsTest(app, batch=1000)
    sources = {each.topic for each in test.plan.operators if hasattr(each, "topic")}
    for place, (_, topic, user, value, moment) in enumerate(records):
        if topic in sources:
            test.pipe(topic, value, key=user, time=moment)
        if place in cuts:
            test.run()
    test.run()
    written = {each for channel in test.plan.channels for each in channel.writes}
    return {topic: test.read(topic) for topic in sorted(written)}


@pytest.mark.parametrize("name", BUILDS)
def test_results_are_the_same_wherever_micro_batches_end(name: str) -> None:
    """Results of each and final, of joins and of tables are equal for all cuts."""

    @settings(max_examples=int(os.environ.get("HEADRACE_MODEL_EXAMPLES", "12")))
    @given(RECORDS, st.sets(st.integers(0, 24)))
    def check(steps: list[Any], cuts: set[int]) -> None:
        order = {"clicks": 0, "marks": 1}
        records = sorted(inputs(steps), key=lambda each: (each[0], order[each[1]]))
        whole = run(name, records, range(25))
        assert run(name, records, sorted(cuts)) == whole
        assert run(name, records, []) == whole

    check()


def drop(build: Callable[[Topology], object], *values: Any) -> tuple[list[Any], list[str]]:
    """Return what a program writes to `out` of clicks, and the reasons of poison."""
    app = Topology()
    build(app)
    test = StreamsTest(app, batch=10, on_poison="drop")
    for place, value in enumerate(values):
        test.pipe("clicks", value, key="k", time=place)
    return [each.value for each in test.read("out")], [error.reason for error in test.poison]


def test_poison_is_named_and_the_others_go_on() -> None:
    """A value, an expression, a key and a function can be at fault; other records are processed."""
    good = {"user": "a", "n": 2}
    big = {"user": "b", "n": 2**62}

    def stream(app: Topology) -> Any:
        return app.stream("clicks", Click)

    def raises(row: Click) -> Click:
        raise ValueError(row.user)

    assert drop(lambda app: stream(app).to("out"), {"n": 1}, good) == (
        [good],
        ["clicks: field user is missing or null; declare str | None, or give a default"],
    )
    assert drop(lambda app: stream(app).filter(Click.n * 2 > 0).to("out"), good, big) == (
        [good],
        ["filter: Click.n * 2: beyond 64 bits"],
    )
    assert drop(lambda app: stream(app).map(raises, Click).to("out"), good) == (
        [],
        ["map: ValueError: a"],
    )

    def totals(app: Topology) -> None:
        table = stream(app).group_by(key, name="t").agg(Sum, user=key, n=total(Click.n))
        table.each().to("out")

    written, reasons = drop(totals, big, big, good)
    assert [row["n"] for row in written] == [2**62, 2**62 + 2]
    assert reasons == ["aggregate 't': an aggregate leaves the range of its type"]
    test = StreamsTest(programs.word_count())
    with pytest.raises(PoisonRecordError, match="lines-0: record at offset 0: lines: the value"):
        test.pipe("lines", "no JSON")


def test_a_record_without_key_is_poison_where_a_key_is_needed() -> None:
    """Stateless operators take it; a table and an aggregate by the key do not."""
    app = Topology()
    app.stream("clicks", Click).filter(Click.n > 0).to("out")
    app.stream("clicks", Click).group_by(key, name="t").agg(Sum, user=key, n=count())
    test = StreamsTest(app, on_poison="drop")
    test.pipe("clicks", {"user": "a", "n": 2})
    assert [each.key for each in test.read("out")] == [None]
    assert [error.reason for error in test.poison] == ["aggregate 't': the row has no key"]


def test_functions_in_python_have_rows() -> None:
    """A function returns a row, several or none; one for batches gets columns; a fold has rows."""
    app = Topology()
    seen: list[Click] = []
    clicks = app.stream("clicks", Click).peek(seen.append)

    def twice(row: Click) -> list[Click] | None:
        return None if row.n == 0 else [row, Click(user=row.user, n=row.n + 1)]

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = pa.array([2 * each for each in batch.column("n").to_pylist()])
        return pa.RecordBatch.from_arrays([batch.column("user"), numbers], ["user", "n"])

    rows = clicks.map(twice, Click).map_batches(doubled, Click)
    rows.to("rows")
    folded = rows.group_by(Click.user, name="folded")
    folded.agg(Sum, user=key, n=fold(0, lambda n, row: n + row.n, rows=Click)).each().to("folded")
    test = StreamsTest(app, batch=10)
    test.pipe("clicks", Click(user="a", n=0), key="k")
    test.pipe("clicks", Click(user="a", n=3), key="k", time=4)
    assert [each.value["n"] for each in test.read("rows")] == [6, 8]
    assert [each.value["n"] for each in test.read("folded")] == [6, 14]
    assert seen == [Click(user="a", n=0), Click(user="a", n=3)]


def test_streams_are_merged_and_divided_in_the_order_of_the_task() -> None:
    """Rows of branches and merged streams stay in the order of their records."""
    app = Topology()
    clicks = app.stream("clicks", Click)
    even, others = clicks.branch(Click.n % 2 == 0)
    even.merge(others).to("all")
    others.to("odd")
    test = StreamsTest(app, batch=10)
    for number in range(5):
        test.pipe("clicks", {"user": "a", "n": number}, key="k", time=number)
    assert [each.value["n"] for each in test.read("all")] == [0, 1, 2, 3, 4]
    assert [each.value["n"] for each in test.read("odd")] == [1, 3]


def test_keys_of_several_parts_are_arrays() -> None:
    """Several expressions are one key, of which each is read again."""
    app = Topology()
    by = app.stream("clicks", Click).group_by(Click.user, Click.n, name="pairs")
    by.agg(Sum, user=Click.user, begin=Click.n, n=count()).each().to("out")
    test = StreamsTest(app)
    test.pipe("clicks", {"user": 'a"é', "n": 3}, time=4)
    assert test.read("out") == [
        OutRecord('["a\\"é",3]', {"user": 'a"é', "begin": 3, "n": 1, "all": None}, 4)
    ]


def test_a_join_by_a_foreign_key_follows_both_sides() -> None:
    """A left row has the right row that it names, through changes of either and deletions."""
    app = Topology()
    marks = app.table("marks", Mark, name="marks")
    clicks = app.table("clicks", Click, name="clicks")
    marks.join(
        clicks, Both, name="both", on=Mark.user, kind="left", user=key, n=Click.n, mark=Mark.mark
    ).each().to("out")
    test = StreamsTest(app)
    test.pipe("marks", {"user": "a", "mark": 1}, key="m1", time=1)
    test.pipe("clicks", {"user": "x", "n": 7}, key="a", time=2)
    test.pipe("marks", {"user": "a", "mark": 2}, key="m2", time=3)
    test.pipe("clicks", {"user": "x", "n": 8}, key="a", time=4)
    test.pipe("marks", {"user": "b", "mark": 3}, key="m1", time=5)
    test.pipe("clicks", None, key="a", time=6)
    test.pipe("marks", None, key="m2", time=7)
    found = [(each.key, each.value and each.value["n"], each.time) for each in test.read("out")]
    assert found == [
        ("m1", None, 1),
        ("m1", 7, 2),
        ("m2", 7, 3),
        ("m1", 8, 4),
        ("m2", 8, 4),
        ("m1", None, 5),
        ("m2", None, 6),
        ("m2", None, 7),
    ]
    assert test.store("both") == {"m1": {"user": "m1", "n": None, "mark": 3}}


def test_a_shared_table_is_looked_up_by_any_field() -> None:
    """Rows need not be by the key of a shared table."""
    app = Topology()
    shared = app.shared_table("marks", Mark, name="marks")
    app.stream("clicks", Click).lookup(
        shared, Both, name="seen", on=Click.user, kind="inner", user=Click.user, mark=Mark.mark
    ).to("out")
    test = StreamsTest(app)
    test.pipe("marks", {"user": "x", "mark": 5}, key="a")
    test.pipe("clicks", {"user": "a", "n": 1}, key="k")
    test.pipe("clicks", {"user": "b", "n": 1}, key="k")
    assert [each.value["mark"] for each in test.read("out")] == [5]


def test_a_time_of_the_row_is_that_of_the_record() -> None:
    """Windows are those of the time that the stream takes, in place of the record's own."""
    app = Topology()
    by = app.stream("clicks", Click, time=Click.n).group_by(key, name="t").window(tumbling("10ms"))
    by.agg(Sum, user=key, begin=window_end, n=last(time)).each().to("out")
    test = StreamsTest(app)
    test.pipe("clicks", {"user": "a", "n": 25}, key="k", time=3)
    assert [(each.value["begin"], each.value["n"], each.time) for each in test.read("out")] == [
        (30, 25, 25)
    ]


def test_missing_topics_stores_and_windows_are_refused_with_those_there() -> None:
    """A topic and a store that are not there are refused with those that are."""
    test = StreamsTest(programs.settle())
    with pytest.raises(KeyError, match="does not read 'order'; it reads orders, payments"):
        test.pipe("order", {})
    with pytest.raises(KeyError, match="there is no store 'x'; there are settled"):
        test.store("x")
    with pytest.raises(KeyError, match="take buffered"):
        test.store("settled")
    with pytest.raises(KeyError, match="has no windows"):
        StreamsTest(programs.word_count()).time("words")
