"""Rows of a Delta table that say which records they are of, and their removal."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.core.errors import ResultMisfitError, StartError
from headrace.core.records import TopicPartition
from headrace.extensions.delta import replacement
from headrace.extensions.delta.data_files import write_file
from headrace.extensions.delta.maintenance import compact
from headrace.extensions.delta.reader import DeltaLog
from headrace.extensions.delta.schema import SchemaChanges
from headrace.extensions.delta.sink import DeltaSink
from headrace.sinks import OffsetMove, ReplaceRefusedError
from headrace.sinks.origin import ORIGIN
from headrace.testing.sinks import micro_batch
from tests.unit.extensions.delta.delta_tables import data_files, share, visible, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltalake.transaction import AddAction

    from headrace.sinks.contract import PartitionCommit

NOW = 1_700_000_000.0


def move(start: int, target: int, number: int = 0) -> OffsetMove:
    """Return the move of a partition's offset."""
    return OffsetMove(f"id/{number}", TopicPartition("t", number), start, target)


def store(sink: DeltaSink, row: int, *shares: PartitionCommit) -> None:
    """Commit one row of these ranges."""
    rows = pa.table({"id": [row]})
    sink.commit(sink.stage(micro_batch(f"row-{row}", shares), rows), shares)


@pytest.fixture
def old(folder: Path) -> DeltaSink:
    """Return a sink without origins that has stored 0..10 of partition 0."""
    sink = DeltaSink(folder)
    store(sink, 0, share(0, 0, 10))
    return sink


@pytest.fixture
def sink(folder: Path) -> DeltaSink:
    """Return a sink with a row for each ten records of partition 0, up to 50."""
    sink = DeltaSink(folder, origin=True)
    for row in range(5):
        store(sink, row, share(0, 10 * row, 10 * row + 10))
    return sink


def test_rows_say_which_records_they_are_of(sink: DeltaSink, folder: Path) -> None:
    """Each partition of a micro-batch with its range, in a column of text."""
    store(sink, 5, share(0, 50, 60), share(1, 0, 7))
    rows = {row["id"]: row[ORIGIN] for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}
    assert json.loads(rows[4]) == {"id": {"0": [40, 50]}}
    assert json.loads(rows[5]) == {"id": {"0": [50, 60], "1": [0, 7]}}


def test_compacted_files_are_divided_again(sink: DeltaSink, folder: Path, tmp_path: Path) -> None:
    """The rest of a file is written to a new one, and the table's history has the operation."""
    assert compact(folder, tmp_path / "scratch", {}, NOW) == 5

    assert sink.replace([move(50, 30)], '{"operation":"reset"}') == 2

    assert visible(folder) == [0, 1, 2]
    assert len(DeltaTable(folder).file_uris()) == 1
    newest = DeltaTable(folder).history(1)[0]
    assert (newest["operation"], newest["headrace_offsets"]) == ("DELETE", '{"operation":"reset"}')
    assert DeltaLog(folder).read_new()[-1].rows == 0
    store(sink, 5, share(0, 30, 40))
    assert visible(folder) == [0, 1, 2, 5]
    assert sink.replace([move(40, 0)], "all") == 4
    assert visible(folder) == []
    assert DeltaTable(folder).file_uris() == []


def test_files_are_young_when_they_are_committed(
    sink: DeltaSink, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are young at their commit after a slow write, because clean-up goes by age."""
    assert compact(folder, tmp_path / "scratch", {}, NOW) == 5
    ages: list[float] = []

    def write_slowly(*args: Any, **kwargs: Any) -> AddAction:
        made = write_file(*args, **kwargs)
        os.utime(folder / made.path, (0, 0))
        return made

    def look(call: Callable[[], None]) -> None:
        ages.extend(path.stat().st_mtime for path in folder.glob("part-replaced-*"))
        call()

    monkeypatch.setattr(replacement, "write_file", write_slowly)
    wrap_commit(monkeypatch, look)
    before = time.time() - 1
    assert sink.replace([move(50, 30)], "reset") == 2
    assert len(ages) == 1
    assert ages[0] > before


def test_rows_that_are_there_already_stay_as_they_are(old: DeltaSink, folder: Path) -> None:
    """The column is added with the first result, whatever schema_changes says."""
    del old
    sink = DeltaSink(folder, origin=True)
    store(sink, 1, share(0, 10, 20))
    assert visible(folder) == [0, 1]

    with pytest.raises(ReplaceRefusedError, match=r"those of id/0 have one from offset 10 on"):
        sink.plan_replace([move(20, 5)])
    with pytest.raises(ReplaceRefusedError, match=r"those of id/7 have none yet"):
        sink.plan_replace([move(20, 5, 7)])
    assert sink.replace([move(20, 10)], "test") == 1
    assert visible(folder) == [0]
    assert sink.stored_offset("id/0") == 10


def test_origins_count_from_the_first_row_that_has_one(old: DeltaSink, folder: Path) -> None:
    """A commit without rows adds no column, so that another member may still leave it out."""
    sink = DeltaSink(folder, origin=True)
    sink.commit(sink.stage(micro_batch("none"), None), [share(0, 10, 20)])
    store(old, 1, share(0, 20, 30))
    store(sink, 2, share(0, 30, 40))
    with pytest.raises(ReplaceRefusedError, match=r"have one from offset 30 on"):
        sink.plan_replace([move(40, 10)])
    assert sink.replace([move(40, 30)], "test") == 1
    assert visible(folder) == [0, 1]


def test_any_offset_will_do_if_all_rows_have_origins(sink: DeltaSink, folder: Path) -> None:
    """An offset before the first one that the sink was given is accepted too."""
    store(sink, 5, share(1, 500, 510))
    assert sink.replace([move(510, 0, 1)], "test") == 1
    assert visible(folder) == [0, 1, 2, 3, 4]


def test_without_origins_nothing_can_be_replaced(old: DeltaSink) -> None:
    """The message says what to set."""
    with pytest.raises(ReplaceRefusedError, match="set origin: true"):
        old.plan_replace([move(10, 0)])


def test_without_a_table_nothing_can_be_replaced(folder: Path) -> None:
    """There is nothing to do, and no table is made."""
    with pytest.raises(ReplaceRefusedError, match="there is no table"):
        DeltaSink(folder, origin=True).plan_replace([move(10, 0)])
    assert not folder.exists()


@pytest.mark.parametrize("changes", SchemaChanges)
def test_origins_are_not_left_out_again(
    sink: DeltaSink, folder: Path, changes: SchemaChanges
) -> None:
    """A sink that does not write them neither opens the table nor commits to it."""
    del sink
    other = DeltaSink(folder, schema_changes=changes)
    with pytest.raises(StartError, match="set origin: true"):
        other.open()
    with pytest.raises(ResultMisfitError, match="origin: true"):
        store(other, 9, share(0, 50, 60))


@pytest.mark.parametrize("origin", [True, False])
def test_the_column_is_the_sink_s_own(folder: Path, *, origin: bool) -> None:
    """A result that brings one of that name is refused before it is written."""
    sink = DeltaSink(folder, origin=origin)
    with pytest.raises(ResultMisfitError, match="the sink's own"):
        sink.stage(micro_batch("one"), pa.table({"id": [1], ORIGIN: ["x"]}))


def test_rows_of_other_programs_are_not_taken_for_ours(sink: DeltaSink, folder: Path) -> None:
    """One that says nothing may be of an earlier range only; one that is made up, of any."""
    write_deltalake(folder, pa.table({"id": [7], ORIGIN: [None]}, schema(folder)), mode="append")
    assert sink.plan_replace([move(50, 40)]).rows == 1
    write_deltalake(folder, pa.table({"id": [8], ORIGIN: ["x"]}, schema(folder)), mode="append")
    with pytest.raises(ReplaceRefusedError, match="is 'x' in some rows"):
        sink.plan_replace([move(50, 40)])


def schema(folder: Path) -> pa.Schema:
    """Return the table's schema."""
    return DeltaTable(folder).to_pyarrow_table().schema


def test_files_that_others_put_elsewhere_are_not_rewritten(folder: Path, sink: DeltaSink) -> None:
    """A foreign file with rows to replace is named; rows outside of it can be replaced."""
    text = DeltaTable(folder).to_pyarrow_table().to_pylist()[0][ORIGIN]
    entry = {"path": "sub/other.parquet", "partitionValues": {}, "modificationTime": 0}
    (folder / "sub").mkdir()
    pa.parquet.write_table(
        pa.table({"id": [9], ORIGIN: [text]}, schema(folder)), folder / "sub" / "other.parquet"
    )
    size = (folder / "sub" / "other.parquet").stat().st_size
    action = {"add": {**entry, "size": size, "dataChange": True, "stats": '{"numRecords":1}'}}
    version = DeltaTable(folder).version() + 1
    (folder / "_delta_log" / f"{version:020}.json").write_text(json.dumps(action))
    at = json.loads(text)["id"]["0"][0]
    with pytest.raises(ReplaceRefusedError, match=r"sub/other\.parquet has rows"):
        sink.plan_replace([move(50, at)])
    if at < 40:
        assert sink.plan_replace([move(50, 40)]).rows == 1


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"delta.appendOnly": "true"}, "delta.appendOnly forbids"),
        ({"delta.enableChangeDataFeed": "true"}, "files of which are not rewritten here"),
    ],
)
def test_tables_that_ask_more_of_a_writer_are_refused(
    sink: DeltaSink, folder: Path, properties: dict[str, str], said: str
) -> None:
    """The message names the property or the feature."""
    DeltaTable(folder).alter.set_table_properties(properties)
    with pytest.raises(ReplaceRefusedError, match=said):
        sink.plan_replace([move(50, 40)])


def test_a_writer_that_comes_first_is_taken_into_account(
    sink: DeltaSink, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of another writer count: here the same rows in one file instead of five."""

    def compaction_first(call: Callable[[], None]) -> None:
        assert compact(folder, tmp_path / "scratch", {}, NOW) == 5
        call()

    wrap_commit(monkeypatch, compaction_first)
    assert sink.replace([move(50, 30)], "test") == 2
    assert visible(folder) == [0, 1, 2]


def test_a_member_that_commits_in_between_is_found(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move is refused, its rows stand, and what was written in vain is gone."""
    member = DeltaSink(folder, origin=True)

    def member_first(call: Callable[[], None]) -> None:
        store(member, 5, share(0, 50, 60))
        call()

    wrap_commit(monkeypatch, member_first)
    with pytest.raises(Exception, match="t-0"):
        sink.replace([move(50, 30)], "test")
    assert visible(folder) == [0, 1, 2, 3, 4, 5]
    assert sink.stored_offset("id/0") == 60
    assert data_files(folder) == 6


@pytest.mark.parametrize("target", [30, 50])
@pytest.mark.parametrize("is_stored", [True, False])
def test_an_unknown_outcome_is_found_by_the_offset(
    sink: DeltaSink,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    target: int,
    is_stored: bool,
) -> None:
    """After a lost answer the table shows that all of it or nothing took place."""
    compact(folder, tmp_path / "scratch", {}, NOW)
    sink.move_offsets([move(50, 30)], "by hand")
    start = 30
    if target == 50:
        target = 30
    else:
        sink.move_offsets([move(30, 50)], "by hand")
        start = 50

    def lose(call: Callable[[], None]) -> None:
        if is_stored:
            call()
        raise OSError("the answer was lost")

    wrap_commit(monkeypatch, lose)
    if is_stored:
        assert sink.replace([move(start, target)], "test") == 2
    else:
        with pytest.raises(OSError, match="the answer was lost"):
            sink.replace([move(start, target)], "test")
        assert visible(folder) == [0, 1, 2, 3, 4]
        assert sink.replace([move(start, target)], "test") == 2
    assert visible(folder) == [0, 1, 2]
    assert sink.stored_offset("id/0") == 30


def test_a_text_of_many_partitions_is_in_memory_once(folder: Path, tmp_path: Path) -> None:
    """Written, compacted and removed: not once for each row, which would be 600 MB here."""
    sink = DeltaSink(folder, origin=True)
    pool = pa.default_memory_pool()
    before = pool.max_memory() or 0
    for first in (0, 10):
        shares = [share(number, first, first + 10) for number in range(1000)]
        rows = pa.table({"id": pa.array(range(20_000), pa.int64())})
        sink.commit(sink.stage(micro_batch(f"from-{first}", shares), rows), shares)
    assert compact(folder, tmp_path / "scratch", {}, NOW) == 2
    removed = sink.replace([move(20, 10, number) for number in range(1000)], "test")
    highest = pool.max_memory() or 0
    assert removed == 20_000
    assert highest - before < 50_000_000
    assert visible(folder) == [*range(20_000)]
