"""Several results in one transaction of a database."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import RowsRefusedError
from headrace.extensions.sql.database import Database, TableName
from headrace.extensions.sql.target import SqlTarget
from headrace.sinks.by_key import Merging, WriteMode
from tests.unit.extensions.sql.sql_tables import Base, share, staged, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.extensions.sql.sink import SqlSink


@pytest.fixture
def sink(sinks: Callable[..., SqlSink]) -> SqlSink:
    """Open a sink that appends."""
    sink = sinks(member="m1")
    sink.open()
    return sink


@pytest.fixture
def upserting(sinks: Callable[..., SqlSink]) -> SqlSink:
    """Open a sink that upserts by id."""
    sink = sinks(mode=WriteMode.UPSERT, key=["id"])
    sink.open()
    return sink


def row(number: int, name: str) -> dict[str, Any]:
    """Return a row."""
    return {"id": number, "name": name}


def test_a_row_that_is_refused_undoes_the_results_before_it(base: Base, sink: SqlSink) -> None:
    """The transaction stores nothing, and the good result can be committed by itself."""
    good, bad = staged(sink, [row(1, "a")]), staged(sink, [row(2, "b"), row(2, "c")])
    with pytest.raises(RowsRefusedError):
        sink.commit_all([good, bad], [share(0, 0, 20)])
    assert (base.rows(), sink.stored_offset("id/0")) == ([], None)

    sink.commit(good, [share(0, 0, 10)])

    assert base.rows() == [(1, "a")]


def test_an_answer_that_is_lost_is_looked_up_for_all(base: Base, sink: SqlSink) -> None:
    """A COMMIT that took effect and raised all the same has stored every result."""

    def commit_and_lose(call: Callable[[], None]) -> None:
        call()
        raise sqlite3.OperationalError("connection lost")

    results = [staged(sink, [row(number, "a")]) for number in range(3)]
    wrap_commit(sink, commit_and_lose)
    sink.commit_all(results, [share(0, 0, 20), share(1, 0, 10)])

    assert base.rows() == [(number, "a") for number in range(3)]
    assert [sink.stored_offset(f"id/{number}") for number in range(2)] == [20, 10]


def test_the_last_row_of_a_key_stays(base: Base, upserting: SqlSink) -> None:
    """A group stores what commits one after the other would."""
    results = [
        staged(upserting, [row(1, "a"), row(3, "c")]),
        staged(upserting, [row(2, "b"), row(1, "d")]),
        staged(upserting, [row(3, "e")]),
    ]
    upserting.commit_all(results, [share(0, 0, 30)])

    assert base.rows() == [(1, "d"), (2, "b"), (3, "e")]


def test_rows_are_written_in_one_order_of_their_keys(base: Base, upserting: SqlSink) -> None:
    """Two writers that lock rows in one order do not wait for each other."""
    results = [staged(upserting, [row(2, "a"), row(9, "c")]), staged(upserting, [row(1, "b")])]
    rows = [each.rows for each in results if each.rows is not None]
    target = SqlTarget(Database(base.url), TableName.of("t"), WriteMode.UPSERT, ["id"])
    target.load()

    (written,) = target.as_one(rows)

    assert written.column("id").to_pylist() == [1, 2, 9]


_MERGED: dict[str, Any] = {"key": ["id"], "merge": {"name": Merging.LAST}}


def test_merged_results_take_all_locks_in_one_order_of_their_keys(
    base: Base, upserting: SqlSink
) -> None:
    """The first part has each key once, in order; what it has more follows in the log's order."""
    results = [
        staged(upserting, [row(3, "a"), row(9, "b")]),
        staged(upserting, [row(1, "c"), row(3, "d")]),
        staged(upserting, [row(3, "e"), row(2, "f")]),
    ]
    rows = [each.rows for each in results if each.rows is not None]
    target = SqlTarget(Database(base.url), TableName.of("t"), WriteMode.MERGE, **_MERGED)
    target.load()

    parts = [
        list(zip(*part.select(["id", "name"]).to_pydict().values(), strict=True))
        for part in target.as_one(rows)
    ]

    assert parts == [[(1, "c"), (2, "f"), (3, "a"), (9, "b")], [(3, "d")], [(3, "e")]]


@pytest.mark.parametrize("key", [["b", "a"], ["a", "b"]])
def test_rows_are_in_the_order_of_the_table_s_columns_however_the_key_is_written(
    base: Base, sinks: Callable[..., SqlSink], key: list[str]
) -> None:
    """Two channels may name the columns of one key in different orders."""
    base.run("CREATE TABLE u (b INTEGER, a INTEGER, UNIQUE (a, b))")
    sink = sinks("u", mode=WriteMode.UPSERT, key=key)
    sink.open()

    rows = staged(sink, [{"a": 1, "b": 2}, {"a": 2, "b": 1}]).rows

    assert rows is not None
    assert rows.select(["b", "a"]).to_pylist() == [{"b": 1, "a": 2}, {"b": 2, "a": 1}]


def test_results_of_different_columns_are_written_in_turn(base: Base, upserting: SqlSink) -> None:
    """A column that the later result does not have keeps the earlier one's value."""
    results = [staged(upserting, [row(1, "a")]), staged(upserting, [{"id": 1}, {"id": 2}])]
    upserting.commit_all(results, [share(0, 0, 20)])

    assert base.rows() == [(1, "a"), (2, None)]
