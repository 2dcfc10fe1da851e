"""Places that sinks write to, for the contract of sinks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.jsonl import JsonLinesSink
from headrace.spark.sinks.sql import SqlSink
from tests.unit.spark.sinks.sql_tables import Base

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.spark.sinks.contract import Sink
    from headrace.testing.sinks import Row


class DeltaPlace:
    """A folder for a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self) -> Sink[Any]:
        """Return a sink on the table."""
        return DeltaSink(self.folder)

    def rows(self) -> list[Row]:
        """Read the table as any other reader does."""
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        rows: list[Row] = DeltaTable(self.folder).to_pyarrow_table().to_pylist()
        return rows


class SqlPlace:
    """A SQLite file with a table."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.base = Base(path)
        self.options = options
        self.made: list[SqlSink] = []
        self.base.run('CREATE TABLE "a table, 100% ü" (id BIGINT PRIMARY KEY, name TEXT)')

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
