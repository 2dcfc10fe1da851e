from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.channel.error_scope import ErrorScope, classify_error
from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.staging import plain, schema_json, write_files
from headrace.testing.sinks import micro_batch, share

if TYPE_CHECKING:
    from pathlib import Path

NOON = dt.datetime(2013, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)

PARTITIONS = pa.table(
    {
        "day/ü": pa.array([dt.date(2013, 1, 2), None, None]),
        "name": ["a/b=% c", "", None],
        "late": [True, False, None],
        "at": pa.array([NOON, None, NOON.replace(microsecond=0)], pa.timestamp("us", tz="UTC")),
        "cost": pa.array([decimal.Decimal("1.50"), None, None], pa.decimal128(10, 2)),
        "number": [1, 2, 3],
    }
)


def commit(folder: Path, table: pa.Table, partition_by: list[str] | None = None) -> pa.Table:
    """Commit one table, and return what a reader finds."""
    sink = DeltaSink(folder, partition_by=partition_by or [])
    sink.open()
    sink.commit(sink.stage(micro_batch("one"), table), [share(0, 0, 10)])
    sink.close()
    return DeltaTable(folder).to_pyarrow_table()


def test_partition_values_come_back(tmp_path: Path) -> None:
    """Values of every kind, null ones and names that need care are read as they were."""
    names = [name for name in PARTITIONS.column_names if name != "number"]

    found = commit(tmp_path / "table", PARTITIONS, names).sort_by("number")

    expected = PARTITIONS.to_pylist()
    expected[1]["name"] = None  # Delta knows no empty string there
    assert found.select(PARTITIONS.column_names).to_pylist() == expected


@pytest.mark.parametrize(
    ("given", "value", "stored"),
    [
        (pa.uint32(), 2**32 - 1, pa.int64()),
        (pa.uint64(), 2**64 - 1, pa.decimal128(20, 0)),
        (pa.large_string(), "a", pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), "a", pa.string()),
        (pa.binary(2), b"ab", pa.binary()),
        (pa.timestamp("ns", tz="Europe/Berlin"), NOON, pa.timestamp("us", tz="UTC")),
        (pa.timestamp("ms"), NOON.replace(microsecond=0, tzinfo=None), pa.timestamp("us")),
        (pa.date64(), NOON.date(), pa.date32()),
        (pa.large_list(pa.uint8()), [1], pa.list_(pa.int16())),
        (pa.struct([("x", pa.uint8())]), {"x": 1}, pa.struct([("x", pa.int16())])),
        (pa.map_(pa.string(), pa.uint8()), [("k", 1)], pa.map_(pa.string(), pa.int16())),
    ],
    ids=str,
)
def test_types_become_those_of_delta(given: pa.DataType, value: Any, stored: pa.DataType) -> None:
    """A type that Delta does not have becomes one that holds every value of it."""
    table = pa.table({"a": pa.array([value, None], given)})

    made = plain(table)

    assert made.schema.field("a").type == stored
    assert made.to_pylist() == [{"a": value}, {"a": None}]
    assert '"a"' in schema_json(made)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([1], pa.timestamp("ns")), "lose data"),
        (pa.nulls(1), "every value is null"),
        (pa.array([[]], pa.list_(pa.null())), "a part of it has no type"),
        (pa.array([[{"a": None}]]), "a part of it has no type"),
        (pa.array([[("k", None)]], pa.map_(pa.string(), pa.null())), "a part of it has no type"),
    ],
)
def test_a_column_that_cannot_be_stored_is_named(column: pa.Array, told: str) -> None:
    """A type without a Delta equivalent, and a value that would lose digits, name the column."""
    with pytest.raises(RowsRefusedError, match=rf"'odd'.*{told}.*have the reducer cast it"):
        schema_json(plain(pa.table({"odd": column})))


_TWINS = pa.table([pa.array([1])] * 3, names=["id", "x", "ID"])


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (pa.table({"odd": [dt.timedelta(1)]}), "'odd'.*no such type"),
        (pa.table({"odd": [dt.time(1)]}), "'odd'.*no such type"),
        (pa.table({"odd": [{}]}), "column 'odd' is a struct without fields"),
        (pa.table({"a\0b": [1]}), "has a NUL in its name"),
        (pa.table({"s": [{"a\0b": 1}]}), "has a NUL in its name"),
        (pa.table({"odd": [[{"x": {}}]]}), "column 'odd.x' is a struct without fields"),
        (_TWINS, "columns 'id' and 'ID' differ by case alone"),
        (_TWINS.rename_columns(["id", "x", "id"]), "column 'id' is there twice"),
        (pa.table({"s": [{"a": 1, "A": 2}]}), "columns 's.a' and 's.A' differ by case alone"),
        (pa.table({"l": [[{"a": 1, "A": 2}]]}), "columns 'l.a' and 'l.A' differ by case alone"),
    ],
)
def test_columns_that_no_table_can_have_make_none(
    tmp_path: Path, result: pa.Table, told: str
) -> None:
    """They are named before there is a table, and no record is to blame for them."""
    with pytest.raises(ResultMisfitError, match=told) as caught:
        commit(tmp_path / "table", result)
    assert classify_error(caught.value) is ErrorScope.ENVIRONMENT
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))


def test_a_difference_inside_of_a_column_is_named(tmp_path: Path) -> None:
    """The error names the column, the field and the table, and nothing is stored."""
    commit(tmp_path / "table", pa.table({"s": [{"a": 1, "l": [{"x": 1}]}]}))
    for value, told in (
        ({"a": 1, "l": [{"x": 1}], "b": 2}, "column 's' has the field 'b', which it has not"),
        ({"a": 1}, "column 's' lacks the field 'l', which it has in the table"),
        ({"a": "1", "l": [{"x": 1}]}, "column 's.a' is string, in the table long"),
        ({"a": 1, "l": [{"x": 1, "y": 2}]}, "column 's.l' has the field 'y'"),
        ({"l": [{"x": 1}], "a": 1}, "column 's' has its fields in another order"),
    ):
        with pytest.raises(ResultMisfitError, match=f"table: the result.*{told}"):
            commit(tmp_path / "table", pa.table({"s": [value]}))
    with pytest.raises(ResultMisfitError, match="'S' and the table's 's' differ by case alone"):
        commit(tmp_path / "table", pa.table({"S": [{"a": 1}]}))
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize(("name", "told"), [("no", "no column 'no'"), ("raw", "holds binary")])
def test_a_column_that_cannot_partition_is_named(tmp_path: Path, name: str, told: str) -> None:
    """A missing column, and one of bytes, are refused by name."""
    table = pa.table({"raw": [b"a"], "number": [1]})
    with pytest.raises(ResultMisfitError, match=told):
        write_files(tmp_path, table, [name])


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Columns of another type are a mismatch for a table of Arrow as for a DataFrame."""
    commit(tmp_path / "table", pa.table({"a": [1]}))
    with pytest.raises(ResultMisfitError, match="'a' is string, in the table long"):
        commit(tmp_path / "table", pa.table({"a": ["x"]}))


def test_a_refused_result_leaves_no_file(tmp_path: Path) -> None:
    """A result that is refused leaves no file in the staging folder."""
    sink = DeltaSink(tmp_path / "table")
    sink.open()
    with pytest.raises(RowsRefusedError):
        sink.stage(micro_batch("one"), pa.table({"odd": pa.nulls(1)}))
    assert not [path for path in (tmp_path / "table").rglob("*") if path.is_file()]
    sink.close()
