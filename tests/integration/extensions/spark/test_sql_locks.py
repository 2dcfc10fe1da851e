"""Locks of the SQL sink on real servers: taken in one order, and what gives way is made again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.errors import RowsRefusedError
from headrace.devstack.wait import wait_for
from headrace.extensions.sql.offsets import OffsetsTable
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import Merging, WriteMode
from tests.integration.extensions.spark.test_sql_load import load_all
from tests.integration.extensions.spark.test_sql_postgres import copy_all
from tests.mariadb import mariadb_server, run
from tests.postgres import postgres_server
from tests.unit.extensions.sql.sql_tables import share, staged_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Connection

    from headrace.extensions.sql.sink import StagedRows
    from tests.mariadb import MariaDbServer
    from tests.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_WAITING = {
    "postgresql": "SELECT 1 FROM pg_locks WHERE NOT granted",
    "mariadb": "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'",
}

#: Fails the first two transactions as the server fails a victim. Sequences are not rolled back.
_UNDOING = {
    "postgresql": (
        "CREATE SEQUENCE turns",
        """CREATE FUNCTION give_way() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('turns') <= 2 THEN RAISE 'undone' USING ERRCODE = '{state}'; END IF;
        RETURN NEW; END $$""",
        "CREATE TRIGGER giving_way BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION give_way()",
    ),
    "mariadb": (
        "CREATE SEQUENCE turns",
        """CREATE TRIGGER giving_way BEFORE INSERT ON t FOR EACH ROW
        IF NEXTVAL(turns) <= 2 THEN SIGNAL SQLSTATE 'HY000'
        SET MYSQL_ERRNO = {state}, MESSAGE_TEXT = 'undone'; END IF""",
    ),
}

_STATES = [
    ("postgresql", "40P01"),
    ("postgresql", "40001"),
    ("postgresql", "55P03"),
    ("mariadb", "1213"),
    ("mariadb", "1205"),
]

_MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"mode": WriteMode.UPSERT, "key": ["id"]},
    "merge": {"mode": WriteMode.MERGE, "key": ["id"], "merge": {"n": Merging.SUM}},
}

_UNDONE = [(dialect, state, mode) for dialect, state in _STATES for mode in _MODES]


@pytest.fixture(scope="module")
def servers() -> Iterator[Callable[[str], PostgresServer | MariaDbServer]]:
    """Servers by their dialects, each started when a test asks for it first."""
    made: dict[str, Any] = {}
    kinds: dict[str, Any] = {"postgresql": postgres_server, "mariadb": mariadb_server}
    with ExitStack() as stack:

        def server(dialect: str) -> Any:
            if dialect not in made:
                made[dialect] = stack.enter_context(kinds[dialect]())
            return made[dialect]

        yield server


class Place:
    """A database with tables of the same columns, sinks on them, and another writer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect = sa.make_url(url).get_backend_name()
        self._stack = ExitStack()

    def create(self, *names: str) -> None:
        """Create tables."""
        for name in names:
            run(self.url, f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, n BIGINT)")

    def sink(self, mode: str, table: str = "t", **options: Any) -> SqlSink:
        """Return an open sink."""
        sink = SqlSink(self.url, table, **_MODES[mode], **options)
        self._stack.enter_context(closing(sink))
        sink.open()
        return sink

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a transaction of another writer."""
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            yield connection

    def wait_for_lock(self) -> None:
        """Wait until a transaction waits for a lock."""
        assert wait_for(lambda: run(self.url, _WAITING[self.dialect]), Deadline.after(30))

    def rows(self, table: str = "t") -> list[tuple[Any, ...]]:
        """Return a table's rows in order."""
        return run(self.url, f"SELECT id, n FROM {table} ORDER BY 1")

    def close(self) -> None:
        """Close the sinks."""
        self._stack.close()


@pytest.fixture
def places(servers: Callable[[str], Any]) -> Iterator[Callable[[str], Place]]:
    """Make databases of their own."""
    with ExitStack() as stack:
        yield lambda dialect: stack.enter_context(closing(Place(servers(dialect).new_database())))


def _staged(sink: SqlSink, *ids: int) -> StagedRows:
    return staged_table(sink, pa.table({"id": pa.array(ids, pa.int64()), "n": [1] * len(ids)}))


def _lock(connection: Connection, table: str, number: int, *, at_once: bool = False) -> None:
    suffix = " NOWAIT" if at_once else ""
    query = f"SELECT n FROM {table} WHERE id = {number} FOR UPDATE{suffix}"
    assert connection.exec_driver_sql(query).all()


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("mode", ["upsert", "merge"])
def test_several_results_lock_the_rows_of_their_keys_in_one_order(
    monkeypatch: pytest.MonkeyPatch, places: Callable[[str], Place], mode: str, *, copied: bool
) -> None:
    """A transaction that waits for the lowest key holds no higher one, whichever comes first."""
    if copied:
        copy_all(monkeypatch)
    place = places("postgresql")
    place.create("t")
    sink = place.sink(mode)
    sink.commit(_staged(sink, 1, 2), [share(0, 0, 1)])
    results = [_staged(sink, 2), _staged(sink, 1)]
    with ThreadPoolExecutor(1) as other:
        with place.transaction() as held:
            _lock(held, "t", 1)
            done = other.submit(sink.commit_all, results, [share(0, 1, 3)])
            place.wait_for_lock()
            _lock(held, "t", 2, at_once=True)
        done.result(60)
    assert place.rows() == ([(1, 2), (2, 2)] if mode == "merge" else [(1, 1), (2, 1)])


def test_several_tables_are_locked_in_one_order(places: Callable[[str], Place]) -> None:
    """A transaction that waits for a row of the first table holds none of the second one."""
    place = places("postgresql")
    place.create("a", "b")
    sinks = [place.sink("upsert", name) for name in ("b", "a")]
    for sink in sinks:
        sink.commit(_staged(sink, 1), [share(0, 0, 1)])
    staged = [(sink, _staged(sink, 1)) for sink in sinks]
    with ThreadPoolExecutor(1) as other:
        with place.transaction() as held:
            _lock(held, "a", 1)
            done = other.submit(SqlSink.commit_together, staged, [share(0, 1, 2)])
            place.wait_for_lock()
            _lock(held, "b", 1, at_once=True)
        done.result(60)
    assert [sink.stored_offset("id/0") for sink in sinks] == [2, 2]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(("dialect", "state", "mode"), _UNDONE)
def test_a_transaction_that_gave_way_is_made_again_in_each_mode(
    monkeypatch: pytest.MonkeyPatch,
    places: Callable[[str], Place],
    dialect: str,
    state: str,
    mode: str,
    *,
    copied: bool,
) -> None:
    """Rows and offsets are stored once, each repetition is a warning, and no row is blamed."""
    if copied:
        copy_all(monkeypatch)
        load_all(monkeypatch)
    place = places(dialect)
    place.create("t")
    sink = place.sink(mode)
    run(place.url, *(each.format(state=state) for each in _UNDOING[dialect]))

    with capture_logs() as events:
        sink.commit(_staged(sink, 1, 2), [share(0, 0, 2)])

    assert place.rows() == [(1, 1), (2, 1)]
    assert sink.stored_offset("id/0") == 2
    repeated = [(each["event"], each["log_level"], each["attempt"]) for each in events]
    assert repeated == [("sql_commit_repeated", "warning", number) for number in (1, 2)]


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_the_victim_of_a_deadlock_is_made_again(
    monkeypatch: pytest.MonkeyPatch, places: Callable[[str], Place], dialect: str
) -> None:
    """Another writer has the row and wants the offset: the server undoes the sink's transaction."""
    place = places(dialect)
    place.create("t", "weight")
    sink = place.sink("append")
    sink.commit(_staged(sink, 1), [share(0, 0, 1)])
    real = OffsetsTable.move

    with ThreadPoolExecutor(1) as other, place.transaction() as rival:
        if dialect == "postgresql":  # who waits last looks for a deadlock, and finds it at once
            rival.exec_driver_sql("SET LOCAL deadlock_timeout = '10min'")
        else:  # the server undoes the one that has changed less
            values = ", ".join(f"({number}, 1)" for number in range(1000))
            rival.exec_driver_sql(f"INSERT INTO weight VALUES {values}")
        rival.exec_driver_sql("INSERT INTO t VALUES (2, 7)")

        def want_offset() -> None:
            rival.exec_driver_sql("UPDATE headrace_offsets SET note = 'mine'")
            rival.rollback()

        def move(*arguments: Any) -> None:
            real(*arguments)
            monkeypatch.setattr(OffsetsTable, "move", real)
            wanted.append(other.submit(want_offset))
            place.wait_for_lock()

        wanted: list[Any] = []
        monkeypatch.setattr(OffsetsTable, "move", move)
        with capture_logs() as events:
            sink.commit(_staged(sink, 2), [share(0, 1, 2)])
        wanted[0].result(30)

    assert place.rows() == [(1, 1), (2, 1)]
    assert sink.stored_offset("id/0") == 2
    assert {each["event"] for each in events} == {"sql_commit_repeated"}


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_a_lock_that_does_not_come_in_time_is_no_row_s_fault(
    places: Callable[[str], Place], dialect: str
) -> None:
    """The commit fails once its time is over, changes nothing, and can be made again."""
    place = places(dialect)
    place.create("t")
    sink = place.sink("append", timeout=1.0)
    staged = _staged(sink, 1)
    with place.transaction() as held:
        held.exec_driver_sql("INSERT INTO t VALUES (1, 7)")
        with pytest.raises(SQLAlchemyError) as caught:
            sink.commit(staged, [share(0, 0, 1)])
        held.rollback()
    assert not isinstance(caught.value, RowsRefusedError)
    assert sink.stored_offset("id/0") is None

    sink.commit(staged, [share(0, 0, 1)])

    assert place.rows() == [(1, 1)]
