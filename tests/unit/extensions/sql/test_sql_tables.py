from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.errors import ConfigError, ResultMisfitError, RowsRefusedError, StartError
from headrace.extensions.sql import target
from headrace.extensions.sql.database import Database
from headrace.extensions.sql.loaders.rows import CHUNK
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import WriteMode
from tests.unit.extensions.sql.sql_tables import Base, share, staged, staged_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UPSERT = {"mode": WriteMode.UPSERT, "key": ["id"]}


@pytest.fixture
def opened(sinks: Callable[..., SqlSink]) -> Callable[..., SqlSink]:
    """Open sinks on tables."""

    def open_one(table: str = "t", **options: Any) -> SqlSink:
        sink = sinks(table, **options)
        sink.open()
        return sink

    return open_one


def test_an_upsert_replaces_the_row_with_the_same_key(
    base: Base, opened: Callable[..., SqlSink]
) -> None:
    """A later result's row stands in place of the earlier one, null fields included."""
    sink = opened(**UPSERT)
    sink.commit(staged(sink, [{"id": 2, "name": "b"}, {"id": 1, "name": "a"}]), [share(0, 0, 1)])
    sink.commit(staged(sink, [{"id": 2, "name": None}, {"id": 3, "name": "c"}]), [share(0, 1, 2)])
    assert base.rows() == [(1, "a"), (2, None), (3, "c")]


def test_a_row_of_key_columns_alone_is_stored_once(
    base: Base, opened: Callable[..., SqlSink]
) -> None:
    """An upsert without columns to replace leaves the row as it is."""
    base.run("CREATE TABLE pairs (a INTEGER, b TEXT, UNIQUE (b, a))")
    sink = opened("pairs", mode=WriteMode.UPSERT, key=["a", "b"])
    for turn in range(2):
        sink.commit(staged(sink, [{"a": 1, "b": "x"}]), [share(0, turn, turn + 1)])
    assert base.rows("pairs") == [(1, "x")]


@pytest.mark.parametrize("ids", [[1, 1], [1, None]])
def test_a_key_has_one_row_in_a_result(opened: Callable[..., SqlSink], ids: list[Any]) -> None:
    """Two rows with one key, or none, are refused: which should stay is not said."""
    sink = opened(**UPSERT)
    with pytest.raises(RowsRefusedError, match="one row for each id"):
        staged(sink, [{"id": id_, "name": "x"} for id_ in ids])


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": 1, "nam": "x"}, "column 'nam' is not in the table"),
        ({"name": "x"}, "column 'id' is missing"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    opened: Callable[..., SqlSink], row: dict[str, Any], problem: str
) -> None:
    """A column too many and one that the key needs are told before anything is computed."""
    sink = opened(**UPSERT)
    with pytest.raises(ResultMisfitError, match=problem):
        staged(sink, [row])


def test_columns_that_fill_themselves_may_be_left_out(
    base: Base, opened: Callable[..., SqlSink]
) -> None:
    """Only a missing NOT NULL column without a default is an error."""
    base.run(
        "CREATE TABLE more (id INTEGER PRIMARY KEY, a TEXT NOT NULL, b TEXT, "
        "c INTEGER NOT NULL DEFAULT 7)"
    )
    sink = opened("more")
    sink.commit(staged(sink, [{"a": "x"}]), [share(0, 0, 1)])
    assert base.rows("more") == [(1, "x", None, 7)]
    with pytest.raises(ResultMisfitError, match="column 'a' is missing"):
        staged(sink, [{"b": "x"}])


def test_a_column_added_to_the_table_is_seen(base: Base, opened: Callable[..., SqlSink]) -> None:
    """The table is looked at again when a result has a column that it had not."""
    sink = opened()
    base.run("ALTER TABLE t ADD COLUMN extra INTEGER")
    sink.commit(staged(sink, [{"id": 1, "extra": 5}]), [share(0, 0, 1)])
    assert base.rows() == [(1, None, 5)]


def test_more_rows_than_a_chunk_arrive_in_one_transaction(
    base: Base, opened: Callable[..., SqlSink]
) -> None:
    """Rows are inserted chunk by chunk, and all of them are stored."""
    sink = opened()
    count = 2 * CHUNK + 1
    sink.commit(staged(sink, [{"id": n, "name": "x"} for n in range(count)]), [share(0, 0, 1)])
    assert base.run("SELECT count(*), min(id), max(id) FROM t") == [(count, 0, count - 1)]


def test_moments_are_stored_in_utc(base: Base, opened: Callable[..., SqlSink]) -> None:
    """A column without a time zone gets the time of day in UTC, whatever zone a result has."""
    base.run("CREATE TABLE times (at TIMESTAMP)")
    sink = opened("times")
    at = datetime(2013, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    moments = pa.array([at], pa.timestamp("us", tz="+02:00"))
    sink.commit(staged_table(sink, pa.table({"at": moments})), [share(0, 0, 1)])
    assert base.rows("times") == [("2013-01-01 10:00:00.000000",)]


@pytest.mark.parametrize(
    ("table", "options", "problem"),
    [
        ("missing", {}, "there is no such table; create it"),
        ("t", {"mode": WriteMode.UPSERT, "key": ["name"]}, "no primary key or unique constraint"),
        ("other.t", {}, "unknown database"),
    ],
)
def test_a_table_that_cannot_be_used_stops_the_start(
    opened: Callable[..., SqlSink], table: str, options: dict[str, Any], problem: str
) -> None:
    """A missing table, a key that is not unique and the database's own objections are said."""
    with pytest.raises(StartError, match=problem):
        opened(table, **options)


def test_a_unique_index_will_do_for_a_key(base: Base, opened: Callable[..., SqlSink]) -> None:
    """An index is as good as a constraint, unless it covers some of the rows only."""
    base.run("CREATE TABLE i (a INTEGER, b INTEGER)", "CREATE UNIQUE INDEX ia ON i (a)")
    base.run("CREATE UNIQUE INDEX ib ON i (b) WHERE b > 0")
    opened("i", mode=WriteMode.UPSERT, key=["a"])
    with pytest.raises(StartError, match="exactly b"):
        opened("i", mode=WriteMode.UPSERT, key=["b"])


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("sqlite://", {}, "without a file nothing lasts"),
        ("sqlite:///:memory:", {}, "without a file nothing lasts"),
        ("not a url with hunter2", {}, "the url cannot be read"),
        ("postgresql://u:hunter2@h:port/d", {}, "the url cannot be read"),
        ("nosuch://u:hunter2@h/d", {}, "nosuch://h/d: SQLAlchemy knows no such database"),
        ("mysql+mysqldb://u:hunter2@h/d", {}, "mysql://h/d: its driver is not installed"),
        ("postgresql://u:hunter2@h/d", {"mode": WriteMode.UPSERT}, "a key goes with mode upsert"),
        ("postgresql://u:hunter2@h/d", {"key": ["a"]}, "a key goes with mode upsert"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(
    url: str, options: dict[str, Any], problem: str
) -> None:
    """No connection is made, and the message has the place without user and password."""
    with pytest.raises(ConfigError, match=problem) as caught:
        SqlSink(url, "t", **options)
    assert "hunter2" not in str(caught.value)


def test_a_database_without_upsert_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other dialects only append."""
    monkeypatch.setattr(target, "UPSERTING", ("postgresql",))
    with pytest.raises(ConfigError, match="mode upsert takes postgresql; use mode append"):
        SqlSink("sqlite:////tmp/x.db", "t", mode=WriteMode.UPSERT, key=["id"])


def test_a_database_that_cannot_be_reached_stops_the_start(tmp_path: Path) -> None:
    """The error names the place and what to mend."""
    sink = SqlSink(f"sqlite:///{tmp_path / 'no' / 'folder.db'}", "t")
    with pytest.raises(StartError, match="unable to open database file; fix the database"):
        sink.open()


def test_postgresql_is_reached_through_psycopg() -> None:
    """The bare name means psycopg, and a password of its own takes the place of the url's."""
    database = Database("postgresql://u:old@h:5/d?connect_timeout=3", password="p@:/w")
    url = database.url
    assert (url.drivername, url.password) == ("postgresql+psycopg", "p@:/w")
    assert database.name == "postgresql://h:5/d"
    assert "p@:/w" not in repr(database.engine)


@pytest.mark.parametrize("dialect", ["mariadb", "mysql"])
def test_mariadb_and_mysql_are_reached_through_pymysql(dialect: str) -> None:
    """The bare names mean PyMySQL, with which rows are loaded."""
    database = Database(f"{dialect}://h/d")
    assert database.url.drivername == f"{dialect}+pymysql"
    assert database.loads
