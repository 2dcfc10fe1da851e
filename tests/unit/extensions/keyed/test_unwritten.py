"""Rows that are committed and not written yet: reads see them, a kill costs none of them."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.extensions.keyed import store as stores
from headrace.extensions.keyed.api import Timer, TimerClock
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.row import KeyRow, LoadedRows, PartitionKey, RowChange
from headrace.extensions.keyed.store import (
    Position,
    RocksStore,
    StoredCommit,
    encode_row,
    timers_of,
)
from headrace.extensions.keyed.unwritten import Unwritten
from headrace.testing.keyed import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.extensions.keyed.store import StateStore

PARTITIONS = range(2)
KEYS = [PartitionKey(number, key) for number in PARTITIONS for key in (b"", b"a", b"ab", b"b")]
A = PartitionKey(0, b"a")
STATES = [
    None,
    KeyRow(b"1"),
    KeyRow(b"22"),
    KeyRow.of(b"3", {"t": Timer(3)}),
    KeyRow.of(b"3", {"t": Timer(4), "c": Timer(-1, TimerClock.CLOCK)}),
]


def opened(folder: Path) -> RocksStore:
    """Return an open store."""
    store = RocksStore(folder / "db", 1 << 10)
    store.open()
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """Yield a store."""
    store = opened(tmp_path)
    yield store
    store.close()


def put(
    store: StateStore, rows: Mapping[PartitionKey, KeyRow | None], commits: Sequence[int] = (0, 0)
) -> None:
    """Put rows in place of the former ones, as a commit does."""
    keys = list(rows)
    former = store.get_many(keys)
    changes = [(key, RowChange(old, rows[key])) for key, old in zip(keys, former, strict=True)]
    store.put(
        [ChangedRows.of(changes)], {n: StoredCommit(commits[n], commits[n]) for n in PARTITIONS}
    )


def seen(store: StateStore) -> object:
    """Return all that reads see, of timers those that a row has."""
    rows = dict(zip(KEYS, store.get_many(KEYS), strict=True))
    due = [
        timer
        for number in PARTITIONS
        for clock in TimerClock
        for until in (-1, 3, 9)
        for timer in store.due(number, clock, until)
        if timer in timers_of(timer.key, rows[PartitionKey(number, timer.key)])
    ]
    ranges = [list(store.rows(number, first)) for number in PARTITIONS for first in (b"", b"ab")]
    return rows, due, ranges


def all_rows(store: StateStore) -> dict[PartitionKey, KeyRow]:
    """Return all rows that there are."""
    return {PartitionKey(n, key): row for n in PARTITIONS for key, row in store.rows(n)}


class Followed:
    """A store, the changelog that it follows, and a store that is all in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = opened(folder / "0")
        self.model = MemoryStore()
        self.crashes = 0
        #: Each change, and of which commits of the partitions it is.
        self.log: list[tuple[PartitionKey, KeyRow | None]] = []
        self.states: list[dict[PartitionKey, KeyRow]] = [{}]
        self.noted = 0

    def commit(self, rows: Mapping[PartitionKey, KeyRow | None]) -> None:
        """Commit rows of all partitions."""
        self.log += rows.items()
        for store in (self.store, self.model):
            put(store, rows, [len(self.states)] * len(PARTITIONS))
        self.states.append(all_rows(self.model))

    def flush(self, pieces: int) -> None:
        """Flush, or come no further than some pieces."""
        write, left = self.store._write, iter(range(pieces))

        def write_some(batch: object) -> None:
            if next(left, None) is None:
                raise StateStoreError("no space left")
            write(batch)  # type: ignore[arg-type]

        with patch.object(self.store, "_write", write_some):
            try:
                self.store.flush()
            except StateStoreError:
                assert self.store.unwritten().entries or pieces == 0

    def note(self) -> None:
        """Note how far the store follows the changelog."""
        self.store.note({n: Position("id", len(self.log), 0.0) for n in PARTITIONS})
        assert self.store.unwritten() == Unwritten()
        self.noted = len(self.log)

    def crash(self) -> None:
        """Open what a killed process leaves, require that it is right, and restore it."""
        self._continue(self.folder / str(self.crashes) / "db")

    def move(self) -> None:
        """Go on from a copy of the files, as another machine does that has a snapshot."""
        self._continue(self.store.copy_files())

    def _continue(self, files: Path) -> None:
        self.crashes += 1
        folder = self.folder / str(self.crashes)
        shutil.copytree(files, folder / "db")
        self.store.close()
        self.store = opened(folder)
        self._require_committed()
        for number in PARTITIONS:
            since = [each for each in self.log[self.noted :] if each[0].partition == number]
            rows = LoadedRows(
                [key.key for key, _ in since],
                [None if row is None else row.value for _, row in since],
                [None if row is None else row.extra for _, row in since],
            )
            self.store.load(number, [rows], None)

    def _require_committed(self) -> None:
        for found in all_rows(self.store).items():
            assert found in self.log
        for number in PARTITIONS:
            position, commit = self.store.position(number), self.store.commit_of(number)
            assert (0 if position is None else position.offset) == self.noted
            if commit is not None:
                committed = self.states[commit.number].items()
                rows = dict(self.store.rows(number))
                assert rows == {key: row for (n, key), row in committed if n == number}


step = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(STATES), min_size=1),
    st.tuples(st.just("flush"), st.integers(0, 6)),
    st.sampled_from([("note",), ("crash",), ("move",), ("count",)]),
)


#: A kill after the first of the pieces of a later commit than the one that was written last.
HALF_WRITTEN = [
    dict.fromkeys(KEYS, KeyRow(b"1")),
    ("flush", 9),
    dict.fromkeys(KEYS, KeyRow(b"2")),
    ("flush", 1),
    ("crash",),
]


@settings(deadline=None, max_examples=60)
@example(HALF_WRITTEN)
@example(HALF_WRITTEN[2:])
@given(st.lists(step, max_size=10))
def test_reads_and_restores_do_not_depend_on_what_is_written(steps: list[object]) -> None:
    """Reads see what was committed, and sizes count it, through any flush, note, kill or copy."""
    with TemporaryDirectory() as folder, patch.object(stores, "PIECE", 2):
        followed = Followed(Path(folder))
        for each in steps:
            if isinstance(each, dict):
                followed.commit(each)
            elif each == ("note",):
                followed.note()
            elif each == ("crash",):
                followed.crash()
            elif each == ("move",):
                followed.move()
            elif each == ("count",):
                for number in PARTITIONS:
                    assert list(followed.store.measure(number)) == []
            elif isinstance(each, tuple):
                followed.flush(each[1])
            assert seen(followed.store) == seen(followed.model)
            for number in PARTITIONS:
                size = followed.store.size(number)
                rows = dict(followed.model.rows(number))
                stored = sum(len(key) + len(encode_row(row)) for key, row in rows.items())
                assert size is None or (size.rows, size.bytes) == (len(rows), stored)
        followed.store.close()


def test_a_row_that_changes_while_it_is_written_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit waits for no flush, and the next flush has what came with it."""
    store = opened(tmp_path / "1")
    put(store, {A: KeyRow(b"1")}, [1, 1])
    write = store._write

    def write_and_commit(batch: object) -> None:
        put(store, {A: KeyRow(b"2")}, [2, 2])
        write(batch)  # type: ignore[arg-type]

    with monkeypatch.context() as commits:
        commits.setattr(store, "_write", write_and_commit)
        store.flush()
    assert store.get_many([A]) == [KeyRow(b"2")]
    assert (store.unwritten().entries, store.commit_of(0)) == (1, StoredCommit(2, 2))
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    store.close()
    for folder, row, commit in (("2", b"1", 1), ("1", b"2", 2)):
        again = opened(tmp_path / folder)
        assert again.get_many([A]) == [KeyRow(row)]
        assert again.commit_of(0) == StoredCommit(commit, commit)
        again.close()


def test_a_row_that_changes_often_is_counted_and_written_once(store: RocksStore) -> None:
    """Memory does not grow with the number of commits, and is free once all is written."""
    put(store, {A: KeyRow(b"1")})
    one = store.unwritten()
    for _ in range(100):
        put(store, {A: None})
        put(store, {A: KeyRow(b"2")})
    assert store.unwritten() == one
    store.flush()
    assert (store.unwritten(), store.get_many([A])) == (Unwritten(), [KeyRow(b"2")])


def test_a_timer_that_is_put_again_is_counted_once(store: RocksStore) -> None:
    """The bytes that may be unwritten are those that there are, of the index as of rows."""
    timed = KeyRow.of(b"1", {"t": Timer(1)})
    put(store, {A: timed})
    one = store.unwritten()
    for _ in range(100):
        put(store, {A: None})
        put(store, {A: timed})
    assert store.unwritten() == one


def test_timers_that_were_written_take_no_memory(store: RocksStore) -> None:
    """That is so while one that is due first is there at each look, and is never written last."""
    taken = []
    tracemalloc.start()
    try:
        for number in range(20):
            late = KeyRow.of(b"1", {"t": Timer(1_000_000 + number)})
            put(store, {PartitionKey(0, b"%d" % key): late for key in range(500)})
            store.flush()
            put(store, {A: KeyRow.of(b"1", {"t": Timer(number)})})
            assert [timer.due for timer in store.due(0, TimerClock.EVENT, 99)] == [number]
            taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # the cache has the rows once
    assert taken[-1] < 2 * taken[1]


@pytest.mark.parametrize("written", [0, 1])
def test_rows_that_could_not_be_written_stay_below_those_that_were_put_since(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """A failed write loses no row, of those that came with it either, and each is counted once."""
    put(store, {A: KeyRow(b"1"), PartitionKey(1, b"a"): KeyRow(b"2")}, [1, 1])
    write, calls = store._write, 0

    def put_and_fail(batch: object) -> None:
        nonlocal calls
        calls += 1
        if calls > written:
            put(store, {A: KeyRow(b"333")}, [2, 2])
            raise StateStoreError("the disk is full")
        write(batch)  # type: ignore[arg-type]

    with monkeypatch.context() as full:
        full.setattr("headrace.extensions.keyed.store.PIECE", 1)
        full.setattr(store, "_write", put_and_fail)
        with pytest.raises(StateStoreError, match="full"):
            store.flush()
    kept = store.unwritten()
    assert all_rows(store) == {A: KeyRow(b"333"), PartitionKey(1, b"a"): KeyRow(b"2")}
    put(store, {A: KeyRow(b"444")}, [3, 3])
    assert (kept.entries, store.unwritten()) == (2, kept)
    store.flush()
    assert (store.unwritten(), store.commit_of(0)) == (Unwritten(), StoredCommit(3, 3))
    assert all_rows(store) == {A: KeyRow(b"444"), PartitionKey(1, b"a"): KeyRow(b"2")}


def test_a_partition_that_is_dropped_leaves_nothing_to_be_written(store: RocksStore) -> None:
    """Rows, timers and commit of it are gone; those of another one stay."""
    timed = KeyRow.of(b"1", {"t": Timer(1)})
    other = PartitionKey(1, b"a")
    put(store, {A: timed, other: timed}, [1, 1])
    store.drop(0)
    assert (all_rows(store), store.commit_of(0)) == ({other: timed}, None)
    assert list(store.due(0, TimerClock.EVENT, 9)) == []
    store.flush()
    assert all_rows(store) == {other: timed}


def test_a_store_is_written_as_it_is_closed(tmp_path: Path) -> None:
    """A process that ends in order leaves all that was committed."""
    store = opened(tmp_path)
    put(store, {A: KeyRow(b"1")}, [4, 4])
    store.close()
    again = opened(tmp_path)
    assert (again.get_many([A]), again.commit_of(0)) == ([KeyRow(b"1")], StoredCommit(4, 4))
    again.close()
