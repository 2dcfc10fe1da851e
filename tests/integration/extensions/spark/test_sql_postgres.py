from __future__ import annotations

import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.errors import RowsRefusedError, StartError
from headrace.devstack.wait import wait_for
from headrace.extensions.sql.database import Database, TableName, _transaction_settings
from headrace.extensions.sql.loaders import copy
from headrace.extensions.sql.offsets import OffsetsTable
from headrace.extensions.sql.sink import SqlSink, StagedRows
from headrace.sinks.by_key import WriteMode
from headrace.sinks.errors import CommitConflictError
from headrace.testing.replacement import GroupedReplacerContract
from headrace.testing.sinks import BatchCommitContract, Row, SinkPlace, TablesOfArrow
from tests.integration.extensions.spark import sql_processes
from tests.postgres import PostgresServer, postgres_server
from tests.unit.extensions.sql.sql_tables import share, staged_table, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.sinks.contract import Sink

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server for all tests; each has a database of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    """An empty database's address."""
    return server.new_database()


def copy_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write rows by COPY, however few they are."""
    monkeypatch.setattr(copy, "FEWEST", 1)
    monkeypatch.setattr(copy, "FEWEST_STAGED", 1)


_ROWS = 'SELECT id, name FROM "Rows"'


class PostgresPlace:
    """A database with a table."""

    def __init__(self, url: str, mode: WriteMode, *, origin: bool = False) -> None:
        self.url = url
        self.made: list[SqlSink] = []
        self.options: dict[str, Any] = {"mode": mode, "origin": origin}
        if mode is WriteMode.UPSERT:
            self.options["key"] = ["id"]
        run(url, 'CREATE TABLE "Rows" (id BIGINT PRIMARY KEY, name TEXT)')
        if origin:
            run(url, 'ALTER TABLE "Rows" ADD COLUMN headrace_origin VARCHAR(64)')

    def sink(self) -> Sink[Any]:
        """Return a sink on the table."""
        self.made.append(SqlSink(self.url, "Rows", **self.options))
        return self.made[-1]

    def close(self) -> None:
        """Close what was not closed on it."""
        for sink in self.made:
            sink.close()

    def rows(self) -> list[Row]:
        """Read the table as any other reader does."""
        return [dict(zip(("id", "name"), r, strict=True)) for r in run(self.url, _ROWS)]


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements in one transaction; return the rows of the last one."""
    rows: list[tuple[Any, ...]] = []
    address = url.replace("+psycopg", "")
    with psycopg.connect(address) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            rows = cursor.fetchall() if cursor.description else []
    return rows


class TestAppend(BatchCommitContract):
    """The contract on PostgreSQL, with rows that are added."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(PostgresPlace(url, WriteMode.APPEND)) as place:
            yield place


class TestCopied(TestAppend):
    """The same with rows that are added by COPY, however few they are."""

    @pytest.fixture(autouse=True)
    def copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Copy every row."""
        copy_all(monkeypatch)


class TestReplaced(TablesOfArrow, GroupedReplacerContract):
    """The contract on PostgreSQL, with rows that say which micro-batch they are of."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(PostgresPlace(url, WriteMode.APPEND, origin=True)) as place:
            yield place


class TestUpsert(BatchCommitContract):
    """The contract on PostgreSQL, with rows that are replaced."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(PostgresPlace(url, WriteMode.UPSERT)) as place:
            yield place


class TestUpsertCopied(TestUpsert):
    """The same with rows that are replaced by way of a temporary table."""

    @pytest.fixture(autouse=True)
    def copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Copy every row."""
        copy_all(monkeypatch)


@pytest.fixture
def sinks(url: str) -> Iterator[Callable[..., SqlSink]]:
    """Make sinks on a table; close them at the end."""
    run(url, "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    made = []

    def make(address: str = url, **options: Any) -> SqlSink:
        made.append(SqlSink(address, "t", **options))
        made[-1].open()
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """The database of the sinks, for a writer of its own."""
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def offsets(database: Database) -> OffsetsTable:
    """The offsets of the table, for a writer of its own."""
    return OffsetsTable(database, TableName.of("headrace_offsets"), TableName.of("t"))


def staged(sink: SqlSink, *ids: int) -> StagedRows:
    """Return rows with these ids as staged."""
    table = pa.table({"id": pa.array(ids, pa.int64()), "name": ["x"] * len(ids)})
    return staged_table(sink, table)


@pytest.mark.parametrize("options", [[], ["copied"]])
def test_a_process_killed_at_every_step_loses_and_doubles_nothing(
    url: str, options: list[str]
) -> None:
    """From plan to answer: before and after each statement and COMMIT, rows and offsets agree."""
    sql_processes.assert_killed_at_every_step(url, *options)


def test_a_process_killed_at_any_moment_loses_and_doubles_nothing(url: str) -> None:
    """A kill between the server and the client is one too."""
    sql_processes.assert_killed_at_any_moment(url, 3)


def test_processes_that_fight_over_partitions_store_each_offset_once(url: str) -> None:
    """Members that take each other's partitions are told so, and what is stored is whole."""
    sql_processes.assert_fights_store_each_offset_once(url, 50)


def test_a_former_owner_in_the_middle_of_a_commit_is_waited_for(
    url: str, database: Database, offsets: OffsetsTable, sinks: Callable[..., SqlSink]
) -> None:
    """Two commits of one range, the first still open: the second waits, and is refused."""
    first, second = sinks(), sinks()
    first.commit(StagedRows("none"), [share(0, 0, 10)])

    with ThreadPoolExecutor(1) as other:
        with database.transaction() as open_one:
            offsets.move(open_one, [share(0, 10, 20)], {})
            late = other.submit(second.commit, staged(second, 1), [share(0, 10, 20)])
            assert wait_for(lambda: run(url, _WAITING), Deadline.after(30))
        with pytest.raises(CommitConflictError):
            late.result(30)

    assert run(url, "TABLE t") == []


_WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted"


def test_two_first_commits_of_a_partition_meet_in_the_key(
    url: str, database: Database, offsets: OffsetsTable, sinks: Callable[..., SqlSink]
) -> None:
    """The second INSERT waits where there is no row to update yet, and is a conflict then."""
    second = sinks()

    with ThreadPoolExecutor(1) as other:
        with database.transaction() as open_one:
            offsets.move(open_one, [share(0, 0, 10)], {})
            late = other.submit(second.commit, staged(second, 1), [share(0, 0, 12)])
            assert wait_for(lambda: run(url, _WAITING), Deadline.after(30))
        with pytest.raises(CommitConflictError) as caught:
            late.result(30)

    assert caught.value.conflicts[0].stored == 10
    assert run(url, "TABLE t") == []


def test_an_owner_that_stands_still_in_a_transaction_is_cut_off(
    url: str, database: Database, offsets: OffsetsTable, sinks: Callable[..., SqlSink]
) -> None:
    """The server ends the transaction of a stopped member, so that its successor can write."""
    stopped, successor = sinks(), sinks()
    stopped.commit(StagedRows("none"), [share(0, 0, 10)])

    connection = database.engine.connect()
    for statement in _transaction_settings(0.5):
        connection.exec_driver_sql(statement)
    offsets.move(connection, [share(0, 10, 20)], {})
    successor.commit(staged(successor, 1), [share(0, 10, 15)])
    with pytest.raises(SQLAlchemyError):
        connection.commit()
    connection.invalidate()
    connection.close()

    assert run(url, "TABLE t") == [(1, "x")]
    assert stopped.stored_offset("id/0") == 15


@pytest.mark.parametrize("stored", [True, False])
def test_a_connection_lost_in_the_commit_is_looked_into(
    url: str, server: PostgresServer, sinks: Callable[..., SqlSink], *, stored: bool
) -> None:
    """The server ends the session behind or before the COMMIT: what holds is what it stored."""
    sink = sinks()
    rows = staged(sink, 1)

    def lose(commit: Callable[[], None]) -> None:
        if stored:
            commit()
        server.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
            f"datname = '{url.rpartition('/')[2]}'"
        )
        commit()  # on a connection that is gone
        raise psycopg.OperationalError("connection lost")

    wrap_commit(sink, lose)
    if stored:
        sink.commit(rows, [share(0, 0, 10)])
    else:
        with pytest.raises(SQLAlchemyError):
            sink.commit(rows, [share(0, 0, 10)])
        assert run(url, "TABLE t") == []
        sink.commit(rows, [share(0, 0, 10)])

    assert run(url, "TABLE t") == [(1, "x")]
    assert sink.stored_offset("id/0") == 10


def test_a_server_that_was_away_between_two_commits_is_not_noticed(
    url: str, server: PostgresServer, sinks: Callable[..., SqlSink]
) -> None:
    """Connections that broke in the pool are made anew before they are used."""
    sink = sinks()
    sink.commit(staged(sink, 1), [share(0, 0, 10)])
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'test%'")
    sink.commit(staged(sink, 2), [share(0, 10, 20)])
    assert run(url, "TABLE t") == [(1, "x"), (2, "x")]


def test_values_of_all_kinds_arrive(url: str) -> None:
    """Numbers, text, bytes, moments, lists and structures are in the columns as they were."""
    columns = "i INT, n NUMERIC(9,2), f FLOAT8, b BOOL, t TEXT, r BYTEA, d DATE, z TIMESTAMPTZ"
    run(
        url, f"CREATE SCHEMA s; CREATE TABLE s.all_of_it ({columns}, p TIMESTAMP, l INT[], j JSONB)"
    )
    at = datetime(2013, 1, 1, 12, tzinfo=UTC)
    row = {
        "i": 1,
        "n": Decimal("12.50"),
        "f": 0.5,
        "b": True,
        "t": "ü%s:x",
        "r": b"\x00\xff",
        "d": date(2013, 1, 1),
        "z": at,
        "p": at,
        "l": [1, 2],
        "j": {"a": [1, None]},
    }
    sink = SqlSink(url, "s.all_of_it")
    sink.open()

    sink.commit(staged_table(sink, pa.Table.from_pylist([row])), [share(0, 0, 1)])
    sink.close()

    (found,) = run(url, "SET timezone = 'Asia/Tokyo'", "TABLE s.all_of_it")
    assert dict(zip(row, found, strict=True)) == row | {"p": at.replace(tzinfo=None)}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"database": "nosuch"}, 'database "nosuch" does not exist'),
        ({"username": "poor"}, "permission denied"),
        ({"port": 1}, "refused"),
    ],
)
def test_an_error_of_the_start_omits_the_password(
    url: str, change: dict[str, Any], problem: str
) -> None:
    """A missing database, missing rights and a server that is away stop the start."""
    role = "DO $$ BEGIN CREATE ROLE poor LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
    run(url, role)
    address = sa.make_url(url).set(password="hunter2", **change)

    run(url, "CREATE TABLE t (id BIGINT)")
    sink = SqlSink(address.render_as_string(hide_password=False), "t")
    with pytest.raises(StartError, match=problem) as caught:
        sink.open()
    sink.close()

    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown


_REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'no such city' USING DETAIL = NEW.name, HINT = NEW.name, CONSTRAINT = 'cities';
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("ALTER TABLE t ADD CONSTRAINT rule CHECK (id < 2)", 'violates check constraint "rule"'),
        ("ALTER TABLE t ALTER name SET NOT NULL", 'unique constraint "t_pkey"'),
        ("ALTER TABLE t ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED", '"t_name_key"'),
        (_REFUSING, 'no such city (constraint "cities")'),
    ],
)
@pytest.mark.parametrize("copied", [False, True])
def test_a_row_that_the_server_refuses_is_shown_nowhere(
    url: str,
    sinks: Callable[..., SqlSink],
    monkeypatch: pytest.MonkeyPatch,
    *,
    rule: str,
    says: str,
    copied: bool,
) -> None:
    """The error and its causes contain neither statement nor DETAIL, also at COMMIT."""
    if copied:
        copy_all(monkeypatch)
    run(url, "INSERT INTO t VALUES (1, 'hunter2')", rule)
    sink = sinks()
    number = 1 if "t_pkey" in says else 2
    table = pa.table({"id": pa.array([number], pa.int64()), "name": ["hunter2"]})
    with (
        capture_logs() as events,
        pytest.raises(Exception, match=re.escape(says)) as caught,
    ):
        sink.commit(staged_table(sink, table), [share(0, 0, 10)])

    shown = "".join(traceback.format_exception(caught.value)) + str(events)
    assert says in shown
    assert "hunter2" not in shown
    assert "DETAIL" not in shown
    assert "INSERT INTO" not in shown


def test_rows_that_are_refused_together_are_not_in_the_driver_s_log(
    url: str, sinks: Callable[..., SqlSink], caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's warning of a row refused by the server says the rule, and not the row."""
    run(url, "ALTER TABLE t ADD CONSTRAINT rule CHECK (id < 2)")
    sink = sinks()
    table = pa.table({"id": range(2, 4), "name": ["hunter2", "a\x00b"]})
    with pytest.raises(RowsRefusedError):
        sink.commit(staged_table(sink, table), [share(0, 0, 10)])
    assert "rule" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_server_that_restarts_leaves_no_outcome_unknown(
    url: str, server: PostgresServer, sinks: Callable[..., SqlSink]
) -> None:
    """Commits while it takes no connections fail before they begin, and say nothing else."""
    sink = sinks()
    rows = staged(sink, 1)
    name = url.rpartition("/")[2]
    server.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    with capture_logs() as events:
        for _ in range(3):
            with pytest.raises(SQLAlchemyError, match="not currently accepting connections"):
                sink.commit(rows, [share(0, 0, 10)])
    server.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    assert events == []
    sink.commit(rows, [share(0, 0, 10)])
    assert run(url, "TABLE t") == [(1, "x")]
