from __future__ import annotations

import io
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from rich.console import Console

from headrace.spark.sinks.console import ConsoleSink
from headrace.spark.sinks.contract import Guarantee, Sink
from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.jsonl import JsonLinesSink
from headrace.spark.sinks.noop import NoopSink
from headrace.spark.sinks.sql import SqlSink, WriteMode
from tests.contracts.sinks import (
    ROWS,
    ExactlyOnceContract,
    Frames,
    Place,
    Row,
    SinkContract,
    micro_batch,
    share,
)
from tests.unit.spark.sinks.sql_tables import Base

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.spark.runtime import SparkRuntime


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


class TestDelta(ExactlyOnceContract):
    """The contract on a Delta table."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """Return a folder whose name needs care in a URI."""
        return DeltaPlace(tmp_path / "a table, 100% ü")


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


class TestSqlAppend(ExactlyOnceContract):
    """The contract on a table whose rows are added to."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        """Return a table whose name needs quotes."""
        with closing(SqlPlace(tmp_path / "base.db")) as place:
            yield place


class TestSqlUpsert(ExactlyOnceContract):
    """The contract on a table whose rows are replaced by key."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        """Return a table whose name needs quotes."""
        options = {"mode": WriteMode.UPSERT, "key": ["id"]}
        with closing(SqlPlace(tmp_path / "base.db", **options)) as place:
            yield place


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


class TestJsonLines(SinkContract):
    """The contract on a file of JSON lines."""

    guarantee = Guarantee.AT_LEAST_ONCE

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """Return a file in a folder that is yet to be made."""
        return JsonLinesPlace(tmp_path / "out" / "rows.jsonl")


def test_console_prints_the_first_rows(spark_runtime: SparkRuntime) -> None:
    """The console shows as many rows as asked for and says how many there are."""
    out = io.StringIO()
    sink = ConsoleSink(rows=1, console=Console(file=out, width=80))
    sink.open()

    staged = sink.stage(micro_batch("one"), Frames(spark_runtime)(ROWS))
    assert out.getvalue() == ""
    sink.commit(staged, [share(0, 0, 10)])
    sink.commit(sink.stage(micro_batch("two"), None), [share(0, 10, 20)])
    sink.close()

    printed = out.getvalue()
    assert "2 rows, the first 1" in printed
    assert "id" in printed
    assert "null" not in printed
    assert "0 rows" in printed
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    assert sink.stored_offset("any") is None


def test_noop_runs_the_whole_job(spark_runtime: SparkRuntime) -> None:
    """The no-op sink computes every row, so that an error in one shows."""
    sink = NoopSink()
    sink.open()
    frame = spark_runtime.session.range(10).selectExpr("raise_error('row reached')")

    with pytest.raises(Exception, match="row reached"):
        sink.stage(micro_batch("one"), frame)
    sink.stage(micro_batch("two"), None)
    sink.commit(None, [share(0, 0, 10)])
    sink.discard(None)
    sink.close()

    assert sink.guarantee is Guarantee.NOT_KEPT
    assert sink.stored_offset("any") is None
