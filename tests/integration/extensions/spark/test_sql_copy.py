"""Rows that go to PostgreSQL by COPY: the table has what bound rows would have made of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.extensions.sql.database import Database, TableName
from headrace.extensions.sql.loaders import rows as loading_rows
from headrace.extensions.sql.sink import SqlSink
from headrace.extensions.sql.target import SqlTarget
from headrace.sinks.by_key import WriteMode
from headrace.sinks.micro_batch import MicroBatch
from tests.integration.extensions.spark.test_sql_postgres import copy_all, run
from tests.integration.extensions.spark.test_sql_values import COLUMN_TYPES, OTHER_TYPES
from tests.postgres import PostgresServer, postgres_server
from tests.unit.extensions.sql import sql_merging
from tests.unit.extensions.sql.sql_tables import share
from tests.unit.extensions.sql.sql_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_COPY_REFUSED = "sql_copy_refused"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server for all tests; each has a database of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def typed_url(server: PostgresServer) -> str:
    """A database that has the types."""
    url = server.new_database()
    run(url, *OTHER_TYPES)
    return url


@pytest.fixture
def url(server: PostgresServer) -> str:
    """An empty database's address."""
    return server.new_database()


def _outcome(
    monkeypatch: pytest.MonkeyPatch,
    target: SqlTarget,
    database: Database,
    rows: pa.Table,
    *,
    by_copy: bool,
) -> tuple[tuple[str, list[str]], bool]:
    """Return the error and the contents of the table ``t``, and whether a COPY was refused.

    Nothing is kept.
    """
    with monkeypatch.context() as patch:
        if by_copy:
            copy_all(patch)
        return _written(target, database, rows)


def _written(
    target: SqlTarget, database: Database, rows: pa.Table
) -> tuple[tuple[str, list[str]], bool]:
    error, contents = "", []
    with capture_logs() as events:
        try:
            with database.transaction() as connection:
                target.write(connection, target.prepare(rows))
                result = connection.exec_driver_sql("SELECT t::text FROM t")
                contents = [row[0] for row in result]
                connection.rollback()
        except RowsRefusedError as refused:
            error = str(refused)
    return (error, contents), any(event["event"] == _COPY_REFUSED for event in events)


def _cases(values: Sequence[Any]) -> list[list[Any]]:
    """Return each value between nulls."""
    return [[None, value, None] for value in values]


@pytest.mark.parametrize("column", COLUMN_TYPES)
def test_each_value_in_each_column_is_what_a_bound_one_is(
    monkeypatch: pytest.MonkeyPatch, typed_url: str, column: str
) -> None:
    """The same text is read, or the same error; what bound rows take, COPY does not refuse."""
    run(typed_url, "DROP TABLE IF EXISTS t", f"CREATE TABLE t (v {column})")
    with closing(Database(typed_url)) as database:
        target = SqlTarget(database, TableName.of("t"), WriteMode.APPEND, ())
        target.load()
        for kind, values in VALUES:
            try:
                target.check(["v"], pa.schema([("v", kind)]))
            except ResultMisfitError:
                continue
            for case in _cases(values):
                rows = pa.table({"v": pa.array(case, kind)})
                copied, is_refused = _outcome(monkeypatch, target, database, rows, by_copy=True)
                bound, _ = _outcome(monkeypatch, target, database, rows, by_copy=False)
                assert copied == bound, (column, kind, case)
                is_too_large = kind == pa.uint64() and 2**64 - 1 in case
                assert not is_refused or bound[0] or is_too_large, (column, kind, case)


#: Columns of a table, with an Arrow type that each is copied from, and its values.
_DRAWN: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "b": ("BOOLEAN", pa.bool_(), st.booleans()),
    "h": ("SMALLINT", pa.int64(), st.integers(-(2**15), 2**15 - 1)),
    "i": ("INT", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": ("BIGINT", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "r": ("REAL", pa.float32(), st.floats(width=32)),
    "s": ("REAL", pa.float64(), st.floats()),
    "d": ("FLOAT8", pa.float64(), st.floats()),
    "n": ("NUMERIC", pa.decimal128(38, 9), st.decimals(-(10**28), 10**28, places=9)),
    "m": ("NUMERIC(9,2)", pa.decimal128(12, 4), st.decimals(-(10**7), 10**7, places=4)),
    "f": ("NUMERIC", pa.float64(), st.floats()),
    "t": ("TEXT", pa.string(), st.text(max_size=9)),
    "v": ("VARCHAR(5)", pa.large_string(), st.text(max_size=6)),
    "c": ("CHAR(5)", pa.string(), st.text(max_size=6)),
    "y": ("BYTEA", pa.binary(), st.binary(max_size=9)),
    "a": ("DATE", pa.date32(), st.dates()),
    "o": ("TIME", pa.time64("us"), st.times()),
    "p": ("TIMESTAMP", pa.timestamp("us"), st.datetimes()),
    "q": ("TIMESTAMPTZ", pa.timestamp("us"), st.datetimes()),
    "z": ("TIMESTAMPTZ", pa.timestamp("us", tz="Asia/Tokyo"), st.integers(-(10**15), 10**15)),
    "w": ("TIMESTAMP(3)", pa.timestamp("us", tz="UTC"), st.integers(-(10**15), 10**15)),
    "x": ("INTERVAL", pa.duration("us"), st.timedeltas(-timedelta(10**5), timedelta(10**5))),
    "j": ("JSONB", pa.string(), st.sampled_from(['{"a": [1, null]}', "null", "{bad", '"ü"'])),
    "k": ("JSON", pa.struct([("a", pa.float64())]), st.fixed_dictionaries({"a": st.floats()})),
    "e": ("INT[]", pa.list_(pa.int64()), st.lists(st.none() | st.integers(-9, 9), max_size=3)),
    "g": ("TEXT[]", pa.list_(pa.string()), st.lists(st.text(max_size=3), max_size=3)),
    "u": ("UUID", pa.string(), st.uuids().map(str)),
}


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    """Return a table of some of the columns, cut in two, and the second part sliced."""
    names = draw(st.lists(st.sampled_from(sorted(_DRAWN)), min_size=1, max_size=5, unique=True))
    parts = []
    for count in draw(st.tuples(st.integers(1, 5), st.integers(1, 5))):
        columns = {}
        for name in names:
            _, kind, values = _DRAWN[name]
            drawn = [draw(st.none() | values) for _ in range(count + 1)]
            columns[name] = pa.array(drawn, kind)[1:]
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


@pytest.fixture(scope="module")
def drawn_target(server: PostgresServer) -> Iterator[tuple[SqlTarget, Database]]:
    """A table of all columns that are drawn."""
    url = server.new_database()
    run(url, f"CREATE TABLE t ({', '.join(f'{n} {c}' for n, (c, *_) in _DRAWN.items())})")
    with closing(Database(url)) as database:
        target = SqlTarget(database, TableName.of("t"), WriteMode.APPEND, ())
        target.load()
        yield target, database


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=_tables())
def test_random_tables_are_copied_as_they_are_bound(
    monkeypatch: pytest.MonkeyPatch, drawn_target: tuple[SqlTarget, Database], rows: pa.Table
) -> None:
    """Nulls, extreme numbers, NaN, NUL in text, zones, slices: the same contents, or fault."""
    copied, is_refused = _outcome(monkeypatch, *drawn_target, rows, by_copy=True)
    bound, _ = _outcome(monkeypatch, *drawn_target, rows, by_copy=False)
    # of several values that are refused, the server and the driver may be first with any
    assert (copied[1], bool(copied[0])) == (bound[1], bool(bound[0]))
    assert not is_refused or bound[0]


@pytest.mark.parametrize(
    ("made", "key", "says"),
    [
        ("CREATE TABLE t (v TEXT, n INT)", [], "PostgreSQL text fields cannot contain NUL"),
        ("CREATE TABLE t (v TEXT PRIMARY KEY, n INT)", ["v"], "cannot contain NUL"),
        ("CREATE TABLE t (v VARCHAR(3), n INT)", [], "column 'v': value too long"),
        ("CREATE TABLE t (v TEXT, n INT CONSTRAINT few CHECK (n < 5))", [], '"few"'),
        ("CREATE TABLE t (v TEXT PRIMARY KEY, n INT CONSTRAINT few CHECK (n < 5))", ["v"], '"few"'),
    ],
)
def test_a_row_that_is_refused_by_copy_is_told_as_a_bound_one(
    monkeypatch: pytest.MonkeyPatch, url: str, made: str, key: list[str], says: str
) -> None:
    """Column and constraint are named, the offset stays, and the next commit is by COPY again."""
    copy_all(monkeypatch)
    run(url, made)
    bad = {"NUL": "a\x00b", "too long": "four"}
    value = next((v for k, v in bad.items() if k in says), "x")
    mode = WriteMode.UPSERT if key else WriteMode.APPEND
    rows = pa.table({"v": ["a", value], "n": pa.array([1, 7 if "few" in says else 1])})
    with closing(SqlSink(url, "t", mode=mode, key=key)) as sink:
        sink.open()
        with pytest.raises(RowsRefusedError, match=says):
            sink.commit(sink.stage(MicroBatch("m", "c", ()), rows), [share(0, 0, 2)])
        assert sink.stored_offset("id/0") is None
        with capture_logs() as events:
            sink.commit(sink.stage(MicroBatch("m", "c", ()), rows[:1]), [share(0, 0, 1)])
        assert sink.stored_offset("id/0") == 1
    assert events == []
    assert run(url, "TABLE t") == [("a", 1)]


_RULED = (
    "CREATE TABLE t (id BIGINT); CREATE TABLE u (id BIGINT); "
    "CREATE RULE r AS ON INSERT TO t DO INSTEAD INSERT INTO u VALUES (NEW.id)"
)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE u (id BIGINT); CREATE VIEW t AS SELECT * FROM u",
        _RULED,
    ],
)
def test_rows_are_inserted_where_copy_refuses_or_ignores_them(
    monkeypatch: pytest.MonkeyPatch, url: str, made: str
) -> None:
    """Rows for a view, or for a table with rules, are bound: COPY refuses or ignores them."""
    copy_all(monkeypatch)
    run(url, *made.split(";"))
    with closing(SqlSink(url, "t")) as sink:
        sink.open()
        with capture_logs() as events:
            rows = sink.stage(MicroBatch("m", "c", ()), pa.table({"id": [1, 2]}))
            sink.commit(rows, [share(0, 0, 2)])
    assert events == []
    assert run(url, "TABLE u") == [(1,), (2,)]


def test_names_with_quotes_percents_and_colons_are_copied(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Into the table and through a temporary one, which needs a cast for one of the columns."""
    copy_all(monkeypatch)
    run(url, 'CREATE TABLE "a""b%c" ("%s" BIGINT PRIMARY KEY, "x:y""" JSONB, "i%" INET)')
    rows = pa.table({"%s": [1, 2], 'x:y"': ["[1]", None], "i%": ["10.0.0.1", None]})
    modes: list[dict[str, Any]] = [{}, {"mode": WriteMode.UPSERT, "key": ["%s"]}]
    for number, options in enumerate(modes):
        with closing(SqlSink(url, 'a"b%c', **options)) as sink:
            sink.open()
            with capture_logs() as events:
                sink.commit(sink.stage(MicroBatch("m", "c", ()), rows), [share(number, 0, 2)])
        assert events == []
    assert run(url, 'SELECT "%s", "i%"::text FROM "a""b%c" ORDER BY 1') == [
        (1, "10.0.0.1/32"),
        (2, None),
    ]


def test_more_rows_than_one_copy_takes_are_all_written(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Three statements, in one transaction, with and without a temporary table."""
    monkeypatch.setattr(loading_rows, "_ROWS_AT_ONCE", 400)
    copy_all(monkeypatch)
    run(url, "CREATE TABLE t (id BIGINT PRIMARY KEY, n INT)")
    with closing(SqlSink(url, "t", mode=WriteMode.UPSERT, key=["id"])) as sink:
        sink.open()
        for number in (0, 1):
            rows = pa.table({"id": range(1000), "n": [number] * 1000})
            sink.commit(sink.stage(MicroBatch("m", "c", ()), rows), [share(0, number, number + 1)])
    assert run(url, "SELECT count(*), sum(n), min(id), max(id) FROM t") == [(1000, 1000, 0, 999)]


@pytest.fixture(scope="module")
def counts_url(server: PostgresServer) -> str:
    """A database with the table of counts."""
    url = server.new_database()
    run(url, sql_merging.CREATE)
    return url


@pytest.mark.parametrize("copied", [False, True])
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(commits=sql_merging.COMMITS)
def test_merged_micro_batches_are_one_count_of_all_events(
    monkeypatch: pytest.MonkeyPatch,
    counts_url: str,
    *,
    commits: list[list[list[sql_merging.Event]]],
    copied: bool,
) -> None:
    """The table has the count of all events, however they are cut into commits."""
    if copied:
        copy_all(monkeypatch)
    run(counts_url, "TRUNCATE counts", "DROP TABLE IF EXISTS headrace_offsets")
    with closing(SqlSink(counts_url, "counts", **sql_merging.OPTIONS)) as sink:
        sink.open()
        sql_merging.commit(sink, commits)
    events = [event for batches in commits for batch in batches for event in batch]
    assert run(counts_url, sql_merging.READ) == sql_merging.reduced(events)


@pytest.mark.parametrize("copied", [False, True])
def test_members_that_merge_into_the_same_rows_lose_no_count(
    monkeypatch: pytest.MonkeyPatch, url: str, *, copied: bool
) -> None:
    """Two at the same time, whose results lock the same rows in different orders."""
    if copied:
        copy_all(monkeypatch)
    run(url, sql_merging.CREATE)
    first = [sql_merging.Event("a", minute * 60, 1, "x") for minute in range(20)]
    second = [sql_merging.Event("b", minute * 60, 1, "x") for minute in range(20)]

    def work(number: int) -> None:
        order = [first, second] if number else [second, first]
        with closing(SqlSink(url, "counts", **sql_merging.OPTIONS)) as sink:
            sink.open()
            for turn in range(10):
                staged = [sql_merging.staged(sink, events) for events in order]
                sink.commit_all(staged, [share(number, turn, turn + 1)])

    with ThreadPoolExecutor(2) as members:
        for done in [members.submit(work, number) for number in (0, 1)]:
            done.result(120)
    assert run(url, "SELECT count(*), sum(events), min(events) FROM counts") == [(40, 800, 20)]
