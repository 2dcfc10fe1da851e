"""Stores of topologies, as they are read while their channel runs."""

from __future__ import annotations

import json
from decimal import Decimal  # noqa: TC003 - rows look their types up
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.letter_headers import LetterHeaders
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.state import Progress
from headrace.extensions.keyed.state_reader import StateReader
from headrace.extensions.streams.errors import QuestionError
from headrace.extensions.streams.questions import KeyQuestion, PageQuestion
from headrace.extensions.streams.runtime import store_reader
from headrace.extensions.streams.runtime.store_reader import store_reader_of
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.keyed import at_event
from headrace.streams import (
    Field,
    Row,
    StreamsTest,
    Topology,
    collect,
    count,
    field,
    hopping,
    key,
    session,
    total,
    tumbling,
    window_end,
    window_start,
)
from tests.unit.extensions.streams.test_fold import (
    KINDS,
    Click,
    InMemory,
    clicks,
    expected,
    join,
    program,
)
from tests.unit.extensions.streams.test_foreign_join import Circle, facts, piped
from tests.unit.extensions.streams.test_foreign_join import program as foreign_join

if TYPE_CHECKING:
    from headrace.extensions.keyed.store import RocksStore
    from headrace.extensions.streams.runtime.store_reader import StoreReader, StoreRow, StoreRows
    from headrace.testing.streams import InMemoryPart
    from tests.unit.extensions.streams.test_fold import Record


class Asked:
    """A store of a channel in memory, and what reads it."""

    run: Any

    def __init__(self, run: InMemory | InMemoryPart, name: str) -> None:
        (store,) = [each for each in run.plan.stores if each.name == name]
        self.run = run
        self.reader: StoreReader = store_reader_of(run.plan, store)

    @property
    def state(self) -> StateReader:
        """Return what reads the channel's state, which another start makes anew."""
        # sizes alone are asked of the store, and not here
        return StateReader(self.run.state, cast("RocksStore", None), lambda: {0}, dict)

    def get(self, name: bytes, since: int | None = None, until: int | None = None) -> StoreRows:
        """Return the rows of a key."""
        return self.reader.get(self.state, 0, KeyQuestion((name,), since, until))

    def pages(self, limit: int, prefix: bytes = b"", window: int | None = None) -> list[StoreRow]:
        """Return all rows, page after page."""
        found: list[StoreRow] = []
        first: bytes | None = b""
        while first is not None:
            page = self.reader.page(self.state, 0, PageQuestion(prefix, window, first, limit))
            assert len(page.rows) <= limit
            found += page.rows
            first = page.next
        return found


def started(app: Topology, name: str, *micro_batches: tuple[str, list[Record]]) -> Asked:
    """Return a store of a topology of one part, after micro-batches."""
    plan = app.plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel)
    for topic, records in micro_batches:
        run.run(topic, records)
    return Asked(run, name)


def of(rows: list[StoreRow]) -> list[Any]:
    """Return rows from JSON, each with its key."""
    return [(each.key.decode(), json.loads(each.text or "null")) for each in rows]


class Named(Row):
    name: Field[str]
    clicks: Field[int]
    n: Field[int] = field(name='a "sum"')


def named() -> Topology:
    """Return a topology whose rows have nothing but the key, a count and a sum."""
    app = Topology()
    rows = app.stream("clicks", Click).group_by(key, name="sums")
    rows.agg(Named, clicks=count(), n=total(Click.n), name=key).updates().to("sums")
    return app


@settings(max_examples=25)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["a", 'b"', "c\\", "d\n\x01", "\u00e9\u2028\x7f", ""]),
            st.integers(-(2**59), 2**59),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_rows_without_arrays_are_those_that_the_operator_writes(
    rows: list[tuple[str, int]],
) -> None:
    """Byte by byte, for any text of a key, and large numbers."""
    records = [(name.encode(), b'{"n":%d}' % n, 1_000) for name, n in rows]
    plan = named().plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel)
    run.run("clicks", records)
    wanted = {key: value for key, value, _ in run.written["sums"]}
    asked = Asked(run, "sums")
    for name, _ in rows:
        (found,) = asked.get(name.encode()).rows
        assert (found.text or "").encode() == wanted[name.encode()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_rows_of_keys_and_pages_are_those_of_the_test_kit(kind: str, data: st.DataObject) -> None:
    """Groups and all windows: each that is not over, by key and by page, whatever was cut."""
    records = clicks(data.draw(st.integers(0, 999)), data.draw(st.integers(1, 60)))
    plan = program(kind).plan("shop")
    (channel,) = plan.channels
    run, at = InMemory(plan, channel), 0
    while at < len(records):
        size = data.draw(st.integers(1, 20))
        run.run("clicks", records[at : at + size])
        at += size
    wanted = expected(program(kind), records).store("sums")
    asked = Asked(run, "sums")
    by_key: dict[Any, Any] = {}
    for name in "abc":
        rows = asked.get(name.encode()).rows
        starts = [each.window.start for each in rows if each.window is not None]
        if kind in {"tumbling", "hopping"}:
            assert starts == sorted(starts)
        for row in rows:
            assert row.problem is None
            place = name if row.window is None else (name, row.window.start)
            by_key[place] = json.loads(row.text or "")
    assert by_key == wanted
    limit = data.draw(st.sampled_from([1, 2, 100]))
    windows: set[int | None] = {None}
    if kind == "hopping":
        windows = {start for _, start in wanted}
    paged = [row for window in windows for row in asked.pages(limit, window=window)]
    assert len(paged) == len(wanted)
    assert {
        each.key.decode()
        if each.window is None
        else (each.key.decode(), each.window.start): json.loads(each.text or "")
        for each in paged
    } == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_are_read_together_have_the_rows_of_each(kind: str) -> None:
    """A key without a row has none, and two keys do not get each other's windows."""
    plan = program(kind).plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel)
    run.run("clicks", clicks(7, 60))
    asked = Asked(run, "sums")
    together = asked.reader.get(asked.state, 0, KeyQuestion((b"c", b"missing", b"a", b"b")))
    alone = [asked.get(name) for name in (b"a", b"b", b"c", b"missing")]
    assert alone[0].rows
    assert sorted(together.rows, key=repr) == sorted(
        (row for each in alone for row in each.rows), key=repr
    )
    assert all(each.progress == together.progress for each in alone)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_chooses_keys_in_every_kind_of_store(kind: str) -> None:
    """Keys with the prefix are there, and no others, a page at a time."""
    names = [b"%c%d" % (start, number) for start in b"xy" for number in range(4)]
    records: list[Record] = [(name, b'{"n":1}', 1_000) for name in names]
    asked = started(program(kind), "sums", ("clicks", records))
    window = 0 if kind == "hopping" else None
    for limit in (1, 3, 100):
        found = {each.key for each in asked.pages(limit, b"y", window)}
        assert found == {name for name in names if name.startswith(b"y")}


def test_rows_are_committed_ones_with_their_progress() -> None:
    """Staged changes are not shown, and the position is that of the row."""
    asked = started(program("groups"), "sums", ("clicks", [(b"a", b'{"n":2}', 1_000)]))
    asked.run.run("clicks", [(b"a", b'{"n":3}', 2_000)], commits=False)
    found = asked.get(b"a")
    assert of(found.rows) == [("a", {"key": "a", "begin": None, "n": 1, "sum": 2})]
    assert isinstance(found.progress, Progress)
    assert (found.progress.offset, found.rows[0].time, found.time) == (1, 1_000, None)
    assert asked.get(b"b").rows == []


def test_state_that_is_not_there_is_not_read() -> None:
    """A partition that is restored raises an error, and never shows no rows."""
    asked = started(program("tumbling"), "sums", ("clicks", [(b"a", b'{"n":2}', 1_000)]))
    asked.run.state.release(0)
    with pytest.raises(StateStoreError):
        asked.get(b"a")
    with pytest.raises(StateStoreError):
        asked.pages(1)


def test_windows_are_chosen_by_their_start() -> None:
    """From a time on and before another, the latest last; those that are over are not there."""
    records: list[Record] = [(b"a", b'{"n":1}', time) for time in range(0, 60_000, 5_000)]
    asked = started(counted(tumbling("10s", grace="30s")), "windows", ("clicks", records))
    # the operator time is 55 s
    assert starts_of(asked.get(b"a")) == [20_000, 30_000, 40_000, 50_000]
    assert starts_of(asked.get(b"a", 20_001, 40_000)) == [30_000]
    assert starts_of(asked.get(b"a", 0, 30_001)) == [20_000, 30_000]
    assert starts_of(asked.get(b"a", 60_000)) == []
    found = asked.get(b"a", 50_000)
    assert found.time == 55_000
    assert of(found.rows) == [("a", {"key": "a", "begin": 50_000, "end": 60_000, "n": 2})]
    (row,) = asked.pages(5, window=30_000)
    assert row.window == (30_000, 40_000)
    assert asked.pages(5, window=0) == []


def test_sessions_are_chosen_by_their_end() -> None:
    """Both bounds of a session are times of its records."""
    times = (1_000, 2_000, 9_000, 20_000, 21_000)
    records: list[Record] = [(b"a", b'{"n":1}', time) for time in times]
    asked = started(counted(session("3s", grace="1h")), "windows", ("clicks", records))
    assert [each.window for each in asked.get(b"a").rows] == [
        (1_000, 2_000),
        (9_000, 9_000),
        (20_000, 21_000),
    ]
    assert starts_of(asked.get(b"a", 2_000, 21_000)) == [1_000, 9_000]
    assert starts_of(asked.get(b"a", 2_001)) == [9_000, 20_000]
    (row,) = asked.pages(5, window=21_000)
    assert json.loads(row.text or "") == {"key": "a", "begin": 20_000, "end": 21_000, "n": 2}


class Bounds(Row):
    key: Field[str]
    begin: Field[int]
    end: Field[int]
    n: Field[int]


def counted(windows: Any) -> Topology:
    """Return a topology that counts clicks in windows."""
    app = Topology()
    grouped = app.stream("clicks", Click).group_by(key, name="windows").window(windows)
    grouped.agg(Bounds, key=key, begin=window_start, end=window_end, n=count()).final().to("out")
    return app


def starts_of(found: StoreRows) -> list[int]:
    """Return the starts of windows."""
    return [each.window.start for each in found.rows if each.window is not None]


def test_windows_of_another_step_and_without_one_are_refused() -> None:
    """The error says where windows begin, and of hopping ones which are open."""
    asked = started(
        counted(hopping("10s", every="4s", grace="2s")),
        "windows",
        ("clicks", [(b"a", b'{"n":1}', 21_000)]),
    )
    with pytest.raises(QuestionError, match="each multiple of 4000 ms") as raised:
        asked.pages(1, window=5_000)
    assert raised.value.name == "invalid_window"
    with pytest.raises(QuestionError, match="from 12000 to 20000 ms, each 4000 ms") as raised:
        asked.pages(1)
    assert raised.value.name == "window_missing"


def test_a_question_for_more_windows_than_are_read_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Open windows may be too many without bounds; between two times they are read."""
    monkeypatch.setattr(store_reader, "MOST_PANES", 5)
    records: list[Record] = [(b"a", b'{"n":1}', time) for time in range(0, 60_000, 5_000)]
    asked = started(counted(tumbling("5s", grace="1h")), "windows", ("clicks", records))
    with pytest.raises(QuestionError, match="12 windows of store windows are open") as raised:
        asked.get(b"a")
    assert raised.value.name == "too_many_windows"
    assert starts_of(asked.get(b"a", 10_000, 20_000)) == [10_000, 15_000]


def test_a_page_ends_with_the_rows_that_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may be empty and have a next one; all pages together have each row once."""
    monkeypatch.setattr(store_reader, "MOST_ROWS", 3)
    records: list[Record] = [
        (b"%c" % name, b'{"n":1}', time) for time in range(0, 40_000, 10_000) for name in b"abcz"
    ]
    asked = started(counted(tumbling("10s", grace="1h")), "windows", ("clicks", records))
    first = asked.reader.page(asked.state, 0, PageQuestion(b"z"))
    assert (first.rows, first.next is None) == ([], False)
    found = [each.window for each in asked.pages(100, b"z")]
    assert found == [(start, start + 10_000) for start in range(0, 40_000, 10_000)]
    sessions = started(counted(session("1s", grace="1h")), "windows", ("clicks", records))
    monkeypatch.setattr(store_reader, "MOST_ROWS", 4)
    with pytest.raises(QuestionError, match="more than 4 windows of all keys"):
        sessions.get(b"z")
    assert starts_of(sessions.get(b"z", 30_000)) == [30_000]


class Price(Row):
    amount: Field[Decimal] = field(scale=2, name="the amount")
    note: Field[str | None]


def test_a_row_of_a_table_has_the_digits_it_was_written_with() -> None:
    """A decimal of more digits than a float has, by the field's name in JSON."""
    app = Topology()
    prices = app.table("prices", Price, name="prices")
    prices.updates().to("out")
    text = '{"the amount":12345678901234567890123456.10,"note":null}'
    asked = started(app, "prices", ("prices", [(b"a/b", text.encode(), 5_000)]))
    (row,) = asked.get(b"a/b").rows
    assert (row.text, row.time, row.window) == (text, 5_000, None)
    assert asked.pages(1) == [row]
    asked.run.run("prices", [(b"a/b", None, 6_000)])
    assert asked.get(b"a/b").rows == []


class Totals(Row):
    key: Field[str]
    total: Field[float]
    all: Field[list[float]]


class Value(Row):
    v: Field[float]


def test_a_row_that_json_does_not_have_is_null_with_the_reason() -> None:
    """A sum that is infinite is no number in JSON; rows beside it are shown."""
    app = Topology()
    grouped = app.stream("values", Value).group_by(key, name="totals")
    grouped.agg(
        Totals, key=key, total=total(Value.v), all=collect(Value.v, limit=5)
    ).updates().filter(Totals.total < 10.0).to("out")
    records: list[Record] = [(name, b'{"v":1e308}', 0) for name in (b"a", b"a")]
    asked = started(app, "totals", ("values", [*records, (b"b", b'{"v":2}', 0)]))
    first, second = asked.pages(10)
    assert (first.key, first.text) == (b"a", None)
    assert first.problem == "total is inf, which JSON has no number for; filter such rows out"
    assert of([second]) == [("b", {"key": "b", "total": 2.0, "all": [2.0]})]


def tell(name: str, state: Any, facts: Any, now: int | None) -> Any:
    """Count facts, and set a timer."""
    del name, now
    return {"n": (state or {"n": 0})["n"] + len(facts)}, [], {"quiet": at_event(61_000)}


def test_a_reducer_s_state_is_the_row_and_timers_stand_beside_it() -> None:
    """Timers with the operator time at which they are due."""
    app = Topology()
    app.stream("clicks", Click).reduce(tell, name="told", rows=Click).to("out")
    asked = started(app, "told", ("clicks", [(b"a", b'{"n":1}', 3_000)]))
    found = asked.get(b"a")
    (row,) = found.rows
    assert (row.text, row.timers, row.time) == ('{"n":1}', {"quiet": 61_000}, None)
    assert found.time == 3_000
    assert asked.pages(3) == [row]


def test_rows_of_a_join_by_a_foreign_key_are_those_of_the_test_kit() -> None:
    """Each result by the key of its left row."""
    records = facts(7, 40)
    plan = foreign_join("left").plan("shop")
    circle = Circle(plan)
    circle.send(*records)
    circle.drain()
    (left,) = [each for each in circle.runs if "named" in each.part.stores]
    asked = Asked(left, "named")
    wanted = piped(foreign_join("left"), records).store("named")
    assert dict(of(asked.pages(2))) == wanted != {}
    assert {name: of(asked.get(name.encode()).rows)[0][1] for name in wanted} == wanted


def test_buffers_of_a_join_are_no_rows_of_a_key() -> None:
    """The error names the kinds of stores that can be asked."""
    plan = join("left").plan("shop")
    (store,) = plan.stores
    with pytest.raises(QuestionError, match="has the buffers of a join of streams") as raised:
        store_reader_of(plan, store)
    assert raised.value.name == "no_rows"


def test_a_store_of_another_version_has_rows_of_its_own() -> None:
    """The former version's rows are in the state as well, and are none of it."""

    def build(version: int) -> Topology:
        app = Topology()
        grouped = app.stream("clicks", Click).group_by(key, name="n")
        grouped.agg(Click, version=version, n=count()).updates().to("out")
        return app

    asked = started(build(1), "n", ("clicks", [(b"a", b'{"n":1}', 0)]))
    plan = build(2).plan("shop")
    run = InMemory(plan, plan.channels[0])
    run.store = asked.run.store
    run.restart()
    again = Asked(run, "n")
    assert (again.get(b"a").rows, again.pages(5)) == ([], [])
    run.run("clicks", [(b"b", b'{"n":1}', 0)])
    assert of(again.pages(5)) == [("b", {"n": 1})]


def test_commits_go_on_while_rows_are_read() -> None:
    """Rows of a view stay as they were; the state takes the next commit meanwhile."""
    names = [b"%d" % number for number in range(8)]
    asked = started(program("groups"), "sums", ("clicks", [(n, b'{"n":1}', 0) for n in names]))
    with asked.state.reading(0) as rows:
        scanned = rows.scan(b"sums/")
    asked.run.run("clicks", [(n, b'{"n":1}', 0) for n in names])
    states = [row.state for key, row in scanned if key.startswith(b"sums/")]
    assert len(states) == len(names)
    assert len(set(states)) == 1
    random = Random(1)
    assert of(asked.get(random.choice(names)).rows)[0][1]["n"] == 2


class Grouped(Row):
    n: Field[int]
    rows: Field[int]
    sum: Field[int | None]


def groups_of_a_table(*changes: tuple[bytes, int, int]) -> tuple[Asked, StreamsTest]:
    """Return groups of a table by n, after changes of its rows; and the test kit after them."""
    app = Topology()
    by_n = app.table("facts", Fact, name="table").group_by(Fact.n, name="groups")
    by_n.agg(Grouped, n=key, rows=count(), sum=total(Fact.v)).updates().to("out")
    plan = app.plan("shop")
    test = StreamsTest(app, on_poison="drop")
    rules = RejectRules(LetterHeaders("headrace", "g"), "skip")
    source, groups = (InMemory(plan, part, rules) for part in plan.channels_in_order)
    for name, n, v in changes:
        value = json.dumps({"n": n, "v": v}).encode()
        test.pipe("facts", value, key=name)
        source.run("facts", [(name, value, 0)])
    (topic,) = groups.channel.topics
    groups.run(topic, source.written[topic])
    return Asked(groups, "groups"), test


class Fact(Row):
    n: Field[int]
    v: Field[int]


def test_a_group_of_a_table_that_lost_its_rows_is_there_with_none() -> None:
    """The row is that of the table that the operator makes."""
    asked, test = groups_of_a_table((b"a", 1, 5), (b"b", 1, 6), (b"c", 2, 7), (b"c", 3, 8))
    assert dict(of(asked.pages(10))) == test.store("groups")
    assert of(asked.get(b"2").rows) == [("2", {"n": 2, "rows": 0, "sum": None})]


def test_a_sum_that_left_its_type_is_null_until_it_is_back() -> None:
    """Later changes are taken from the sum itself, and the row is shown again."""
    most = 2**63 - 1
    asked, _ = groups_of_a_table((b"a", 1, most), (b"b", 1, 6), (b"c", 2, 7))
    broken, other = asked.pages(10)
    assert (broken.text, broken.problem) == (None, "an aggregate leaves the range of its type")
    assert of([other]) == [("2", {"n": 2, "rows": 1, "sum": 7})]
    again, _ = groups_of_a_table((b"a", 1, most), (b"b", 1, 6), (b"b", 2, 6))
    assert of(again.get(b"1").rows) == [("1", {"n": 1, "rows": 1, "sum": most})]
