"""Topologies as channels run them: micro-batches of tasks on a state, dropped and restored."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.core.errors import HeadraceError, PoisonRecordError
from headrace.core.letter_headers import LetterHeaders
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.sink import staged_state
from headrace.extensions.keyed.state import LayeredState, Progress
from headrace.extensions.keyed.tables import DEAD_LETTERS, OUTPUT
from headrace.extensions.streams.runtime.fold import TopologyFold, merged_by_time
from headrace.extensions.streams.runtime.stores import rows_prefix
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
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
    sliding,
    total,
    tumbling,
    window_start,
)
from headrace.testing.keyed import MemoryStore
from tests.streams.program import write_topology
from tests.streams.scenario import KINDS as ALL_KINDS
from tests.streams.scenario import scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.streams.plan import Channel, Plan

#: A record: key, value, time.
Record = tuple[bytes | None, bytes | None, int]

RULES = RejectRules(LetterHeaders("headrace", "g"))

#: Bytes of windows' rows in memory: no row, some of them, all.
CACHES = st.sampled_from([0, 1_000, 64 << 20])


class InMemory:
    """A channel of a plan on one partition, whose state outlives each fold.

    ``cache`` are the bytes of windows' rows that it has in memory, about.
    """

    def __init__(
        self, plan: Plan, channel: Channel, rules: RejectRules = RULES, cache: int = 64 << 20
    ) -> None:
        self.plan, self.channel, self.rules, self.cache = plan, channel, rules, cache
        self.store = MemoryStore()
        self.written: dict[str, list[Record]] = {}
        self.counts: list[Any] = []
        self.named: dict[str, Counter[str]] = {}
        self._offset = self._number = 0
        self.restart()

    def restart(self) -> None:
        """Begin again with what was committed."""
        self.state = LayeredState(self.store)
        self.state.begin(0, Progress({"in": self._offset}, self._number, None))
        self.state.admit(0)
        self.fold = TopologyFold(
            self.plan,
            self.channel,
            self.state,
            self.rules,
            512 * 1024,
            cache_bytes=self.cache,
        )

    def run(
        self, topic: str | Sequence[str], records: Sequence[Record], *, commits: bool = True
    ) -> None:
        """Run a micro-batch; commit what came of it, or drop it. ``topic`` may be each record's."""
        self._number += 1
        batch = MicroBatch(
            f"m{self._number}",
            "c",
            (OffsetRange("in", 0, self._offset, self._offset + len(records), len(records)),),
        )
        result = self.fold(table_of(topic, records, self._offset), batch)
        self._require_formers(result)
        staged = staged_state(batch, result, self.state, str)
        self.state.stage(staged.layer)
        if not commits:
            self.state.drop(batch.id)
            return
        self._offset += len(records)
        self.state.apply([staged.layer], {0: Progress({"in": self._offset}, self._number, None)})
        self.counts.append(staged.counts)
        for name, counted in staged.named.items():
            self.named.setdefault(name, Counter()).update(counted)
        for each in staged.outputs:
            record = (each.key, each.value, each.timestamp or 0)
            self.written.setdefault(each.topic, []).append(record)

    def _require_formers(self, result: pa.Table) -> None:
        """Assert that what the result says of rows before it is what the state has."""
        changed = result.filter(result.column("changed"))
        keys = [PartitionKey(0, key) for key in changed.column("key").to_pylist()]
        known = [None if row is None else row.state for row in self.state.get_many(keys)]
        assert changed.column("former_state").to_pylist() == known

    def rows(self, store: str) -> dict[bytes, bytes | None]:
        """Return the committed rows of a store."""
        found = self.state.rows_of(0, rows_prefix(store))
        return {key: row.state for key, row in found.items()}


def table_of(topic: str | Sequence[str], records: Sequence[Record], offset: int = 0) -> pa.Table:
    """Return records with the columns of every micro-batch."""
    topics = [topic] * len(records) if isinstance(topic, str) else topic
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    rows = [
        {
            "topic": topics[at],
            "partition": 0,
            "offset": offset + at,
            "timestamp": epoch + timedelta(milliseconds=time),
            "key": name,
            "value": value,
        }
        for at, (name, value, time) in enumerate(records)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


class Click(Row):
    n: Field[int]


class Sums(Row):
    key: Field[str]
    begin: Field[int | None]
    n: Field[int]
    sum: Field[int]


KINDS: dict[str, Any] = {
    "tumbling": tumbling("10s", grace="5s"),
    "hopping": hopping("10s", every="4s", grace="5s"),
    "sliding": sliding("4s", grace="5s"),
    "session": session("3s", grace="5s"),
    "groups": None,
}


def program(kind: str) -> Topology:
    """Return a topology that aggregates clicks by their keys in windows of a kind, or without."""
    app = Topology()
    grouped = app.stream("clicks", Click).filter(Click.n >= 0).group_by(key, name="sums")
    windows = KINDS[kind]
    if windows is None:
        table = grouped.agg(Sums, key=key, begin=None, n=count(), sum=total(Click.n))
        table.each().to("each")
        table.updates().to("updates")
        return app
    windowed = grouped.window(windows)
    found = windowed.agg(Sums, key=key, begin=window_start, n=count(), sum=total(Click.n))
    if kind != "session":
        found.each().to("each")
    found.final().to("final")
    return app


def clicks(seed: int, size: int) -> list[Record]:
    """Return clicks of few keys whose times go on, some of them late."""
    random, now = Random(seed), 0
    found: list[Record] = []
    for _ in range(size):
        now += random.randrange(1500)
        late = random.choice([0, 0, 0, 2_000, 9_000])
        value = b'{"n":%d}' % random.randrange(-1, 5)
        found.append((b"%c" % random.choice(b"abc"), value, max(0, now - late)))
    return found


def expected(topology: Topology, records: Sequence[Record]) -> StreamsTest:
    """Return the same topology in the test kit, with all records at once."""
    test = StreamsTest(topology, batch=10_000)
    for name, value, time in records:
        test.pipe("clicks", value, key=name, time=time)
    return test


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_channel_writes_what_the_test_kit_does_over_cuts_drops_and_restarts(
    kind: str, data: st.DataObject
) -> None:
    """Each and final are the same, and so are the late records and the rows at the end."""
    records = clicks(data.draw(st.integers(0, 999)), data.draw(st.integers(1, 60)))
    plan = program(kind).plan("shop")
    (channel,) = plan.channels
    run, at = InMemory(plan, channel, cache=data.draw(CACHES)), 0
    while at < len(records):
        size = data.draw(st.integers(1, 12))
        for _ in range(data.draw(st.sampled_from([0, 0, 0, 1]))):
            run.run("clicks", records[at : at + data.draw(st.integers(1, 12))], commits=False)
        if data.draw(st.sampled_from([False, False, True])):
            run.restart()
        run.run("clicks", records[at : at + size])
        at += size
    test = expected(program(kind), records)
    for topic in ("each", "final"):
        wanted = [(each.key, each.value, each.time) for each in test.read(topic)]
        assert _read(run.written.get(topic, [])) == wanted
    if kind == "groups":
        updates = {each.key: (each.value, each.time) for each in test.read("updates")}
        made = {key: (value, time) for key, value, time in _read(run.written.get("updates", []))}
        assert made == updates
    late = 0 if kind == "groups" else test.late("sums")
    assert sum(each.late for each in run.counts) == late
    stored = run.rows("sums")
    run.restart()
    assert run.rows("sums") == stored


def _read(records: Sequence[Record]) -> list[tuple[str | None, Any, int]]:
    return [
        (None if key is None else key.decode(), None if value is None else json.loads(value), time)
        for key, value, time in records
    ]


class Mark(Row):
    m: Field[str]
    ratio: Field[float | None]


class Both(Row):
    key: Field[str]
    n: Field[int | None]
    m: Field[str | None]
    ratio: Field[float | None]


def join(kind: Literal["inner", "left", "outer"]) -> Topology:
    """Return a topology that joins clicks and marks within three seconds."""
    app = Topology()
    left, right = app.stream("clicks", Click), app.stream("marks", Mark)
    joined = left.join(
        right,
        Both,
        name="both",
        kind=kind,
        within="3s",
        grace="2s",
        key=key,
        n=Click.n,
        m=Mark.m,
        ratio=Mark.ratio,
    )
    joined.to("both")
    return app


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@settings(max_examples=20)
@given(data=st.data())
def test_a_join_in_a_channel_writes_what_the_test_kit_does_over_cuts_drops_and_restarts(
    kind: Literal["inner", "left", "outer"], data: st.DataObject
) -> None:
    """Pairs and what stayed alone are the same in the same order, and so are the buffers."""
    random = Random(data.draw(st.integers(0, 999)))
    both: list[tuple[str, Record]] = []
    for name, value, time in clicks(random.randrange(999), data.draw(st.integers(1, 50))):
        if random.random() < 0.5:
            both.append(("clicks", (name, random.choice([value, value, None]), time)))
        else:
            ratio = random.choice([b"0.5", b"null", b"3"])
            mark = b'{"m":"\\u00e9\\n%d","ratio":%s}' % (random.randrange(9), ratio)
            both.append(("marks", (name, mark, time)))
    plan = join(kind).plan("shop")
    (channel,) = plan.channels
    run, at = InMemory(plan, channel), 0
    while at < len(both):
        size = data.draw(st.integers(1, 12))
        for _ in range(data.draw(st.sampled_from([0, 0, 0, 1]))):
            some = both[at : at + data.draw(st.integers(1, 12))]
            run.run([t for t, _ in some], [record for _, record in some], commits=False)
        if data.draw(st.sampled_from([False, False, True])):
            run.restart()
        some = both[at : at + size]
        run.run([t for t, _ in some], [record for _, record in some])
        at += size
    test = StreamsTest(join(kind))
    for topic, (name, value, time) in both:
        test.pipe(topic, value, key=name, time=time)
    wanted = [(each.key, each.value, each.time) for each in test.read("both")]
    assert _read(run.written.get("both", [])) == wanted
    stored = [json.loads(value or b"") for value in run.rows("both").values()]
    assert sorted((each["key"], each["time"]) for each in stored) == sorted(
        (name, time) for name, time, _ in test.buffered("both")
    )


#: Kinds of scenarios that may be one channel, of operators that keep rows by key.
SCENARIOS = [
    *(kind for kind in ALL_KINDS if kind.startswith(("stream_table", "table_table", "join"))),
    "mixed",
    "stateless",
]


@pytest.mark.parametrize("kind", SCENARIOS)
@settings(max_examples=6)
@given(data=st.data())
def test_a_scenario_in_a_channel_writes_what_the_test_kit_does(
    kind: str, data: st.DataObject
) -> None:
    """Tables, lookups and joins, over cuts, drops and restarts; updates by the last of a key."""
    found = scenario(data.draw(st.integers(0, 10**9)), kind)
    plan = write_topology(found).plan("shop")
    assume(len(plan.channels) == 1 and not plan.by_key and not plan.answers)
    (channel,) = plan.channels
    records = [
        (topic, (key.encode(), None if row is None else json.dumps(row).encode(), time))
        for topic, key, row, time in found["records"]
    ]
    rules = RejectRules(LetterHeaders("headrace", "g"), "skip")
    run, at = InMemory(plan, channel, rules, data.draw(CACHES)), 0
    while at < len(records):
        size = data.draw(st.integers(1, 20))
        if data.draw(st.sampled_from([False, False, True])):
            some = records[at : at + 5]
            run.run([t for t, _ in some], [record for _, record in some], commits=False)
        if data.draw(st.sampled_from([False, False, True])):
            run.restart()
        some = records[at : at + size]
        run.run([t for t, _ in some], [record for _, record in some])
        at += size
    test = StreamsTest(write_topology(found), on_poison="drop")
    for topic, (name, value, time) in records:
        test.pipe(topic, value, key=name, time=time)
    for topic in channel.writes:
        wanted = [(each.key, each.value, each.time) for each in test.read(topic)]
        got = _read(run.written.get(topic, []))
        if "updates" in topic:
            assert {each[0]: each for each in got} == {each[0]: each for each in wanted}
        else:
            assert got == wanted


class Price(Row):
    amount: Field[Decimal] = field(scale=2)


class Prices(Row):
    left: Field[Decimal | None] = field(scale=2)
    right: Field[Decimal | None] = field(scale=2)


def priced(kind: str) -> Topology:
    """Return a topology that joins prices, as streams or as tables."""
    app = Topology()
    fields: Any = {"left": Price.amount, "right": Other.amount}
    if kind == "streams":
        left, right = app.stream("left", Price), app.stream("right", Other)
        left.join(right, Prices, name="both", within="1s", **fields).to("out")
    else:
        tables = app.table("left", Price, name="a"), app.table("right", Other, name="b")
        tables[0].join(tables[1], Prices, name="both", **fields).each().to("out")
    return app


class Other(Row):
    amount: Field[Decimal] = field(scale=2)


@pytest.mark.parametrize("kind", ["streams", "tables"])
def test_numbers_of_stored_rows_keep_their_digits_over_a_restart(kind: str) -> None:
    """A decimal of more digits than a float has is the same when its row is read again."""
    plan = priced(kind).plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel)
    run.run("left", [(b"k", b'{"amount":12345678901234567.89}', 1)])
    run.restart()
    run.run("right", [(b"k", b'{"amount":1}', 2)])
    (_, value, _) = run.written["out"][0]
    assert json.loads(value or b"", parse_float=Decimal)["left"] == Decimal("12345678901234567.89")


def test_a_row_that_a_join_cannot_keep_is_poison() -> None:
    """JSON has no number for one that is not finite."""
    plan = join("left").plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel, RejectRules(LetterHeaders("headrace", "g"), "skip"))
    run.run("marks", [(b"a", b'{"m":"x","ratio":1e999}', 1), (b"a", b'{"m":"y","ratio":1}', 2)])
    assert [json.loads(value or b"")["row"] for value in run.rows("both").values()] == [
        {"m": "y", "ratio": 1.0}
    ]


@pytest.mark.parametrize("kind", ["tumbling", "groups"])
@pytest.mark.parametrize("failing", ["fail", "skip", "dead_letter"])
def test_a_record_that_fails_goes_where_the_rules_say(failing: str, kind: str) -> None:
    """It is left out, goes to the dead letters, or fails its micro-batch by its offset."""
    plan = program(kind).plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel, RejectRules(LetterHeaders("headrace", "g"), failing))
    records: list[Record] = [
        (b"a", b'{"n":1}', 1),
        (b"a", b'{"n":"x"}', 2),
        (None, b'{"n":1}', 3),
        (b"a", b'{"n":9223372036854775807}', 4),
    ]
    if failing == "fail":
        with pytest.raises(PoisonRecordError) as caught:
            run.run("clicks", records)
        assert caught.value.offset == 1
        return
    run.run("clicks", records)
    (counts,) = run.counts
    assert counts.rejected == 3
    letters = run.written.get(DEAD_LETTERS, [])
    assert [value for _, value, _ in letters] == (
        [value for _, value, _ in records[1:]] if failing == "dead_letter" else []
    )
    assert [each["n"] for _, each, _ in _read(run.written["each"])] == [1]


def test_the_state_of_a_failed_micro_batch_is_not_gone_on_with() -> None:
    """The next one counts what was committed, though a record failed after others were counted."""
    plan = program("tumbling").plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel)
    run.run("clicks", [(b"a", b'{"n":1}', 1)])
    with pytest.raises(PoisonRecordError):
        run.run("clicks", [(b"a", b'{"n":1}', 2), (b"a", b"{", 3)])
    run.run("clicks", [(b"a", b'{"n":1}', 2)])
    assert [each["n"] for _, each, _ in _read(run.written["each"])] == [1, 2]


def test_a_row_above_the_limit_names_its_key_and_what_to_do() -> None:
    """The limit fails its micro-batch before anything is staged."""

    class Texts(Row):
        text: Field[str]

    class Collected(Row):
        texts: Field[list[str]]

    app = Topology()
    grouped = app.stream("texts", Texts).group_by(key, name="texts")
    grouped.agg(Collected, texts=collect(Texts.text, limit=1000)).updates().to("out")
    plan = app.plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel)
    run.fold.follow(RULES, 1000)
    with pytest.raises(HeadraceError, match=r"the row 'texts/a' has 1\d\d\d bytes.*state.max_row"):
        run.run("texts", [(b"a", b'{"text":"%s"}' % (b"x" * 300), at) for at in range(4)])


@pytest.mark.parametrize("kind", ["tumbling", "session", "groups"])
def test_rows_are_gone_on_with_where_fields_are_written_in_another_order(kind: str) -> None:
    """Each aggregate has its own value again."""

    class Other(Row):
        sum: Field[int]
        n: Field[int]

    def written(*, sum_first: bool) -> Plan:
        app = Topology()
        grouped: Any = app.stream("clicks", Click).group_by(key, name="sums")
        if KINDS[kind] is not None:
            grouped = grouped.window(KINDS[kind])
        fields = {"sum": total(Click.n), "n": count()}
        ordered = dict(fields if sum_first else reversed(fields.items()))
        grouped.agg(Other, **ordered).updates().to("updates")
        return app.plan("shop")

    first = written(sum_first=True)
    run = InMemory(first, first.channels[0])
    run.run("clicks", [(b"a", b'{"n":5}', 1), (b"a", b'{"n":6}', 2)])
    run.plan = written(sum_first=False)
    assert [each.fingerprint for each in run.plan.stores] == [s.fingerprint for s in first.stores]
    run.restart()
    run.run("clicks", [(b"a", b'{"n":7}', 3)])
    assert _read(run.written["updates"])[-1][1] == {"sum": 18, "n": 3}


def test_rows_of_closed_windows_are_deleted() -> None:
    """The state has those of open windows alone, and the operator time."""
    plan = program("tumbling").plan("shop")
    (channel,) = plan.channels
    run = InMemory(plan, channel)
    run.run("clicks", [(b"a", b'{"n":1}', 1_000), (b"b", b'{"n":1}', 12_000)])
    assert list(run.rows("sums")) == [
        b"sums/0000000000000000000/a",
        b"sums/0000000000000010000/b",
    ]
    run.run("clicks", [(b"a", b'{"n":1}', 40_000)])
    assert list(run.rows("sums")) == [b"sums/0000000000000040000/a"]


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_two_partitions_of_a_micro_batch_do_not_see_each_other(sizes: list[int], seed: int) -> None:
    """A call with both partitions gives what calls with each alone give."""
    records = clicks(seed, sum(sizes))
    assume(len(records) > 1)
    plan = program("hopping").plan("shop")
    (channel,) = plan.channels
    alone = InMemory(plan, channel)
    alone.run("clicks", records)
    both = InMemory(plan, channel)
    for number in (0, 1):
        both.state.begin(number, Progress({"in": 0}, 0, None))
        both.state.admit(number)
    table = table_of("clicks", records)
    upper = [(name and name.upper(), value, time) for name, value, time in records]
    other = table_of("clicks", upper)
    other = other.set_column(
        other.schema.get_field_index("partition"),
        other.schema.field("partition"),
        pa.array([1] * len(records), other.schema.field("partition").type),
    )
    ranges = tuple(OffsetRange("clicks", n, 0, len(records), len(records)) for n in (0, 1))
    result = both.fold(pa.concat_tables([table, other]), MicroBatch("m", "c", ranges))
    outputs = [out for row in result.column("outputs").to_pylist() for out in row or ()]
    made = [(out["key"], out["value"], out["ts"]) for out in outputs if out["to"] == "each"]
    wanted = alone.written.get("each", [])
    assert [each for each in made if (each[0] or b"").islower()] == wanted
    assert len(made) == 2 * len(wanted)


@settings(max_examples=30)
@given(times=st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4))
def test_outputs_of_several_tasks_are_merged_by_time(times: list[list[int]]) -> None:
    """Those of one task keep their order, and a topic's times go back no further than in a task."""
    chunks = [
        pa.array(
            [
                {"to": "t", "key": b"%d" % task, "value": b"%d" % at, "ts": time}
                for at, time in enumerate(own)
            ],
            OUTPUT,
        )
        for task, own in enumerate(times)
    ]
    assume(any(times))
    merged = merged_by_time(chunks).to_pylist()
    for task, own in enumerate(times):
        kept = [int(each["value"]) for each in merged if each["key"] == b"%d" % task]
        assert kept == list(range(len(own)))
    if all(own == sorted(own) for own in times):
        assert [each["ts"] for each in merged] == sorted(time for own in times for time in own)
