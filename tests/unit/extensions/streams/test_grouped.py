"""Rows that are grouped in chunks and merged with what is stored, against rows one by one."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal  # noqa: TC003 - rows' fields are read from it
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.letter_headers import LetterHeaders
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.tables import in_this_thread
from headrace.extensions.streams.inline.stage import stage_of, why_rows
from headrace.extensions.streams.operators import Aggregate
from headrace.extensions.streams.runtime.tasks import RejectRules, Task, TaskRecords
from headrace.extensions.streams.runtime.worker_groups import GroupChoice
from headrace.extensions.streams.runtime.worker_stage import WorkerStage
from headrace.streams import (
    Field,
    Row,
    Topology,
    approx_distinct,
    approx_quantile,
    collect,
    count,
    distinct,
    field,
    first,
    fold,
    hopping,
    key,
    last,
    least,
    mean,
    most,
    session,
    sliding,
    top,
    total,
    tumbling,
)
from headrace.testing.streams import TopicRecord
from tests.unit.extensions.streams.test_worker_stage import MALFORMED, run_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.extensions.streams.inline.stage import StageRows
    from headrace.streams import Stream, Table

#: A whole number of which a few leave 64 bits.
LARGE = 2**61


class Sale(Row):
    who: Field[str]
    n: Field[int | None]
    f: Field[float | None]
    d: Field[Decimal | None] = field(scale=2)
    s: Field[str | None]


class Numbers(Row):
    rows: Field[int]
    total: Field[int | None]
    least: Field[int | None]
    mean: Field[float | None]
    last: Field[int | None]


class Others(Row):
    rows: Field[int]
    floats: Field[float | None]
    decimals: Field[Decimal | None] = field(scale=2)
    most: Field[str | None]
    first: Field[str | None]
    best: Field[list[str]]
    some: Field[list[int]]
    different: Field[list[str]]


class Sketched(Row):
    different: Field[int]
    middle: Field[float | None]


class Added(Row):
    n: Field[int | None]


AGGREGATES: dict[type[Row], Callable[[], dict[str, Any]]] = {
    Numbers: lambda: {
        "rows": count(),
        "total": total(Sale.n),
        "least": least(Sale.n),
        "mean": mean(Sale.n),
        "last": last(Sale.n),
    },
    Others: lambda: {
        "rows": count(),
        "floats": total(Sale.f),
        "decimals": total(Sale.d),
        "most": most(Sale.s),
        "first": first(Sale.s),
        "best": top(2, by=Sale.n, of=Sale.s),
        "some": collect(Sale.n, limit=3),
        "different": distinct(Sale.s, limit=2),
    },
    Sketched: lambda: {
        "different": approx_distinct(Sale.s),
        "middle": approx_quantile(Sale.n, 0.5),
    },
}


def raised(sale: Sale) -> Sale:
    """Return a row of another number, and fail for some."""
    if sale.n == 13:
        raise ValueError("13")
    return sale


def random_topology(random: Random) -> Topology:
    """Return aggregates of a stream: mostly such as take groups, some with others beside them."""
    app = Topology()
    stream = app.stream("sales", Sale)
    if random.random() < 0.3:
        stream = stream.merge(app.stream("more", Sale))
    if random.random() < 0.3:
        stream = stream.filter((Sale.n < LARGE) | (Sale.n > 5))
    if random.random() < 0.3:
        stream = stream.map(raised, Sale)
    grouped_by = random.choice([key, Sale.who])
    for number in range(random.choice([1, 1, 2])):
        _add_aggregate(random, stream, grouped_by, f"a{number}")
    if random.random() < 0.2:
        stream.to("copies")
    return app


def _add_aggregate(random: Random, stream: Stream[Sale], by: Any, name: str) -> None:
    row = random.choice(list(AGGREGATES))
    groups = stream.group_by(by, name=name)
    size, step = random.choice([(10, 5), (20, 5), (12, 4), (7, 7)])
    grace = random.choice([0, 3, 40])
    window = random.choice(["none", "tumbling", "hopping", "hopping"])
    if window == "none":
        groups.agg(row, **AGGREGATES[row]()).updates().to(f"out-{name}")
        return
    windows = (
        tumbling(f"{size}ms", grace=f"{grace}ms")
        if window == "tumbling"
        else hopping(f"{size}ms", every=f"{step}ms", grace=f"{grace}ms")
    )
    table = groups.window(windows).agg(row, **AGGREGATES[row]())
    ways = random.choice(["updates", "final", "both", "none", "each"])
    if ways in {"updates", "both"}:
        table.updates().to(f"updates-{name}")
    if ways in {"final", "both"}:
        table.final().to(f"final-{name}")
    if ways == "each":
        table.each().to(f"each-{name}")


def random_records(random: Random) -> list[TopicRecord]:
    """Return records with few or many keys, in and out of order, some of them malformed."""
    keys = random.choice([1, 3, 3, 3, 150])
    disorder = random.choice([0, 0, 2, 15])
    step = random.choice([0.02, 0.1, 0.3, 2])
    large = random.choice([0, 0, 0.05])
    malformed = random.choice([0, 0.1])
    records = []
    now = 0.0
    for _ in range(random.choice([150, 400])):
        now += random.random() * step * 2
        at = max(int(now) - random.randint(0, disorder), 0)
        n = random.choice([None, random.randint(-9, 20), random.randint(-9, 20)])
        number = random.choice([LARGE, -LARGE]) if random.random() < large else n
        digits = 10**35 if random.random() < large else random.randint(-999, 999)
        row = {
            "who": f"u{random.randrange(keys)}",
            "n": number,
            "f": random.choice([None, -0.0, 0.1, 1e308, 1e-320, random.random()]),
            "d": random.choice([None, f"{digits}.25"]),
            "s": random.choice([None, "", "ä", *"abcdefg"]),
        }
        value: bytes | None = json.dumps(row).encode()
        if random.random() < malformed:
            value = random.choice([None, *MALFORMED])
        name = None if random.random() < malformed / 2 else f"k{random.randrange(keys)}".encode()
        records.append(TopicRecord(random.choice(["sales", "sales", "more"]), name, value, at))
    return records


def check(seed: int, failing: str, chunks: int) -> None:
    """Compare what comes of a random topology in chunks and in one process."""
    random = Random(seed)
    plan = random_topology(random).plan("shop")
    records = [
        each
        for each in random_records(random)
        if any(each.topic in c.topics for c in plan.channels)
    ]
    sizes = [random.choice([3, 60, 150]) for _ in range(3)]
    late = "dead_letter" if failing == "dead_letter" else "skip"
    rules = RejectRules(LetterHeaders("headrace", "g"), failing, late)
    expected = run_parts(plan, records, rules, sizes, None)
    assert run_parts(plan, records, rules, sizes, chunks) == expected


@pytest.mark.parametrize("failing", ["fail", "skip", "dead_letter"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), chunks=st.integers(1, 5))
def test_groups_in_chunks_make_what_rows_do(failing: str, seed: int, chunks: int) -> None:
    """Equal records, rows, letters and counts come of groups, with late and failing records."""
    check(seed, failing, chunks)


def count_ways(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return what counts how often groups are merged, refused, and left out for rows."""
    ways = Counter[str]()
    merge, run = Task.merge_groups, WorkerStage.run

    def merge_groups(task: Task, staged: StageRows) -> list[int]:
        refused = merge(task, staged)
        if staged.groups:
            ways["refused" if refused else "merged"] += 1
        return refused

    def run_stage(stage: WorkerStage, *parts: Any) -> dict[int, StageRows]:
        found = run(stage, *parts)
        several = (each.rows.keys() & each.stage.groups.keys() for each in found.values())
        ways["rows"] += any(several)
        return found

    monkeypatch.setattr(Task, "merge_groups", merge_groups)
    monkeypatch.setattr(WorkerStage, "run", run_stage)
    return ways


def test_random_topologies_take_each_way_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are merged, refused, and left out for rows, by what :func:`check` compares."""
    ways = count_ways(monkeypatch)
    for seed in range(40):
        check(seed, "skip", 1 + seed % 4)
    assert {name for name, times in ways.items() if times > 5} == {"merged", "refused", "rows"}


def sums(*, grace: str = "0s") -> Topology:
    """Add numbers up by key, and in windows of 10 ms."""
    app = Topology()
    sales = app.stream("sales", Sale)
    added = sales.group_by(key, name="whole").agg(Added, n=total(Sale.n))
    added.updates().to("whole")
    windows = sales.group_by(key, name="windows").window(tumbling("10ms", grace=grace))
    table = windows.agg(Added, n=total(Sale.n))
    table.updates().to("updates")
    table.final().to("final")
    return app


def sale(at: int, n: int, name: str = "k") -> TopicRecord:
    """Return a record with a number."""
    return TopicRecord("sales", name.encode(), json.dumps({"who": "u", "n": n}).encode(), at)


def records_of_task(number: int, records: list[TopicRecord]) -> TaskRecords:
    """Return records of a task as a micro-batch has them."""
    rows = [
        {
            "topic": each.topic,
            "partition": number,
            "offset": at,
            "timestamp": each.time * 1000,
            "key": each.key,
            "value": each.value,
        }
        for at, each in enumerate(records)
    ]
    return TaskRecords(number, pa.Table.from_pylist(rows, schema=SCHEMA))


def compare(
    records: list[TopicRecord], monkeypatch: pytest.MonkeyPatch, grace: str = "0s"
) -> tuple[Counter[str], list[Any]]:
    """Return the ways of groups with which sums come out as in one process, and what comes out."""
    rules = RejectRules(LetterHeaders("headrace", "g"), "dead_letter", "dead_letter")
    plan = sums(grace=grace).plan("shop")
    expected = run_parts(plan, records, rules, [], None)
    ways = count_ways(monkeypatch)
    assert run_parts(plan, records, rules, [], 3) == expected
    return ways, expected


def test_windows_that_close_between_records_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records in order close a window for none after them: final rows come of groups."""
    records = [sale(at // 3, 1, f"k{at % 2}") for at in range(120)]
    ways, (written, _, _) = compare(records, monkeypatch)
    assert ways == {"merged": 1, "rows": 0}
    assert len(written["final"]) == 6, "three windows are over, of two keys"


# with 41 it is the first record of a chunk, and late by those before
@pytest.mark.parametrize("at", [5, 41, 50, 100])
def test_a_late_record_in_any_chunk_has_all_counted_by_rows(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes when its window is over is left out, and has its letter."""
    records = [sale(n, 1) for n in range(100, 220)]
    records.insert(at, sale(1, 1))
    ways, (_, _, counts) = compare(records, monkeypatch)
    assert ways["refused"] == 1
    assert counts[0].late == 1


def test_a_record_that_is_late_by_the_stored_time_has_all_counted_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator time of the micro-batch before decides as well."""
    rules = RejectRules(LetterHeaders("headrace", "g"), "dead_letter", "dead_letter")
    plan = sums().plan("shop")
    records = [sale(at // 6, 1) for at in range(60, 120)] + [sale(3, 1)] * 60
    expected = run_parts(plan, records, rules, [60], None)
    ways = count_ways(monkeypatch)
    assert run_parts(plan, records, rules, [60], 3) == expected
    assert (ways["merged"], ways["refused"]) == (1, 1)
    assert expected[2][1].late == 60


def test_a_sum_that_leaves_its_type_has_all_counted_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record with which it does is poison, whatever comes after it."""
    records = [sale(0, n) for n in [LARGE] * 5 + [-LARGE] * 55]
    ways, (_, _, counts) = compare(records, monkeypatch)
    assert ways["refused"] == 1
    assert counts[0].rejected > 0


def test_a_sum_by_key_alone_that_leaves_its_type_has_all_counted_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums without windows say by themselves that a value may have left its type on the way."""
    app = Topology()
    summed = app.stream("sales", Sale).group_by(key, name="whole").agg(Added, n=total(Sale.n))
    summed.updates().to("whole")
    plan = app.plan("shop")
    rules = RejectRules(LetterHeaders("headrace", "g"), "dead_letter", "dead_letter")
    records = [sale(0, n) for n in [LARGE] * 5 + [-LARGE] * 5] * 6
    expected = run_parts(plan, records, rules, [], None)
    ways = count_ways(monkeypatch)
    assert run_parts(plan, records, rules, [], 3) == expected
    assert ways["refused"] == 1


def test_many_keys_come_back_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group for each row takes more than the row."""
    ways, _ = compare([sale(0, 1, f"k{n}") for n in range(60)], monkeypatch)
    assert ways == {"rows": 1}


def test_groups_that_were_in_vain_rest_for_longer_each_time() -> None:
    """Two micro-batches after the first time, four after the second, and none after a use."""
    choice = GroupChoice([7])
    chosen = []
    for useful in (False, False, True, True):
        assert choice.choose() == [7]
        choice.note(7, useful=useful)
        rests = 0
        while useful is False and not choice.choose():
            rests += 1
        chosen.append(rests)
    assert chosen == [2, 4, 0, 0]


def test_streams_with_late_records_are_grouped_less_and_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three of fourteen micro-batches with a late record each are grouped in vain."""
    rules = RejectRules(LetterHeaders("headrace", "g"), "dead_letter", "dead_letter")
    plan = sums().plan("shop")
    records = []
    for begin in range(100, 1500, 100):
        records += [sale(begin + at, 1) for at in range(50)]
        records.append(sale(begin, 1))
    ways = count_ways(monkeypatch)
    (_, _, counts) = run_parts(plan, records, rules, [51] * 13, 2)
    assert sum(each.late for each in counts) == 14
    assert ways["refused"] == 3


def test_few_records_of_one_task_do_not_end_groups_of_others() -> None:
    """Rows of a small piece are grouped in the daemon, and the next micro-batch has groups."""
    plan = sums().plan("shop")
    stage = WorkerStage(plan, plan.channels[0])
    tables = [records_of_task(0, [sale(0, 1)] * 100), records_of_task(1, [sale(0, 1)])]
    for _ in range(3):
        found = stage.run(tables, in_this_thread, 2, lambda *_: [])
        assert found[0].groups
        assert found[1].rows


def add(value: int, sale: Sale) -> int:
    """Return a sum."""
    return value + (sale.n or 0)


def reasons(build: Callable[[Stream[Sale]], object]) -> list[str | None]:
    """Return why each aggregate of a topology takes rows."""
    app = Topology()
    build(app.stream("sales", Sale))
    plan = app.plan("shop")
    aggregates = (at for at, each in enumerate(plan.operators) if isinstance(each, Aggregate))
    return [why_rows(plan, at) for at in aggregates]


def counted(sales: Stream[Sale], windows: Any = None) -> Table[Any]:
    """Count rows by key."""
    groups = sales.group_by(key, name="n")
    return (groups if windows is None else groups.window(windows)).agg(Added, n=count())


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda s: counted(s).updates().to("out"), None),
        (lambda s: counted(s, hopping("10s", every="5s")).final().to("out"), None),
        (lambda s: counted(s).each().to("out"), "each() has a row for each"),
        (lambda s: counted(s, tumbling("1s")).each().to("out"), "each() has a row for each"),
        (
            lambda s: counted(s, session("1s")).final().to("out"),
            "its windows begin and end with rows",
        ),
        (
            lambda s: counted(s, sliding("1s")).final().to("out"),
            "its windows begin and end with rows",
        ),
        (
            lambda s: s.lookup(counted(s), Added, n=Added.n, name="with").to("out"),
            "others read its table row by row",
        ),
        (
            lambda s: (
                s.group_by(key, name="n").agg(Added, n=fold(0, add, rows=Sale)).updates().to("out")
            ),
            "its function is called for each row, in their order",
        ),
    ],
)
def test_an_aggregate_takes_rows_for_a_reason(build: Any, why: str | None) -> None:
    """An aggregate that needs each row says why, and all others take groups."""
    assert reasons(build) == [why]


def test_rows_that_another_operator_needs_are_not_grouped() -> None:
    """A stream that is read row by row as well comes back as rows alone."""
    app = Topology()
    sales = app.stream("sales", Sale)
    counted(sales).updates().to("out")
    sales.group_by(key, name="each").agg(Added, n=count()).each().to("each")
    plan = app.plan("shop")
    assert not stage_of(plan, plan.channels[0]).groups
