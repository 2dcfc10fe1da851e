from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.core.errors import ReducerError, StartError, UndecodableRecordError
from headrace.testing import FakeRecord, LocalSpark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.spark import MicroBatch
    from headrace.testing.reducers import Given

SCHEMA = "carrier STRING, delay INT"
FLIGHTS: list[dict[str, Any]] = [
    {"carrier": "UA", "delay": 10},
    {"carrier": "UA", "delay": 5},
    {"carrier": "AA", "delay": -3},
]


def worst(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Return the worst delay of each carrier, and how many records there were."""
    found = df.groupBy("carrier").agg({"delay": "max"}).withColumnRenamed("max(delay)", "worst")
    return found.selectExpr("*", f"{batch.records} as records").orderBy("carrier")


def wrong(df: DataFrame, _: MicroBatch) -> Any:
    """Return what is no DataFrame."""
    return df.collect()


@pytest.fixture
def spark(spark_runtime: SparkRuntime) -> Iterator[LocalSpark]:
    """The session there is, as a user's test has it."""
    with LocalSpark(spark_runtime.session) as spark:
        yield spark


def test_a_reducer_is_tested_in_one_line(spark: LocalSpark) -> None:
    """Records in, rows out, decoded as a channel decodes."""
    expected = [
        {"carrier": "AA", "worst": -3, "records": 3},
        {"carrier": "UA", "worst": 10, "records": 3},
    ]
    assert spark.reduce(worst, FLIGHTS, schema=SCHEMA) == expected
    assert spark.reduce(f"{__name__}:worst", FLIGHTS, schema=SCHEMA) == expected
    assert spark.reduce(lambda *_: None, FLIGHTS) == []


def test_a_reducer_for_several_outputs_is_tested_in_one_line(spark: LocalSpark) -> None:
    """The output whose rows are wanted is named."""

    def several(df: DataFrame, _: MicroBatch) -> dict[str, DataFrame | None]:
        return {"late": df.where("delay > 0").select("delay"), "none": None}

    late = spark.reduce(several, FLIGHTS, schema=SCHEMA, output="late")
    assert sorted(row["delay"] for row in late) == [5, 10]
    assert spark.reduce(several, FLIGHTS, schema=SCHEMA, output="none") == []


def test_a_query_is_tested_in_one_line(spark: LocalSpark) -> None:
    """A query sees the view that a channel's sees, with headers and times."""
    record = FakeRecord(value_=b"v", headers_=[("h", b"1")], timestamp_=1_700_000_000_123)
    query = "select offset, headers[0].value as h, unix_millis(timestamp) as at from batch"
    assert spark.query(query, [record]) == [{"offset": 0, "h": b"1", "at": 1_700_000_000_123}]
    with pytest.raises(StartError, match=r"processor\.sql cannot be planned"):
        spark.query("select no from batch", [record])


def test_errors_are_those_of_a_channel(spark: LocalSpark) -> None:
    """A bad record is named, a failed job says what Spark says, and no DataFrame is an error."""
    records: list[Given] = [{"carrier": "UA", "delay": 1}, b"rubbish"]
    with pytest.raises(UndecodableRecordError, match="record at offset 1"):
        spark.reduce(worst, records, schema=SCHEMA)
    assert len(spark.reduce(worst, records, schema=SCHEMA, undecodable="skip")) == 1
    with pytest.raises(ReducerError, match="no_such_column"):
        spark.reduce(lambda df, _: df.select("no_such_column"), records)
    with pytest.raises(TypeError, match="returned a list; it must return a DataFrame"):
        spark.reduce(wrong, records)


def sizes(table: pa.Table, batch: MicroBatch) -> pa.Table | None:
    """Return the sizes of a task's records, and nothing of the value "none"."""
    values = table.column("value")
    if values.to_pylist() == [b"none"]:
        return None
    found = {"offset": table["offset"], "headers": pc.is_valid(table["headers"])}
    records = pa.array([batch.records] * table.num_rows, pa.uint8())
    return pa.table({"size": pc.binary_length(values), "records": records, **found})


SIZES = "offset BIGINT, size INT, headers BOOLEAN, records LONG"


def test_a_reducer_for_the_workers_is_tested_in_one_line(spark: LocalSpark) -> None:
    """Each task gives the function its part, and columns become those of the result by name."""
    record = FakeRecord(value_=b"abc", headers_=[("h", b"1")])
    assert spark.reduce_arrow(sizes, [record, b"d", b"ef"], result=SIZES) == [
        {"offset": 0, "size": 3, "headers": True, "records": 3},
        {"offset": 1, "size": 1, "headers": False, "records": 3},
        {"offset": 2, "size": 2, "headers": False, "records": 3},
    ]
    assert spark.reduce_arrow(f"{__name__}:sizes", [b"none"], result=SIZES) == []


def test_errors_in_the_workers_are_told(spark: LocalSpark) -> None:
    """Other columns, no table, an exception and a result that cannot be read say so."""
    with pytest.raises(ReducerError, match=r"returned the columns .*; processor\.result has a"):
        spark.reduce_arrow(sizes, [b"a"], result="a INT")
    with pytest.raises(ReducerError, match="returned a list"):
        spark.reduce_arrow(lambda *_: [], [b"a"], result="a INT")
    with pytest.raises(ReducerError, match="ZeroDivisionError"):
        spark.reduce_arrow(lambda *_: 1 / 0, [b"a"], result="a INT")
    with pytest.raises(StartError, match="'offset BIGIN' is not a list of columns"):
        spark.reduce_arrow(sizes, [b"a"], result="offset BIGIN")
