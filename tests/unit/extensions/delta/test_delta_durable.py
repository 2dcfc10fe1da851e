"""Files that are forced to disk before an entry of the log names them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.records import TopicPartition
from headrace.extensions.delta.maintenance import compact
from headrace.extensions.delta.merging import MergeRule
from headrace.extensions.delta.sink import DeltaSink
from headrace.sinks import OffsetMove
from headrace.sinks.by_key import Merging
from headrace.testing.sinks import micro_batch
from tests.unit.extensions.delta.delta_tables import share, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = 1_700_000_000.0
COUNTS = MergeRule(("id",), {"n": Merging.SUM})


def store(sink: DeltaSink, start: int, number: int = 0) -> None:
    """Commit a row as the record at an offset of a partition."""
    shares = [share(number, start, start + 1)]
    rows = pa.table({"id": [1], "n": [1]})
    sink.commit(sink.stage(micro_batch(f"at-{number}-{start}", shares), rows), shares)


def replace(sink: DeltaSink) -> None:
    """Remove the row of offset 1 from the file that has both."""
    sink.replace([OffsetMove("id/0", TopicPartition("t", 0), 2, 1)], "note")


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, lambda sink, _: store(sink, 2)),
        ({"merge": COUNTS}, lambda sink, _: store(sink, 2)),
        ({"origin": True}, lambda sink, _: replace(sink)),
        ({}, lambda _, folder: compact(folder, folder.parent / "scratch", {}, NOW)),
    ],
    ids=["append", "merge", "replace", "compaction"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["first", "late"])
def test_files_and_their_folder_are_on_disk_before_the_entry(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    change: Callable[[DeltaSink, Path], object],
    *,
    is_late: bool,
) -> None:
    """Each new file is forced to disk, then the folder, also where another writer is first."""
    sink = DeltaSink(folder, **options)
    store(sink, 0)
    store(sink, 1)
    if "origin" in options:
        compact(folder, folder.parent / "scratch", {}, NOW)
    other = DeltaSink(folder, **options)
    before, on_disk = {*folder.glob("*.parquet")}, {}
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        status = os.fstat(descriptor)
        on_disk[status.st_ino] = {*folder.glob("*.parquet")}

    def look(call: Callable[[], None]) -> None:
        new = {*folder.glob("*.parquet")} - before
        assert new <= on_disk[folder.stat().st_ino]
        assert {path.stat().st_ino for path in new} <= on_disk.keys()
        call()

    def be_late(call: Callable[[], None]) -> None:
        store(other, 0, number=9)
        look(call)

    monkeypatch.setattr(os, "fsync", fsync)
    wrap_commit(monkeypatch, *([be_late] * is_late), look, look)
    change(sink, folder)
