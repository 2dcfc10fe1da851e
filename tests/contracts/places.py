"""Places that sinks write to, for the contract of sinks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
from deltalake import DeltaTable

from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.duckdb.sink import DuckDbSink
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.jsonl import JsonLinesSink
from headrace.sinks.origin import ORIGIN
from headrace.sinks.several import SeveralSink, alone
from tests.unit.extensions.sql.sql_tables import Base

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.sinks.contract import Sink
    from headrace.sinks.micro_batch import MicroBatch
    from headrace.testing.sinks import Row


class DeltaPlace:
    """A folder for a table."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.options = options

    def sink(self) -> Sink[Any]:
        """Return a sink on the table."""
        return DeltaSink(self.folder, **self.options)

    def rows(self) -> list[Row]:
        """Read the table as any other reader does."""
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        rows: list[Row] = DeltaTable(self.folder).to_pyarrow_table().to_pylist()
        return [{name: row[name] for name in row if name != ORIGIN} for row in rows]


class SqlPlace:
    """A SQLite file with a table."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.base = Base(path)
        self.options = options
        self.made: list[SqlSink] = []
        own = f", {ORIGIN} VARCHAR(64)" if options.get("origin") else ""
        self.base.run(f'CREATE TABLE "a table, 100% ü" (id BIGINT PRIMARY KEY, name TEXT{own})')

    def sink(self) -> Sink[Any]:
        """Return a sink on the table."""
        self.made.append(SqlSink(self.base.url, "a table, 100% ü", **self.options))
        return self.made[-1]

    def close(self) -> None:
        """Close what was not closed on it."""
        for sink in self.made:
            sink.close()

    def rows(self) -> list[Row]:
        """Read the table as any other reader does."""
        found = self.base.run('SELECT id, name FROM "a table, 100% ü"')
        return [{"id": number, "name": name} for number, name in found]


class DuckDbPlace:
    """A DuckDB file with a table."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.options = path, options
        with duckdb.connect(str(path)) as connection:
            connection.execute(
                f'CREATE TABLE "{self._TABLE}" (id BIGINT PRIMARY KEY, name VARCHAR)'
            )

    _TABLE = "a table, 100% ü"

    def sink(self) -> Sink[Any]:
        """Return a sink on the table."""
        return DuckDbSink(self.path, self._TABLE, **self.options)

    def rows(self) -> list[Row]:
        """Read the table as any other reader of this process does."""
        with duckdb.connect(str(self.path)) as connection:
            found = connection.execute(f'SELECT id, name FROM "{self._TABLE}"').fetchall()
        return [{"id": number, "name": name} for number, name in found]


class JsonLinesPlace:
    """A path for a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sink(self) -> Sink[Any]:
        """Return a sink on the file."""
        return JsonLinesSink(self.path)

    def rows(self) -> list[Row]:
        """Read the file."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]


class SeveralPlace:
    """Two Delta tables and a table of SQLite between them, all with the same rows."""

    def __init__(self, folder: Path) -> None:
        self.delta = DeltaPlace(folder / "table")
        self.sql = SqlPlace(folder / "base.db")
        self.other = DeltaPlace(folder / "other")

    def sink(self) -> Sink[Any]:
        """Return a sink of the three, which gives each of them all rows."""
        sinks = {
            "delta": self.delta.sink(),
            "sql": self.sql.sink(),
            "other": self.other.sink(),
        }
        return AllTheSame([alone(name, sink) for name, sink in sinks.items()])

    def close(self) -> None:
        """Close what was not closed."""
        self.sql.close()

    def rows(self) -> list[Row]:
        """Read one of them, having seen that they are the same."""
        found = [
            sorted(place.rows(), key=lambda row: int(row["id"]))
            for place in (self.delta, self.sql, self.other)
        ]
        assert found[0] == found[1] == found[2]
        return found[0]


class AllTheSame(SeveralSink):
    """A sink of several outputs whose reducer returns one result for all."""

    def stage(self, micro_batch: MicroBatch, result: Any) -> dict[str, Any]:
        """Give each output the result."""
        return super().stage(micro_batch, dict.fromkeys(self.names, result))
