"""SQL sinks on tables in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from headrace.extensions.sql.sink import SqlSink
from tests.unit.extensions.sql.sql_tables import CREATE, Base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    """Create a file with an empty table, and close its connections at the end.

    From 3.13 on Python warns of a connection that was not closed.
    """
    connections: list[Any] = []

    def note(connection: Any, _: object) -> None:
        connections.append(connection)

    sa.event.listen(sa.Pool, "connect", note)
    base = Base(tmp_path / "base.db")
    base.run(CREATE)
    yield base
    sa.event.remove(sa.Pool, "connect", note)
    for connection in connections:
        connection.close()


@pytest.fixture
def sinks(base: Base) -> Iterator[Callable[..., SqlSink]]:
    """Make sinks on the table; close them at the end."""
    made = []

    def make(table: str = "t", **options: Any) -> SqlSink:
        made.append(SqlSink(base.url, table, **options))
        return made[-1]

    yield make
    for sink in made:
        sink.close()
