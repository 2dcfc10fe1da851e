"""The SQL sink on MariaDB: offsets, values, JSON, times, and what a server is set up like."""

from __future__ import annotations

import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import SQLAlchemyError

from headrace.core.clock import Deadline
from headrace.core.errors import ResultMisfitError, RowsRefusedError, StartError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.contract import OffsetMove
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.micro_batch import MicroBatch
from headrace.testing.replacement import GroupedReplacerContract
from headrace.testing.sinks import BatchCommitContract, Row, SinkPlace, TablesOfArrow
from tests.integration.extensions.spark import sql_processes
from tests.mariadb import MariaDbServer, mariadb_server, run
from tests.unit.extensions.sql.sql_tables import share, wrap_commit
from tests.unit.extensions.sql.sql_values import assert_answered_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.sinks.contract import Sink

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    """One server for all tests; each has a database of its own."""
    with mariadb_server() as server:
        yield server


@pytest.fixture
def url(server: MariaDbServer) -> str:
    """An empty database's address."""
    return server.new_database()


@pytest.fixture
def sink(url: str) -> Iterator[SqlSink]:
    """A sink on the table ``t``, which is made later and opened by the test."""
    with closing(SqlSink(url, "t")) as sink:
        yield sink


def stage_and_commit(sink: SqlSink, rows: pa.Table, start: int = 0) -> None:
    """Write rows as one micro-batch of one partition."""
    sink.commit(sink.stage(MicroBatch("one", "c", ()), rows), [share(0, start, start + 1)])


class MariaDbPlace:
    """A database with a table."""

    def __init__(self, url: str, *, origin: bool = False, **options: Any) -> None:
        self.url = url
        self.made: list[SqlSink] = []
        self._options = {"origin": origin, **options}
        column = ", headrace_origin VARCHAR(64)" if origin else ""
        run(url, f"CREATE TABLE written (id BIGINT PRIMARY KEY, name TEXT{column})")

    def sink(self) -> Sink[Any]:
        """Return a sink on the table."""
        self.made.append(SqlSink(self.url, "written", **self._options))
        return self.made[-1]

    def close(self) -> None:
        """Close what was not closed on it."""
        for sink in self.made:
            sink.close()

    def rows(self) -> list[Row]:
        """Read the table as any other reader does."""
        found = run(self.url, "SELECT id, name FROM written")
        return [dict(zip(("id", "name"), row, strict=True)) for row in found]


class TestAppend(BatchCommitContract):
    """The contract on MariaDB, with rows that are added."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(MariaDbPlace(url)) as place:
            yield place


class TestReplaced(TablesOfArrow, GroupedReplacerContract):
    """The contract on MariaDB, with rows that say which micro-batch they are of."""

    @pytest.fixture
    def place(self, url: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(MariaDbPlace(url, origin=True)) as place:
            yield place


# --- offsets --------------------------------------------------------------------------------------


def test_a_process_killed_at_every_step_loses_and_doubles_nothing(url: str) -> None:
    """From plan to answer: before and after each statement and COMMIT, rows and offsets agree."""
    sql_processes.assert_killed_at_every_step(url)


def test_a_process_killed_at_any_moment_loses_and_doubles_nothing(url: str) -> None:
    """A kill between the server and the client is one too."""
    sql_processes.assert_killed_at_any_moment(url, 3)


def test_processes_that_fight_over_partitions_store_each_offset_once(url: str) -> None:
    """Members that take each other's partitions are told so, and what is stored is whole."""
    sql_processes.assert_fights_store_each_offset_once(url, 50)


_WAITING = "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
def test_a_commit_sees_the_offset_that_it_waited_for(url: str, *, is_new: bool) -> None:
    """The second of two commits of a range is refused, also where it read before it waited."""
    run(url, "CREATE TABLE t (id BIGINT)")
    rows = pa.table({"id": [1]})
    with (
        closing(SqlSink(url, "t")) as first,
        closing(SqlSink(url, "t")) as second,
        ThreadPoolExecutor(1) as other,
    ):
        for each in (first, second):
            each.open()
        if not is_new:
            first.commit(first.stage(MicroBatch("none", "c", ()), None), [share(1, 0, 10)])
        start = 0 if is_new else 10
        staged = second.stage(MicroBatch("two", "c", ()), rows)
        with first._database.transaction() as open_one:
            first._offsets.move(open_one, [share(1, start, start + 10)], {})
            # partition 0 has no row yet, so that it is looked for before partition 1 is moved
            late = other.submit(
                second.commit, staged, [share(0, 0, 5), share(1, start, start + 10)]
            )
            assert wait_for(lambda: run(url, _WAITING), Deadline.after(30))
        with pytest.raises(CommitConflictError) as caught:
            late.result(30)
        assert [each.stored for each in caught.value.conflicts] == [start + 10]
        assert second.stored_offset("id/0") is None
    assert run(url, "SELECT * FROM t") == []


def test_an_owner_that_stands_still_in_a_transaction_is_cut_off(url: str) -> None:
    """The server ends the transaction of a stopped member, so that its successor can write."""
    run(url, "CREATE TABLE t (id BIGINT)")
    with (
        closing(SqlSink(url, "t", timeout=1.0)) as stopped,
        closing(SqlSink(url, "t")) as successor,
    ):
        for each in (stopped, successor):
            each.open()
        stopped.commit(stopped.stage(MicroBatch("none", "c", ()), None), [share(0, 0, 10)])
        connection = stopped._database.engine.connect()
        stopped._offsets.move(connection, [share(0, 10, 20)], {})
        stage_and_commit(successor, pa.table({"id": [1]}), 10)
        with pytest.raises(SQLAlchemyError):
            connection.commit()
        connection.invalidate()
        connection.close()
        assert stopped.stored_offset("id/0") == 11
    assert run(url, "SELECT * FROM t") == [(1,)]


@pytest.mark.parametrize("stored", [True, False])
def test_a_connection_lost_in_the_commit_is_looked_into(
    url: str, server: MariaDbServer, sink: SqlSink, *, stored: bool
) -> None:
    """The server ends the session behind or before the COMMIT: what holds is what it stored."""
    run(url, "CREATE TABLE t (id BIGINT)")
    sink.open()
    rows = pa.table({"id": [1]})
    name = url.rpartition("/")[2]

    def lose(commit: Callable[[], None]) -> None:
        if stored:
            commit()
        found = run(
            server.url(), f"SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{name}'"
        )
        for (number,) in found:
            server.run(f"KILL {number}")
        commit()  # on a connection that is gone

    wrap_commit(sink, lose)
    if stored:
        stage_and_commit(sink, rows)
    else:
        with pytest.raises(SQLAlchemyError):
            stage_and_commit(sink, rows)
        assert run(url, "SELECT * FROM t") == []
        stage_and_commit(sink, rows)
    assert run(url, "SELECT * FROM t") == [(1,)]
    assert sink.stored_offset("id/0") == 1


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY"])
@pytest.mark.parametrize("table", ["t", "headrace_offsets"])
def test_a_table_without_transactions_stops_the_start(url: str, engine: str, table: str) -> None:
    """Rows could not be taken back there: the error names the table, its engine and what to do."""
    with closing(SqlSink(url, "t")) as sink:
        run(url, "CREATE TABLE t (id BIGINT)")
        sink.open()
        kept = "ALTER TABLE headrace_offsets " + ", ".join(
            f"MODIFY {name} VARCHAR(99)" for name in ("target", "identity", "member", "note")
        )
        run(url, f"{kept}, MODIFY micro_batch VARCHAR(99)", f"ALTER TABLE {table} ENGINE={engine}")
    with (
        closing(SqlSink(url, "t")) as sink,
        pytest.raises(StartError, match=rf"{table} in mariadb.*{engine}.*ENGINE=InnoDB"),
    ):
        sink.open()


# --- values ---------------------------------------------------------------------------------------

KINDS = [
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "INT UNSIGNED",
    "BIGINT",
    "BIGINT UNSIGNED",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(5,2)",
    "DECIMAL(38,10)",
    "TEXT CHARACTER SET utf8mb4",
    "TEXT",
    "VARCHAR(3)",
    "CHAR(5)",
    "BINARY(2)",
    "VARBINARY(3)",
    "BLOB",
    "DATE",
    "TIME",
    "TIME(6)",
    "DATETIME",
    "DATETIME(6)",
    "TIMESTAMP(6) NULL",
    "YEAR",
    "JSON",
    "ENUM('x', 'y')",
    "SET('x', 'y')",
    "BIT(3)",
    "UUID",
    "INET6",
    "POINT",
    "INT CHECK (v < 3)",
    "VARCHAR(9) UNIQUE",
]


@pytest.mark.filterwarnings("ignore:Did not recognize type:sqlalchemy.exc.SAWarning")
def test_each_value_in_each_column_is_stored_or_answered_for(url: str) -> None:
    """A refusal is a row's fault, or that of a type, which is told of each of its values."""
    run(url, *(f"CREATE TABLE t{n} (v {kind})" for n, kind in enumerate(KINDS)))
    for number in range(len(KINDS)):
        with closing(SqlSink(url, f"t{number}")) as sink:
            sink.open()
            assert_answered_for(sink, f"t{number}")


_CHECKED = [
    "CREATE TABLE u (v VARCHAR(9))",
    "CREATE VIEW t AS SELECT * FROM u WHERE v < 'b' WITH CHECK OPTION",
]
_SIGNAL = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no such city'"
_REFUSING = [
    "CREATE TABLE t (v TEXT)",
    f"CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW {_SIGNAL}",
]


@pytest.mark.parametrize(
    ("made", "values", "says"),
    [
        (["CREATE TABLE t (v JSON)"], ["{not json"], "column 'v': Expecting property name"),
        (["CREATE TABLE t (v JSON)"], ["[NaN]"], "column 'v': NaN is no JSON"),
        (["CREATE TABLE t (v JSON)"], ["[" * 100_000], "column 'v': "),
        (["CREATE TABLE t (v JSON CHECK (json_valid(v)))"], ["{bad"], "column 'v': "),
        (["CREATE TABLE t (v VARCHAR(3))"], ["four"], "Data too long for column 'v'"),
        (["CREATE TABLE t (v VARCHAR(3))"], ["語"], "Incorrect string value"),
        (["CREATE TABLE t (v INT)"], [2**40], "Out of range value for column 'v'"),
        (["CREATE TABLE t (v INT)"], ["x"], "Incorrect integer value"),
        (["CREATE TABLE t (v BIGINT)"], [Decimal(2**70)], "Out of range value for column 'v'"),
        (["CREATE TABLE t (v DECIMAL(5,2))"], [Decimal("12345.5")], "Out of range value"),
        (["CREATE TABLE t (v DATETIME)"], ["2020-02-31"], "Incorrect datetime value"),
        (["CREATE TABLE t (v DATE)"], [0], "Incorrect date value"),
        (["CREATE TABLE t (v DOUBLE)"], [float("nan")], "column 'v': nan can not be used"),
        (["CREATE TABLE t (v ENUM('x'))"], ["z"], "Data truncated for column 'v'"),
        (["CREATE TABLE t (v INT NOT NULL)"], [None], "Column 'v' cannot be null"),
        (["CREATE TABLE t (v INT PRIMARY KEY)"], [1, 1], "Duplicate entry for key 'PRIMARY'"),
        (["CREATE TABLE t (v INT CHECK (v < 3))"], [4], "CONSTRAINT `t.v` failed"),
        (["CREATE TABLE t (v LONGTEXT)"], ["x" * (17 << 20)], "max_allowed_packet"),
        (_CHECKED, ["c"], "CHECK OPTION failed"),
        (_REFUSING, ["c"], "no such city"),
    ],
)
def test_a_refused_value_is_the_row_s_fault(
    url: str, sink: SqlSink, made: list[str], values: list[Any], says: str
) -> None:
    """A refusal by Python, the driver or the server is the row's fault, whatever its number."""
    run(url, *made)
    sink.open()
    kind = pa.int32() if values == [None] else None
    with pytest.raises(RowsRefusedError, match=says):
        stage_and_commit(sink, pa.table({"v": pa.array(values, kind)}))
    assert sink.stored_offset("id/0") is None
    sink.commit(sink.stage(MicroBatch("one", "c", ()), None), [share(0, 0, 1)])


@pytest.mark.parametrize(
    ("made", "result", "says"),
    [
        ("CREATE TABLE t (id INT, name TEXT)", {"Name": ["x"]}, "(which has 'name')"),
        ("CREATE TABLE t (id INT, n INT AS (id + 1))", {"n": [1]}, "column 'n' is generated"),
        ("CREATE TABLE t (id INT, n INT AS (1) STORED)", {"n": [1]}, "column 'n' is generated"),
        ("CREATE TABLE t (v TEXT)", {"v": [[1]]}, "column 'v' of type TEXT takes no list<"),
        ("CREATE TABLE t (v TEXT)", {"v": [{"a": 1}]}, "takes no struct<"),
        ("CREATE TABLE t (v JSON)", {"v": [b"x"]}, "takes no binary"),
        (
            "CREATE TABLE t (v JSON)",
            {"v": [{"at": datetime(2020, 1, 1, tzinfo=UTC)}]},
            "takes no struct<at: timestamp",
        ),
    ],
)
def test_a_column_that_no_row_can_fill_is_named_with_its_table(
    url: str, sink: SqlSink, made: str, result: dict[str, Any], says: str
) -> None:
    """Twins by case, generated columns, what driver and columns have no form for."""
    run(url, made)
    sink.open()
    with pytest.raises(ResultMisfitError, match=re.escape(says)) as caught:
        sink.stage(MicroBatch("one", "c", ()), pa.table(result))
    assert "t in mariadb://" in str(caught.value)


def test_json_text_is_json_and_structures_become_it(url: str, sink: SqlSink) -> None:
    """JSON is a checked text for MariaDB: it is encoded once, and absence is SQL's null."""
    run(url, "CREATE TABLE t (n INT, j JSON, k JSON, l JSON)")
    sink.open()
    columns = {
        "n": [1, 2, 3],
        "j": pa.array(['{"a": [1, 2]}', "null", None]),
        "k": pa.array([{"a": None, "b": [1.5]}, {"a": 1, "b": []}, None]),
        "l": pa.array([["x", None], [], None]),
    }
    stage_and_commit(sink, pa.table(columns))
    types = "JSON_TYPE(j), JSON_TYPE(k), JSON_TYPE(l), j IS NULL"
    assert run(url, f"SELECT {types} FROM t ORDER BY n") == [
        ("OBJECT", "OBJECT", "ARRAY", 0),
        ("NULL", "OBJECT", "ARRAY", 0),
        (None, None, None, 1),
    ]
    assert run(url, "SELECT JSON_VALUE(j, '$.a[1]'), JSON_VALUE(k, '$.b[0]') FROM t LIMIT 1") == [
        ("2", "1.5")
    ]


def test_times_are_stored_in_utc_under_any_server_time_zone(url: str, sink: SqlSink) -> None:
    """A TIMESTAMP has the moment, a DATETIME the time of day in UTC."""
    run(url, "CREATE TABLE t (p TIMESTAMP(6) NULL, d DATETIME(6), n TIMESTAMP(6) NULL)")
    sink.open()
    at = datetime(2013, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    naive = at.replace(tzinfo=None)
    stage_and_commit(sink, pa.table({"p": [at], "d": [at], "n": [naive]}))
    found = run(url, "SET time_zone = '+02:00'", "SELECT p, d, n FROM t")
    assert found == [(naive.replace(hour=14), naive, naive.replace(hour=14))]
    stored_at = "SELECT ABS(TIMESTAMPDIFF(HOUR, stored_at, UTC_TIMESTAMP())) FROM headrace_offsets"
    assert run(url, stored_at) == [(0,)]


def test_rows_with_keys_that_are_one_for_the_collation_are_refused(url: str, sink: SqlSink) -> None:
    """Upper and lower case, trailing spaces: the server says so, and the value is not shown."""
    run(url, "CREATE TABLE t (k VARCHAR(9) PRIMARY KEY)")
    sink.open()
    for values in (["hunter2", "HUNTER2"], ["hunter2", "hunter2 "]):
        with pytest.raises(RowsRefusedError, match="Duplicate entry for key") as caught:
            stage_and_commit(sink, pa.table({"k": values}))
        assert "hunter2" not in "".join(traceback.format_exception(caught.value)).lower()
    assert run(url, "SELECT * FROM t") == []


def test_tables_whose_names_differ_in_case_alone_have_offsets_of_their_own(url: str) -> None:
    """Offsets and origins of the two stay apart, also under collations that ignore case."""
    run(url, *(f"CREATE TABLE {n} (id INT, headrace_origin VARCHAR(64))" for n in ("t", "T")))
    with (
        closing(SqlSink(url, "t", origin=True)) as small,
        closing(SqlSink(url, "T", origin=True)) as large,
    ):
        for each in (small, large):
            each.open()
        staged = [
            each.stage(MicroBatch("one", "c", ()), pa.table({"id": [1]})) for each in (small, large)
        ]
        SqlSink.commit_together([(small, staged[0]), (large, staged[1])], [share(0, 0, 1)])
        back = OffsetMove("id/0", TopicPartition("t", 0), 1, 0)
        assert small.replace([back], "again") == 1
        assert large.plan_replace([back]).rows == 1
        assert large.stored_offset("id/0") == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [("/nosuch", "Unknown database 'nosuch'"), (":1/test", "Can't connect to MySQL server")],
)
def test_an_error_of_the_start_omits_the_password(url: str, change: str, problem: str) -> None:
    """A missing database and a server that is away stop the start."""
    beginning = url.rpartition("/")[0] if change[0] == "/" else url.rpartition(":")[0]
    address = beginning.replace("root@", "root:hunter2@") + change
    with closing(SqlSink(address, "t")) as sink, pytest.raises(StartError) as caught:
        sink.open()
    assert problem in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
