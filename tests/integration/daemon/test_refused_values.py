"""Values that a column of the sink's table refuses, from a real topic to the dead-letter topic."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from headrace.core.records import TopicPartition
from tests.integration.daemon.rig import eventually
from tests.postgres import PostgresServer, postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.daemon.rig import Site

pytestmark = pytest.mark.timeout(300)

_REDUCER = """
def rows(table, batch):
    return table.select(["id", "v"])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server for all tests."""
    with postgres_server() as server:
        yield server


def _run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute statements in one transaction; return the rows of the last."""
    engine = sa.create_engine(url)
    rows: list[tuple[Any, ...]] = []
    with engine.begin() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
            rows = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return rows


def _sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'base.db'}"


def _check(
    site: Site, url: str, made: list[str], *, kind: str, values: list[Any], says: str
) -> None:
    """Check that a channel stores all values but the third, which becomes a dead letter."""
    (site.directory / "storing.py").write_text(_REDUCER, encoding="utf-8")
    _run(url, *made)
    dead = TopicPartition(site.broker.create_topic(), 0)
    sent = [json.dumps({"id": number, "v": value}).encode() for number, value in enumerate(values)]
    site.broker.produce(site.partition(0), *sent)
    daemon = site.run(
        processor={
            "type": "arrow",
            "reducer": "storing:rows",
            "decode": "json",
            "schema": f"id INT, v {kind}",
        },
        sink={"type": "sql", "url": url, "table": "t"},
        retry={"attempts": 1, "backoff": "1ms", "max_backoff": "10ms"},
        rejects={"failing": "dead_letter", "topic": dead.topic},
    )
    eventually(lambda: site.offsets()[0] == len(values))
    (letter,) = site.broker.read(dead, 1)
    headers = dict(letter.headers() or [])
    assert letter.value() == sent[2]
    assert headers["headrace.offset"] == b"2"
    message = str(headers["headrace.message"])
    assert "column 'v'" in message
    assert says in message
    others = [(number,) for number in range(len(values)) if number != 2]
    assert _run(url, "SELECT id FROM t ORDER BY id") == others
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


@pytest.mark.parametrize(
    ("column", "kind", "values", "says"),
    [
        ("BOOLEAN", "BIGINT", [0, 1, 5, 1], "not None, True, or False"),
        ("JSON", "STRING", ["{}", "[1]", "{bad", "null"], "Expecting property name"),
    ],
)
def test_a_value_that_a_driver_refuses_is_in_the_dead_letter_topic(
    site: Site, column: str, kind: str, values: list[Any], says: str
) -> None:
    """Alone, with the column's name; all others are stored once, and the offset is committed."""
    made = [f"CREATE TABLE t (id INT, v {column})"]
    _check(site, _sqlite(site.directory), made, kind=kind, values=values, says=says)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "kind", "values", "says"),
    [
        ("SMALLINT", "BIGINT", [0, 1, 1 << 40, 2], "smallint out of range"),
        ("HSTORE", "STRING", ["a=>1", "", "a=>", "b=>2"], ""),
        ("VARCHAR(3)", "STRING", ["a", "b", "four", "d"], "value too long"),
    ],
)
def test_a_value_that_a_server_refuses_is_in_the_dead_letter_topic(
    site: Site, server: PostgresServer, *, column: str, kind: str, values: list[Any], says: str
) -> None:
    """The same of PostgreSQL, in whose transaction the others of the micro-batch were."""
    made = ["CREATE EXTENSION hstore", f"CREATE TABLE t (id INT, v {column})"]
    _check(site, server.new_database(), made, kind=kind, values=values, says=says)
