"""Several results in one version of a Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.core.errors import SinkFailedError
from headrace.extensions.delta.schema import SchemaChanges
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.staging import StagedFiles
from headrace.extensions.delta.table import LogFiles
from headrace.sinks.errors import CommitConflictError
from tests.unit.extensions.delta.delta_tables import (
    ID,
    data_files,
    lose_the_table,
    share,
    stage,
    visible,
    wrap_commit,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def both(sink: DeltaSink) -> list[StagedFiles]:
    """Stage a result for each of two micro-batches."""
    return [stage(sink, "two", [2]), stage(sink, "three", [3])]


def test_one_version_has_the_files_of_all_and_the_last_offset_of_each_partition(
    sink: DeltaSink, folder: Path
) -> None:
    """The log's entry names both micro-batches; nothing is left in the staging folder."""
    before = DeltaTable(folder).version()
    staged = both(sink)
    sink.commit_all(staged, [share(0, 10, 30), share(1, 0, 10)])

    entry = LogFiles(folder).read(before + 1)
    assert entry is not None
    assert DeltaTable(folder).version() == before + 1
    assert entry[0]["commitInfo"]["headrace_micro_batch"] == "two,three"
    moved = {each["txn"]["appId"]: each["txn"]["version"] for each in entry if "txn" in each}
    assert moved == {"id/0": 30, "id/1": 10}
    assert sum("add" in each for each in entry) == 2
    assert visible(folder) == [1, 2, 3]
    assert not any(each.folder is None or each.folder.exists() for each in staged)


def test_results_of_a_failed_group_are_stored_one_by_one(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are in place already are used once each."""

    def fail(_: Callable[[], None]) -> None:
        raise OSError("disk full")

    wrap_commit(monkeypatch, fail)
    staged = both(sink)
    with pytest.raises(OSError, match="disk full"):
        sink.commit_all(staged, [share(0, 10, 30)])
    assert visible(folder) == [1]

    sink.commit(staged[0], [share(0, 10, 20)])
    sink.discard(staged[1])

    assert (visible(folder), data_files(folder)) == ([1, 2], 2)


def test_a_group_that_was_stored_despite_an_error_is_found(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that raises after the commit is resolved by reading the table."""

    def commit_then_raise(call: Callable[[], None]) -> None:
        call()
        raise OSError("the answer was lost")

    wrap_commit(monkeypatch, commit_then_raise)
    sink.commit_all(both(sink), [share(0, 10, 30)])

    assert visible(folder) == [1, 2, 3]
    assert sink.stored_offset("id/0") == 30


def test_no_file_of_an_unknown_outcome_goes(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one they are refused by the offset, if they were stored, and discarded: all stay."""
    lose_the_table(monkeypatch, folder)
    staged = both(sink)
    with pytest.raises(OSError, match="went away"):
        sink.commit_all(staged, [share(0, 10, 30)])
    (folder / "_hidden").rename(folder / "_delta_log")
    for each, start in zip(staged, (10, 20), strict=True):
        with pytest.raises(CommitConflictError):
            sink.commit(each, [share(0, start, start + 10)])
        sink.discard(each)

    assert visible(folder) == [1, 2, 3]


def test_files_half_in_place_are_not_committed(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them were moved is not known, so the micro-batch has to be computed again."""
    staged = both(sink)
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.parent.name == "three":
            raise OSError("no way")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    shares = [share(0, 10, 20), share(1, 0, 10)]
    with pytest.raises(OSError, match="no way"):
        sink.commit_all(staged, shares)
    monkeypatch.undo()
    for each, own in zip(staged, shares, strict=True):
        with pytest.raises(SinkFailedError, match="computed again"):
            sink.commit(each, [own])
        sink.discard(each)

    assert (visible(folder), data_files(folder)) == ([1], 1)
    sink.commit_all([stage(sink, "a", [2]), stage(sink, "b", [3])], shares)
    assert visible(folder) == [1, 2, 3]


def test_another_writer_in_between_is_no_conflict_unless_it_moved_our_offsets(
    sink: DeltaSink,
    opened: Callable[[], DeltaSink],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it is made again behind the other's version, or none of it is made."""
    other = opened()

    def commit_elsewhere(call: Callable[[], None]) -> None:
        other.commit(stage(other, "other", [7]), [share(2, 0, 10)])
        call()

    def commit_here(call: Callable[[], None]) -> None:
        other.commit(stage(other, "new owner", [8]), [share(1, 10, 20)])
        call()

    wrap_commit(monkeypatch, commit_elsewhere)
    sink.commit_all(both(sink), [share(0, 10, 20), share(1, 0, 10)])
    assert visible(folder) == [1, 2, 3, 7]
    wrap_commit(monkeypatch, commit_here)
    staged = [stage(sink, "four", [4]), stage(sink, "five", [5])]
    with pytest.raises(CommitConflictError) as caught:
        sink.commit_all(staged, [share(0, 20, 30), share(1, 10, 20)])
    sink.commit(staged[0], [share(0, 20, 30)])
    sink.discard(staged[1])

    assert [conflict.partition.partition for conflict in caught.value.conflicts] == [1]
    assert visible(folder) == [1, 2, 3, 4, 7, 8]


def test_columns_of_each_result_are_added(folder: Path) -> None:
    """A result may have columns that another one of the same transaction lacks."""
    sink = DeltaSink(folder, schema_changes=SchemaChanges.ADD_COLUMNS)
    sink.open()
    wider = [StructType([*ID.fields, StructField(name, LongType())]) for name in "xy"]
    staged = [stage(sink, "one", [1])]
    staged += [stage(sink, f"w{n}", [n + 2], schema) for n, schema in enumerate([*wider, wider[0]])]
    sink.commit_all(staged, [share(0, 0, 40)])
    sink.close()

    assert DeltaTable(folder).schema().to_arrow().names == ["id", "x", "y"]
    assert visible(folder) == [1, 2, 3, 4]


def test_one_result_that_does_not_fit_stores_none(sink: DeltaSink, folder: Path) -> None:
    """The other one can be committed by itself."""
    fits = stage(sink, "two", [2])
    other = stage(sink, "three", [3], StructType([StructField("id", StringType())]))
    with pytest.raises(Exception, match="column 'id' is string"):
        sink.commit_all([fits, other], [share(0, 10, 30)])
    sink.discard(other)
    sink.commit(fits, [share(0, 10, 20)])

    assert (visible(folder), data_files(folder)) == ([1, 2], 2)


def test_without_a_table_results_of_none_store_nothing(folder: Path) -> None:
    """There is nothing to make a table of, and the group's commit stays the only record."""
    sink = DeltaSink(folder)
    sink.open()
    sink.commit_all([StagedFiles("one"), StagedFiles("two")], [share(0, 0, 20)])
    sink.close()

    assert not DeltaTable.is_deltatable(str(folder))
