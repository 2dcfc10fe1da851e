from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headrace.core.errors import ResultMisfitError
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.staging import STAGING
from headrace.testing.sinks import micro_batch, share

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime

_EVERY_TYPE = """
    cast(id as byte) as a_byte, cast(id as short) as a_short, cast(id as int) as an_int,
    id as a_long, cast(id as float) as a_float, cast(id as double) as a_double,
    cast(id as decimal(20, 3)) as a_decimal, cast(id as string) as a_string,
    cast(cast(id as string) as binary) as some_bytes, id > 1 as a_flag, date'2013-01-01' as a_date,
    timestamp'2013-01-01 05:00:00.123456' as an_instant, array(id, null) as an_array,
    map('k', id) as a_map, struct(id as x, 'y' as y) as a_struct, cast(null as string) as nothing
"""


def _commit(sink: DeltaSink, number: int, frame: DataFrame) -> None:
    sink.commit(sink.stage(micro_batch(f"m{number}"), frame), [share(0, number, number + 1)])


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(folder).to_pyarrow_table().to_pylist()
    return rows


def test_every_type_survives(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    """A reader of the table gets what Spark computed, for each type Delta knows."""
    sink = DeltaSink(tmp_path)
    sink.open()
    frame = spark_runtime.session.range(3).selectExpr(*_split(_EVERY_TYPE))
    expected = frame.orderBy("a_long").toArrow().to_pylist()

    _commit(sink, 0, frame)
    _commit(sink, 1, frame.limit(0))

    assert sorted(_rows(tmp_path), key=lambda row: int(row["a_long"])) == expected


def test_columns_may_come_in_another_order(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    """A table is written by name, not by position, and takes null where the first had none."""
    sink = DeltaSink(tmp_path)
    sink.open()
    session = spark_runtime.session

    _commit(sink, 0, session.range(1).groupBy("id").count())
    _commit(sink, 1, session.sql("select cast(null as bigint) as count, 5L as id"))

    assert sorted(_rows(tmp_path), key=lambda row: int(row["id"])) == [
        {"id": 0, "count": 1},
        {"id": 5, "count": None},
    ]


def test_partition_columns(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    """Values of any kind come back from partition columns, and readers can prune by them."""
    sink = DeltaSink(tmp_path, partition_by=["name", "day"])
    sink.open()
    values = ["plain", "a b/c%20=d:ü'\"", None, "__odd__"]
    session = spark_runtime.session
    frames = [
        session.createDataFrame([(n, value)], "id long, name string").selectExpr(
            "id", "name", "date_add(date'2013-01-01', cast(id as int)) as day"
        )
        for n, value in enumerate(values)
    ]
    whole = frames[0].unionAll(frames[1]).unionAll(frames[2]).unionAll(frames[3])

    _commit(sink, 0, whole)

    rows = sorted(_rows(tmp_path), key=lambda row: int(row["id"]))
    assert [row["name"] for row in rows] == values
    assert [row["day"].day for row in rows] == [1, 2, 3, 4]
    pruned = DeltaTable(tmp_path).to_pyarrow_table(filters=[("name", "=", values[1])])
    assert pruned.column("id").to_pylist() == [1]
    again = DeltaSink(tmp_path, partition_by=["name", "day"])
    again.open()
    again.close()


def test_a_job_that_fails_leaves_no_files(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    """The files that a failed job had written are removed with its folder."""
    sink = DeltaSink(tmp_path)
    sink.open()
    frame = spark_runtime.session.range(4).selectExpr("if(id > 2, raise_error('no'), id) as id")

    with pytest.raises(Exception, match="no"):
        sink.stage(micro_batch("one"), frame)

    assert list((tmp_path / STAGING).rglob("*.parquet")) == []
    assert list(tmp_path.glob("*.parquet")) == []


def test_no_checksum_and_marker_files(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    """Beside the data nothing is left in the table's folder."""
    sink = DeltaSink(tmp_path)
    sink.open()

    _commit(sink, 0, spark_runtime.session.range(4))
    sink.close()

    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"_delta_log", *(path.name for path in tmp_path.glob("part-m0-*.parquet"))}
    assert len(names) == 3


def _split(columns: str) -> list[str]:
    """Split a select list at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


#: 31 characters of three bytes each, which take 279 where they are percent-encoded.
_LONG = "東京都渋谷区神宮前一丁目から六丁目までの全ての区域と周辺の地域"


def test_partition_values_of_any_kind_and_length(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """Tasks and fetches write alike: null and no text together, and values too long for a path."""
    values = ["ok", "", None, _LONG, "x" * 3000]
    schema = "id long, name string, `odd,name.ü` string"
    frame = spark_runtime.session.createDataFrame([(n, v, v) for n, v in enumerate(values)], schema)
    sink = DeltaSink(tmp_path, partition_by=["name", "odd,name.ü"])
    sink.open()

    _commit(sink, 0, frame)
    _commit(sink, 1, frame)

    expected = ["ok", None, None, _LONG, "x" * 3000]
    for row in (found := _rows(tmp_path)):
        assert row["name"] == row["odd,name.ü"] == expected[row["id"]]
    assert sorted(row["id"] for row in found) == sorted([*range(5)] * 2)
    # fetched rows come in one file for each partition, of which null and no text are one
    assert len(list(tmp_path.glob("part-m1-*.parquet"))) == 4


def test_times_partition_by_the_moment_in_any_time_zone(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """Also in the hour that a session's time zone has twice; local times are as they are."""
    session = spark_runtime.new_session()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    frame = session.range(4).selectExpr(
        "id",
        "timestamp_micros(1761436800000000 + id * 1800000001) as at",
        "timestamp_ntz'2026-03-29 02:30:00' + make_dt_interval(0, 0, 0, id) as local",
    )
    expected = {row["id"]: row for row in frame.toArrow().to_pylist()}
    for name in ("tasks", "fetched"):
        sink = DeltaSink(tmp_path / name, partition_by=["at", "local"])
        sink.open()
        if name == "fetched":
            _commit(sink, 0, frame.limit(0))
        _commit(sink, 1, frame)
        sink.close()

        found = {row["id"]: row for row in _rows(tmp_path / name)}
        assert found.keys() == expected.keys()
        for number, row in found.items():
            assert row["at"] == expected[number]["at"]
            assert row["local"] == expected[number]["local"]


def test_a_column_that_cannot_partition_makes_no_table(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """It is told by the type, before the result is computed."""
    frame = spark_runtime.session.range(1).selectExpr(
        "id",
        "cast('a' as binary) as raw",
        "array(cast(raise_error('computed') as string)) as listed",
    )
    for name, told in (
        ("raw", "holds binary"),
        ("listed", "holds array"),
        ("no", "no column 'no'"),
    ):
        sink = DeltaSink(tmp_path, partition_by=[name])
        sink.open()
        with pytest.raises(ResultMisfitError, match=told):
            _commit(sink, 0, frame)
        sink.close()
    assert not DeltaTable.is_deltatable(str(tmp_path))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["1 as id", "2 as ID"], "columns 'id' and 'ID' differ by case alone"),
        (["1 as id", "2 as id"], "column 'id' is there twice"),
        (["null as odd"], "column 'odd' is void"),
        (["interval 1 day as odd"], "column 'odd' is interval day"),
        (["named_struct('x', interval '1' year) as s"], "column 's.x' is interval year"),
        (["array(parse_json('1')) as odd"], "column 'odd' is variant"),
        (["map('k', null) as odd"], "column 'odd' is void"),
    ],
)
def test_columns_that_no_table_can_have_make_none(
    spark_runtime: SparkRuntime, tmp_path: Path, columns: list[str], told: str
) -> None:
    """They are named before the result is computed."""
    frame = spark_runtime.session.range(1).selectExpr(*columns, "raise_error('computed') as text")
    sink = DeltaSink(tmp_path)
    sink.open()
    with pytest.raises(ResultMisfitError, match=told):
        _commit(sink, 0, frame)
    sink.close()
    assert not DeltaTable.is_deltatable(str(tmp_path))
