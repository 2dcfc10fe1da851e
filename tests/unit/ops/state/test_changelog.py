"""The files that state is exported to, and the comparison of a store with its changelog."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.store import RocksStore
from headrace.keyed import at_clock, at_event
from headrace.ops.state.changelog import (
    ChangelogTable,
    FileHead,
    Logged,
    PartitionEnd,
    StateFile,
    writing,
)
from headrace.ops.state.commands import compared, without_quarantine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = FileHead("main", "g", "in", "topic-id", 3, "2026-01-01T00:00:00Z")


#: What is hard to write and to read again: bytes that are no text, JSON that is written otherwise
#: than Headrace does, rows without a state.
ROWS: dict[int, dict[bytes, KeyRow]] = {
    0: {
        b"": KeyRow(b"1"),
        b"\xff\x00": KeyRow(b"\x00\xff"),
        b'["a","b"]': KeyRow('{"é":1.0,"n":9007199254740993}'.encode()),
        b"spaced": KeyRow(b'{"a": 1}'),
        b"twice": KeyRow(b'{"a":1,"a":2}'),
    },
    1: {},
    2: {
        b"empty": KeyRow(b""),
        b"t": KeyRow.of(b"null", {"x": at_event(-5), "y": at_clock(7)}, "it raised"),
        b"waits": KeyRow.of(None, {"é": at_event(1 << 60)}),
    },
}


def written(path: Path, kind: str, rows: dict[int, dict[bytes, KeyRow]] = ROWS) -> StateFile:
    """Return a file with these rows."""
    with path.open("wb") as out, writing(out, HEAD, kind) as writer:
        for number, each in rows.items():
            writer.write(number, each, PartitionEnd(len(each), number * 10, None))
    return StateFile.open(path)


def read(file: StateFile) -> dict[int, dict[bytes, KeyRow]]:
    """Return the rows of a file by partition."""
    found: dict[int, dict[bytes, KeyRow]] = {number: {} for number in range(3)}
    for number, key, row in file.rows():
        found[number][key] = row
    return found


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_export_is_read_byte_for_byte(tmp_path: Path, kind: str) -> None:
    """Both formats keep the head and the end of each partition."""
    file = written(tmp_path / "state", kind)
    assert file.head == HEAD
    assert read(file) == ROWS
    assert file.ends == {n: PartitionEnd(len(ROWS[n]), n * 10, None) for n in range(3)}


@given(
    st.dictionaries(
        st.binary(max_size=4), st.one_of(st.binary(max_size=8), st.just(b'{"n":1}')), max_size=5
    )
)
def test_any_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, rows: Any) -> None:
    """Keys and states of whatever bytes."""
    made = {0: {key: KeyRow(state) for key, state in rows.items()}, 1: {}, 2: {}}
    folder = tmp_path_factory.mktemp("state")
    for kind in ("jsonl", "parquet"):
        assert read(written(folder / kind, kind, made)) == made


def test_lines_can_be_read_by_other_programs(tmp_path: Path) -> None:
    """A state is JSON where that is the same bytes again, and base64 elsewhere."""
    path = tmp_path / "state.jsonl"
    written(path, "jsonl")
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (head["headrace_state"], head["group"], head["partitions"]) == (1, "g", 3)
    assert {"partition": 0, "key": "", "state": 1} in lines
    assert {"partition": 0, "key": "spaced", "state_base64": "eyJhIjogMX0="} in lines
    assert {"partition": 0, "key_hex": "ff00", "state_base64": "AP8="} in lines


def test_a_table_has_keys_and_states_as_they_are(tmp_path: Path) -> None:
    """A row without a state has none there."""
    path = tmp_path / "state.parquet"
    written(path, "parquet")
    found = pq.read_table(path).to_pylist()
    assert [each["state"] for each in found if each["key"] == b"waits"] == [None]
    assert [each["partition"] for each in found] == [0] * 5 + [2] * 3


def test_a_table_that_is_cut_off_is_told(tmp_path: Path) -> None:
    """Before anything is changed with it."""
    path = tmp_path / "state.parquet"
    written(path, "parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match="is no whole Parquet file"):
        StateFile.open(path)


def test_a_table_of_something_else_is_told(tmp_path: Path) -> None:
    """Parquet, and no export."""
    path = tmp_path / "other.parquet"
    pq.write_table(pq.read_table(written(tmp_path / "s", "parquet").path).select(["key"]), path)
    with pytest.raises(UsageError, match="is no export of state"):
        StateFile.open(path)


def test_a_released_key_keeps_state_and_timers() -> None:
    """A key that had neither is deleted."""
    timers = {"x": at_event(5)}
    row = without_quarantine(KeyRow.of(b"1", timers, "it raised"))
    assert row is not None
    assert row == KeyRow.of(b"1", timers)
    assert without_quarantine(KeyRow.of(None, {}, "it raised")) is None


class Records:
    """A changelog of one partition."""

    def __init__(self, *records: tuple[bytes, Logged]) -> None:
        self._records = records

    def records(self, number: int) -> Iterator[tuple[bytes, Logged]]:
        """Return all of them."""
        del number
        return iter(self._records)


def logged(offset: int, key: str, state: bytes | None) -> tuple[bytes, Logged]:
    """Return a record."""
    return key.encode(), Logged(offset, None if state is None else KeyRow(state))


def test_a_store_is_compared_at_its_position(tmp_path: Path) -> None:
    """Later rows may differ; rows that were compacted away since are unsure."""
    store = RocksStore(tmp_path / "db")
    store.open()
    kept = {"same": b"1", "newer": b"2", "older": b"1", "unsure": b"1", "wrong": b"9", "more": b"1"}
    rows = [
        (PartitionKey(0, key.encode()), RowChange(None, KeyRow(state)))
        for key, state in kept.items()
    ]
    store.put([ChangedRows.of(rows)])
    changelog = Records(
        logged(0, "same", b"1"),
        logged(1, "newer", b"1"),
        logged(2, "older", b"1"),
        logged(3, "wrong", b"1"),
        logged(4, "missing", b"1"),
        logged(5, "deleted", b"1"),
        logged(6, "deleted", None),
        logged(7, "goes", b"1"),
        # the store's position is here
        logged(10, "newer", b"2"),
        logged(11, "older", b"2"),
        logged(12, "unsure", b"2"),
        logged(13, "goes", None),
        logged(14, "comes", b"1"),
    )
    try:
        found = compared(store, cast("ChangelogTable", changelog), 0, 10)
    finally:
        store.close()
    assert found.wrong == [b"missing", b"more", b"wrong"]
    assert found.unsure == 1
