"""Upserts by keys that PostgreSQL and Arrow do not compare alike."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import WriteMode
from tests.integration.extensions.spark.test_sql_postgres import copy_all, run
from tests.postgres import PostgresServer, postgres_server
from tests.unit.extensions.sql.sql_keys import Results, commit_all, results_of, upsert_one_by_one

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_COLUMNS = [
    ("text", "TEXT"),
    ("text", "CITEXT"),
    ("text", 'TEXT COLLATE "nocase"'),
    ("text", "CHAR(3)"),
    ("text", "VARCHAR(2)"),
    ("integer", "BIGINT"),
    ("float", "FLOAT8"),
    ("float", "BIGINT"),
    ("decimal", "NUMERIC"),
    ("decimal", "NUMERIC(6,2)"),
    ("moment", "TIMESTAMPTZ"),
    ("moment", "TIMESTAMPTZ(0)"),
]

_NOCASE = (
    "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
)

_DRAWN = st.sampled_from(_COLUMNS).flatmap(
    lambda column: st.tuples(st.just(column), results_of(column[0]))
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server, with one database."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def url(server: PostgresServer) -> str:
    """A database that has the types."""
    url = server.new_database()
    run(url, "CREATE EXTENSION citext", _NOCASE)
    return url


@pytest.mark.parametrize("copied", [False, True])
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=_DRAWN)
def test_the_last_row_of_the_log_stays_under_any_equality_of_keys(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    drawn: tuple[tuple[str, str], Results],
    copied: bool,
) -> None:
    """The rows are as if each had been upserted by itself, in the log's order."""
    if copied:
        copy_all(monkeypatch)
    (name, column), results = drawn
    run(
        url,
        "DROP TABLE IF EXISTS t, expected, headrace_offsets",
        f"CREATE TABLE t (k {column} PRIMARY KEY, n INT)",
        f"CREATE TABLE expected (k {column} PRIMARY KEY, n INT)",
    )
    with closing(SqlSink(url, "t", mode=WriteMode.UPSERT, key=["k"])) as sink:
        sink.open()
        rows = commit_all(sink, name, results)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        upsert_one_by_one(lambda query, row: connection.execute(query.encode(), row), rows, "%s")
    found, expected = (run(url, f"SELECT k, n FROM {t} ORDER BY n") for t in ("t", "expected"))
    assert found == expected
