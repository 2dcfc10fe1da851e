"""The files of a local store: copies of them, and others in their place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import StartError
from headrace.core.files import digest
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.store import Position, RocksStore, StoredCommit
from headrace.extensions.keyed.store_folder import StoreFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = PartitionKey(0, b"a")


def put(store: RocksStore, state: bytes, number: int) -> None:
    """Put a row of a commit, without a flush."""
    (before,) = store.get_many([KEY])
    row = RowChange(before, KeyRow(state))
    store.put([ChangedRows.of([(KEY, row)])], {0: StoredCommit(number, number)})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """Return an open store."""
    found = RocksStore(tmp_path / "db")
    found.open()
    yield found
    found.close()


def test_a_copy_has_what_was_put_before_it(store: RocksStore) -> None:
    """Rows that were in memory, their commit and the position, and nothing of what came later."""
    put(store, b"1", 7)
    store.note({0: Position("id", 3, 5.0, 2)})
    put(store, b"2", 8)
    copy = store.copy_files()
    put(store, b"3", 9)
    store.flush()
    store.note({0: Position("id", 9, 6.0)})
    with closing(RocksStore(copy)) as copied:
        copied.open_to_read()
        assert copied.get_many([KEY]) == [KeyRow(b"2")]
        assert copied.commit_of(0) == StoredCommit(8, 8)
        assert copied.positions() == {0: Position("id", 3, 5.0, 2)}
    assert store.get_many([KEY]) == [KeyRow(b"3")]
    assert store.positions() == {0: Position("id", 9, 6.0)}


def test_reading_a_copy_changes_none_of_its_files(store: RocksStore) -> None:
    """The files may be linked, and their checksums be written down."""
    put(store, b"1", 7)
    copy = store.copy_files()
    before = {each.name: digest(each) for each in copy.iterdir()}
    with closing(RocksStore(copy)) as copied:
        copied.open_to_read()
        assert copied.get_many([KEY]) == [KeyRow(b"1")]
    after = {each.name: digest(each) for each in copy.iterdir()}
    assert {name: after[name] for name in before} == before


def test_files_of_a_process_that_was_killed_are_read(store: RocksStore, tmp_path: Path) -> None:
    """Rows in the write-ahead log alone are there, and stay there."""
    put(store, b"1", 7)
    store.flush()
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "db", killed)
    with closing(RocksStore(killed)) as copied:
        copied.open_to_read()
        assert copied.get_many([KEY]) == [KeyRow(b"1")]
    assert not list(killed.glob("*.sst"))


def test_a_copy_lasts_until_the_next_one_and_until_a_start(store: RocksStore) -> None:
    """A copy that is left over takes no room for good."""
    first = store.copy_files()
    second = store.copy_files()
    assert (first.exists(), second.exists()) == (False, True)
    store.close()
    store.settle()
    assert not second.exists()
    store.open()


def test_positions_are_those_of_all_partitions(store: RocksStore) -> None:
    """The highest number is among them, and a partition that was dropped is not."""
    known = {number: Position("id", number, 1.0) for number in (0, 300, 65_535)}
    store.note(known)
    assert store.positions() == known
    store.drop(300)
    assert store.positions().keys() == {0, 65_535}


def test_files_of_a_store_that_is_closed_are_not_copied(store: RocksStore) -> None:
    """The error names the store."""
    store.close()
    with pytest.raises(StateStoreError, match="is not open"):
        store.copy_files()


def test_a_replacement_that_fails_leaves_the_former_files(tmp_path: Path) -> None:
    """No part of the new ones is left."""
    place = StoreFolder(tmp_path / "db")
    with place.replacing() as part:
        (part / "file").write_text("former")

    def fail() -> None:
        with place.replacing() as part:
            (part / "file").write_text("new")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert (place.path / "file").read_text() == "former"
    assert list(tmp_path.iterdir()) == [place.path]
    assert not place.is_unsettled


def test_files_are_the_former_or_the_new_ones_wherever_a_replacement_is_killed(
    tmp_path: Path,
) -> None:
    """Once settled, the whole of either is there and nothing beside; both come to be."""
    command = [sys.executable, "-m", "tests.unit.extensions.keyed.killed_store_folder"]
    done = subprocess.run([*command, str(tmp_path / "store")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    former, new = map(int, done.stdout.split())
    assert former > 0
    assert new > 1


def test_a_start_fails_on_files_that_cannot_be_settled(tmp_path: Path) -> None:
    """The error names what is in the way: here a file, where folders are ours alone."""
    store = RocksStore(tmp_path / "db")
    (tmp_path / "db.part").write_text("")
    with pytest.raises(StartError, match=r"db\.part"):
        store.settle()
