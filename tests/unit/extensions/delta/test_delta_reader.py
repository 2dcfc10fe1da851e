from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from headrace.core.errors import SinkFailedError
from headrace.extensions.delta.reader import DeltaLog, read_rows
from headrace.extensions.delta.sink import MEMBER_KEY, DeltaSink
from tests.unit.extensions.delta.delta_tables import share, stage

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, rows: int, member: str | None, **offsets: int) -> None:
    """Append rows in one commit that names its member and moves offsets."""
    write_deltalake(
        folder,
        pa.table({"id": list(range(rows)), "other": ["x"] * rows}),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={} if member is None else {MEMBER_KEY: member},
            app_transactions=[Transaction(name, offset) for name, offset in offsets.items()],
        ),
    )


def test_a_log_is_followed_from_before_the_table(tmp_path: Path) -> None:
    """Each commit is returned once, in order, with its member, rows and offsets."""
    log = DeltaLog(tmp_path)
    assert log.read_new() == []
    write(tmp_path, 3, "one", p0=3)
    write(tmp_path, 2, None)
    first, second = log.read_new()
    assert (first.version, first.member, first.rows, first.offsets) == (0, "one", 3, {"p0": 3})
    assert (second.version, second.member, second.rows, second.offsets) == (1, None, 2, {})
    write(tmp_path, 1, "two", p0=4, p1=9)
    [third] = log.read_new()
    assert (third.version, third.member, third.offsets) == (2, "two", {"p0": 4, "p1": 9})
    assert third.at >= second.at >= first.at > 1e9
    assert log.read_new() == []


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    """A file of the log that is not JSON is an error with its path."""
    write(tmp_path, 1, None)
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text("no json", encoding="utf-8")
    with pytest.raises(SinkFailedError, match=r"00001\.json is no commit"):
        DeltaLog(tmp_path).read_new()


def test_rows_come_with_the_columns_asked_for(tmp_path: Path) -> None:
    """Only the named columns are read, of all rows."""
    write(tmp_path, 3, None)
    write(tmp_path, 2, None)
    table = read_rows(tmp_path, ["id"])
    assert table.column_names == ["id"]
    assert sorted(table.column("id").to_pylist()) == [0, 0, 1, 1, 2]


def test_a_missing_column_is_an_error(tmp_path: Path) -> None:
    """A column that the table has not is an error that names the folder."""
    write(tmp_path, 1, None)
    with pytest.raises(SinkFailedError, match="cannot be read"):
        read_rows(tmp_path, ["absent"])


def test_a_commit_of_the_sink_names_its_member(tmp_path: Path) -> None:
    """A commit is read back with its member, its rows and its offsets."""
    sink = DeltaSink(tmp_path / "table", member="one")
    sink.open()
    sink.commit(stage(sink, "first", [1, 2]), [share(0, 0, 10)])
    sink.close()
    _, commit = DeltaLog(tmp_path / "table").read_new()
    assert (commit.member, commit.rows, commit.offsets) == ("one", 2, {"id/0": 10})
