"""Operators without state in chunks, as Spark's workers run them, against one process."""

from __future__ import annotations

import json
import sys
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from headrace.core.errors import PoisonRecordError
from headrace.core.letter_headers import LetterHeaders
from headrace.core.tables import SCHEMA
from headrace.extensions.streams.inline.stage import stage_of
from headrace.extensions.streams.inline.times import in_task_order
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.extensions.streams.runtime.worker_stage import StageFunction
from headrace.keyed import Fired, at_event
from headrace.streams import Field, Row, Topology, count, field, key, total, tumbling
from headrace.testing.streams import InMemoryPart, TopicRecord, check_topology
from tests.streams.program import write_topology
from tests.streams.scenario import KINDS, scenario

if TYPE_CHECKING:
    from headrace.extensions.streams.plan import Plan
    from headrace.keyed import Event, Timer

#: What a value may be instead of the one of a scenario.
MALFORMED = (b"", b"{", b"{}", b'{"n": "x", "s": "a"}', b'{"n": 1, "s": null}', b"[1]", b"\xff")


class Click(Row):
    user: Field[str]
    n: Field[int]


class Counted(Row):
    user: Field[str]
    n: Field[int]


def records_of(found: dict[str, Any], random: Random) -> list[TopicRecord]:
    """Return the records of a scenario, some of them malformed."""
    records = []
    for topic, name, row, time in found["records"]:
        value = None if row is None else json.dumps(row).encode()
        if random.random() < 0.15:
            value = random.choice(MALFORMED)
        named = None if random.random() < 0.05 else name.encode()
        at = -1 if random.random() < 0.03 else time
        records.append(TopicRecord(topic, named, value, at))
    return records


def run_parts(
    plan: Plan,
    records: list[TopicRecord],
    rules: RejectRules,
    sizes: list[int],
    chunks: int | None,
) -> list[Any]:
    """Return all that comes of each part: records, rows, counts, or the record that is poison."""
    topics: dict[str, list[TopicRecord]] = {}
    for record in records:
        topics.setdefault(record.topic, []).append(record)
    found: list[Any] = []
    for circle in plan.circles_in_order:
        # what is merged is compared with rows of windows that are read from the state each time
        cache = 64 << 20 if chunks is None else 0
        runs = [
            InMemoryPart(plan, part, rules, chunks=chunks, cache_bytes=cache) for part in circle
        ]
        read = [dict.fromkeys(run.part.topics, 0) for run in runs]
        worked = True
        while worked:
            # parts that answer each other go on until none has records
            worked = False
            for run, positions in zip(runs, read, strict=True):
                worked = run_new(plan, run, positions, topics, sizes=sizes, found=found) or worked
        for run in runs:
            found += [run.written, sorted(run.rows().items()), run.counts]
    return found


def run_new(
    plan: Plan,
    run: InMemoryPart,
    read: dict[str, int],
    topics: dict[str, list[TopicRecord]],
    *,
    sizes: list[int],
    found: list[Any],
) -> bool:
    """Run what a part has not read yet in cuts, and say whether there was anything."""
    waiting: dict[str, list[TopicRecord]] = {}
    for topic, at in read.items():
        there = topics.get(topic, [])
        waiting[topic] = there[at:]
        read[topic] = len(there)
    new = in_task_order(plan, run.part, waiting)
    at = 0
    for size in [*sizes, len(new) + 1]:
        try:
            run.run(new[at : at + size])
        except PoisonRecordError:
            # of several in a micro-batch any may be named
            found.append(f"poison at {at}")
        at += size
    topics |= run.written
    return bool(new)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failing", ["fail", "skip", "dead_letter"])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**9), chunks=st.integers(1, 6))
def test_a_stage_in_chunks_makes_what_one_process_does(
    kind: str, failing: str, seed: int, chunks: int
) -> None:
    """Equal records, rows, letters and counts come of random topologies with malformed records."""
    found = scenario(seed, kind)
    plan = write_topology(found).plan("shop")
    random = Random(seed)
    records = records_of(found, random)
    sizes = [random.randint(1, 25) for _ in range(6)]
    letters = LetterHeaders("headrace", "g")
    rules = RejectRules(letters, failing, "dead_letter" if failing == "dead_letter" else "skip")
    expected = run_parts(plan, records, rules, sizes, None)
    assert run_parts(plan, records, rules, sizes, chunks) == expected


def test_a_stage_is_what_needs_no_state() -> None:
    """Operators after an aggregate are not in the stage, and those before it are."""
    app = Topology()
    clicks = app.stream("clicks", Click).filter(Click.n > 0)
    counted = clicks.group_by(key, name="n").agg(Counted, user=key, n=count())
    counted.updates().filter(Counted.n > 1).to("many")
    clicks.to("copies")
    plan = app.plan("shop")
    stage = stage_of(plan, plan.channels[0])
    labels = [plan.operators[each].label for each in sorted(stage.operators)]
    assert labels == ["stream", "filter", "to 'copies'"]
    assert [plan.operators[each].label for each in stage.yields] == ["filter"]
    assert stage.needs_values


def test_a_stage_of_keys_alone_needs_no_values() -> None:
    """A count by key reads no field, so that values are sent as null or not."""
    app = Topology()
    by_key = app.stream("clicks", Click).group_by(key, name="n")
    by_key.window(tumbling("1m")).agg(Counted, user=key, n=count()).final().to("n")
    plan = app.plan("shop")
    assert not stage_of(plan, plan.channels[0]).needs_values


def fail_odd(click: Click) -> Counted | None:
    """Return a row, for some none, and fail for others."""
    if click.n % 5 == 0:
        return None
    if click.n % 7 == 0:
        raise ValueError(f"{click.n} is odd")
    return Counted(user=click.user, n=click.n)


def functions() -> Topology:
    """Call a function for each row, before and after a change of key."""
    app = Topology()
    mapped = app.stream("clicks", Click).map(fail_odd, Counted)
    counted = mapped.group_by(Counted.user, name="by-user").agg(Counted, user=key, n=count())
    counted.each().map(lambda each: Counted(user=each.user, n=-each.n), Counted).to("out")
    return app


def test_a_function_that_fails_in_a_chunk_makes_its_record_poison() -> None:
    """The letters are those of one process, each with the record's own place."""
    plan = functions().plan("shop")
    records = [
        TopicRecord("clicks", b"k", json.dumps({"user": f"u{n % 3}", "n": n}).encode(), n)
        for n in range(60)
    ]
    rules = RejectRules(LetterHeaders("headrace", "g"), "dead_letter")
    expected = run_parts(plan, records, rules, [7, 20], None)
    assert run_parts(plan, records, rules, [7, 20], 4) == expected
    assert sum(each.rejected for each in expected[2]) == 7, "sevenths but fifths"


class Quiet(Row):
    user: Field[str]
    clicks: Field[int]


class Sum(Row):
    user: Field[str]
    n: Field[int | None]


def tell_quiet(
    user: str, clicks: int | None, facts: list[Event[Any] | Fired], now: int
) -> tuple[int | None, list[Quiet], dict[str, Timer]]:
    """Tell users who were quiet for five milliseconds, and fail for some clicks."""
    (fact,) = facts
    if isinstance(fact, Fired):
        return None, [Quiet(user=user, clicks=clicks or 0)], {}
    if fact.value.n % 11 == 0:
        raise ValueError(f"{fact.value.n} at {fact.source}@{fact.offset}")
    return (clicks or 0) + 1, [], {"quiet": at_event(fact.ts + 5)}


def reducers() -> Topology:
    """Reduce by key and by another one, and group a table, each behind a function or a filter."""
    app = Topology()
    clicks = app.stream("clicks", Click).filter(Click.n > 2)
    clicks.reduce(tell_quiet, name="by-key", rows=Quiet).to("by-key-out")
    by_user = clicks.map(fail_odd, Counted).key_by(Counted.user, name="by-user")
    quiet = by_user.reduce(tell_quiet, name="quiet", rows=Quiet)
    quiet.map(lambda each: Quiet(user=each.user, clicks=-each.clicks), Quiet).to("quiet-out")
    people = app.table("people", Click, name="people").filter(Click.n != 3)
    groups = people.group_by(Click.user, name="groups")
    groups.agg(Sum, user=Click.user, n=total(Click.n)).each().to("groups-out")
    return app


@pytest.mark.parametrize("failing", ["fail", "skip", "dead_letter"])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**9), chunks=st.integers(1, 6))
def test_reducers_and_groups_of_tables_behind_a_stage_make_what_one_process_does(
    failing: str, seed: int, chunks: int
) -> None:
    """Timers, states, rows that moved, letters and counts are equal, whatever fails before."""
    random = Random(seed)
    records = []
    for at in range(120):
        value = json.dumps({"user": f"u{random.randrange(5)}", "n": random.randrange(40)}).encode()
        topic = random.choice(["clicks", "people"])
        name = f"k{random.randrange(4)}".encode()
        found = random.choice([value] * 12 + [None, *MALFORMED])
        records.append(TopicRecord(topic, name, found, 2 * at + random.randrange(12)))
    plan = reducers().plan("shop")
    sizes = [random.randint(1, 25) for _ in range(6)]
    rules = RejectRules(LetterHeaders("headrace", "g"), failing)
    expected = run_parts(plan, records, rules, sizes, None)
    assert run_parts(plan, records, rules, sizes, chunks) == expected


def merged() -> Topology:
    """Return counts of clicks and of changes of a table, of which no field is read."""
    app = Topology()
    changes = app.table("users", Click, name="users").each()
    some = app.stream("clicks", Click).filter(Click.n > 0)
    table = changes.merge(some).group_by(key, name="both").agg(Counted, user=key, n=count())
    table.each().to("counts")
    return app


@pytest.mark.parametrize("chunks", [1, 3])
def test_streams_of_a_stage_and_of_a_table_are_merged_where_fields_are_not_read(
    chunks: int,
) -> None:
    """Workers send the fields in use, and a table makes all of them."""
    values = [("users", 5), ("clicks", 1), ("clicks", -1), ("users", 2), ("clicks", 7)]
    records = [
        TopicRecord(topic, b"ada", b'{"user":"ada","n":%d}' % n, at * 1000)
        for at, (topic, n) in enumerate(values)
    ]
    rules = RejectRules(LetterHeaders("headrace", "g"))
    plan = merged().plan("shop")
    expected = run_parts(plan, records, rules, [3], None)
    assert run_parts(plan, records, rules, [3], chunks) == expected
    assert json.loads(expected[0]["counts"][-1].value) == {"user": "ada", "n": 4}


class Optional(Row):
    n: Field[int | None]
    named: Field[str] = field(default="unnamed")
    s: Field[str | None]


def optional() -> Topology:
    """Write rows of which fields may be missing, have a default or are needed."""
    app = Topology()
    app.stream("clicks", Optional).to("out")
    app.stream("needed", Click).to("needed-out")
    return app


@pytest.mark.parametrize("value", [b"{}", b'{"n": null, "s": null}', b'{"n": 1, "user": "a"}'])
def test_a_stage_that_is_sent_to_workers_reads_what_it_does_here(value: bytes) -> None:
    """A missing field is null, has its default or is poison, after the rows' classes were sent."""
    plan = optional().plan("shop")
    for part in plan.channels:
        stage = stage_of(plan, part)
        here = StageFunction(plan, part, stage, None)
        pickles: Any = cloudpickle
        pickles.register_pickle_by_value(sys.modules[__name__])
        try:
            sent = pickles.loads(pickles.dumps(here))
        finally:
            pickles.unregister_pickle_by_value(sys.modules[__name__])
        rows = [{"topic": part.topics[0], "partition": 0, "offset": 0, "key": b"k", "value": value}]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        assert sent(table).equals(here(table))


def test_a_topology_is_the_same_over_chunks() -> None:
    """The check of a topology runs it in chunks, too."""
    numbers = [n for n in range(80) if n % 7]
    records = [("clicks", "k", {"user": f"u{n % 3}", "n": n}, n) for n in numbers]
    check_topology(functions, records, runs=10)
