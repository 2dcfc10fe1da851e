"""Rows that go to MariaDB by LOAD DATA, and those with keys: what bound rows would have made."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.core.errors import ResultMisfitError, RowsRefusedError, StartError
from headrace.core.records import TopicPartition
from headrace.extensions.sql.database import Database, TableName
from headrace.extensions.sql.loaders import load
from headrace.extensions.sql.loaders import rows as loading_rows
from headrace.extensions.sql.sink import SqlSink
from headrace.extensions.sql.target import SqlTarget
from headrace.sinks.by_key import WriteMode
from headrace.sinks.contract import OffsetMove
from headrace.sinks.micro_batch import MicroBatch
from headrace.testing.sinks import BatchCommitContract, SinkPlace
from tests.integration.extensions.spark import sql_processes
from tests.integration.extensions.spark.test_sql_mariadb import KINDS, MariaDbPlace
from tests.mariadb import MariaDbServer, mariadb_server, run
from tests.unit.extensions.sql import sql_merging
from tests.unit.extensions.sql.sql_keys import Results, commit_all, results_of, upsert_one_by_one
from tests.unit.extensions.sql.sql_tables import share, staged_table
from tests.unit.extensions.sql.sql_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_REFUSED = "sql_copy_refused"


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    """One server for all tests; each has a database of its own."""
    with mariadb_server() as server:
        yield server


@pytest.fixture
def url(server: MariaDbServer) -> str:
    """An empty database's address."""
    return server.new_database()


def load_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write rows by LOAD DATA, however few they are."""
    monkeypatch.setattr(load, "FEWEST", 1)
    monkeypatch.setattr(load, "FEWEST_STAGED", 1)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load every row."""
    load_all(monkeypatch)


@pytest.mark.usefixtures("loaded")
class TestLoaded(BatchCommitContract):
    """The contract on MariaDB, with rows that are loaded, however few they are."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(MariaDbPlace(url)) as place:
            yield place


class TestUpsert(BatchCommitContract):
    """The contract on MariaDB, with rows that are replaced."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(MariaDbPlace(url, mode=WriteMode.UPSERT, key=["id"])) as place:
            yield place


@pytest.mark.usefixtures("loaded")
class TestUpsertLoaded(TestUpsert):
    """The same with rows that are replaced by way of a temporary table."""


def test_a_process_killed_at_every_step_loses_and_doubles_nothing(url: str) -> None:
    """Rows and offsets agree before and after each statement when the rows are loaded."""
    sql_processes.assert_killed_at_every_step(url, "copied")


# --- values ---------------------------------------------------------------------------------------


def _outcome(
    monkeypatch: pytest.MonkeyPatch,
    target: SqlTarget,
    database: Database,
    rows: pa.Table,
    *,
    is_loaded: bool,
) -> tuple[tuple[str, list[Any]], bool]:
    """Return the error and the table's contents, and whether loading was given up. Nothing stays.

    What a row is refused for names the column as the server, or the driver, says it.
    """
    error, contents = "", []
    with monkeypatch.context() as patch, capture_logs() as events:
        if is_loaded:
            load_all(patch)
        try:
            with database.transaction() as connection:
                target.write(connection, target.prepare(rows))
                # a number is told from its text, and bytes from any text
                found = connection.exec_driver_sql("SELECT HEX(v), v FROM t")
                contents = [tuple(row) for row in found]
                connection.rollback()
        except RowsRefusedError as refused:
            error = str(refused)
    return (error, contents), any(event["event"] == _REFUSED for event in events)


@pytest.mark.filterwarnings("ignore:Did not recognize type:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("column", KINDS)
def test_each_value_in_each_column_is_what_a_bound_one_is(
    monkeypatch: pytest.MonkeyPatch, url: str, column: str
) -> None:
    """The table has the same value, or the row is refused in the same words."""
    run(url, f"CREATE TABLE t (v {column})")
    with closing(Database(url)) as database:
        target = SqlTarget(database, TableName.of("t"), WriteMode.APPEND, ())
        target.load()
        for kind, values in VALUES:
            try:
                target.check(["v"], pa.schema([("v", kind)]))
            except ResultMisfitError:
                continue
            for value in values:
                rows = pa.table({"v": pa.array([None, value, None], kind)})
                is_loaded, _ = _outcome(monkeypatch, target, database, rows, is_loaded=True)
                bound, _ = _outcome(monkeypatch, target, database, rows, is_loaded=False)
                assert is_loaded == bound, (column, kind, value)


_DRAWN: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "b": ("BOOLEAN", pa.bool_(), st.booleans()),
    "i": ("INT", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": ("BIGINT", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "d": ("DOUBLE", pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "n": ("DECIMAL(38,9)", pa.decimal128(38, 9), st.decimals(-(10**28), 10**28, places=9)),
    "t": ("LONGTEXT CHARACTER SET utf8mb4", pa.string(), st.text(max_size=9)),
    "v": ("VARCHAR(9) CHARACTER SET utf8mb4", pa.large_string(), st.text(max_size=9)),
    "y": ("BLOB", pa.binary(), st.binary(max_size=9)),
    "a": ("DATE", pa.date32(), st.dates()),
    "p": ("DATETIME(6)", pa.timestamp("us"), st.datetimes()),
    "z": ("DATETIME(6)", pa.timestamp("us", tz="Asia/Tokyo"), st.integers(0, 10**15)),
    "o": ("TIME(6)", pa.time64("us"), st.times()),
    "j": ("JSON", pa.struct([("a", pa.float64())]), st.fixed_dictionaries({"a": st.floats()})),
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
def drawn_target(server: MariaDbServer) -> Iterator[tuple[SqlTarget, Database]]:
    """A table of all columns that are drawn."""
    url = server.new_database()
    run(url, f"CREATE TABLE t ({', '.join(f'{n} {c}' for n, (c, *_) in _DRAWN.items())}, v2 INT)")
    run(url, "ALTER TABLE t DROP COLUMN v2")
    with closing(Database(url)) as database:
        target = SqlTarget(database, TableName.of("t"), WriteMode.APPEND, ())
        target.load()
        yield target, database


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=_tables())
def test_random_tables_are_loaded_as_they_are_bound(
    monkeypatch: pytest.MonkeyPatch, drawn_target: tuple[SqlTarget, Database], rows: pa.Table
) -> None:
    """Nulls, extreme numbers, tabs, line ends, backslashes and NUL in text, slices: the same."""
    (target, database), found = drawn_target, []
    for is_loaded in (True, False):
        with monkeypatch.context() as patch, capture_logs() as events:
            if is_loaded:
                load_all(patch)
            try:
                with database.transaction() as connection:
                    target.write(connection, target.prepare(rows))
                    contents = [tuple(r) for r in connection.exec_driver_sql("SELECT * FROM t")]
                    connection.rollback()
            except RowsRefusedError:
                contents = [("refused",)]
        found.append(contents)
        assert not events or contents == [("refused",)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("made", "key", "values", "says"),
    [
        ("CREATE TABLE t (v VARCHAR(3))", [], ["a", "four"], "Data too long for column 'v'"),
        ("CREATE TABLE t (v VARCHAR(3) PRIMARY KEY)", ["v"], ["a", "four"], "Data too long"),
        ("CREATE TABLE t (v INT PRIMARY KEY)", [], [1, 1], "Duplicate entry for key 'PRIMARY'"),
        ("CREATE TABLE t (v INT CHECK (v < 3))", [], [1, 4], "CONSTRAINT `t.v` failed"),
        ("CREATE TABLE t (v INT PRIMARY KEY CHECK (v < 3))", ["v"], [1, 4], "CONSTRAINT `t.v`"),
        ("CREATE TABLE t (v INT NOT NULL)", [], [1, None], "Column 'v' cannot be null"),
    ],
)
@pytest.mark.usefixtures("loaded")
def test_a_row_that_is_left_out_or_cut_when_loaded_is_refused(
    url: str, made: str, key: list[str], values: list[Any], says: str
) -> None:
    """The result is not stored, the offset stays, and the next one is loaded again."""
    run(url, made)
    mode = WriteMode.UPSERT if key else WriteMode.APPEND
    with closing(SqlSink(url, "t", mode=mode, key=key)) as sink:
        sink.open()
        with pytest.raises(RowsRefusedError, match=says):
            sink.commit(staged_table(sink, pa.table({"v": values})), [share(0, 0, 2)])
        assert sink.stored_offset("id/0") is None
        with capture_logs() as events:
            sink.commit(staged_table(sink, pa.table({"v": values[:1]})), [share(0, 0, 1)])
    assert events == []
    assert run(url, "SELECT v FROM t") == [(values[0],)]


@pytest.mark.usefixtures("loaded")
def test_names_with_quotes_percents_and_colons_are_loaded(url: str) -> None:
    """A table and columns of any name are loaded, and staged for an upsert."""
    run(url, 'CREATE TABLE `a``b%%c` (`%%s` BIGINT PRIMARY KEY, `x:y"` BLOB, `t\\` TEXT)')
    rows = pa.table({"%s": [1, 2], 'x:y"': [b"\xff\x00", None], "t\\": ["a\tb\n\\N", "\\"]})
    modes: list[dict[str, Any]] = [{}, {"mode": WriteMode.UPSERT, "key": ["%s"]}]
    for number, options in enumerate(modes):
        with closing(SqlSink(url, "a`b%c", **options)) as sink:
            sink.open()
            with capture_logs() as events:
                sink.commit(staged_table(sink, rows), [share(number, 0, 2)])
        assert events == []
    assert run(url, "SELECT * FROM `a``b%%c` ORDER BY 1") == [
        (1, b"\xff\x00", "a\tb\n\\N"),
        (2, None, "\\"),
    ]


@pytest.mark.usefixtures("loaded")
def test_more_rows_than_one_statement_takes_are_all_written(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Three statements of one transaction write all rows, and leave no temporary table."""
    monkeypatch.setattr(loading_rows, "_ROWS_AT_ONCE", 400)
    made: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        made.append(statement.partition(" TABLE")[0])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    run(url, "CREATE TABLE t (id BIGINT PRIMARY KEY, n INT)")
    with closing(SqlSink(url, "t", mode=WriteMode.UPSERT, key=["id"])) as sink:
        sink.open()
        for number in (0, 1):
            rows = pa.table({"id": range(1000), "n": [number] * 1000})
            sink.commit(staged_table(sink, rows), [share(0, number, number + 1)])
    sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert made.count("DROP TEMPORARY") == made.count("CREATE TEMPORARY") >= 6
    assert run(url, "SELECT count(*), sum(n), min(id), max(id) FROM t") == [(1000, 1000, 0, 999)]


def test_a_server_that_asks_for_a_file_gets_none(url: str, tmp_path: Any) -> None:
    """The driver refuses a request for a file, and a statement's own data goes in its place."""
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n", encoding="utf-8")
    run(url, "CREATE TABLE t (v TEXT)")
    statement = f"LOAD DATA LOCAL INFILE '{secret}' INTO TABLE t"
    with closing(Database(url)) as database:
        asked = database.engine.raw_connection()
        with pytest.raises(RuntimeError, match="local_infile"):
            asked.cursor().execute(statement)
        asked.invalidate()
        with database.transaction() as connection:
            assert database.copy(connection, statement, [memoryview(b"mine\n")]) == 1
    assert run(url, "SELECT v FROM t") == [("mine",)]


@pytest.mark.usefixtures("loaded")
def test_rows_are_bound_where_the_server_reads_no_local_data(
    url: str, server: MariaDbServer
) -> None:
    """A server with local_infile=OFF gets the same rows."""
    run(url, "CREATE TABLE t (v INT)")
    server.run("SET GLOBAL local_infile = OFF")
    try:
        with closing(SqlSink(url, "t")) as sink:
            sink.open()
            sink.commit(staged_table(sink, pa.table({"v": [1, 2]})), [share(0, 0, 1)])
    finally:
        server.run("SET GLOBAL local_infile = ON")
    assert run(url, "SELECT v FROM t") == [(1,), (2,)]


# --- keys -----------------------------------------------------------------------------------------

_COLUMNS = [
    ("text", "VARCHAR(3) CHARACTER SET utf8mb4"),
    ("text", "VARCHAR(3) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    ("text", "VARCHAR(3) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"),
    ("text", "CHAR(3) CHARACTER SET utf8mb4"),
    ("integer", "BIGINT"),
    ("float", "DOUBLE"),
    ("float", "BIGINT"),
    ("decimal", "DECIMAL(9,3)"),
    ("decimal", "DECIMAL(6,2)"),
    ("moment", "DATETIME(6)"),
    ("moment", "DATETIME"),
]

_DRAWN_KEYS = st.sampled_from(_COLUMNS).flatmap(
    lambda column: st.tuples(st.just(column), results_of(column[0]))
)


@pytest.mark.parametrize("is_loaded", [False, True])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=_DRAWN_KEYS)
def test_the_last_row_of_the_log_stays_under_any_equality_of_keys(
    keys_url: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    drawn: tuple[tuple[str, str], Results],
    is_loaded: bool,
) -> None:
    """The rows are as if each had been upserted by itself, in the log's order."""
    if is_loaded:
        load_all(monkeypatch)
    (name, column), results = drawn
    run(
        keys_url,
        "DROP TABLE IF EXISTS t, expected, headrace_offsets",
        f"CREATE TABLE t (k {column} PRIMARY KEY, n INT)",
        f"CREATE TABLE expected (k {column} PRIMARY KEY, n INT)",
    )
    with closing(SqlSink(keys_url, "t", mode=WriteMode.UPSERT, key=["k"])) as sink:
        sink.open()
        rows = commit_all(sink, name, results)
    engine = sa.create_engine(keys_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET sql_mode = 'STRICT_ALL_TABLES'")
        upsert_one_by_one(
            lambda query, row: connection.exec_driver_sql(query, tuple(row)),
            [{**row, "k": _naive(row["k"])} for row in rows],
            "%s",
            "ON DUPLICATE KEY UPDATE n = VALUES(n)",
        )
    found, expected = (run(keys_url, f"SELECT k, n FROM {t} ORDER BY n") for t in ("t", "expected"))
    assert found == expected


def _naive(key: Any) -> Any:
    return key.replace(tzinfo=None) if hasattr(key, "tzinfo") else key


@pytest.fixture(scope="module")
def keys_url(server: MariaDbServer) -> str:
    """A database of tables that each example creates again."""
    return server.new_database()


@pytest.fixture(scope="module")
def counts_url(server: MariaDbServer) -> str:
    """A database with the table of counts."""
    url = server.new_database()
    run(url, sql_merging.CREATE)
    return url


@pytest.mark.parametrize("is_loaded", [False, True])
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(commits=sql_merging.COMMITS)
def test_merged_micro_batches_are_one_count_of_all_events(
    monkeypatch: pytest.MonkeyPatch,
    counts_url: str,
    *,
    commits: list[list[list[sql_merging.Event]]],
    is_loaded: bool,
) -> None:
    """The table has the count of all events, however they are cut into commits."""
    if is_loaded:
        load_all(monkeypatch)
    run(counts_url, "DROP TABLE IF EXISTS headrace_offsets", "DELETE FROM counts")
    with closing(SqlSink(counts_url, "counts", **sql_merging.OPTIONS)) as sink:
        sink.open()
        sql_merging.commit(sink, commits)
    events = [event for batches in commits for batch in batches for event in batch]
    assert run(counts_url, sql_merging.READ) == sql_merging.reduced(events)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_row_of_key_columns_alone_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, url: str, *, is_loaded: bool
) -> None:
    """An upsert that has nothing to change leaves the row that is there."""
    if is_loaded:
        load_all(monkeypatch)
    run(url, "CREATE TABLE t (id INT PRIMARY KEY, n INT DEFAULT 7)")
    with closing(SqlSink(url, "t", mode=WriteMode.UPSERT, key=["id"])) as sink:
        sink.open()
        for number in (0, 1):
            staged = sink.stage(MicroBatch("one", "c", ()), pa.table({"id": [1, 2]}))
            sink.commit(staged, [share(0, number, number + 1)])
    assert run(url, "SELECT * FROM t ORDER BY 1") == [(1, 7), (2, 7)]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("id INT PRIMARY KEY, n INT UNIQUE", "rows that are equal in n, too"),
        ("id INT, n INT UNIQUE, UNIQUE (id)", "rows that are equal in n, too"),
        ("id INT, n INT, UNIQUE (id, n)", "no primary key or unique constraint is on exactly id"),
        ("id VARCHAR(9), n INT, UNIQUE (id(3))", "no primary key or unique constraint"),
    ],
)
def test_a_table_whose_other_constraints_would_replace_rows_is_refused(
    url: str, columns: str, problem: str
) -> None:
    """MariaDB replaces by whichever constraint a row breaks, so there is none but the key's."""
    run(url, f"CREATE TABLE t ({columns})")
    with (
        closing(SqlSink(url, "t", mode=WriteMode.UPSERT, key=["id"])) as sink,
        pytest.raises(StartError, match=problem),
    ):
        sink.open()


def test_a_number_that_counts_rows_may_be_the_primary_key(url: str) -> None:
    """Rows are upserted by another key, and a result that has the number is told to leave it."""
    run(url, "CREATE TABLE t (no INT AUTO_INCREMENT PRIMARY KEY, id INT UNIQUE, n INT)")
    with closing(SqlSink(url, "t", mode=WriteMode.UPSERT, key=["id"])) as sink:
        sink.open()
        for number in (0, 1):
            rows = staged_table(sink, pa.table({"id": [7], "n": [number]}))
            sink.commit(rows, [share(0, number, number + 1)])
        with pytest.raises(ResultMisfitError, match="'no' counts rows by itself"):
            staged_table(sink, pa.table({"id": [7], "no": [1], "n": [1]}))
    assert run(url, "SELECT no, id, n FROM t") == [(1, 7, 1)]


def test_an_offset_that_is_moved_to_where_it_stands_is_found(url: str) -> None:
    """A row that an UPDATE leaves as it is counts as one that its condition found."""
    run(url, "CREATE TABLE t (id INT)")
    with closing(SqlSink(url, "t")) as sink:
        sink.open()
        for start in (0, 1, 1):
            sink.move_offsets([OffsetMove("id/0", TopicPartition("t", 0), start, 1)], "by hand")
        assert sink.stored_offset("id/0") == 1
