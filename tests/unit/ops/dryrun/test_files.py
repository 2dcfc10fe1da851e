from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.columns import HEADERS
from headrace.core.errors import UsageError
from headrace.core.records import TopicPartition
from headrace.core.tables import SCHEMA
from headrace.ops.dryrun.commands import Range, parse_range, read_file

if TYPE_CHECKING:
    from pathlib import Path

NOON = dt.datetime(2013, 1, 2, 12, tzinfo=dt.UTC)


def test_lines_of_json_are_values(tmp_path: Path) -> None:
    """Each line that is not empty is a record of a topic named like the file."""
    path = tmp_path / "flights.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": 2}\r\nno json')

    table = read_file(path)

    assert table.schema == SCHEMA
    assert table.column("value").to_pylist() == [b'{"a": 1}', b'{"a": 2}', b"no json"]
    assert table.column("offset").to_pylist() == [0, 1, 2]
    assert (
        table.drop_columns(["value", "offset"]).to_pylist()
        == [{"key": None, "topic": "flights", "partition": 0, "timestamp": None, "headers": None}]
        * 3
    )


def test_rows_of_parquet_are_values_in_json(tmp_path: Path) -> None:
    """A table of anything can be tried as the JSON that a producer would send."""
    path = tmp_path / "any"
    pq.write_table(pa.table({"a": [1, None], "at": [NOON, None]}), path)

    assert read_file(path).column("value").to_pylist() == [
        b'{"a":1,"at":"2013-01-02T12:00:00.000Z"}',
        b'{"a":null,"at":null}',
    ]


def test_records_kept_in_parquet_come_back(tmp_path: Path) -> None:
    """With a column ``value``, the other columns are the record's, if they exist."""
    path = tmp_path / "any.parquet"
    headers = pa.array([[{"key": "k", "value": b"v"}]], HEADERS)
    pq.write_table(
        pa.table({"value": ["a"], "offset": pa.array([7], pa.int32()), "headers": headers}), path
    )

    (row,) = read_file(path).to_pylist()

    assert (row["value"], row["offset"], row["topic"], row["partition"]) == (b"a", 7, "any", 0)
    assert row["headers"] == [{"key": "k", "value": b"v"}]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, and a column of a wrong type, say what is wrong with them."""
    with pytest.raises(UsageError, match=r"nowhere cannot be read: .*No such file"):
        read_file(tmp_path / "nowhere")
    pq.write_table(pa.table({"value": ["a"], "offset": ["b"]}), tmp_path / "odd")
    with pytest.raises(UsageError, match="'offset' is of type string and should be int64"):
        read_file(tmp_path / "odd")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a.b-c:3:10-20", Range(TopicPartition("a.b-c", 3), 10, 20)),
        ("flights.jsonl", None),
        ("a:b:1-2", None),
        ("a:1:2", None),
    ],
)
def test_a_range_is_told_from_a_file(text: str, found: Range | None) -> None:
    """TOPIC:N:FROM-TO is a range, and nothing else is."""
    assert parse_range(text) == found


@pytest.mark.parametrize("text", ["a:0:5-5", "a:0:5-4"])
def test_a_range_has_to_have_offsets(text: str) -> None:
    """The end lies behind the beginning."""
    with pytest.raises(UsageError, match="is not past"):
        parse_range(text)
