"""Small results of Spark jobs, which are fetched and written by the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.extensions.delta import staging
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.table import LogFiles
from headrace.testing.sinks import identity, micro_batch, share

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime

#: A column of each type that is fetched, and those of partitions at the end.
_FLAT = """
    cast(id as byte) a_byte; cast(id as short) a_short; cast(id as int) an_int; id as a_long;
    cast(id as float) a_float; cast(id / 3 as double) a_double; cast(id as decimal(7, 2)) small;
    cast(id as decimal(15, 3)) middle; cast(id as decimal(38, 5)) large; cast(id as string) text;
    cast(cast(id as string) as binary) bytes; id > 1 as flag;
    date_add(date'1969-12-31', cast(id as int)) day; timestamp_micros(id * 1500001 - 1) an_instant;
    cast('2013-01-01 05:00:00.123456' as timestamp_ntz) local; cast(null as string) nothing;
    if(id = 1, null, id) as some
"""

_PARTITIONS = """
    id % 2 = 0 as by_flag; cast(id as int) by_int;
    date_add(date'1969-12-31', cast(id as int)) by_day;
    element_at(array('plain', 'a b/c%20=d:ü\\'"', '', null, 'null'), cast(id + 1 as int)) by_text;
    timestamp_micros(id * 1500001 - 1) as by_time; cast(id as decimal(7, 2)) as by_cost;
    cast('2013-01-01 05:00:00.123456' as timestamp_ntz) as by_local; id / 3 as by_share
"""


_FAILING = "if(id > 2, raise_error('no'), id) as id"


def columns(text: str) -> list[str]:
    """Return the columns of a list."""
    return [column.strip() for column in text.split(";")]


def commit(sink: DeltaSink, number: int, frame: DataFrame) -> None:
    """Store a result, the next one behind those before it."""
    sink.commit(sink.stage(micro_batch(f"m{number}"), frame), [share(0, number, number + 1)])


def files_of(folder: Path, number: int) -> list[Path]:
    """Return the files of one result."""
    return sorted(folder.glob(f"part-m{number}-*.parquet"))


def rows(folder: Path, version: int) -> list[dict[str, Any]]:
    """Return what a version of the table has, in order."""
    table = DeltaTable(folder, version=version).to_pyarrow_table()
    found: list[dict[str, Any]] = table.sort_by("a_long").to_pylist()
    return found


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    """A sink into an empty folder."""
    opened = DeltaSink(tmp_path)
    opened.open()
    return opened


def test_rows_are_the_same_however_they_are_written(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """Values of every type, and those that tell partitions, by tasks first and then fetched."""
    by = [
        "by_flag", "by_int", "by_day", "by_text", "by_time", "by_cost", "by_local", "by_share",
    ]  # fmt: skip
    sink = DeltaSink(tmp_path, partition_by=by)
    sink.open()
    frame = spark_runtime.session.range(5).selectExpr(*columns(_FLAT), *columns(_PARTITIONS))
    spread = frame.repartitionByRange(2, "a_long").sortWithinPartitions("a_long")

    commit(sink, 0, spread)
    commit(sink, 1, spread)

    written = rows(tmp_path, 1)
    assert len(written) == 5
    assert rows(tmp_path, 2) == [row for row in written for _ in range(2)]
    assert values_in_log(tmp_path, 1) == values_in_log(tmp_path, 2)
    writers = [pq.read_metadata(files_of(tmp_path, n)[0]).created_by for n in range(2)]
    assert writers[0].startswith("parquet-mr")
    assert writers[1].startswith("parquet-cpp-arrow")


def test_fetched_rows_read_as_rows_written_by_tasks(
    sink: DeltaSink, spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """The files have the same columns of the same types, with the same values."""
    frame = spark_runtime.session.range(5).selectExpr(*columns(_FLAT)).repartition(1)
    for number in range(2):
        commit(sink, number, frame)
    read = spark_runtime.session.read.parquet
    by_tasks, fetched = (read(str(files_of(tmp_path, number)[0])) for number in range(2))
    assert fetched.schema == by_tasks.schema
    assert fetched.orderBy("a_long").toArrow() == by_tasks.orderBy("a_long").toArrow()


def values_in_log(folder: Path, version: int) -> list[dict[str, Any]]:
    """Return by which values the files of a version are told apart, as the log spells them."""
    actions = LogFiles(folder).read(version) or []
    found = [action["add"]["partitionValues"] for action in actions if "add" in action]
    return sorted(found, key=str)


def test_a_result_behind_a_small_one_is_one_file(
    sink: DeltaSink, spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """Two tasks write two files; their rows, once they are known to be few, come into one."""
    for number in range(3):
        commit(sink, number, spark_runtime.session.range(4).repartition(2))
    assert [len(files_of(tmp_path, number)) for number in range(3)] == [2, 1, 1]
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 12


def test_no_rows_are_no_file(sink: DeltaSink, spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    """An empty result stores its offsets only."""
    for number in range(3):
        commit(sink, number, spark_runtime.session.range(4).where("id > 3"))
    assert list(tmp_path.glob("*.parquet")) == []
    assert sink.stored_offset(identity(0)) == 3


def test_a_result_behind_a_large_one_is_written_by_tasks(
    sink: DeltaSink,
    spark_runtime: SparkRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Be it that its rows were fetched or written."""
    monkeypatch.setattr(staging, "MOST_ROWS", 10)
    for number, count in enumerate((4, 20, 20, 4, 4)):
        commit(sink, number, spark_runtime.session.range(count).repartition(2))
    assert [len(files_of(tmp_path, number)) for number in range(5)] == [2, 1, 2, 2, 1]


def test_nested_columns_are_written_by_tasks(
    sink: DeltaSink, spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """A column that Arrow and Spark may lay out differently is left to Spark."""
    for number in range(2):
        frame = spark_runtime.session.range(4).repartition(2)
        commit(sink, number, frame.selectExpr("id", "struct(id as x) as nested"))
    assert [len(files_of(tmp_path, number)) for number in range(2)] == [2, 2]


def test_a_result_behind_a_failure_is_written_by_tasks(
    sink: DeltaSink, spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """It may have failed because there was too much to fetch."""
    session = spark_runtime.session
    commit(sink, 0, session.range(4).repartition(2))
    with pytest.raises(Exception, match="no"):
        sink.stage(micro_batch("failing"), session.range(4).selectExpr(_FAILING))
    commit(sink, 1, session.range(4).repartition(2))
    assert [len(files_of(tmp_path, number)) for number in range(2)] == [2, 2]
