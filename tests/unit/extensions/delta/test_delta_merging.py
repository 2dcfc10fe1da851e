"""Rows that are merged into those of a Delta table that have their keys."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channel.error_scope import ErrorScope, classify_error
from headrace.core.errors import ConfigError, ResultMisfitError, RowsRefusedError, StartError
from headrace.extensions.delta import merged_files
from headrace.extensions.delta.maintenance import compact
from headrace.extensions.delta.merging import MergeRule
from headrace.extensions.delta.reader import DeltaLog
from headrace.extensions.delta.schema import SchemaChanges
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.table import LogFiles, added, commit_info
from headrace.sinks.by_key import Merging
from headrace.sinks.errors import CommitConflictError, ReplaceRefusedError
from headrace.testing.sinks import micro_batch
from tests.unit.extensions.delta.delta_tables import data_files, share, wrap_commit
from tests.unit.extensions.sql import sql_merging

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.extensions.delta.table import KeptTable

NOW = 1_700_000_000.0
FIRST, SECOND = (dt.datetime(2020, 1, day, 12, tzinfo=dt.UTC) for day in (1, 2))
COUNTS = MergeRule(("id",), {"n": Merging.SUM})
BY_DAY = MergeRule(("day", "id"), {"n": Merging.SUM})


def merging(folder: Path, rule: MergeRule = COUNTS, **options: Any) -> DeltaSink:
    """Return an open sink that merges."""
    sink = DeltaSink(folder, merge=rule, **options)
    sink.open()
    return sink


def store(sink: DeltaSink, start: int, **columns: Any) -> None:
    """Commit a result of these columns as the record at an offset of partition 0."""
    sink.commit(
        sink.stage(micro_batch(f"at-{start}"), pa.table(columns)), [share(0, start, start + 1)]
    )


def rows(folder: Path) -> list[tuple[Any, ...]]:
    """Read the table as any reader does, in the order of its rows."""
    found = DeltaTable(folder).to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)


@settings(max_examples=15, deadline=None)
@given(
    commits=sql_merging.COMMITS,
    partition_by=st.sampled_from([[], ["shop"], ["minute", "shop"]]),
)
def test_merged_micro_batches_are_one_count_of_all_events(
    commits: list[list[list[sql_merging.Event]]], partition_by: list[str]
) -> None:
    """The table has the count of all events, however they are cut, in one partition or several."""
    rule = MergeRule(tuple(sql_merging.OPTIONS["key"]), sql_merging.OPTIONS["merge"])
    with TemporaryDirectory() as folder:
        sink = merging(Path(folder), rule, partition_by=partition_by)
        sql_merging.commit(sink, commits)
        sink.close()
        table = DeltaTable(folder).to_pyarrow_table().select(rule.names)
    found = sorted(tuple(row.values()) for row in table.to_pylist())
    events = [event for batches in commits for batch in batches for event in batch]
    assert found == sql_merging.reduced(events)


def test_the_history_has_a_merge_that_adds_no_rows(tmp_path: Path) -> None:
    """The entry removes what it rewrites, and the log's reader does not count those rows again."""
    sink = merging(tmp_path)
    store(sink, 0, id=[1, 2], n=[1, 1])
    store(sink, 1, id=[2, 3], n=[1, 1])
    assert rows(tmp_path) == [(1, 1), (2, 2), (3, 1)]
    newest = DeltaTable(tmp_path).history(1)[0]
    assert (newest["operation"], newest["headrace_micro_batch"]) == ("MERGE", "at-1")
    assert [commit.rows for commit in DeltaLog(tmp_path).read_new()] == [0, 0, 0]
    assert len(DeltaTable(tmp_path).file_uris()) == 1


def test_a_repeated_commit_merges_nothing(tmp_path: Path) -> None:
    """Offsets that were moved already refuse the sums, and leave no file."""
    sink = merging(tmp_path)
    store(sink, 0, id=[1], n=[1])
    with pytest.raises(CommitConflictError):
        store(sink, 0, id=[1], n=[1])
    assert (rows(tmp_path), data_files(tmp_path)) == ([(1, 1)], 1)


def test_only_files_with_the_keys_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of other keys stay, by the range of their keys or after a look at these."""
    monkeypatch.setattr(merged_files, "FULL_BYTES", 0)
    sink = merging(tmp_path)
    for at, ids in enumerate(([1, 5], [2, 4], [7, 9])):
        store(sink, at, id=ids, n=[1, 1])
    before = {*DeltaTable(tmp_path).file_uris()}
    store(sink, 3, id=[4, 6], n=[1, 1])
    after = {*DeltaTable(tmp_path).file_uris()}
    assert rows(tmp_path) == [(1, 1), (2, 1), (4, 2), (5, 1), (6, 1), (7, 1), (9, 1)]
    assert (len(before - after), len(after - before)) == (1, 2)


@pytest.mark.parametrize(
    ("kind", "smaller", "larger"),
    [
        (pa.bool_(), False, True),
        (pa.string(), "a", "b"),
        (pa.binary(), b"a", b"b"),
        (pa.int16(), -1, 2),
        (pa.float64(), -2.0, 1.5),
        (pa.decimal128(38, 2), Decimal("-2.00"), Decimal("1.50")),
        (pa.date32(), FIRST.date(), SECOND.date()),
        (pa.timestamp("us"), FIRST.replace(tzinfo=None), SECOND.replace(tzinfo=None)),
        (pa.timestamp("us", "UTC"), FIRST, SECOND),
    ],
)
def test_the_smaller_and_the_larger_value_stay(
    tmp_path: Path, kind: pa.DataType, smaller: Any, larger: Any
) -> None:
    """Values of every type that has an order are compared; a null does not count."""
    sink = merging(tmp_path, MergeRule(("id",), {"low": Merging.MIN, "high": Merging.MAX}))
    for at, values in enumerate(
        ([smaller, larger, None, smaller, None], [larger, smaller, smaller, None, None])
    ):
        column = pa.array(values, kind)
        store(sink, at, id=[1, 2, 3, 4, 5], low=column, high=column)
    low = [smaller] * 4 + [None]
    high = [larger, larger, smaller, smaller, None]
    assert rows(tmp_path) == list(zip(range(1, 6), low, high, strict=True))


@pytest.mark.parametrize(
    ("kind", "stored", "new"),
    [
        (pa.int8(), 100, 100),
        (pa.int64(), 2**62, 2**62),
        (pa.decimal128(3, 1), Decimal("99.9"), Decimal("0.1")),
        (pa.decimal128(38, 0), Decimal("9" * 38), Decimal(1)),
    ],
)
def test_a_sum_that_its_column_cannot_hold_is_the_rows_fault(
    tmp_path: Path, kind: pa.DataType, stored: Any, new: Any
) -> None:
    """The stored row and the offset stay, in one commit of both as well."""
    sink = merging(tmp_path)
    store(sink, 0, id=[1], n=pa.array([stored], kind))
    with pytest.raises(RowsRefusedError, match=r"column 'n': a sum does not fit"):
        store(sink, 1, id=[1], n=pa.array([new], kind))
    results = [pa.table({"id": [2], "n": pa.array([each], kind)}) for each in (stored, new)]
    staged = [sink.stage(micro_batch(str(at)), each) for at, each in enumerate(results)]
    with pytest.raises(RowsRefusedError):
        sink.commit_all(staged, [share(0, 1, 3)])
    assert (rows(tmp_path), data_files(tmp_path)) == ([(1, stored)], 1)
    assert sink.stored_offset("id/0") == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": [1]}, "column 'n' is missing"),
        ({"id": [1], "n": [1], "m": [1]}, "column 'm' is neither in key nor in merge"),
        ({"id": [1], "n": ["x"]}, "sum takes a column of numbers, and n is string"),
        ({"id": [1.5], "n": [1]}, "column 'id' of the key is double"),
        ({"id": [[1]], "n": [1]}, "column 'id' of the key is array"),
    ],
)
def test_a_result_that_cannot_be_merged_is_told_before_anything_is_written(
    tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    """Names and types are of the reducer's making: no table is made, and no row is at fault."""
    sink = merging(tmp_path / "table")
    with pytest.raises(ResultMisfitError, match=said) as caught:
        store(sink, 0, **columns)
    assert classify_error(caught.value) is not ErrorScope.RECORD
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))


def test_a_key_has_one_row_and_no_null(tmp_path: Path) -> None:
    """The rows are refused; a text of no characters is a null where it divides the table."""
    sink = merging(tmp_path / "one")
    with pytest.raises(RowsRefusedError, match="2 rows and 1 keys"):
        store(sink, 0, id=[1, 1], n=[1, 1])
    by_day = merging(tmp_path / "two", BY_DAY, partition_by=["day"])
    with pytest.raises(RowsRefusedError, match="1 of them null in part"):
        store(by_day, 0, day=["", "monday"], id=[1, 1], n=[1, 1])
    inner = merging(tmp_path / "three", BY_DAY)
    store(inner, 0, day=["", "monday"], id=[1, 1], n=[1, 1])
    store(inner, 1, day=[""], id=[1], n=[1])
    assert rows(tmp_path / "three") == [("", 1, 2), ("monday", 1, 1)]


def test_columns_that_a_result_lacks_keep_their_values(tmp_path: Path) -> None:
    """With add_columns a column may come later, and one of the table stays as it is."""
    write_deltalake(tmp_path, pa.table({"id": [1], "own": ["x"]}))
    with pytest.raises(StartError, match="no column n, which the sink names"):
        merging(tmp_path)
    sink = merging(tmp_path, schema_changes=SchemaChanges.ADD_COLUMNS)
    store(sink, 0, id=[1, 2], n=[3, 4])
    store(sink, 1, id=[1], n=[5])
    assert rows(tmp_path) == [(1, "x", 8), (2, None, 4)]


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_a_table_that_is_too_large_is_not_merged_into(
    tmp_path: Path, partition_by: list[str]
) -> None:
    """The message has the size and the limit; partitions of the table count each for itself."""
    store(merging(tmp_path, BY_DAY, partition_by=partition_by), 0, day=["a"], id=[1], n=[1])
    size = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    rule = MergeRule(BY_DAY.key, BY_DAY.columns, limit=size - 1)
    sink = merging(tmp_path, rule, partition_by=partition_by)
    said = f"{size} bytes, and merge_limit is {size - 1}; partition a new table"
    with pytest.raises(ResultMisfitError, match=said):
        store(sink, 1, day=["a"], id=[1], n=[1])
    if partition_by:
        store(sink, 1, day=["b"], id=[1], n=[1])
        assert rows(tmp_path) == [("a", 1, 1), ("b", 1, 1)]


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"delta.appendOnly": "true"}, "delta.appendOnly forbids"),
        ({"delta.enableChangeDataFeed": "true"}, "files of which are not rewritten here"),
    ],
)
def test_tables_that_ask_more_of_a_writer_are_refused(
    tmp_path: Path, properties: dict[str, str], said: str
) -> None:
    """At the start, and at the commit after the table was changed."""
    sink = merging(tmp_path)
    store(sink, 0, id=[1], n=[1])
    DeltaTable(tmp_path).alter.set_table_properties(properties)
    # the version that it did not know of is found when its own is refused
    with pytest.raises(ResultMisfitError, match=said):
        store(sink, 1, id=[1], n=[1])
    with pytest.raises(StartError, match=said):
        merging(tmp_path)


def test_a_table_with_origins_is_refused(tmp_path: Path) -> None:
    """A merged row is of many records."""
    origins = DeltaSink(tmp_path, origin=True)
    store(origins, 0, id=[1], n=[1])
    with pytest.raises(StartError, match="which records they are of"):
        merging(tmp_path)


def test_several_rows_of_a_key_in_the_table_are_told(tmp_path: Path) -> None:
    """Rows of another writer, of which no one is right."""
    write_deltalake(tmp_path, pa.table({"id": [1, 1, 2], "n": [1, 1, 1]}))
    sink = merging(tmp_path)
    with pytest.raises(ResultMisfitError, match="several rows of one id"):
        store(sink, 0, id=[1], n=[1])
    store(sink, 0, id=[2], n=[1])
    assert rows(tmp_path) == [(1, 1), (1, 1), (2, 2)]


def test_files_of_other_writers_are_merged_into_where_they_lie_as_ours(tmp_path: Path) -> None:
    """A partition that another program wrote into a folder of its own is named."""
    write_deltalake(tmp_path, pa.table({"day": ["a"], "id": [1], "n": [1]}), partition_by=["day"])
    sink = merging(tmp_path, BY_DAY, partition_by=["day"])
    with pytest.raises(ResultMisfitError, match=r"rows of day a cannot be merged: day=a/"):
        store(sink, 0, day=["a"], id=[1], n=[1])
    store(sink, 0, day=["b"], id=[1], n=[1])
    assert rows(tmp_path) == [("a", 1, 1), ("b", 1, 1)]


@pytest.mark.parametrize("partition_by", [["at"], ["cost"]])
def test_partitions_whose_spelling_is_not_sure_are_refused(
    tmp_path: Path, partition_by: list[str]
) -> None:
    """The log has a moment or a decimal in the words of its writer."""
    sink = merging(
        tmp_path / "table", MergeRule(("at", "cost"), {"n": Merging.SUM}), partition_by=partition_by
    )
    columns = {"at": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], "cost": [Decimal("1.50")], "n": [1]}
    with pytest.raises(ResultMisfitError, match="of partition_by is"):
        store(sink, 0, **columns)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition_by": ["day"]}, "partition_by names day, which is not in key"),
        ({"origin": True}, "origin does not go with mode: merge"),
        ({"merge": MergeRule((), {"n": Merging.SUM})}, "key is missing"),
        ({"merge": MergeRule(("id",), {})}, "merge is missing"),
        ({"merge": MergeRule(("id",), {"id": Merging.SUM})}, "merge names id, which is in key"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    """An error of the configuration, in the words of its check."""
    with pytest.raises(ConfigError, match=said):
        DeltaSink(tmp_path, **({"merge": COUNTS} | options))


def test_merged_rows_cannot_be_replaced(tmp_path: Path) -> None:
    """A replay would add to rows of which the former values are not kept."""
    sink = merging(tmp_path)
    for ask in (sink.plan_replace, lambda moves: sink.replace(moves, "note")):
        with pytest.raises(ReplaceRefusedError, match="adds to the sums"):
            ask([])


def other_first(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[], object], made: list[int]
) -> None:
    """Let another writer commit right before the next entry; note each time files are made."""

    def first(call: Callable[[], None]) -> None:
        other()
        call()

    wrap_commit(monkeypatch, first)
    real = merged_files.TableMerge.rewrite

    def rewrite(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(merged_files.TableMerge, "rewrite", rewrite)


def test_a_writer_of_the_same_keys_that_comes_first_is_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of both are in the table, and files that were made in vain are gone."""
    sink, other = merging(tmp_path), merging(tmp_path)
    store(sink, 0, id=[1, 2], n=[1, 1])
    made: list[int] = []

    def commit() -> None:
        staged = other.stage(micro_batch("other"), pa.table({"id": [2, 3], "n": [5, 5]}))
        other.commit(staged, [share(1, 0, 10)])

    other_first(monkeypatch, commit, made)
    store(sink, 1, id=[2, 3], n=[1, 1])
    assert rows(tmp_path) == [(1, 1), (2, 7), (3, 6)]
    assert len(made) == 3
    assert data_files(tmp_path) == 3  # one of each version


def test_a_writer_of_other_partitions_of_the_table_is_no_reason_to_write_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files that were made are committed behind the other's version."""
    sink, other = (merging(tmp_path, BY_DAY, partition_by=["day"]) for _ in range(2))
    store(sink, 0, day=["a", "b"], id=[1, 1], n=[1, 1])
    made: list[int] = []

    def commit() -> None:
        columns = {"day": ["b"], "id": [1], "n": [5]}
        other.commit(other.stage(micro_batch("other"), pa.table(columns)), [share(1, 0, 10)])

    other_first(monkeypatch, commit, made)
    store(sink, 1, day=["a"], id=[1], n=[1])
    assert rows(tmp_path) == [("a", 1, 2), ("b", 1, 6)]
    assert len(made) == 2


def test_a_compaction_that_comes_first_is_taken_into_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one file that two have become is merged into."""
    folder = tmp_path / "table"
    sink = merging(folder)
    store(sink, 0, id=[1, 2], n=[1, 1])
    store(sink, 1, id=[8, 9], n=[1, 1])
    made: list[int] = []
    other_first(monkeypatch, lambda: compact(folder, tmp_path / "scratch", {}, NOW), made)
    store(sink, 2, id=[2, 8], n=[1, 1])
    assert rows(folder) == [(1, 1), (2, 2), (8, 2), (9, 1)]
    assert len(made) == 2


def test_a_member_that_took_the_partition_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former owner merges nothing, and its files are gone."""
    sink, other = merging(tmp_path), merging(tmp_path)
    store(sink, 0, id=[1], n=[1])
    other_first(monkeypatch, lambda: store(other, 1, id=[1], n=[5]), [])
    with pytest.raises(CommitConflictError):
        store(sink, 1, id=[1], n=[1])
    assert rows(tmp_path) == [(1, 6)]
    assert data_files(tmp_path) == 2


def store_nothing(sink: DeltaSink, start: int) -> None:
    """Commit a result without rows, which creates the table, as the record at an offset."""
    store(sink, start, id=pa.array([], pa.int64()), n=pa.array([], pa.int64()))


def test_a_former_owner_that_has_not_looked_at_files_yet_is_refused(tmp_path: Path) -> None:
    """It opens the table for its files, at a version whose offsets it has not compared."""
    former = merging(tmp_path)
    store_nothing(former, 0)
    store(merging(tmp_path), 1, id=[1], n=[10])
    with pytest.raises(CommitConflictError):
        store(former, 1, id=[1], n=[10])
    assert (rows(tmp_path), data_files(tmp_path)) == ([(1, 10)], 1)


def test_no_version_is_committed_onto_but_the_one_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that goes on between check and commit, for any reason, is checked again."""
    former = merging(tmp_path)
    store_nothing(former, 0)
    real = merged_files.TableMerge.rewrite

    def rewrite(self: Any, table: KeptTable, *args: Any) -> Any:
        monkeypatch.undo()
        store(merging(tmp_path), 1, id=[1], n=[10])
        table.refresh()
        return real(self, table, *args)

    monkeypatch.setattr(merged_files.TableMerge, "rewrite", rewrite)
    with pytest.raises(CommitConflictError):
        store(former, 1, id=[1], n=[10])
    assert (rows(tmp_path), data_files(tmp_path)) == ([(1, 10)], 1)


@pytest.mark.parametrize("merge", [None, MergeRule(("id",), {"n": Merging.SUM, "x": Merging.SUM})])
def test_a_former_owner_that_is_to_add_a_column_is_refused(
    tmp_path: Path, merge: MergeRule | None
) -> None:
    """It finds the column in the table, at a version whose offsets it has not compared."""
    former, owner = (
        DeltaSink(tmp_path, merge=merge, schema_changes=SchemaChanges.ADD_COLUMNS) for _ in range(2)
    )
    store(DeltaSink(tmp_path, merge=None if merge is None else COUNTS), 0, id=[5], n=[1])
    assert former.stored_offset("id/0") == 1
    store(owner, 1, id=[1], n=[10], x=[1])
    # files of micro-batches are named by these, and the former owner's are not the owner's
    staged = former.stage(micro_batch("former"), pa.table({"id": [1], "n": [10], "x": [1]}))
    with pytest.raises(CommitConflictError):
        former.commit(staged, [share(0, 1, 2)])
    former.discard(staged)
    assert (len(rows(tmp_path)), data_files(tmp_path)) == (2, 2)
    assert former.stored_offset("id/0") == 2


@pytest.mark.parametrize(
    ("is_stored", "is_followed"), [(False, False), (True, False), (True, True)]
)
def test_an_unknown_outcome_is_read_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool, is_followed: bool
) -> None:
    """A commit that was made is known by its entry, also where its files are merged already."""
    sink, other = merging(tmp_path), merging(tmp_path)
    store(sink, 0, id=[1], n=[1])

    def lose(call: Callable[[], None]) -> None:
        if is_stored:
            call()
        if is_followed:
            store(other, 2, id=[1], n=[100])
        raise OSError("the answer was lost")

    wrap_commit(monkeypatch, lose)
    if is_stored:
        store(sink, 1, id=[1], n=[10])
    else:
        with pytest.raises(OSError, match="the answer was lost"):
            store(sink, 1, id=[1], n=[10])
    assert rows(tmp_path) == [(1, 1 + 10 * is_stored + 100 * is_followed)]
    assert data_files(tmp_path) == 1 + is_stored + is_followed
    assert sink.stored_offset("id/0") == 1 + is_stored + is_followed


def test_results_of_one_commit_may_differ_in_what_can_be_null(tmp_path: Path) -> None:
    """A count is never null and a sum may be, in Spark's schemas: results of both are merged."""
    rule = MergeRule(("id",), {"n": Merging.SUM, "name": Merging.LAST})
    sink = merging(tmp_path, rule)
    staged = []
    for at, is_nullable in enumerate((False, True, False)):
        inner = pa.struct([pa.field("a", pa.int64(), nullable=is_nullable)])
        kinds = {"id": pa.int64(), "n": pa.int64(), "name": pa.list_(inner)}
        schema = pa.schema([pa.field(*each, nullable=is_nullable) for each in kinds.items()])
        result = pa.table({"id": [1], "n": [1], "name": [[{"a": at}]]}, schema=schema)
        staged.append(sink.stage(micro_batch(f"at-{at}"), result))
    sink.commit_all(staged, [share(0, 0, 3)])
    assert rows(tmp_path) == [(1, 3, [{"a": 2}])]


@pytest.mark.parametrize("is_known", [True, False])
def test_files_of_other_writers_are_found_whatever_the_order_of_their_values(
    tmp_path: Path, *, is_known: bool
) -> None:
    """A file in the table's folder is merged into, read from the log's entry or by delta-rs."""
    rule = MergeRule(("shop", "day", "id"), {"n": Merging.SUM})
    sink = merging(tmp_path, rule, partition_by=["shop", "day"])
    store(sink, 0, shop=["s"], day=["a"], id=[1], n=[1])
    pq.write_table(pa.table({"id": [2], "n": [5]}), tmp_path / "other.parquet")
    values = {"day": "a", "shop": "s"}
    size = (tmp_path / "other.parquet").stat().st_size
    action = AddAction("other.parquet", size, values, 0, data_change=True, stats="{}")
    entry = [commit_info("WRITE", {}, NOW), added(action)]
    assert LogFiles(tmp_path).add(2, entry, tmp_path / "_scratch", durable=False)
    if not is_known:
        sink = merging(tmp_path, rule, partition_by=["shop", "day"])
    store(sink, 1, shop=["s"], day=["a"], id=[2], n=[1])
    assert rows(tmp_path) == [("s", "a", 1, 1), ("s", "a", 2, 6)]


def test_files_are_followed_through_what_other_writers_commit(tmp_path: Path) -> None:
    """Rows of other programs, and versions that remove files, count for the next merge."""
    sink = merging(tmp_path)
    store(sink, 0, id=[1], n=[1])
    schema = pa.schema(DeltaTable(tmp_path).schema().to_arrow())
    write_deltalake(tmp_path, pa.table({"id": [2], "n": [5]}).cast(schema), mode="append")
    store(sink, 1, id=[1, 2], n=[1, 1])
    DeltaTable(tmp_path).delete("id = 1")
    store(sink, 2, id=[1, 2], n=[1, 1])
    assert rows(tmp_path) == [(1, 1), (2, 7)]


def test_old_files_stay_for_readers_of_the_former_version(tmp_path: Path) -> None:
    """A query that began before a merge finds all of its files."""
    sink = merging(tmp_path)
    store(sink, 0, id=[1], n=[1])
    before = DeltaTable(tmp_path)
    store(sink, 1, id=[1], n=[1])
    assert before.to_pyarrow_table().to_pylist() == [{"id": 1, "n": 1}]
    entry = json.loads(Path(tmp_path, "_delta_log", f"{2:020}.json").read_text().splitlines()[1])
    assert entry["remove"]["dataChange"] is True
