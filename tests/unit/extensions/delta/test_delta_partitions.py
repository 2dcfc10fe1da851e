"""Values by which a Delta table is partitioned, written and read back."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.extensions.delta.sink import DeltaSink
from headrace.testing.sinks import micro_batch, share
from tests.unit.extensions.delta.delta_tables import data_files

if TYPE_CHECKING:
    from pathlib import Path

#: 31 characters of three bytes each, which take 279 where they are percent-encoded.
LONG = "東京都渋谷区神宮前一丁目から六丁目までの全ての区域と周辺の地域"


def commit(folder: Path, number: int, rows: pa.Table, by: list[str]) -> None:
    """Commit one micro-batch to a table."""
    sink = DeltaSink(folder, partition_by=by)
    sink.open()
    try:
        staged = sink.stage(micro_batch(f"m{number}"), rows)
        paths = [str(path.relative_to(folder)) for path in staged.files]
        assert all(len(path) < 200 and path.isascii() for path in paths)
        sink.commit(staged, [share(0, number, number + 1)])
    finally:
        sink.close()


def read(folder: Path, name: str) -> dict[int, Any]:
    """Return the values of a column by the row's id, as a reader of the table gets them."""
    rows = DeltaTable(folder).to_pyarrow_table().to_pylist()
    return {row["id"]: row[name] for row in rows}


def values_in_log(folder: Path) -> list[dict[str, str | None]]:
    """Return the partition values of each file that was added, as the log spells them."""
    entries = sorted((folder / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for path in entries for line in path.read_text().splitlines()]
    return [line["add"]["partitionValues"] for line in lines if "add" in line]


def test_null_and_no_text_are_one_partition(tmp_path: Path) -> None:
    """Both in one micro-batch, and in one after the other; the protocol has null for both."""
    batches: list[list[str | None]] = [["ok", "", None], ["", "ok"], [None]]
    for number, values in enumerate(batches):
        rows = pa.table({"id": [number * 10 + at for at in range(len(values))], "k": values})
        commit(tmp_path, number, rows.cast(pa.schema({"id": pa.int64(), "k": pa.string()})), ["k"])

    assert read(tmp_path, "k") == {0: "ok", 1: None, 2: None, 10: None, 11: "ok", 20: None}
    assert data_files(tmp_path) == 5


def test_a_value_of_any_length_partitions(tmp_path: Path) -> None:
    """A value that is too long for the name of a file is in the log alone."""
    assert len(quote(LONG)) > 255
    values: list[str] = ["ok", LONG, "x" * 5000, "/../" + LONG]
    commit(tmp_path, 0, pa.table({"id": [0, 1, 2, 3], "k": values, "n": values}), ["k", "n"])

    assert read(tmp_path, "k") == dict(enumerate(values))


def test_numbers_that_are_none_are_spelt_for_every_reader(tmp_path: Path) -> None:
    """Java reads NaN and Infinity only as it writes them."""
    values: list[float | None] = [1.5, 1e300, math.inf, -math.inf, math.nan, None]
    commit(tmp_path, 0, pa.table({"id": list(range(6)), "k": values}), ["k"])

    spelt = {each["k"] for each in values_in_log(tmp_path)}
    assert spelt == {"1.5", "1e+300", "Infinity", "-Infinity", "NaN", None}


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([b"a"]), "'k' holds binary"),
        (pa.array([[1]]), "'k' holds array"),
        (pa.array([{"x": 1}]), "'k' holds struct"),
    ],
)
def test_a_column_that_cannot_partition_leaves_no_table(
    tmp_path: Path, column: pa.Array, told: str
) -> None:
    """The error names the column before a table is created."""
    with pytest.raises(ResultMisfitError, match=told):
        commit(tmp_path, 0, pa.table({"id": [1], "k": column}), ["k"])
    assert not DeltaTable.is_deltatable(str(tmp_path))


def test_a_time_that_no_reader_has_is_the_records_own_fault(tmp_path: Path) -> None:
    """It depends on the value, so that a policy may give up its record."""
    column = pa.array([2**62], pa.timestamp("us", tz="UTC"))
    with pytest.raises(RowsRefusedError, match="'k' has a value that"):
        commit(tmp_path, 0, pa.table({"id": [1], "k": column}), ["k"])
    assert not DeltaTable.is_deltatable(str(tmp_path))


def test_a_table_has_another_column_than_those_of_its_partitions(tmp_path: Path) -> None:
    """Files without columns would have no rows."""
    with pytest.raises(ResultMisfitError, match="no columns but those of partition_by, k"):
        commit(tmp_path, 0, pa.table({"k": ["a"]}), ["k"])
    assert not DeltaTable.is_deltatable(str(tmp_path))


@example(values=[("\U00020000 \u2028 \x85", None, None), ("\u2029", None, None)])
@given(
    values=st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=120) | st.none(),
            st.datetimes(min_value=dt.datetime(1, 1, 2)) | st.none(),  # noqa: DTZ001 - local times
            st.booleans() | st.none(),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_every_value_of_a_partition_comes_back(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[Any, ...]]
) -> None:
    """Each row has its text, times and flag again; an empty text is null."""
    folder = tmp_path_factory.mktemp("table")
    texts, times, flags = zip(*values, strict=True)
    rows = pa.table(
        {
            "id": pa.array(range(len(values)), pa.int64()),
            "text": pa.array(texts, pa.string()),
            "local": pa.array(times, pa.timestamp("us")),
            "at": pa.array(times, pa.timestamp("us", tz="UTC")),
            "flag": pa.array(flags, pa.bool_()),
        }
    )

    commit(folder, 0, rows, ["text", "local", "at", "flag"])

    expected = [{**row, "text": row["text"] or None} for row in rows.to_pylist()]
    found = DeltaTable(folder).to_pyarrow_table().sort_by("id").select(rows.column_names)
    assert found.to_pylist() == expected
