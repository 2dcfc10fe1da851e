"""Sinks on tables of their own: a Delta sink, and SQL sinks in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from headrace.extensions.delta import DeltaSink
from headrace.extensions.sql import SqlSink
from tests.unit.extensions.sql.sql_tables import CREATE, Base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
from tests.unit.extensions.delta.delta_tables import share, stage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the table goes."""
    return tmp_path / "table"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[[], DeltaSink]]:
    """Open sinks on the table; close them at the end."""
    sinks = []

    def open_one() -> DeltaSink:
        sink = DeltaSink(folder)
        sink.open()
        sinks.append(sink)
        return sink

    yield open_one
    for sink in sinks:
        sink.close()


@pytest.fixture
def sink(opened: Callable[[], DeltaSink]) -> DeltaSink:
    """Open one sink that has stored [0, 10) of partition 0 with the row 1."""
    sink = opened()
    sink.commit(stage(sink, "first", [1]), [share(0, 0, 10)])
    return sink


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Base]:
    """A file with an empty table. What is connected to it is closed at the end.

    From 3.13 on Python warns of a connection that nobody closed.
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
