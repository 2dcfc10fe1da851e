"""A table in a SQLite file and SQL sinks on it, with results made without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from headrace.core.records import TopicPartition
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.extensions.sql.sink import SqlSink, StagedRows

CREATE = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)"


@dataclass
class Base:
    """A SQLite file, and what its readers see."""

    path: Path

    @property
    def url(self) -> str:
        """The file as SQLAlchemy names it."""
        return f"sqlite:///{self.path}"

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            for statement in statements:
                result = connection.exec_driver_sql(statement)
                rows = [tuple(row) for row in result] if result.returns_rows else []
        engine.dispose()
        return rows

    def rows(self, table: str = "t") -> list[tuple[Any, ...]]:
        """Return a table's rows in order."""
        return self.run(f"SELECT * FROM {table} ORDER BY 1")


def staged(sink: SqlSink, rows: list[dict[str, Any]]) -> StagedRows:
    """Return rows as Spark's result would stand in memory."""
    return staged_table(sink, pa.Table.from_pylist(rows))


def staged_table(sink: SqlSink, table: pa.Table) -> StagedRows:
    """Return an Arrow table as staged."""
    return sink.stage(MicroBatch("one", "main", ()), table)


def share(number: int, start: int, next_offset: int) -> PartitionCommit:
    """Return one partition's share of a commit."""
    return PartitionCommit(f"id/{number}", TopicPartition("t", number), start, next_offset)


def wrap_commit(sink: SqlSink, step: Callable[[Callable[[], None]], None]) -> None:
    """Run the next COMMIT through ``step``, which gets the real one."""
    dialect = sink._database.engine.dialect
    real = dialect.do_commit

    def commit(connection: Any) -> None:
        dialect.do_commit = real  # type: ignore[method-assign]
        step(lambda: real(connection))

    dialect.do_commit = commit  # type: ignore[method-assign,assignment]
