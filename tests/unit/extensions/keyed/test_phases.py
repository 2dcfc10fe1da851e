"""Keys by phase: what is committed is counted, each key once, whatever else becomes of it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.codecs import from_json, to_json
from headrace.extensions.keyed.phases import UNKNOWN, PhaseReader, PhaseTotals
from headrace.extensions.keyed.row import KeyRow, LoadedRows, PartitionKey, RowChange
from headrace.extensions.keyed.state import Layer, LayeredState, Progress
from headrace.extensions.keyed.state_reader import StateReader
from headrace.extensions.keyed.store import RocksStore
from headrace.keyed import Phase, Phases, at_event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def phase_of(state: dict[str, Any]) -> Phase:
    """Return what a state says it is: a phase, since when, what it has open, what it has done."""
    return Phase(state["phase"], state.get("since"), (state["open"],), (state["done"],))


PHASES = Phases(phase_of, ("waiting", "running", "over"), ("open",), ("done",))


def opened(folder: Path, phases: Phases = PHASES) -> RocksStore:
    """Return the store in a folder."""
    store = RocksStore(folder / "db", 1 << 20, PhaseReader("g", phases, from_json))
    store.open()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """Return an empty store."""
    found = opened(tmp_path)
    yield found
    found.close()


def is_in(phase: str, since: int | None = None, has_open: int = 0, done: int = 0) -> KeyRow:
    """Return a row whose state is in a phase; ``since`` is in seconds."""
    at = None if since is None else since * 1000
    return KeyRow(to_json({"phase": phase, "since": at, "open": has_open, "done": done}))


def count(store: RocksStore, *partitions: int) -> None:
    """Count what there is of partitions."""
    for number in partitions:
        for _ in store.measure(number):
            pass


class Channel:
    """The state of a channel, whose micro-batches a test stages and commits."""

    def __init__(self, store: RocksStore) -> None:
        self.store = store
        self.state = LayeredState(store)
        for number in (0, 1):
            self.state.admit(number)
        self._made = 0

    def stage(self, number: int, **rows: KeyRow | None) -> Layer:
        """Stage a micro-batch."""
        self._made += 1
        keys = [PartitionKey(number, name.encode()) for name in rows]
        before = self.state.get_many(keys)
        changes = dict(zip(keys, map(RowChange, before, rows.values()), strict=True))
        layer = Layer(str(self._made), ChangedRows.of(changes), {number: 0})
        self.state.stage(layer)
        return layer

    def commit(self, *layers: Layer) -> None:
        """Commit what was staged."""
        self.state.apply(layers, {0: Progress({"id/0": 1}, 1, 0)})

    def put(self, number: int, **rows: KeyRow | None) -> None:
        """Stage and commit."""
        self.commit(self.stage(number, **rows))


def recounted(store: RocksStore, number: int = 0) -> PhaseTotals:
    """Return what is in a partition, row by row."""
    found = [from_json(row.state or b"") for _, row in store.rows(number)]
    keys = {name: sum(each["phase"] == name for each in found) for name in PHASES.names}
    ages: dict[str, int] = {}
    for each in found:
        if each["since"] is not None:
            since = each["since"] // 1000
            ages[each["phase"]] = min(since, ages.get(each["phase"], since))
    return PhaseTotals(keys, ages, [sum(each["open"] for each in found)])


def counted(store: RocksStore, *numbers: int) -> PhaseTotals:
    """Return what the store has counted, with zeros of phases in which there is no key."""
    found = store.phases(numbers or (0,))
    assert found is not None
    keys = {name: found.keys.get(name, 0) for name in PHASES.names}
    return PhaseTotals(keys, found.since, found.amounts or [0])


def test_only_committed_micro_batches_count(store: RocksStore) -> None:
    """A staged micro-batch does not count, and a dropped one never does."""
    count(store, 0)
    channel = Channel(store)
    channel.put(0, a=is_in("running", 5, 2, 3), b=is_in("running", 9))
    staged = channel.stage(0, a=is_in("over", done=4), c=is_in("waiting", 1))
    before = PhaseTotals({"waiting": 0, "running": 2, "over": 0}, {"running": 5}, [2])
    assert (counted(store), store.added()) == (before, [3])
    channel.state.drop(staged.name)
    assert (counted(store), store.added()) == (before, [3])
    channel.put(0, a=is_in("over", done=4))
    assert counted(store) == ({"waiting": 0, "running": 1, "over": 1}, {"running": 9}, [0])
    assert store.added() == [4]


def test_micro_batches_of_one_commit_count_as_one_after_the_other(store: RocksStore) -> None:
    """The second stands on what the first one made of the same key."""
    count(store, 0)
    channel = Channel(store)
    one = channel.stage(0, a=is_in("running", 5, 1, 1))
    two = channel.stage(0, a=is_in("over", None, 0, 2))
    channel.commit(one, two)
    assert counted(store) == ({"waiting": 0, "running": 0, "over": 1}, {}, [0])
    assert store.added() == [2]


def test_a_key_that_is_deleted_takes_nothing_off_the_counts(store: RocksStore) -> None:
    """It is in no phase any more; begun again under the same name, it counts again."""
    count(store, 0)
    channel = Channel(store)
    channel.put(0, a=is_in("over", done=3))
    channel.put(0, a=None)
    assert counted(store).keys == {"waiting": 0, "running": 0, "over": 0}
    assert store.added() == [3]
    channel.put(0, a=is_in("over", done=2))
    assert store.added() == [5]


def test_keys_are_counted_once_their_state_is_restored(
    tmp_path: Path,
) -> None:
    """After a start all rows are counted by phase, and ends of earlier processes are not."""
    store = opened(tmp_path)
    Channel(store).put(0, a=is_in("running", 7, 2, 5), b=is_in("over", done=6))
    store.close()
    store = opened(tmp_path)
    assert store.phases([0]) is None
    count(store, 0)
    assert counted(store) == ({"waiting": 0, "running": 1, "over": 1}, {"running": 7}, [2])
    assert store.added() == []
    Channel(store).put(0, a=is_in("over", done=6))
    assert store.added() == [1]
    store.close()


def test_rows_that_are_restored_are_not_counted_as_done_here(store: RocksStore) -> None:
    """Ends at another member do not count here; restored rows are counted by phase at the end."""
    count(store, 0)
    Channel(store).put(0, a=is_in("running", 7, 2, 5))
    store.flush()
    rows = [is_in("over", done=9), is_in("waiting", 3)]
    store.load(0, [LoadedRows([b"a", b"b"], [row.state for row in rows])], None)
    assert store.phases([0]) is None
    count(store, 0)
    assert counted(store) == ({"waiting": 1, "running": 0, "over": 1}, {"waiting": 3}, [0])
    assert store.added() == [5]


def test_partitions_are_summed_and_the_oldest_of_all_is_the_oldest(store: RocksStore) -> None:
    """While one of them is not counted, nothing is said."""
    channel = Channel(store)
    channel.put(0, a=is_in("running", 7, 2))
    channel.put(1, a=is_in("running", 4, 1), b=is_in("waiting", 2))
    count(store, 0)
    assert store.phases([0, 1]) is None
    count(store, 1)
    keys = {"waiting": 1, "running": 2, "over": 0}
    assert counted(store, 0, 1) == (keys, {"running": 4, "waiting": 2}, [3])
    assert counted(store, 0) == ({**keys, "waiting": 0, "running": 1}, {"running": 7}, [2])


@pytest.mark.parametrize("seed", range(5))
def test_any_commits_are_counted_as_a_count_of_all_rows_finds(store: RocksStore, seed: int) -> None:
    """Drops, deletions and fresh counts in between leave the totals right."""
    random, channel = Random(seed), Channel(store)
    count(store, 0)
    for _ in range(120):
        rows: dict[str, KeyRow | None] = {}
        for name in random.sample("abcdef", 2):
            phase, since = random.choice(PHASES.names), random.choice([None, random.randrange(9)])
            row = is_in(phase, since, random.randrange(3))
            rows[name] = random.choice([row, row, None])
        staged = channel.stage(0, **rows)
        match random.randrange(5):
            case 0:
                channel.state.drop(staged.name)
            case 1:
                steps = store.measure(0)
                channel.commit(staged)
                list(steps)
            case _:
                channel.commit(staged)
        assert counted(store) == recounted(store)


def test_a_row_without_a_state_is_in_no_phase(store: RocksStore) -> None:
    """One of timers alone; with a state the timers do not matter."""
    count(store, 0)
    timers = {"t": at_event(1)}
    only, both = KeyRow.of(None, timers), KeyRow.of(is_in("over").state, timers)
    Channel(store).put(0, a=only, b=both)
    assert counted(store).keys == {"waiting": 0, "running": 0, "over": 1}
    count(store, 0)
    assert counted(store).keys == {"waiting": 0, "running": 0, "over": 1}


@pytest.mark.parametrize(
    ("phases", "state", "reason"),
    [
        (PHASES, b'{"phase": "late"}', "KeyError"),
        (PHASES, to_json({"phase": "late", "open": 0, "done": 0}), "'late' is none of its phases"),
        (PHASES, b"no json", "JSONDecodeError"),
        (PHASES, to_json({"phase": "over", "open": "x", "done": 0}), "ValueError"),
        (Phases(lambda _: Phase("over"), ("over",), ("open",)), b"1", "there are 0 amounts"),
    ],
)
def test_a_state_without_a_phase_counts_as_unknown(
    tmp_path: Path, phases: Phases, state: bytes, reason: str
) -> None:
    """The commit goes on, and the reason is logged once."""
    store = opened(tmp_path, phases)
    count(store, 0)
    channel = Channel(store)
    with capture_logs() as logged:
        channel.put(0, a=KeyRow(state), b=KeyRow(state))
    found = store.phases([0])
    assert found is not None
    assert found.keys == {UNKNOWN: 2}
    (event,) = logged
    assert (event["event"], event["group"]) == ("phase_unknown", "g")
    assert event["reason"].startswith(reason)
    channel.put(0, a=None, b=None)
    assert (store.phases([0]) or found).keys == {UNKNOWN: 0}
    store.close()


class At:
    """A clock that stands."""

    def __init__(self, now: float) -> None:
        self.now = now

    def time(self) -> float:
        """Return seconds since the epoch."""
        return self.now

    def monotonic(self) -> float:
        """Return the same."""
        return self.now


def test_a_snapshot_has_all_declared_names_and_ages(store: RocksStore) -> None:
    """Zeros where there is nothing; while a partition is counted there are counts only."""
    channel = Channel(store)
    reader = StateReader(channel.state, store, lambda: {0}, dict, clock=At(100.5), phases=PHASES)
    channel.put(0, a=is_in("running", 40, 2, 5), b=KeyRow(b"{}"))
    found = reader.snapshot()
    assert (found.phases, found.amounts, found.counts) == ((), {}, {"done": 5})
    count(store, 0)
    found = reader.snapshot()
    assert [(each.name, each.keys, each.oldest) for each in found.phases] == [
        ("waiting", 0, None),
        ("running", 1, 60.5),
        ("over", 0, None),
        ("unknown", 1, None),
    ]
    assert (found.amounts, found.counts) == ({"open": 2}, {"done": 5})
