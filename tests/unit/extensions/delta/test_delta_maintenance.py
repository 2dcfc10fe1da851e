"""A Delta table that stays small while it is written to."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from headrace.core.clock import Deadline
from headrace.core.errors import SinkFailedError
from headrace.devstack.wait import wait_for
from headrace.extensions.delta.errors import NotRewritableError
from headrace.extensions.delta.maintenance import (
    MaintenanceConfig,
    MaintenanceOrder,
    carry_out,
    compact,
)
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.staging import staged_files
from headrace.extensions.delta.table import LogFiles
from tests.unit.extensions.delta.delta_tables import data_files, share, stage, visible, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Seconds since the epoch, longer ago than anything is retained.
NOW = 1_700_000_000.0


def grow(sink: DeltaSink, first: int, commits: int) -> None:
    """Commit one row after the other, from partition 0's offset ``first`` on."""
    for start in range(first, first + commits):
        sink.commit(stage(sink, f"at-{start}", [start]), [share(0, start, start + 1)])


def entries(folder: Path) -> list[Path]:
    """Return the entries that the table's log has."""
    return list((folder / "_delta_log").glob("*.json"))


def age(*files: Path) -> None:
    """Set the age of the files from ``NOW``, except of those that are gone."""
    for file in files:
        with suppress(FileNotFoundError):
            os.utime(file, (NOW, NOW))


@pytest.fixture
def small(folder: Path, tmp_path: Path) -> Callable[[], int]:
    """Compact the table now; return how many files went."""
    return lambda: compact(folder, tmp_path / "scratch", {"headrace_member": "one"}, NOW)


def test_compaction_makes_one_file_of_many(
    sink: DeltaSink, folder: Path, small: Callable[[], int]
) -> None:
    """The rows are the same, the offset stands, and the sink goes on; history tells who did it."""
    grow(sink, 10, 20)

    assert small() == 21

    assert len(DeltaTable(folder).file_uris()) == 1
    assert visible(folder) == [1, *range(10, 30)]
    newest = DeltaTable(folder).history(1)[0]
    assert (newest["operation"], newest["headrace_member"]) == ("OPTIMIZE", "one")
    grow(sink, 30, 2)
    assert visible(folder) == [1, *range(10, 32)]
    assert DeltaTable(folder).transaction_version("id/0") == 32


def test_a_compacted_file_is_not_compacted_again(
    sink: DeltaSink, folder: Path, small: Callable[[], int]
) -> None:
    """A large file waits until the small ones together are as large."""
    grow(sink, 10, 20)
    small()
    version = DeltaTable(folder).version()

    assert small() == 0

    assert DeltaTable(folder).version() == version


def test_the_second_of_two_compactions_gives_up(
    sink: DeltaSink, folder: Path, small: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are not duplicated, and the files of the second compaction are removed."""
    grow(sink, 10, 5)

    def other_first(call: Callable[[], None]) -> None:
        small()
        call()

    wrap_commit(monkeypatch, other_first)
    with pytest.raises(NotRewritableError, match="changed what was compacted"):
        small()

    assert visible(folder) == [1, *range(10, 15)]
    assert data_files(folder) == 7


def test_commits_during_a_compaction_are_kept(
    sink: DeltaSink, folder: Path, small: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that comes second to rows and offsets is made behind them."""
    grow(sink, 10, 5)

    def sink_first(call: Callable[[], None]) -> None:
        grow(sink, 15, 3)
        call()

    wrap_commit(monkeypatch, sink_first)
    assert small() == 6

    assert visible(folder) == [1, *range(10, 18)]
    assert len(DeltaTable(folder).file_uris()) == 4
    assert sink.stored_offset("id/0") == 18


def test_a_compaction_that_fails_leaves_nothing(
    sink: DeltaSink, folder: Path, small: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed compaction leaves neither a file nor an entry of the log."""
    grow(sink, 10, 5)
    before = {path.name for path in folder.rglob("*.*")}

    def full(_: Callable[[], None]) -> None:
        raise OSError("disk full")

    wrap_commit(monkeypatch, full)
    with pytest.raises(OSError, match="disk full"):
        small()

    assert {path.name for path in folder.rglob("*.*")} == before


def test_a_compaction_whose_outcome_is_unknown_loses_nothing(
    sink: DeltaSink, folder: Path, small: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed once its entry stood: the files that the table has from then on stay."""
    grow(sink, 10, 5)

    def commit_and_fail(call: Callable[[], None]) -> None:
        call()
        raise OSError("the disk went away")

    wrap_commit(monkeypatch, commit_and_fail)
    with pytest.raises(OSError, match="went away"):
        small()

    assert visible(folder) == [1, *range(10, 15)]
    assert len(DeltaTable(folder).file_uris()) == 1


def test_a_compaction_of_a_table_that_cannot_be_read_removes_nothing(
    sink: DeltaSink, folder: Path, small: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files stay when the table cannot say which ones it has."""
    grow(sink, 10, 5)

    def commit_and_hide_the_table(call: Callable[[], None]) -> None:
        call()
        (folder / "_delta_log").rename(folder / "_hidden")
        raise OSError("the disk went away")

    wrap_commit(monkeypatch, commit_and_hide_the_table)
    with pytest.raises(OSError, match="went away"):
        small()
    (folder / "_hidden").rename(folder / "_delta_log")

    assert visible(folder) == [1, *range(10, 15)]


def test_partitions_are_compacted_apart(folder: Path, small: Callable[[], int]) -> None:
    """Files of one partition stay of it, null and odd values included."""
    sink = DeltaSink(folder, partition_by=["day", "flag"])
    sink.open()
    days = ("a b", "ü=%", None)
    fields = [StructField("id", LongType()), StructField("day", StringType())]
    schema = StructType([*fields, StructField("flag", BooleanType())])
    for number in range(3):
        staged = stage(sink, f"at-{number}", [], schema)
        folder_of = sink._staging.own / staged.name
        files = {folder_of / f"day-{at}.parquet": day for at, day in enumerate(days)}
        for path in files:
            pq.write_table(pa.table({"id": [number]}), path)
        staged.files = staged_files(folder_of)
        staged.values = {path: {"day": day, "flag": "true"} for path, day in files.items()}
        sink.commit(staged, [share(0, number, number + 1)])
    sink.close()

    assert small() == 9

    found = DeltaTable(folder).to_pyarrow_table().to_pylist()
    rows = [(str(row["day"]), row["flag"], row["id"]) for row in found]
    assert sorted(rows) == sorted((str(day), True, n) for day in days for n in range(3))
    assert len(DeltaTable(folder).file_uris()) == 3


def test_columns_that_came_later_are_null(folder: Path, small: Callable[[], int]) -> None:
    """Files from before a column was added have nulls in it afterwards."""
    write_deltalake(folder, pa.table({"id": [1]}))
    write_deltalake(folder, pa.table({"id": [2], "x": ["b"]}), mode="append", schema_mode="merge")

    assert small() == 2

    found = DeltaTable(folder).to_pyarrow_table().sort_by("id").to_pylist()
    assert found == [{"id": 1, "x": None}, {"id": 2, "x": "b"}]


def test_a_table_with_other_features_is_left_alone(folder: Path, small: Callable[[], int]) -> None:
    """A table with unknown features is not rewritten, and the message says what to do."""
    write_deltalake(folder, pa.table({"id": [1]}))
    DeltaTable(folder).alter.add_constraint({"small": "id < 10"})

    with pytest.raises(NotRewritableError, match="set compact_every to 0"):
        small()


def test_a_sink_keeps_its_table_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance after many commits leaves checkpoints, a short log and few files."""
    monkeypatch.setattr("headrace.extensions.delta.maintenance._REST", 0)
    sink = DeltaSink(folder, durable=False, maintenance=MaintenanceConfig(compact_every=50))
    sink.open()
    try:
        grow(sink, 0, 120)
        assert wait_for(lambda: LogFiles(folder).checkpoint() >= 100, Deadline.after(30))
        assert wait_for(lambda: len(DeltaTable(folder).file_uris()) < 60, Deadline.after(30))
        age(*entries(folder))
        grow(sink, 120, 100)
        assert wait_for(lambda: LogFiles(folder).checkpoint() >= 200, Deadline.after(30))
        # what was made since is 100 commits and those of a few compactions
        assert wait_for(lambda: len(entries(folder)) < 120, Deadline.after(30))
    finally:
        sink.close()

    assert visible(folder) == list(range(220))
    assert DeltaSink(folder).stored_offset("id/0") == 220


def test_a_compaction_removes_the_files_of_former_ones(
    sink: DeltaSink, folder: Path, small: Callable[[], int], tmp_path: Path
) -> None:
    """Once their retention is over, as files that never were the table's; younger ones stay."""
    grow(sink, 10, 20)
    assert small() == 21
    grow(sink, 30, 5)
    strays = folder / "old.parquet", folder / "young.parquet"
    for stray in strays:
        stray.write_bytes(b"of a commit that was not made")
    age(strays[0])

    found = carry_out(MaintenanceOrder("compaction", str(folder), str(tmp_path)), Event())

    assert found == {"compacted": 5, "removed": 22}
    assert [stray.exists() for stray in strays] == [False, True]
    # the two that the table has, the five that went just now, and the young stray
    assert data_files(folder) == 2 + 5 + 1
    assert visible(folder) == [1, *range(10, 35)]


def test_a_chore_that_fails_says_why(folder: Path, tmp_path: Path) -> None:
    """The last line of its process is in the error; without a table there is nothing to do."""
    folder.mkdir()
    order = MaintenanceOrder("checkpoint", str(folder), str(tmp_path))
    assert carry_out(order, Event()) == {}
    (folder / "_delta_log").mkdir()
    LogFiles(folder).entry(0).write_text("no entry")
    with pytest.raises(SinkFailedError, match=r"checkpoint failed: \w+: "):
        carry_out(order, Event())


@pytest.mark.parametrize("task", ["properties", "checkpoint", "compaction"])
def test_a_chore_runs_no_code_of_the_table_s_folder(
    sink: DeltaSink, folder: Path, tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules there are not imported in place of Python's own, wherever the daemon was started."""
    grow(sink, 10, 5)
    for name in ("json", "signal", "dataclasses", "deltalake"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w').close()")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))

    carry_out(MaintenanceOrder(task, str(folder), str(tmp_path / "scratch")), Event())

    assert not (tmp_path / "taken").exists()


def test_a_chore_ends_with_its_daemon(sink: DeltaSink, folder: Path, tmp_path: Path) -> None:
    """The compaction's process is ended with the daemon, which is no error."""
    grow(sink, 10, 5)
    stopping = Event()
    stopping.set()
    assert carry_out(MaintenanceOrder("compaction", str(folder), str(tmp_path)), stopping) in (
        {},
        {"compacted": 6, "removed": 0},
    )


def test_configured_properties_are_set_on_the_table(sink: DeltaSink, folder: Path) -> None:
    """A new table has the defaults; an existing one changes only where a value is configured."""
    sink.close()
    properties = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"

    def found() -> list[str | None]:
        configuration = DeltaTable(folder).metadata().configuration
        return [configuration.get(name) for name in properties]

    assert found() == ["interval 3600 seconds", "interval 86400 seconds"]
    other = DeltaSink(folder, maintenance=MaintenanceConfig(file_retention=7200))
    other.open()
    assert wait_for(lambda: found()[1] == "interval 7200 seconds", Deadline.after(30))
    other.commit(stage(other, "more", [2]), [share(0, 10, 20)])
    other.close()
    assert found() == ["interval 3600 seconds", "interval 7200 seconds"]


def test_a_writer_that_slept_past_the_log_is_not_believed(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry before the newest checkpoint is no commit: it is not acknowledged."""
    owner = DeltaSink(folder)

    def overtaken(call: Callable[[], None]) -> None:
        grow(owner, 10, 3)
        DeltaTable(folder).create_checkpoint()
        for number in range(DeltaTable(folder).version() + 1):
            LogFiles(folder).entry(number).unlink()
        call()

    wrap_commit(monkeypatch, overtaken)
    staged = stage(sink, "slept", [99])
    with pytest.raises(Exception, match="a checkpoint overtook version 2"):
        sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)

    assert visible(folder) == [1, 10, 11, 12]
    assert sink.stored_offset("id/0") == 13


def vacuum(folder: Path) -> None:
    """Remove files of no version that are older than the table keeps them, as any writer may."""
    DeltaTable(folder).vacuum(dry_run=False, full=True)


def test_a_file_that_a_clean_up_removed_is_not_committed(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped with its files in place for longer than they are kept, the commit fails instead."""
    owner = opened()

    def stopped_for_long(_: Callable[[], None]) -> None:
        age(*folder.glob("part-slept-*.parquet"))
        owner.commit(stage(owner, "other", [7]), [share(1, 0, 10)])
        vacuum(folder)

    wrap_commit(monkeypatch, stopped_for_long)
    staged = stage(sink, "slept", [2])
    with pytest.raises(SinkFailedError, match=r"part-slept-.*file_retention.*computed again"):
        sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)
    assert visible(folder) == [1, 7]
    assert sink.stored_offset("id/0") == 10

    sink.commit(stage(sink, "again", [2]), [share(0, 10, 20)])

    assert visible(folder) == [1, 2, 7]


def test_a_removed_staged_file_fails_the_commit(sink: DeltaSink, folder: Path) -> None:
    """Offsets do not move without the rows, when another member removed the staged files."""
    lost, partly = stage(sink, "lost", [2]), stage(sink, "partly", [3])
    assert lost.folder is not None
    shutil.rmtree(lost.folder)
    partly.files[0].unlink()
    for staged in (lost, partly):
        with pytest.raises(SinkFailedError, match=f"{staged.name}/.* is gone .*computed again"):
            sink.commit(staged, [share(0, 10, 20)])
        sink.discard(staged)

    assert visible(folder) == [1]
    assert sink.stored_offset("id/0") == 10
    assert data_files(folder) == 1


def test_files_are_young_at_each_attempt_to_commit_them(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up right before the entry is made spares what waited for other writers."""
    owner = opened()

    def other_first(_: Callable[[], None]) -> None:
        age(*folder.glob("part-waited-*.parquet"))
        owner.commit(stage(owner, "other", [7]), [share(1, 0, 10)])

    def clean_up(call: Callable[[], None]) -> None:
        vacuum(folder)
        call()

    # the entry of the other writer is made between the two
    wrap_commit(monkeypatch, other_first, lambda call: call(), clean_up)
    sink.commit(stage(sink, "waited", [2]), [share(0, 10, 20)])

    assert visible(folder) == [1, 2, 7]


def test_a_compaction_whose_file_was_removed_is_not_committed(
    sink: DeltaSink, folder: Path, small: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped for longer than files are kept, it gives up, and the rows stay where they are."""
    grow(sink, 10, 5)

    def stopped_for_long(_: Callable[[], None]) -> None:
        age(*folder.glob("part-compacted-*.parquet"))
        grow(sink, 15, 1)
        vacuum(folder)

    wrap_commit(monkeypatch, stopped_for_long)
    with pytest.raises(FileNotFoundError):
        small()

    assert visible(folder) == [1, *range(10, 16)]
