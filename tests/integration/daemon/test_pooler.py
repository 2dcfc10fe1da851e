"""Tables that are reached through a pooler, which gives each transaction another connection."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
import yaml

from headrace.core.errors import StartError
from headrace.extensions.sql.database import Database
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import WriteMode
from headrace.testing.sinks import BatchCommitContract, SinkPlace, TablesOfArrow
from tests.integration.extensions.spark.test_sql_postgres import PostgresPlace, copy_all, run
from tests.pages import ROOT, blocks_of
from tests.pgbouncer import Pooler, pgbouncer
from tests.postgres import PostgresServer, postgres_server
from tests.unit.extensions.sql.sql_tables import share, staged_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.extensions.sql.sink import StagedRows
    from tests.integration.daemon.rig import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

_REDUCER = """
import pyarrow as pa


def _named(table, name):
    return table.select(["id"]).append_column("who", pa.repeat(name, table.num_rows))


def a(table, batch):
    return _named(table, "a")


def b(table, batch):
    return _named(table, "b")
"""

_RECIPE = """
def ids(table, batch):
    return table.select(["id"])
"""

#: Records of each of the two partitions, of which a batch has five.
EACH = 600

_OFFSETS = "SELECT next_offset FROM {table} WHERE format = 1 AND identity NOT LIKE 'headrace/%'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server for all tests; each has a database of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def pooler(server: PostgresServer) -> Iterator[Pooler]:
    """Two connections to each database, for all that are connected to the pooler."""
    with pgbouncer(server) as pooler:
        yield pooler


@pytest.fixture
def url(server: PostgresServer) -> str:
    """An empty database's own address."""
    return server.new_database()


@pytest.fixture
def pooled(url: str, pooler: Pooler) -> str:
    """The same database through the pooler."""
    return pooler.url(url)


class PooledPlace(PostgresPlace):
    """A table that sinks reach through the pooler, and readers without it."""

    def __init__(self, url: str, pooled: str, mode: WriteMode) -> None:
        super().__init__(url, mode)
        self._pooled = pooled

    def sink(self) -> SqlSink:
        """Return a sink on the table."""
        self.made.append(SqlSink(self._pooled, "Rows", **self.options))
        return self.made[-1]


class TestPooled(TablesOfArrow, BatchCommitContract):
    """The contract of every sink, through the pooler."""

    @pytest.fixture
    def place(self, url: str, pooled: str) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        with closing(PooledPlace(url, pooled, WriteMode.APPEND)) as place:
            yield place


class TestPooledUpsert(TestPooled):
    """The contract through the pooler, with rows that go by way of a temporary table."""

    @pytest.fixture
    def place(self, url: str, pooled: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SinkPlace]:
        """Return a table of a database of its own."""
        copy_all(monkeypatch)
        with closing(PooledPlace(url, pooled, WriteMode.UPSERT)) as place:
            yield place


def _channel(site: Site, name: str, url: str) -> dict[str, Any]:
    return {
        "topics": [site.topic],
        "group": f"{site.group}.{name}",
        "processor": {
            "type": "arrow",
            "reducer": f"pooled_reducers:{name}",
            "decode": "json",
            "schema": "id BIGINT",
        },
        "sink": {"type": "sql", "url": url, "table": f"t{name}", "offsets_table": f"o{name}"},
        "batch": {"max_records": 5, "linger": 0},
    }


def test_two_channels_behind_a_pooler_write_their_own_tables(
    site: Site, url: str, pooled: str
) -> None:
    """Each table has each record once and none of the other channel, however connections are dealt.

    psycopg names what it has the server prepare by a number, the same in each client.
    """
    (site.directory / "pooled_reducers.py").write_text(_REDUCER, encoding="utf-8")
    run(url, *(f"CREATE TABLE t{name} (who TEXT, id BIGINT)" for name in "ab"))
    for number in (0, 1):
        records = [json.dumps({"id": number * EACH + n}).encode() for n in range(EACH)]
        site.broker.produce(site.partition(number), *records)
    document = site.document()
    document["channels"] = {name: _channel(site, name, pooled) for name in "ab"}

    daemon = site.daemon(document).start("--until", "latest")

    assert daemon.wait() == 0, daemon.text()
    for name in "ab":
        rows = run(url, f"SELECT who, id FROM t{name} ORDER BY id")
        assert rows == [(name, number) for number in range(2 * EACH)]
        offsets = run(url, _OFFSETS.format(table=f"o{name}"))
        assert offsets == [(EACH,), (EACH,)]


def _opened(url: str, table: str = "t", **options: Any) -> SqlSink:
    sink = SqlSink(url, table, **options)
    sink.open()
    return sink


def _rows(sink: SqlSink, numbers: Sequence[int]) -> StagedRows:
    return staged_table(sink, pa.table({"id": pa.array(numbers, pa.int64())}))


def test_sinks_that_share_connections_do_not_share_statements(url: str, pooled: str) -> None:
    """Two sinks of one process at work at once, each with as many statements as are prepared."""
    names = ["ta", "tb"]
    run(url, *(f"CREATE TABLE {name} (id BIGINT)" for name in names))
    sinks = [_opened(pooled, name, offsets_table=f"o{name}") for name in names]

    def work(index: int) -> None:
        for number in range(40):
            rows = _rows(sinks[index], [1000 * index + number])
            sinks[index].commit(rows, [share(0, number, number + 1)])

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(work, index) for index in (0, 1)]:
            each.result(120)
    for index, name in enumerate(names):
        assert run(url, f"SELECT id FROM {name} ORDER BY id") == [
            (1000 * index + number,) for number in range(40)
        ]
    for sink in sinks:
        sink.close()


#: What another client of the pool leaves on connections, one at a time.
_LEFT = {
    "a search path": "SET search_path = elsewhere, public",
    "a temporary table": "CREATE TEMPORARY TABLE t (id BIGINT, at TIMESTAMPTZ)",
    "temporary offsets": "CREATE TEMPORARY TABLE headrace_offsets AS TABLE public.headrace_offsets",
    "a time zone": "SET TimeZone = 'Asia/Tokyo'",
    "a role": "SET ROLE pg_read_all_data",
    "commits that do not wait": "SET synchronous_commit = off",
    "a limit on locks": "SET lock_timeout = '1ms'",
}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("left", _LEFT.values(), ids=_LEFT.keys())
def test_settings_left_on_a_pooled_connection_change_nothing(
    url: str, pooled: str, monkeypatch: pytest.MonkeyPatch, *, left: str, copied: bool
) -> None:
    """Rows and offsets go where they went before, and mean the same."""
    if copied:
        copy_all(monkeypatch)
    run(url, "CREATE SCHEMA elsewhere", "CREATE TABLE elsewhere.t (id BIGINT, at TIMESTAMPTZ)")
    run(url, "CREATE TABLE t (id BIGINT, at TIMESTAMPTZ, synced TEXT)")
    run(url, "ALTER TABLE t ALTER synced SET DEFAULT current_setting('synchronous_commit')")
    first = _opened(pooled)
    first.commit(_rows(first, [1]), [share(0, 0, 1)])
    first.close()

    # as long as one is in a transaction, the other has another connection of the two
    address = pooled.replace("+psycopg", "")
    with (
        psycopg.connect(address, prepare_threshold=None) as one,
        psycopg.connect(address, prepare_threshold=None) as two,
    ):
        for client in (one, two):
            client.execute(left.encode())
    sink = _opened(pooled)
    noon = sa.text("SELECT TIMESTAMP '2026-07-01 12:00'")
    at = run(url, str(noon))[0][0]
    table = pa.table({"id": pa.array([2], pa.int64()), "at": pa.array([at], pa.timestamp("us"))})
    assert sink.stored_offset("id/0") == 1
    sink.commit(staged_table(sink, table), [share(0, 1, 2)])

    assert sink.stored_offset("id/0") == 2
    sink.close()
    assert run(url, "SELECT id, at = '2026-07-01 12:00', synced FROM public.t ORDER BY id") == [
        (1, None, "on"),
        (2, True, "on"),
    ]
    assert run(url, "TABLE elsewhere.t") == []
    assert run(url, _OFFSETS.format(table="public.headrace_offsets")) == [(2,)]


def test_a_pooler_that_knows_no_transactions_stops_the_start(
    url: str, server: PostgresServer
) -> None:
    """With a connection for each statement nothing can be exactly once, and that is said."""
    run(url, "CREATE TABLE t (id BIGINT)")
    with pgbouncer(server, "statement") as pooler:
        sink = SqlSink(pooler.url(url), "t")
        with pytest.raises(StartError, match="transaction"):
            sink.open()
        sink.close()


@pytest.mark.parametrize("direct", [True, False])
def test_statements_are_prepared_on_direct_connections_alone(
    url: str, pooled: str, *, direct: bool
) -> None:
    """The driver is left to prepare where both ends agree that the other one is the server."""
    database = Database(url if direct else pooled)
    with database.transaction() as connection:
        for _ in range(20):
            connection.execute(sa.text("SELECT 1"))
        found = connection.execute(sa.text("SELECT count(*) FROM pg_prepared_statements"))
        assert (found.scalar_one() > 0) is direct
    database.close()


def test_the_recipe_for_poolers_is_right_as_it_stands(site: Site, url: str, pooled: str) -> None:
    """With nothing but the address changed, each record is in the table once."""
    (recipe,) = [
        block
        for block in blocks_of(ROOT / "docs" / "recipes.md")
        if block.kind == "channel" and "pooler." in block.text
    ]
    (site.directory / "recipe.py").write_text(_RECIPE, encoding="utf-8")
    run(url, "CREATE TABLE orders (id BIGINT PRIMARY KEY)")
    for number in (0, 1):
        records = [json.dumps({"id": number * EACH + n}).encode() for n in range(EACH)]
        site.broker.produce(site.partition(number), *records)
    document = site.document()
    channel = _channel(site, "a", pooled)
    channel["processor"]["reducer"] = "recipe:ids"
    sink = yaml.safe_load(recipe.text)["sink"]
    document["channels"] = {"a": {**channel, "sink": {**sink, "url": pooled}}}

    daemon = site.daemon(document).start("--until", "latest")

    assert daemon.wait() == 0, daemon.text()
    assert run(url, "SELECT id FROM orders ORDER BY id") == [(n,) for n in range(2 * EACH)]
