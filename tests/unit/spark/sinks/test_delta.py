from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.errors import ConfigError, StartError
from headrace.records import TopicPartition
from headrace.spark.sinks.contract import CommitConflictError, PartitionCommit
from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.schema import SchemaMismatchError
from headrace.spark.sinks.staging import STAGING, StagedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ID = StructType([StructField("id", LongType(), nullable=False)])


def stage(sink: DeltaSink, name: str, ids: list[int], schema: StructType = ID) -> StagedFiles:
    """Write rows aside as Spark would, with one empty file among them as Spark leaves some."""
    folder = sink._staging._own / name
    folder.mkdir(parents=True)
    for number, values in enumerate((ids, [])):
        table = pa.table({"id": pa.array(values, pa.int64())})
        pq.write_table(table, folder / f"part-{number}.snappy.parquet")
    return StagedFiles(name, folder, schema)


def share(number: int, start: int, next_offset: int) -> PartitionCommit:
    """Return one partition's share of a commit."""
    return PartitionCommit(f"id/{number}", TopicPartition("t", number), start, next_offset)


def visible(folder: Path) -> list[int]:
    """Read the table's ids as any reader does."""
    ids: list[int] = DeltaTable(folder).to_pyarrow_table().column("id").to_pylist()
    return sorted(ids)


def data_files(folder: Path) -> int:
    """Count the data files in the table's folder, visible or not."""
    return len(list(folder.glob("*.parquet")))


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


def wrap_commit(
    monkeypatch: pytest.MonkeyPatch, *steps: Callable[[Callable[[], None]], None]
) -> None:
    """Have the next commit calls run through ``steps``, each of which gets the real call."""
    real = DeltaTable.create_write_transaction
    left = list(steps)

    def commit(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        def call() -> None:
            real(self, *args, **kwargs)

        if left:
            left.pop(0)(call)
        else:
            call()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)


def test_a_commit_that_raises_after_it_happened_is_found(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown outcome is read back from the table: stored means done, once."""

    def commit_then_raise(call: Callable[[], None]) -> None:
        call()
        raise OSError("the answer was lost")

    wrap_commit(monkeypatch, commit_then_raise)

    sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])

    assert visible(folder) == [1, 2]
    assert sink.stored_offset("id/0") == 20
    sink.commit(stage(sink, "three", [3]), [share(0, 20, 30)])
    assert visible(folder) == [1, 2, 3]


def test_a_commit_that_raises_before_it_happened_stores_nothing(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure that stored nothing is raised, leaves no file behind, and may be replayed."""

    def fail(_: Callable[[], None]) -> None:
        raise OSError("disk full")

    wrap_commit(monkeypatch, fail)
    staged = stage(sink, "two", [2])

    with pytest.raises(OSError, match="disk full"):
        sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)

    assert (visible(folder), data_files(folder)) == ([1], 1)
    sink.commit(stage(sink, "again", [2]), [share(0, 10, 20)])
    assert visible(folder) == [1, 2]


def test_files_stay_when_the_outcome_cannot_be_read(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the table cannot be read either, its files are kept and a replay is refused."""

    def commit_and_hide_the_table(call: Callable[[], None]) -> None:
        call()
        (folder / "_delta_log").rename(folder / "_hidden")
        raise OSError("the disk went away")

    wrap_commit(monkeypatch, commit_and_hide_the_table)
    staged = stage(sink, "two", [2])
    with pytest.raises(OSError, match="went away"):
        sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)
    (folder / "_hidden").rename(folder / "_delta_log")

    assert visible(folder) == [1, 2]
    with pytest.raises(CommitConflictError):
        sink.commit(stage(sink, "again", [2]), [share(0, 10, 20)])
    assert sink.stored_offset("id/0") == 20


def test_a_crash_between_rename_and_commit_shows_nothing(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in place that no commit names are invisible, and the range can be stored again."""

    class CrashError(BaseException):
        """Stands for the end of the process."""

    def crash(_: Callable[[], None]) -> None:
        raise CrashError

    wrap_commit(monkeypatch, crash)
    with pytest.raises(CrashError):
        sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])
    assert data_files(folder) == 2

    after = opened()

    assert after.stored_offset("id/0") == 10
    after.commit(stage(after, "again", [2]), [share(0, 10, 20)])
    assert visible(folder) == [1, 2]


def test_a_stale_handle_cannot_commit_over_a_new_owner(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """A former owner whose handle never saw the new owner's commit is refused."""
    new_owner = opened()
    new_owner.commit(stage(new_owner, "new", [2]), [share(0, 10, 20)])

    with pytest.raises(CommitConflictError) as caught:
        sink.commit(stage(sink, "old", [3]), [share(0, 10, 15), share(1, 0, 5)])

    (conflict,) = caught.value.conflicts
    assert (conflict.partition, conflict.stored) == (TopicPartition("t", 0), 20)
    assert visible(folder) == [1, 2]
    assert new_owner.stored_offset("id/1") is None


def test_a_race_between_check_and_commit_is_refused(
    sink: DeltaSink,
    opened: Callable[[], DeltaSink],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another owner's commit in the moment between check and commit is a conflict, too."""
    other = opened()

    def let_the_other_go_first(call: Callable[[], None]) -> None:
        other.commit(stage(other, "new", [2]), [share(0, 10, 20)])
        call()

    wrap_commit(monkeypatch, let_the_other_go_first)
    staged = stage(sink, "old", [3])
    with pytest.raises(CommitConflictError):
        sink.commit(staged, [share(0, 10, 15)])
    sink.discard(staged)

    assert (visible(folder), data_files(folder)) == ([1, 2], 2)


def test_a_writer_of_other_partitions_is_no_conflict(
    sink: DeltaSink,
    opened: Callable[[], DeltaSink],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit refused for a reason that moved none of our offsets is tried again."""
    other = opened()

    def let_the_other_go_first(call: Callable[[], None]) -> None:
        other.commit(stage(other, "other", [2]), [share(1, 0, 10)])
        call()

    def refuse(_: Callable[[], None]) -> None:
        raise CommitFailedError("a schema change, say")

    wrap_commit(monkeypatch, let_the_other_go_first, lambda call: call(), refuse)
    sink.commit(stage(sink, "mine", [3]), [share(0, 10, 20)])
    sink.commit(stage(sink, "next", [4]), [share(0, 20, 30)])

    assert visible(folder) == [1, 2, 3, 4]


def test_endless_conflicts_end(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is refused again and again fails instead of going on for ever."""

    def refuse(_: Callable[[], None]) -> None:
        raise CommitFailedError("no")

    wrap_commit(monkeypatch, *[refuse] * 100)

    with pytest.raises(CommitFailedError):
        sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])
    assert visible(folder) == [1]


def test_a_compaction_in_between_is_no_conflict(sink: DeltaSink, folder: Path) -> None:
    """Appends and compaction of the same table do not disturb one another."""
    sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])
    DeltaTable(folder).optimize.compact()

    sink.commit(stage(sink, "three", [3]), [share(0, 20, 30)])

    assert visible(folder) == [1, 2, 3]
    assert sink.stored_offset("id/0") == 30


def test_offsets_survive_checkpoints_and_log_clean_up(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """A new handle reads offsets from a checkpoint after the log before it is gone."""
    for start in range(10, 40, 10):
        sink.commit(stage(sink, f"at-{start}", [start]), [share(0, start, start + 10)])
    DeltaTable(folder).create_checkpoint()
    for entry in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()

    after = opened()

    assert after.stored_offset("id/0") == 40
    after.commit(stage(after, "more", [50]), [share(0, 40, 50)])
    assert visible(folder) == [1, 10, 20, 30, 50]


def test_a_kept_handle_outlives_a_log_clean_up(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """A handle whose next log entries were cleaned away is opened again."""
    other = opened()
    for start in range(0, 30, 10):
        other.commit(stage(other, f"at-{start}", [start]), [share(1, start, start + 10)])
    DeltaTable(folder).create_checkpoint()
    for entry in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()

    assert sink.stored_offset("id/1") == 30
    sink.commit(stage(sink, "more", [50]), [share(0, 10, 20)])
    assert visible(folder) == [0, 1, 10, 20, 50]


def test_row_counts_are_in_the_log(sink: DeltaSink, folder: Path) -> None:
    """Each file's rows are counted in its log entry, and empty files are left out."""
    sink.commit(stage(sink, "two", [2, 3]), [share(0, 10, 20)])

    actions = DeltaTable(folder).get_add_actions(flatten=True)
    assert sorted(pa.table(actions).column("num_records").to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([StructField("id", StringType())], "column 'id' is string, in the table long"),
        (
            [StructField("id", LongType()), StructField("x", LongType())],
            "column 'x' is not in the table",
        ),
        ([StructField("x", LongType())], "column 'id' is missing"),
    ],
)
def test_a_result_of_another_shape_is_refused(
    fields: list[StructField], says: str, sink: DeltaSink, folder: Path
) -> None:
    """A missing, new or different column is named, and nothing is stored."""
    with pytest.raises(SchemaMismatchError, match=says):
        sink.commit(stage(sink, "two", [2], StructType(fields)), [share(0, 10, 20)])

    assert sink.stored_offset("id/0") == 10
    assert visible(folder) == [1]


def test_a_table_with_rules_is_refused(folder: Path) -> None:
    """Rules that Delta's own writer would check are not passed over by files written aside."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = DeltaTable.create(folder, schema=schema)
    table.alter.add_constraint({"small": "id < 10"})
    sink = DeltaSink(folder)
    sink.open()

    with pytest.raises(SchemaMismatchError, match=r"NOT NULL.*delta\.constraints\.small"):
        sink.commit(stage(sink, "one", [1]), [share(0, 0, 10)])


def test_a_table_of_another_layout_is_refused_at_the_start(folder: Path) -> None:
    """Partition columns that differ from the table's are found before anything is claimed."""
    write_deltalake(folder, pa.table({"id": [1], "day": ["x"]}), partition_by=["day"])

    with pytest.raises(StartError, match=r"partitioned by \['day'\]"):
        DeltaSink(folder).open()


def test_without_a_table_nothing_is_stored_for_no_result(
    opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """A reducer that returned None so far has no schema to make a table of, and needs none."""
    sink = opened()

    sink.commit(StagedFiles("one"), [share(0, 0, 10)])

    assert sink.stored_offset("id/0") is None
    assert not DeltaTable.is_deltatable(str(folder))


def test_a_uri_is_refused() -> None:
    """Object stores and other URIs are refused with what to give instead."""
    for path in ("s3://bucket/table", "file:///data/table", "hdfs:/data"):
        with pytest.raises(ConfigError, match="is a URI; give a folder of this host"):
            DeltaSink(path)


def test_a_folder_that_cannot_be_made_is_a_start_error(tmp_path: Path) -> None:
    """A file where the table's folder should be is found at the start."""
    (tmp_path / "table").write_text("")

    with pytest.raises(StartError, match="cannot be made"):
        DeltaSink(tmp_path / "table").open()


def test_what_dead_processes_left_staged_is_removed(folder: Path) -> None:
    """Folders of dead processes of this host, and old ones of other hosts, go at the start."""
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    host = os.uname().nodename
    staging = folder / STAGING
    names = {
        "dead": f"{host}.{int(dead.stdout)}.abc",
        "alive": f"{host}.{os.getppid()}.abc",
        "elsewhere": "other.host.77.abc",
        "elsewhere_long_ago": "other.host.78.abc",
    }
    for name in names.values():
        (staging / name / "micro-batch").mkdir(parents=True)
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(staging / names["elsewhere_long_ago"], (long_ago, long_ago))

    sink = DeltaSink(folder)
    sink.open()

    left = {path.name for path in staging.iterdir()}
    assert left == {names["alive"], names["elsewhere"], sink._staging._own.name}
    sink.close()
    shutil.rmtree(staging)


def test_a_closed_sink_leaves_no_staging_folder(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """The last sink that closes removes the staging folder."""
    other = opened()
    sink.close()
    assert (folder / STAGING).exists()

    other.close()

    assert not (folder / STAGING).exists()
