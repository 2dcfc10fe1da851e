"""Rows that are merged into those with their keys, on SQLite."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.core.errors import ConfigError, ResultMisfitError, RowsRefusedError, StartError
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import Merging, Repeated, WriteMode
from headrace.sinks.errors import CommitConflictError, ReplaceRefusedError
from tests.unit.extensions.sql import sql_merging
from tests.unit.extensions.sql.sql_tables import Base, share, staged, staged_table

if TYPE_CHECKING:
    from collections.abc import Callable

_MERGED: dict[str, Any] = {
    "mode": WriteMode.MERGE,
    "key": ["id"],
    "merge": {"name": Merging.LAST},
}


@settings(max_examples=60, deadline=None)
@given(commits=sql_merging.COMMITS)
def test_merged_micro_batches_are_one_count_of_all_events(
    commits: list[list[list[sql_merging.Event]]],
) -> None:
    """The table has the count of all events, however they are cut into commits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            base.execute(sql_merging.CREATE)
            with closing(SqlSink(f"sqlite:///{path}", "counts", **sql_merging.OPTIONS)) as sink:
                sink.open()
                sql_merging.commit(sink, commits)
            found = base.execute(sql_merging.READ).fetchall()
    events = [event for batches in commits for batch in batches for event in batch]
    assert found == sql_merging.reduced(events)


def test_a_repeated_commit_merges_nothing(base: Base, sinks: Callable[..., SqlSink]) -> None:
    """Offsets that were moved already refuse the sums of a replayed micro-batch."""
    base.run(sql_merging.CREATE)
    sink = sinks("counts", **sql_merging.OPTIONS)
    sink.open()
    events = [[[sql_merging.Event("a", 1, 5, "x")]]]
    sql_merging.commit(sink, events)
    with pytest.raises(CommitConflictError):
        sql_merging.commit(sink, events)
    assert base.run(sql_merging.READ) == [("a", 0, 1, 5, 1, 1, "x")]


def test_a_column_that_merge_does_not_name_is_told_before_anything_is_written(
    base: Base, sinks: Callable[..., SqlSink]
) -> None:
    """A column of the result beside key and merge, and one of merge that the result lacks."""
    base.run("CREATE TABLE u (id INTEGER PRIMARY KEY, n INTEGER, name TEXT)")
    sink = sinks("u", **_MERGED)
    sink.open()
    with pytest.raises(ResultMisfitError, match="'n' is neither in key nor in merge"):
        staged(sink, [{"id": 1, "name": "a", "n": 1}])
    with pytest.raises(ResultMisfitError, match="column 'name' is missing"):
        staged(sink, [{"id": 1}])


@pytest.mark.parametrize(
    ("merge", "problem"),
    [
        ({"name": Merging.SUM}, "sum takes a column of numbers, and name is TEXT"),
        ({"Name": Merging.LAST}, r"no column Name, which merge names \(which has 'name'\)"),
    ],
)
def test_a_column_that_cannot_be_merged_stops_the_start(
    sinks: Callable[..., SqlSink], merge: dict[str, Merging], problem: str
) -> None:
    """Text has no sum, and a column has to be there."""
    with pytest.raises(StartError, match=problem):
        sinks(mode=WriteMode.MERGE, key=["id"], merge=merge).open()


@pytest.mark.parametrize(
    "options",
    [
        _MERGED | {"merge": {}},
        _MERGED | {"merge": {"id": Merging.LAST}},
        _MERGED | {"repeated": Repeated.LAST},
        {"mode": WriteMode.UPSERT, "key": ["id"], "merge": {"name": Merging.LAST}},
        {"repeated": Repeated.LAST},
    ],
)
def test_options_of_another_mode_are_refused(
    sinks: Callable[..., SqlSink], options: dict[str, Any]
) -> None:
    """An option that would say nothing is an error of the configuration."""
    with pytest.raises(ConfigError):
        sinks(**options)


def test_merged_rows_cannot_be_replaced(sinks: Callable[..., SqlSink]) -> None:
    """A replay would add to rows of which the former values are not kept."""
    with pytest.raises(ReplaceRefusedError, match="adds to the sums"):
        sinks(**_MERGED).plan_replace([])


@pytest.mark.parametrize("options", [{"mode": WriteMode.UPSERT, "key": ["id"]}, _MERGED])
def test_a_key_in_two_rows_of_a_result_is_refused(
    sinks: Callable[..., SqlSink], options: dict[str, Any]
) -> None:
    """It is not clear which row should win; of an upsert, what would say so is named."""
    sink = sinks(**options)
    sink.open()
    twice = [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]
    with pytest.raises(RowsRefusedError, match="2 rows and 1 keys") as caught:
        staged(sink, twice)
    assert ("repeated: last" in str(caught.value)) is (options["mode"] is WriteMode.UPSERT)


def test_the_last_row_of_a_repeated_key_is_written(
    base: Base, sinks: Callable[..., SqlSink]
) -> None:
    """With ``repeated: last``, in the order of the result's rows; a null in a key is refused."""
    sink = sinks(mode=WriteMode.UPSERT, key=["id"], repeated=Repeated.LAST)
    sink.open()
    rows = [(2, "a"), (1, "b"), (2, "c"), (1, None), (3, "e")]
    table = pa.table({"id": [id_ for id_, _ in rows], "name": [name for _, name in rows]})
    sink.commit(staged_table(sink, table), [share(0, 0, 5)])
    assert base.rows() == [(1, None), (2, "c"), (3, "e")]
    with pytest.raises(RowsRefusedError, match="null in part"):
        staged(sink, [{"id": None, "name": "a"}])
