from __future__ import annotations

import io
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from headrace.sinks.by_key import WriteMode
from headrace.sinks.console import ConsoleSink, NoopSink
from headrace.sinks.contract import Guarantee
from headrace.testing.replacement import GroupedReplacerContract
from headrace.testing.sinks import (
    ROWS,
    BatchCommitContract,
    SinkContract,
    SinkPlace,
    data_frames,
    micro_batch,
    share,
)
from tests.contracts.places import DeltaPlace, JsonLinesPlace, SqlPlace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.extensions.spark.runtime import SparkRuntime


class TestDelta(BatchCommitContract):
    """The contract on a Delta table."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> SinkPlace:
        """Return a folder whose name needs care in a URI."""
        return DeltaPlace(tmp_path / "a table, 100% ü")


class TestReplacedDelta(GroupedReplacerContract):
    """The contract on a Delta table whose rows, of Spark, say which records they are of."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> SinkPlace:
        """Return a folder for a table with partitions."""
        return DeltaPlace(tmp_path / "table", origin=True, partition_by=["name"])


class TestSqlAppend(BatchCommitContract):
    """The contract on a table whose rows are added to."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[SinkPlace]:
        """Return a table whose name needs quotes."""
        with closing(SqlPlace(tmp_path / "base.db")) as place:
            yield place


class TestSqlUpsert(BatchCommitContract):
    """The contract on a table whose rows are replaced by key."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[SinkPlace]:
        """Return a table whose name needs quotes."""
        options = {"mode": WriteMode.UPSERT, "key": ["id"]}
        with closing(SqlPlace(tmp_path / "base.db", **options)) as place:
            yield place


class TestJsonLines(SinkContract):
    """The contract on a file of JSON lines."""

    guarantee = Guarantee.AT_LEAST_ONCE

    @pytest.fixture
    def place(self, tmp_path: Path) -> SinkPlace:
        """Return a file in a folder that is yet to be made."""
        return JsonLinesPlace(tmp_path / "out" / "rows.jsonl")


def test_console_prints_the_first_rows(spark_runtime: SparkRuntime) -> None:
    """The console shows as many rows as asked for and says how many there are."""
    out = io.StringIO()
    sink = ConsoleSink(rows=1, console=Console(file=out, width=80))
    sink.open()

    staged = sink.stage(micro_batch("one"), data_frames(spark_runtime)(ROWS))
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
