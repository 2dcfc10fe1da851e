"""The state store: the double and RocksDB keep the same contract."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event, Lock
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from headrace.core.errors import RetryableError, StartError
from headrace.extensions.keyed.api import Timer, TimerClock
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.errors import CorruptStoreError, StateStoreError
from headrace.extensions.keyed.row import KeyRow, LoadedRows, PartitionKey, RowChange
from headrace.extensions.keyed.row_groups import GroupSize
from headrace.extensions.keyed.state import Layer, LayeredState, Progress
from headrace.extensions.keyed.store import (
    STEP,
    Position,
    RocksStore,
    StateStore,
    StoreSize,
    encode_row,
    timers_of,
)
from headrace.extensions.keyed.unwritten import Unwritten
from headrace.keyed import at_clock, at_event
from headrace.testing.keyed import MemoryStore
from tests.unit.channel.in_memory import eventually
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.extensions.keyed.store import DueTimer, StoredCommit


def row(text: str, **timers: Timer) -> KeyRow:
    """Return a row with this state and these timers."""
    return KeyRow.of(text.encode(), timers)


def put(store: StateStore, partition: int, key: str, after: KeyRow | None) -> None:
    """Write one row in place of the former one."""
    name = PartitionKey(partition, key.encode())
    (before,) = store.get_many([name])
    store.put([ChangedRows.of([(name, RowChange(before, after))])])


def due(store: StateStore, until: int, clock: TimerClock = TimerClock.EVENT) -> list[str]:
    """Return the keys of partition 0 whose timers are due."""
    return [timer.key.decode() for timer in store.due(0, clock, until)]


def opened(folder: Path, cache_bytes: int = 1 << 20) -> RocksStore:
    """Return the store in a folder."""
    store = RocksStore(folder / "db", cache_bytes)
    store.open()
    return store


def admitted(store: StateStore) -> LayeredState:
    """Return the state of a channel whose partition 0 is all there."""
    state = LayeredState(store)
    state.admit(0)
    return state


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    """Return one of the two stores, empty."""
    made: dict[str, Callable[[], StateStore]] = {
        "memory": MemoryStore,
        "rocks": lambda: opened(tmp_path),
    }
    found = made[request.param]()
    yield found
    found.close()


def test_rows_are_read_as_they_were_written(store: StateStore) -> None:
    """Each partition has its own rows, an empty state is one, and an absent key has none."""
    put(store, 0, "a", row("1"))
    put(store, 1, "a", row(""))
    keys = [PartitionKey(0, b"a"), PartitionKey(0, b"b"), PartitionKey(1, b"a")]
    assert store.get_many(keys) == [row("1"), None, row("")]


def test_rows_are_peeked_as_they_are_read(store: StateStore) -> None:
    """Rows are the same that are written, cached, deleted, or several of these."""
    for name in ("old", "cached", "changed", "deleted"):
        put(store, 0, name, row("1"))
    store.flush()
    store.get_many([PartitionKey(0, b"cached"), PartitionKey(0, b"changed")])
    put(store, 0, "changed", row("2"))
    put(store, 0, "deleted", None)
    put(store, 0, "new", row("3"))
    for name in ("new", "changed", "deleted", "cached", "old", "absent"):
        for names in ([name], [name, "new"]):
            keys = [PartitionKey(0, each.encode()) for each in names]
            assert store.peek_many(keys) == store.get_many(keys)


def test_what_is_peeked_is_never_older_than_what_was_put(tmp_path: Path) -> None:
    """Also while rows go from memory to the disk."""
    store, lock, done = opened(tmp_path), Lock(), Event()
    keys = [PartitionKey(0, b"%d" % number) for number in range(20)]
    latest = ["0"]

    def write() -> None:
        for number in range(1, 300):
            with lock:
                latest[0] = str(number)
                rows = [(key, RowChange(None, row(latest[0]))) for key in keys]
                store.put([ChangedRows.of(rows)])
            store.flush()
        done.set()

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        while not done.is_set() and not written.done():
            with lock:
                # so that some are cached as they were once
                store.get_many(keys[:5])
                found = store.peek_many(keys)
                assert latest[0] == "0" or found == [row(latest[0])] * len(keys)
        written.result(PATIENCE)
    store.close()


def test_heads_of_keys_are_listed_once_in_one_partition(store: StateStore) -> None:
    """A head is listed of rows that are written and of those that are not, and of shorter keys."""
    for name in ("w/01/a", "w/01/b", "w/02/a", "w/3", "w:time", "v/01/a"):
        put(store, 0, name, row("1"))
    put(store, 1, "w/09/a", row("1"))
    assert store.heads(0, b"w/", 2) == {b"01", b"02", b"3"}
    store.flush()
    put(store, 0, "w/07/a", row("1"))
    assert store.heads(0, b"w/", 2) == {b"01", b"02", b"3", b"07"}
    assert store.heads(2, b"w/", 2) == set()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(names=st.sets(st.binary(max_size=4), max_size=12), prefix=st.binary(max_size=2))
def test_heads_are_those_of_all_rows(tmp_path: Path, names: set[bytes], prefix: bytes) -> None:
    """The heads are the same whatever bytes keys have, and in whatever part of the store."""
    found = opened(tmp_path / uuid4().hex)
    try:
        for at, name in enumerate(sorted(names)):
            found.put([ChangedRows.of([(PartitionKey(7, name), RowChange(None, row("1")))])])
            if at % 3 == 0:
                found.flush()
        wanted = {name[len(prefix) :][:1] for name in names if name.startswith(prefix)}
        assert found.heads(7, prefix, 1) == wanted
    finally:
        found.close()


def test_a_deleted_row_is_gone_with_its_timers(store: StateStore) -> None:
    """None deletes the row and takes its timers out of the index."""
    put(store, 0, "a", row("1", t=at_event(5)))
    put(store, 0, "a", None)
    assert store.get_many([PartitionKey(0, b"a")]) == [None]
    assert due(store, 99) == []


def test_due_timers_come_with_the_earliest_first_and_by_their_clock(store: StateStore) -> None:
    """The index has both clocks, in the order of due times, and nothing that is not due."""
    put(store, 0, "late", row("1", t=at_event(9)))
    put(store, 0, "soon", row("1", t=at_event(3)))
    put(store, 0, "other", row("1", t=at_clock(1)))
    put(store, 1, "elsewhere", row("1", t=at_event(1)))
    assert due(store, 9) == ["soon", "late"]
    assert due(store, 8) == ["soon"]
    assert due(store, 9, TimerClock.CLOCK) == ["other"]


def test_a_timer_that_moves_is_in_the_index_once(store: StateStore) -> None:
    """A row written anew has its former timers out of the index."""
    put(store, 0, "a", row("1", t=at_event(3)))
    put(store, 0, "a", row("1", t=at_event(7)))
    assert [timer.due for timer in store.due(0, TimerClock.EVENT, 99)] == [7]


@pytest.mark.parametrize(
    ("given", "indexed"),
    [
        (1 << 70, (1 << 63) - 1),
        (-(1 << 70), -(1 << 63)),
        (1.5, 2),
        (float("inf"), (1 << 63) - 1),
        (float("nan"), (1 << 63) - 1),
    ],
)
def test_any_due_time_of_a_changelog_has_a_place_in_the_index(
    store: StateStore, given: float, indexed: int
) -> None:
    """Times out of range are due always or never; names that are not UTF-8 come back."""
    header = json.dumps({"timers": {"t\ud800": ["event", given]}})
    put(store, 0, "a", KeyRow(b"1", header.encode()))
    (found,) = store.due(0, TimerClock.EVENT, (1 << 63) - 1)
    assert (found.due, found.name) == (indexed, "t\ud800")
    put(store, 0, "a", row("1"))
    assert due(store, (1 << 63) - 1) == []


def test_timers_that_cannot_be_read_fail_a_write_whole(store: StateStore) -> None:
    """The error names the key, and nothing of the batch is written."""
    odd = RowChange(None, KeyRow(b"1", b'{"timers":{"t":["event","soon"]}}'))
    plain = RowChange(None, KeyRow(b"1"))
    with pytest.raises(StateStoreError, match="timers of key b'odd' cannot be read: TypeError"):
        store.put(
            [ChangedRows.of([(PartitionKey(0, b"a"), plain), (PartitionKey(0, b"odd"), odd)])]
        )
    assert list(store.rows(0)) == []


def test_a_scan_begins_at_a_key_and_keeps_to_its_partition(store: StateStore) -> None:
    """Rows come in the order of their keys, from the one given."""
    for name in ("c", "a", "b"):
        put(store, 0, name, row(name))
    put(store, 1, "d", row("d"))
    assert [key for key, _ in store.rows(0)] == [b"a", b"b", b"c"]
    assert [key for key, _ in store.rows(0, b"b")] == [b"b", b"c"]


def test_a_partition_is_dropped_whole(store: StateStore) -> None:
    """Rows, timers and position of a partition go, those of the next one stay."""
    for number in (0, 1):
        put(store, number, "a", row("1", t=at_event(3)))
        store.note({number: Position("topic", 7, 1.5)})
    store.drop(0)
    assert store.get_many([PartitionKey(0, b"a"), PartitionKey(1, b"a")])[0] is None
    assert due(store, 99) == []
    assert (store.position(0), store.position(1)) == (None, Position("topic", 7, 1.5))
    assert list(store.rows(1)) == [(b"a", row("1", t=at_event(3)))]


def test_rows_and_positions_outlive_the_process(tmp_path: Path) -> None:
    """Written rows and positions are read after the store is opened again."""
    first = opened(tmp_path)
    put(first, 3, "a", row("1"))
    first.note({3: Position("topic", 7, 1.5)})
    first.close()
    again = opened(tmp_path)
    assert again.get_many([PartitionKey(3, b"a")]) == [row("1")]
    assert again.position(3) == Position("topic", 7, 1.5)
    again.close()


def test_a_store_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    """Two processes on one folder would each be ahead of the other."""
    first = opened(tmp_path)
    with pytest.raises(StartError, match="end the process that has it open"):
        opened(tmp_path)
    first.close()


def test_a_corrupt_file_fails_a_read_and_is_never_no_state(tmp_path: Path) -> None:
    """A flipped byte in a table's block is found by its checksum."""
    first = opened(tmp_path)
    keys = [PartitionKey(0, b"key-%05d" % number) for number in range(5000)]
    rows = [(key, RowChange(None, KeyRow(b"x" * 50))) for key in keys]
    first.put([ChangedRows.of(rows)])
    first.write_tables()
    first.close()
    (table,) = tmp_path.joinpath("db").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 0xFF
    table.write_bytes(data)
    again = opened(tmp_path, 0)
    with pytest.raises(CorruptStoreError, match=r"cannot be read: .*checksum mismatch"):
        assert None not in again.get_many(keys)
    assert again.is_corrupt
    again.move_aside()
    assert again.get_many(keys[:1]) == [None]
    again.close()
    assert len(list(tmp_path.glob("db.corrupt-*"))) == 1


@pytest.mark.parametrize("part", range(0, 10, 3))
def test_a_corrupt_log_costs_the_last_rows_and_their_position(tmp_path: Path, part: int) -> None:
    """A flipped byte of the write-ahead log: no row before the position is gone."""
    first = opened(tmp_path)
    for number in range(20):
        name = PartitionKey(0, b"key-%02d" % number)
        change = RowChange(None, KeyRow(b"x" * 50))
        first.put([ChangedRows.of([(name, change)])])
        first.note({0: Position("topic", number + 1, 1.0)})
    shutil.copytree(tmp_path / "db", tmp_path / "killed" / "db")
    first.close()
    (log,) = tmp_path.joinpath("killed", "db").glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) * part // 10] ^= 0xFF
    log.write_bytes(data)
    again = opened(tmp_path / "killed")
    position = again.position(0)
    rows = [key for key, _ in again.rows(0)]
    noted = position.offset if position else 0
    assert len(rows) in {noted, noted + 1}
    assert noted < 20
    assert rows == [b"key-%02d" % number for number in range(len(rows))]
    again.close()


def killed(store: RocksStore, folder: Path) -> tuple[int, int | None]:
    """Return the rows and the position of partition 0 that a killed process leaves of a store."""
    name = str(uuid4())
    shutil.copytree(folder / "db", folder / name / "db")
    again = opened(folder / name)
    position = again.position(0)
    found = len(list(again.rows(0))), None if position is None else position.offset
    again.close()
    assert store.position(0) is not None
    return found


def load(store: RocksStore, number: int, position: int | None, *, in_bulk: bool) -> None:
    """Load one row of partition 0."""
    at = None if position is None else Position("topic", position, 1.0)
    rows = LoadedRows([b"key-%02d" % number], [b"x" * 50], None)
    store.load(0, [rows], at, in_bulk=in_bulk)


def test_a_position_that_is_noted_has_all_rows_that_were_loaded_in_bulk(tmp_path: Path) -> None:
    """A kill takes rows of before with the positions that came with them, and nothing later."""
    store = opened(tmp_path)
    load(store, 0, 1, in_bulk=True)
    load(store, 1, 2, in_bulk=True)
    assert killed(store, tmp_path) == (0, None)
    store.note({1: Position("topic", 5, 1.0)})
    assert killed(store, tmp_path) == (0, None), "another partition's position does not need it"
    store.note({0: Position("topic", 2, 1.0)})
    assert killed(store, tmp_path) == (2, 2)
    store.close()


def test_a_position_that_is_logged_has_the_rows_that_were_loaded_in_bulk(tmp_path: Path) -> None:
    """A restore that was left is gone on with by a copy, whose rows are logged."""
    store = opened(tmp_path)
    load(store, 0, 1, in_bulk=True)
    load(store, 1, None, in_bulk=False)
    assert killed(store, tmp_path)[1] is None
    load(store, 2, 3, in_bulk=False)
    assert killed(store, tmp_path) == (3, 3)
    store.close()


def test_tables_are_merged_once_nothing_is_loaded_in_bulk_any_more(tmp_path: Path) -> None:
    """Until then they stay as they were written, beyond the number at which others are merged."""
    store = opened(tmp_path)

    def tables() -> int:
        return len(list((tmp_path / "db").glob("*.sst")))

    load(store, 0, 1, in_bulk=True)
    for number in range(1, 10):
        rows = LoadedRows([b"%d" % at for at in range(100)], [b"1"] * 100, None)
        store.load(number, [rows], None, in_bulk=True)
        store.note({number: Position("topic", 1, 1.0)})
    assert tables() == 9
    store.note({0: Position("topic", 2, 1.0)})
    eventually(lambda: tables() < 9)
    assert [key for key, _ in store.rows(9)] == sorted(b"%d" % at for at in range(100))
    store.close()


def most_tables(folder: Path) -> str:
    """Return with how many tables RocksDB stops writes, as it notes its options."""
    latest = max((folder / "db").glob("OPTIONS-*"), key=lambda file: int(file.name[8:]))
    (found,) = re.findall(r"level0_stop_writes_trigger=(\d+)", latest.read_text())
    return str(found)


def test_writes_are_held_up_as_usual_but_while_partitions_are_loaded_in_bulk(
    tmp_path: Path,
) -> None:
    """A load that is left in the middle ends that, too, with its rows on the disk."""
    store = opened(tmp_path)
    assert most_tables(tmp_path) == "1000", "a load may have been under way before the start"
    put(store, 3, "a", row("1"))
    store.flush()
    assert most_tables(tmp_path) == "36"
    load(store, 0, 1, in_bulk=True)
    assert most_tables(tmp_path) == "1000"
    store.end_load(1)
    assert most_tables(tmp_path) == "1000"
    store.end_load(0)
    assert most_tables(tmp_path) == "36"
    assert killed(store, tmp_path) == (1, 1)
    store.close()


def test_writes_are_not_held_up_after_a_load_before_its_tables_are_merged(tmp_path: Path) -> None:
    """Commits wait for none of them; once there are few, writes are held up as usual."""
    store = opened(tmp_path)
    load(store, 0, 1, in_bulk=True)
    for number in range(1, 25):
        rows = LoadedRows([b"%d" % number], [b"1"], None)
        store.load(number, [rows], None, in_bulk=True)
        store.note({number: Position("topic", 1, 1.0)})
    store.end_load(0)
    assert most_tables(tmp_path) in {"1000", "36"}

    def has_settled() -> bool:
        store.flush()
        return most_tables(tmp_path) == "36"

    eventually(has_settled)
    store.close()


def test_a_store_that_is_closed_has_all_that_was_loaded_in_bulk(tmp_path: Path) -> None:
    """A process that ends in the middle of a restore goes on from there."""
    store = opened(tmp_path)
    load(store, 0, 1, in_bulk=True)
    store.close()
    again = opened(tmp_path)
    assert killed(again, tmp_path) == (1, 1)
    again.close()


def test_state_that_is_not_restored_is_never_read_as_none() -> None:
    """A read of a partition whose state is not there fails, and says so."""
    state = admitted(MemoryStore())
    state.release(0)
    assert issubclass(StateStoreError, RetryableError), "no policy may look for a record"
    with pytest.raises(StateStoreError, match="the state of partition 0 is not there yet"):
        state.get_many([PartitionKey(0, b"a")])
    with pytest.raises(StateStoreError, match="the state of partition 0 is not there yet"):
        state.due_keys(0, 5, 5, besides=set(), most=1)


def test_a_read_of_a_store_that_is_emptied_meanwhile_fails() -> None:
    """The partition was there when the read began: keys and timers are not taken for none."""

    class Emptied(MemoryStore):
        """Has nothing from the first read on; the partition was released before."""

        def get_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
            """Return nothing."""
            state.release(0)
            return [None for _ in keys]

        def due(self, partition: int, clock: TimerClock, until: int) -> Iterator[DueTimer]:
            """Return nothing."""
            del partition, clock, until
            state.release(0)
            return iter(())

    state = admitted(Emptied())
    with pytest.raises(StateStoreError, match="the state of partition 0 is not there yet"):
        state.get_many([PartitionKey(0, b"a")])
    state.admit(0)
    with pytest.raises(StateStoreError, match="the state of partition 0 is not there yet"):
        state.due_keys(0, 5, 5, besides=set(), most=1)


def test_the_cache_keeps_to_its_bytes(tmp_path: Path) -> None:
    """Rows beyond the cache are read from disk; a written row replaces the cached one."""
    store = opened(tmp_path, 1000)
    keys = [PartitionKey(0, b"%d" % number) for number in range(100)]
    store.put([ChangedRows.of((key, RowChange(None, KeyRow(key.key))) for key in keys)])
    assert store.get_many(keys) == [KeyRow(key.key) for key in keys]
    store.put([ChangedRows.of([(keys[-1], RowChange(None, KeyRow(b"new")))])])
    assert store.get_many(keys[-1:]) == [KeyRow(b"new")]
    assert store.cache_hits > 0
    store.close()


def test_the_cache_knows_its_bytes_after_any_writes(tmp_path: Path) -> None:
    """The room left is the limit less the rows held; rows written twice count once."""
    store, random = opened(tmp_path, 3000), Random(5)
    keys = [PartitionKey(number % 3, b"%d" % number) for number in range(20)]
    expected: dict[PartitionKey, KeyRow] = {}
    for step in range(200):
        chosen = random.choices(keys, k=6)
        rows = [
            random.choice([None, KeyRow(b"x" * (step % 50)), row("1", t=at_event(step))])
            for _ in chosen
        ]
        changes = ((key, RowChange(None, new)) for key, new in zip(chosen, rows, strict=True))
        store.put([ChangedRows.of(changes)])
        for key, new in zip(chosen, rows, strict=True):
            expected.pop(key, None)
            if new is not None:
                expected[key] = new
        asked = random.sample(keys, 8)
        assert store.get_many(asked) == [expected.get(key) for key in asked]
        held = sum(len(name) + len(data) + 200 for name, data in store._cache.items())
        assert held + store._room == 3000
        assert store._room >= 0
    store.close()


# --- layers above the store ---------------------------------------------------------------------


def layer(name: str, partition: int, key: str, after: KeyRow | None) -> Layer:
    """Return a layer with one changed row."""
    change = {PartitionKey(partition, key.encode()): RowChange(None, after)}
    return Layer(name, ChangedRows.of(change), {partition: 10})


def test_staged_rows_are_read_before_committed_ones() -> None:
    """The newest layer wins, and a dropped one has no effect."""
    state = admitted(MemoryStore())
    key = PartitionKey(0, b"a")
    state.stage(layer("1", 0, "a", row("one")))
    state.stage(layer("2", 0, "a", None))
    assert state.get_many([key]) == [None]
    state.drop("2")
    assert state.get_many([key]) == [row("one")]
    state.apply([layer("1", 0, "a", row("one"))], {0: Progress({"id/0": 5}, 1, 10)})
    assert state.get_many([key]) == [row("one")]
    assert state.progress(0) == Progress({"id/0": 5}, 1, 10)
    assert not state.has_staged(0)


def test_due_keys_are_those_of_the_layers_where_these_have_the_key() -> None:
    """A stored timer does not count for a key that a layer has, and a layer's timer does."""
    state = admitted(MemoryStore())
    state.apply([layer("0", 0, "a", row("1", t=at_event(5)))], {})
    state.stage(layer("1", 0, "a", row("1", t=at_event(50))))
    state.stage(layer("2", 0, "b", row("1", t=at_event(5))))
    assert state.due_keys(0, 5, 0, besides=set(), most=9) == [b"b"]
    assert state.due_keys(0, 50, 0, besides=set(), most=9) == [b"a", b"b"]
    assert state.due_keys(0, 50, 0, besides={b"a"}, most=9) == [b"b"]
    assert state.due_keys(0, 50, 0, besides=set(), most=1) == [b"a"]


def test_a_key_has_the_timers_of_the_last_layer_that_changed_it() -> None:
    """A later layer without the timer, or without the key, has none; another partition's counts."""
    state = admitted(MemoryStore())
    state.stage(layer("1", 0, "a", row("1", t=at_event(5))))
    state.stage(layer("2", 1, "a", row("1", t=at_event(5))))
    state.stage(layer("3", 0, "b", row("1", t=at_event(5))))
    assert state.due_keys(0, 5, 0, besides=set(), most=9) == [b"a", b"b"]
    state.stage(layer("4", 0, "a", row("2")))
    state.stage(layer("5", 0, "b", None))
    assert state.due_keys(0, 5, 0, besides=set(), most=9) == []
    state.drop("5")
    assert state.due_keys(0, 5, 0, besides=set(), most=9) == [b"b"]


def stale(store: StateStore, *numbers: int) -> None:
    """Write timers of a key to the index that its row does not have, as after a restore."""
    for number in numbers:
        timed = row("1", t=at_event(number))
        store.put([ChangedRows.of([(PartitionKey(0, b"a"), RowChange(None, timed))])])
    store.put([ChangedRows.of([(PartitionKey(0, b"a"), RowChange(None, row("1")))])])


def test_timers_that_no_row_has_leave_the_index(store: StateStore) -> None:
    """Stale timers are removed, and those of rows stay."""
    state = admitted(store)
    stale(store, *range(3, 250))
    put(store, 0, "b", row("1", t=at_event(9)))
    for _ in range(3):
        assert state.due_keys(0, 300, 0, besides=set(), most=9) == [b"b"]
    state.clear_index()
    assert due(store, 300) == ["b"]


@pytest.mark.parametrize("is_known", [False, True])
def test_rows_that_replace_others_leave_no_stale_timers(tmp_path: Path, is_known: bool) -> None:
    """The index has the timers of a key's last row, however often the key comes."""
    rocks = opened(tmp_path)

    def load(*rows: tuple[bytes, KeyRow | None], replaces: bool = True) -> None:
        keys, found = zip(*rows, strict=True)
        values = [None if each is None else each.value for each in found]
        extras = [None if each is None else each.extra for each in found]
        has_extras = any(extras)
        loaded = LoadedRows(keys, values, extras if has_extras else None)
        rocks.load(0, [loaded], None, replaces=replaces)

    def index() -> list[int]:
        return [each.due for each in rocks.due(0, TimerClock.EVENT, 1000)]

    load((b"a", row("1", t=at_event(1))), replaces=is_known)
    load((b"a", row("2", t=at_event(2))), (b"b", row("1")), (b"a", row("3", t=at_event(3))))
    assert index() == [3]
    # the same time again, and one without timers
    load((b"a", row("4", t=at_event(3))), (b"b", row("2", t=at_event(9))))
    load((b"b", row("3")))
    assert index() == [3]
    assert [each.value for _, each in rocks.rows(0)] == [b"4", b"3"]
    load((b"a", None))
    assert (index(), len(list(rocks.rows(0)))) == ([], 1)
    rocks.close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_timer_that_is_set_again_stays_in_the_index(elsewhere: bool) -> None:
    """It was found without a row; then it is set with the same name and time, here or elsewhere."""
    store = MemoryStore()
    state = admitted(store)
    stale(store, 5)
    assert state.due_keys(0, 5, 0, besides=set(), most=9) == []
    if elsewhere:
        state.release(0)
    store.put([ChangedRows.of([(PartitionKey(0, b"a"), RowChange(None, row("1", t=at_event(5))))])])
    state.admit(0)
    state.clear_index()
    assert state.due_keys(0, 5, 0, besides=set(), most=9) == [b"a"]


def test_a_look_for_timers_begins_where_the_first_one_is(tmp_path: Path) -> None:
    """After any writes it finds the timers that a scan of all of them finds."""
    rocks, memory, random = opened(tmp_path), MemoryStore(), Random(3)
    for _ in range(400):
        key, at = str(random.randrange(9)), random.randrange(50)
        made = random.choice([None, row("1"), row("1", t=at_event(at)), row("1", t=at_clock(at))])
        for each in (rocks, memory):
            put(each, 0, key, made)
        if random.random() < 0.2:
            rocks.flush()
        until = random.randrange(60)
        for clock in TimerClock:
            assert due(rocks, until, clock) == due(memory, until, clock)
    rocks.drop(0)
    assert due(rocks, 60) == []
    put(rocks, 0, "a", row("1", t=at_event(1)))
    assert due(rocks, 60) == ["a"]
    rocks.close()


def test_a_timer_that_comes_while_a_look_begins_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look does not see it, and does not say that there is nothing before what it saw."""
    store = opened(tmp_path)
    put(store, 0, "late", row("1", t=at_event(9)))
    store.flush()
    scan = store._scan

    def scan_and_put(first: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = scan(first, prefix)
        found = [next(entries)]
        put(store, 0, "early", row("1", t=at_event(3)))
        store.flush()
        yield from [*found, *entries]

    with monkeypatch.context() as patch:
        patch.setattr(store, "_scan", scan_and_put)
        assert due(store, 10) == ["late"]
    assert due(store, 10) == ["early", "late"]
    store.close()


class FullDisk(MemoryStore):
    """A store that writes nothing while its disk is full."""

    full = True

    def flush(self) -> None:
        """Fail, or write."""
        if self.full:
            raise StateStoreError("no space left")
        super().flush()


def test_a_commit_on_a_full_disk_is_written_later() -> None:
    """A commit that cannot be written is read from memory, until a flush finds room."""
    store = FullDisk()
    state = admitted(store)
    first = layer("1", 0, "a", row("one"))
    state.stage(first)
    state.apply([first], {})
    assert (state.flush(), str(state.problem)) == (False, "no space left")
    assert (state.unwritten.entries, state.get_many([PartitionKey(0, b"a")])) == (1, [row("one")])
    store.full = False
    assert (state.flush(), state.problem) == (True, None)
    assert (state.unwritten, dict(store.rows(0))) == (Unwritten(), {b"a": row("one")})


def counted(store: RocksStore, number: int = 0) -> StoreSize:
    """Return what is in a partition, row by row."""
    rows = list(store.rows(number))
    stored = sum(len(key) + len(encode_row(found)) for key, found in rows)
    timers = sum(len(timers_of(key, found)) for key, found in rows)
    quarantined = sum(found.quarantined is not None for _, found in rows)
    return StoreSize(len(rows), stored, timers, quarantined)


def test_a_size_follows_writes_and_deletions(tmp_path: Path) -> None:
    """Rows, bytes, timers and quarantine are those that a count of all rows finds."""
    store, random = opened(tmp_path), Random(7)
    made = [
        None,
        KeyRow(b"1"),
        KeyRow(b"longer"),
        row("2", a=at_event(3)),
        row("3", a=at_event(4), b=at_clock(5)),
        KeyRow(b"", KeyRow.of(None, {"quarantined": at_event(1)}).extra),
        KeyRow(b"", KeyRow.of(None, {"a": at_event(1)}, "it raised").extra),
    ]
    for _ in store.measure(0):
        pass
    for _ in range(300):
        put(store, 0, str(random.randrange(20)), random.choice(made))
    assert store.size(0) == counted(store)
    assert store.size(1) is None
    store.close()


def grouped(store: RocksStore, prefixes: Mapping[str, bytes], number: int) -> dict[str, GroupSize]:
    """Return what is in each group of a partition's rows, row by row."""
    found = {}
    for name, prefix in prefixes.items():
        own = [(key, row) for key, row in store.rows(number) if key.startswith(prefix)]
        found[name] = GroupSize(len(own), sum(len(key) + len(encode_row(row)) for key, row in own))
    return found


@pytest.mark.parametrize("has_timers", [False, True])
def test_groups_are_counted_each_by_itself(tmp_path: Path, has_timers: bool) -> None:
    """Rows and bytes of a group are those that a count finds, also with timers in some rows."""
    prefixes = {"pages": b"pages/", "pages-2": b"pages-2/"}
    store, random = RocksStore(tmp_path / "db", groups=prefixes), Random(7)
    store.open()
    made = [None, KeyRow(b"1"), KeyRow(b"longer"), *([row("2", a=at_event(3))] * has_timers)]
    names = [b"pages/a", b"pages/b", b"pages-2/a", b"pages-2/b", b"pages:time", b"other/a"]
    rows: dict[PartitionKey, KeyRow | None] = {}
    assert store.group_sizes([0]) is None
    for step in range(60):
        if step == 20:  # with the rows of the commits before
            for number in (0, 1):
                for _ in store.measure(number):
                    pass
        if step % 7 == 0:
            store.flush()
        keys = random.sample([PartitionKey(number, name) for number in (0, 1) for name in names], 4)
        changes = [(key, RowChange(rows.get(key), random.choice(made))) for key in keys]
        rows.update({key: change.after for key, change in changes})
        store.put([ChangedRows.of(changes)])
    for number in (0, 1):
        assert store.group_sizes([number]) == grouped(store, prefixes, number)
        assert store.size(number) == counted(store, number)
    both = [grouped(store, prefixes, number) for number in (0, 1)]
    sums = {name: both[0][name].plus(both[1][name]) for name in prefixes}
    assert store.group_sizes([0, 1]) == sums
    assert store.group_sizes([]) == {}
    store.close()


def test_a_write_that_was_made_before_counting_began_is_counted(tmp_path: Path) -> None:
    """Counting begins again where it cannot know whether it saw a batch."""
    store = opened(tmp_path)
    steps = store.measure(0)

    def changes() -> Iterator[tuple[PartitionKey, RowChange]]:
        for number in range(STEP + 1):
            yield PartitionKey(0, b"%d" % number), RowChange(None, KeyRow(b"1"))

    store.put([ChangedRows.of(changes())], {})

    def late() -> Iterator[tuple[PartitionKey, RowChange]]:
        next(steps)  # the first rows are counted, and the batch below is not known of
        yield PartitionKey(0, b"late"), RowChange(None, KeyRow(b"1"))

    store.put([ChangedRows.of(late())], {})
    for _ in steps:
        assert store.size(0) is None
    assert store.size(0) == counted(store)
    store.close()


def test_a_partition_that_is_dropped_has_no_size(tmp_path: Path) -> None:
    """Until it is counted again."""
    store = opened(tmp_path)
    for _ in store.measure(0):
        pass
    put(store, 0, "a", KeyRow(b"1"))
    assert store.size(0) == counted(store)
    store.drop(0)
    assert store.size(0) is None
    for _ in store.measure(0):
        pass
    assert store.size(0) == StoreSize()
    store.close()


def test_a_close_waits_for_rows_that_are_being_read(tmp_path: Path) -> None:
    """The files can be opened again at once, and the reader gets all rows."""
    store, again = opened(tmp_path), RocksStore(tmp_path / "db")
    # as many as take longer to read than the files to open
    names = [PartitionKey(0, b"%d" % number) for number in range(50_000)]
    store.put([ChangedRows.of((name, RowChange(None, row("1"))) for name in names)])
    store.flush()
    rows = store.rows(0)
    next(rows)

    def reopen() -> None:
        store.close()
        again.open()

    with ThreadPoolExecutor(1) as pool:
        reopened = pool.submit(reopen)
        eventually(lambda: not is_open(store) or reopened.done())
        assert sum(1 for _ in rows) == len(names) - 1
        reopened.result(PATIENCE)
    again.close()


def is_open(store: RocksStore) -> bool:
    """Return whether a store can be read."""
    try:
        store.has_any(0)
    except StateStoreError:
        return False
    return True


class _SlowStore(MemoryStore):
    """A store whose rows take a while to encode: until the test has looked."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding, self.go_on = Event(), Event()

    @override
    def prepare(
        self,
        changes: Sequence[ChangedRows],
        commits: Mapping[int, StoredCommit] | None = None,
        stale: Iterable[tuple[int, DueTimer]] = (),
    ) -> Callable[[], None]:
        self.encoding.set()
        assert self.go_on.wait(PATIENCE)
        return super().prepare(changes, commits, stale)


def test_readers_have_the_former_rows_while_a_commit_is_encoded() -> None:
    """Rows, offset and readiness are read meanwhile, and afterwards those of the commit."""
    store = _SlowStore()
    state = admitted(store)
    state.begin(0, Progress({"t": 1}, 1))
    key = PartitionKey(0, b"a")
    change = ChangedRows.of([(key, RowChange(None, row("1")))])
    layer = Layer("first", change, {0: 5})
    state.stage(layer)
    with ThreadPoolExecutor(1) as pool:
        applied = pool.submit(state.apply, [layer], {0: Progress({"t": 2}, 2)})
        try:
            assert store.encoding.wait(PATIENCE)
            assert state.is_ready(0)
            with state.reading(0) as rows:
                assert (rows.get_many([b"a"]), rows.progress) == ([None], Progress({"t": 1}, 1))
            assert state.committed(key) == (None, Progress({"t": 1}, 1))
        finally:
            store.go_on.set()
        applied.result(PATIENCE)
    with state.reading(0) as rows:
        assert (rows.get_many([b"a"]), rows.progress) == ([b"1"], Progress({"t": 2}, 2))
