from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.chaos.keyed import compared_rows, miscounted
from headrace.keyed.store import Change, PartitionKey, Position, RocksStore, StoredRow

if TYPE_CHECKING:
    from pathlib import Path


def test_counts_that_rise_by_one_with_the_offsets_are_right() -> None:
    """Of each key, and its state is the last of them."""
    assert miscounted({b"a": [(3, 1), (9, 2)], b"b": [(4, 1)]}, {b"a": 2, b"b": 1}) == 0


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ([(3, 1), (9, 1)], 1),
        ([(3, 1), (9, 3)], 3),
        ([(3, 1), (3, 2)], 2),
        ([(9, 1), (3, 2)], 2),
        ([(3, 1), (9, 2)], 1),
        ([(3, 1)], None),
        ([], 1),
    ],
)
def test_every_other_count_is_wrong(found: list[tuple[int, int]], state: int | None) -> None:
    """Lost, repeated, out of order, or not what the state says."""
    outputs = {b"a": found, b"b": [(1, 1)]}
    assert miscounted(outputs, {b"b": 1} | ({} if state is None else {b"a": state})) == 1


def row(state: bytes) -> StoredRow:
    """Return a row without timers."""
    return StoredRow(state)


#: A changelog of one partition: two keys, of which one is deleted and comes again.
CHANGES = {0: [(0, b"a", row(b"1")), (2, b"b", row(b"1")), (4, b"b", None), (6, b"b", row(b"5"))]}


@pytest.mark.parametrize(
    ("position", "rows", "wrong"),
    [
        (7, {b"a": b"1", b"b": b"5"}, 0),
        (3, {b"a": b"1", b"b": b"1"}, 0),
        (5, {b"a": b"1"}, 0),
        (0, {}, 0),
        (7, {b"a": b"1", b"b": b"1"}, 1),
        (7, {b"a": b"1"}, 1),
        (7, {b"a": b"1", b"b": b"5", b"c": b"1"}, 1),
        (3, {}, 1),
        (None, {b"a": b"9"}, 0),
    ],
)
def test_a_store_is_right_where_the_changelog_leads_to_the_same(
    tmp_path: Path, position: int | None, rows: dict[bytes, bytes], wrong: int
) -> None:
    """From its position on: a row that is missing, another one or one too many is wrong."""
    store = RocksStore(tmp_path / "db", 0)
    store.open()
    changes = [(PartitionKey(0, key), Change(None, row(state))) for key, state in rows.items()]
    store.write(changes, {} if position is None else {0: Position("topic", position, 1.0)})
    store.close()
    found = compared_rows(tmp_path / "db", CHANGES)
    assert found == (0 if position is None else len(rows), wrong)
