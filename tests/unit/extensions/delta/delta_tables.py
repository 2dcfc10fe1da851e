"""Staged files and a Delta sink, made without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType

from headrace.core.records import TopicPartition
from headrace.extensions.delta.staging import StagedFiles, staged_files
from headrace.extensions.delta.table import LogFiles
from headrace.sinks.contract import PartitionCommit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from headrace.extensions.delta.sink import DeltaSink

ID = StructType([StructField("id", LongType(), nullable=False)])


def stage(sink: DeltaSink, name: str, ids: list[int], schema: StructType = ID) -> StagedFiles:
    """Write rows aside as Spark would, with one empty file among them as Spark leaves some."""
    folder = sink._staging.own / name
    folder.mkdir(parents=True)
    for number, values in enumerate((ids, [])):
        table = pa.table({"id": pa.array(values, pa.int64())})
        pq.write_table(table, folder / f"part-{number}.snappy.parquet")
    return StagedFiles(name, folder, schema.json(), staged_files(folder))


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


def wrap_commit(
    monkeypatch: pytest.MonkeyPatch, *steps: Callable[[Callable[[], None]], None]
) -> None:
    """Run the next entries of the log through ``steps``, each of which gets the real call.

    One that does not call it is as if another writer had made the entry.
    """
    real = LogFiles.add
    left = list(steps)

    def add(self: LogFiles, *args: Any, **kwargs: Any) -> bool:
        made: list[bool] = []
        step = left.pop(0) if left else lambda call: call()
        step(lambda: made.append(real(self, *args, **kwargs)))
        return made == [True]

    monkeypatch.setattr(LogFiles, "add", add)


def lose_the_table(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make the next commit, then raise, and leave a table that cannot be read.

    Its log is in ``_hidden`` from then on.
    """

    def commit_and_hide(call: Callable[[], None]) -> None:
        call()
        (folder / "_delta_log").rename(folder / "_hidden")
        raise OSError("the disk went away")

    wrap_commit(monkeypatch, commit_and_hide)
