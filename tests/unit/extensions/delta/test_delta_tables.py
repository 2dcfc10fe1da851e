"""Tables that the Delta sink takes, and files that it leaves in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.core.errors import ConfigError, ResultMisfitError, StartError
from headrace.extensions.delta.schema import SchemaChanges
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.staging import STAGING, StagedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

from tests.unit.extensions.delta.delta_tables import ID, share, stage, visible


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
    with pytest.raises(ResultMisfitError, match=says):
        sink.commit(stage(sink, "two", [2], StructType(fields)), [share(0, 10, 20)])

    assert sink.stored_offset("id/0") == 10
    assert visible(folder) == [1]


@pytest.fixture
def growing(folder: Path) -> Iterator[Callable[[], DeltaSink]]:
    """Open sinks that add columns; close them at the end."""
    sinks = []

    def open_one() -> DeltaSink:
        sinks.append(DeltaSink(folder, schema_changes=SchemaChanges.ADD_COLUMNS))
        sinks[-1].open()
        return sinks[-1]

    yield open_one
    for sink in sinks:
        sink.close()


@pytest.mark.usefixtures("sink")
def test_columns_are_added_where_that_is_wanted(
    growing: Callable[[], DeltaSink], folder: Path
) -> None:
    """Rows before have null in them, and so has a result that lacks a column; types stay."""
    more = StructType([*ID.fields, StructField("x", StringType())])
    one, two = growing(), growing()
    one.commit(with_x(stage(one, "two", [2], more)), [share(0, 10, 20)])
    two.commit(with_x(stage(two, "three", [3], more)), [share(0, 20, 30)])
    one.commit(stage(one, "four", [4]), [share(0, 30, 40)])

    rows = DeltaTable(folder).to_pyarrow_table().sort_by("id").to_pylist()
    assert [(row["id"], row["x"]) for row in rows] == [(1, None), (2, "x"), (3, "x"), (4, None)]
    other = stage(one, "five", [5], StructType([StructField("id", StringType())]))
    with pytest.raises(ResultMisfitError, match="column 'id' is string"):
        one.commit(other, [share(0, 40, 50)])


def with_x(staged: StagedFiles) -> StagedFiles:
    """Give staged files a column more."""
    assert staged.folder is not None
    for path in staged.folder.glob("*.parquet"):
        rows = pq.read_table(path)
        pq.write_table(rows.append_column("x", pa.array(["x"] * rows.num_rows)), path)
    return staged


def test_a_table_with_rules_is_refused(folder: Path) -> None:
    """Rules that Delta's own writer would check are not passed over by files written aside."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = DeltaTable.create(folder, schema=schema)
    table.alter.add_constraint({"small": "id < 10"})
    sink = DeltaSink(folder)
    sink.open()

    with pytest.raises(ResultMisfitError, match=r"NOT NULL.*delta\.constraints\.small"):
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


def test_staged_files_of_dead_processes_are_removed(folder: Path) -> None:
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

    (own,) = {path.name for path in staging.iterdir()} - {names["alive"], names["elsewhere"]}
    assert own.startswith(f"{host}.{os.getpid()}.")
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
