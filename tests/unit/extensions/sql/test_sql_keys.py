"""Upserts by keys that SQLite and Arrow do not compare alike."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ResultMisfitError
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import WriteMode
from tests.unit.extensions.sql.sql_keys import Results, commit_all, results_of, upsert_one_by_one
from tests.unit.extensions.sql.sql_tables import staged_table

if TYPE_CHECKING:
    from collections.abc import Callable

_COLUMNS = [
    ("text", "TEXT PRIMARY KEY"),
    ("text", "TEXT COLLATE NOCASE PRIMARY KEY"),
    ("text", "VARCHAR(1) COLLATE RTRIM PRIMARY KEY"),
    ("text", "TEXT, UNIQUE (k COLLATE NOCASE)"),
    ("integer", "INTEGER PRIMARY KEY"),
    ("float", "REAL PRIMARY KEY"),
    ("float", "INTEGER UNIQUE"),
    ("decimal", "NUMERIC PRIMARY KEY"),
]

_DRAWN = st.sampled_from(_COLUMNS).flatmap(
    lambda column: st.tuples(st.just(column), results_of(column[0]))
)


@settings(max_examples=60, deadline=None)
@given(drawn=_DRAWN)
def test_the_last_row_of_the_log_stays_for_keys_that_sqlite_equates(
    drawn: tuple[tuple[str, str], Results],
) -> None:
    """A group gives the rows of upserts one by one in the log's order."""
    (name, column), results = drawn
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            constraint = column.partition(",")[2]
            own = column.partition(",")[0]
            for table in ("t", "expected"):
                more = f", {constraint}" if constraint and "COLLATE" not in constraint else ""
                base.execute(f"CREATE TABLE {table} (k {own}, n INTEGER{more})")
                if constraint and "COLLATE" in constraint:
                    base.execute(f"CREATE UNIQUE INDEX {table}_k ON {table} (k COLLATE NOCASE)")
            sink = SqlSink(f"sqlite:///{path}", "t", mode=WriteMode.UPSERT, key=["k"])
            sink.open()
            try:
                rows = commit_all(sink, name, results)
            finally:
                sink.close()
            for row in rows:
                row["k"] = float(row["k"]) if name == "decimal" else row["k"]
            upsert_one_by_one(base.execute, rows, "?")
            ordered = "SELECT k, n FROM {} ORDER BY n"
            found, expected = (
                base.execute(ordered.format(table)).fetchall() for table in ("t", "expected")
            )
    assert found == expected


@pytest.mark.parametrize("value", [["a"], {"a": 1}])
def test_a_key_of_structures_is_told_by_its_type(
    sinks: Callable[..., SqlSink], base: object, value: object
) -> None:
    """Before anything is computed, and as no record's fault."""
    base.run("CREATE TABLE k (k JSON PRIMARY KEY)")  # type: ignore[attr-defined]
    sink = sinks("k", mode=WriteMode.UPSERT, key=["k"])
    sink.open()
    with pytest.raises(ResultMisfitError, match=r"column 'k' of the key is .*have the reducer"):
        staged_table(sink, pa.table({"k": [value]}))


@pytest.mark.parametrize(
    ("column", "expected"),
    [("TEXT", ["a", "b"]), ("TEXT COLLATE NOCASE", ["b", "a"])],
)
def test_rows_are_sorted_where_equality_is_the_database_s(
    sinks: Callable[..., SqlSink], base: object, column: str, expected: list[str]
) -> None:
    """Locks are taken in one order where that changes nothing."""
    base.run(f"CREATE TABLE k (k {column} PRIMARY KEY)")  # type: ignore[attr-defined]
    sink = sinks("k", mode=WriteMode.UPSERT, key=["k"])
    sink.open()
    rows = staged_table(sink, pa.table({"k": ["b", "a"]})).rows
    assert rows is not None
    assert rows["k"].to_pylist() == expected
