from __future__ import annotations

import io
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from headrace.extensions.delta.merging import MergeRule
from headrace.sinks.by_key import Merging, WriteMode
from headrace.sinks.console import ConsoleSink, NoopSink
from headrace.sinks.contract import Guarantee
from headrace.testing.replacement import GroupedReplacerContract
from headrace.testing.sinks import (
    ROWS,
    BatchCommitContract,
    SinkContract,
    SinkPlace,
    TablesOfArrow,
    TransactionalOffsetsContract,
    micro_batch,
    share,
    table,
)
from tests.contracts.places import DeltaPlace, DuckDbPlace, JsonLinesPlace, SeveralPlace, SqlPlace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestDelta(TablesOfArrow, BatchCommitContract, TransactionalOffsetsContract):
    """The contract on a Delta table."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> SinkPlace:
        """Return a folder whose name needs care in a URI."""
        return DeltaPlace(tmp_path / "a table, 100% ü")


class TestMergedDelta(TablesOfArrow, BatchCommitContract, TransactionalOffsetsContract):
    """The contract on a Delta table whose rows are merged by their key."""

    @pytest.fixture(params=[(), ("id",)], ids=["whole", "partitioned"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkPlace:
        """Return a folder."""
        rule = MergeRule(("id",), {"name": Merging.LAST})
        return DeltaPlace(tmp_path / "a table", merge=rule, partition_by=request.param)


class TestReplacedDelta(TablesOfArrow, GroupedReplacerContract):
    """The contract on a Delta table whose rows say which records they are of."""

    @pytest.fixture(params=[(), ("id",)], ids=["whole", "partitioned"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkPlace:
        """Return a folder."""
        return DeltaPlace(tmp_path / "a table, 100% ü", origin=True, partition_by=request.param)


class TestSql(TablesOfArrow, BatchCommitContract, TransactionalOffsetsContract):
    """The contract on a SQLite table, appended to or upserted."""

    @pytest.fixture(
        params=[{}, {"mode": WriteMode.UPSERT, "key": ["id"]}], ids=["append", "upsert"]
    )
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkPlace]:
        """Return a table whose name needs quotes."""
        options: dict[str, Any] = request.param
        with closing(SqlPlace(tmp_path / "base.db", **options)) as place:
            yield place


class TestDuckDb(TablesOfArrow, BatchCommitContract, TransactionalOffsetsContract):
    """The contract on a table in a DuckDB file, appended to or upserted."""

    @pytest.fixture(
        params=[{}, {"mode": WriteMode.UPSERT, "key": ["id"]}], ids=["append", "upsert"]
    )
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkPlace:
        """Return a table whose name needs quotes."""
        options: dict[str, Any] = request.param
        return DuckDbPlace(tmp_path / "base.duckdb", **options)


class TestReplacedSql(TablesOfArrow, GroupedReplacerContract):
    """The contract on a SQLite table whose rows say which micro-batch they are of."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[SinkPlace]:
        """Return a table whose name needs quotes."""
        with closing(SqlPlace(tmp_path / "base.db", origin=True)) as place:
            yield place


class TestSeveral(TablesOfArrow, TransactionalOffsetsContract):
    """The contract on outputs of different kinds."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[SinkPlace]:
        """Return three empty tables."""
        with closing(SeveralPlace(tmp_path)) as place:
            yield place


class TestJsonLines(TablesOfArrow, SinkContract):
    """The contract on a file of JSON lines."""

    guarantee = Guarantee.AT_LEAST_ONCE

    @pytest.fixture
    def place(self, tmp_path: Path) -> SinkPlace:
        """Return a file in a folder that is yet to be made."""
        return JsonLinesPlace(tmp_path / "out" / "rows.jsonl")


def test_console_prints_the_rows_of_a_table() -> None:
    """The console shows a table of Arrow as it shows a DataFrame."""
    out = io.StringIO()
    sink = ConsoleSink(rows=1, console=Console(file=out, width=80))

    sink.commit(sink.stage(micro_batch("one"), table(ROWS)), [share(0, 0, 10)])

    assert "2 rows, the first 1" in out.getvalue()


def test_noop_takes_a_table() -> None:
    """The no-op sink has nothing to do for a table: it is computed."""
    sink = NoopSink()
    sink.stage(micro_batch("one"), table(ROWS))
    sink.commit(None, [share(0, 0, 10)])
