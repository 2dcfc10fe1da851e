"""Undecodable values under any plan: each record is in the reducer's input, or answered for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.decoders import CustomDecoder
from headrace.core.errors import UndecodableRecordError
from headrace.core.records import TopicPartition
from headrace.core.tables import Decode, Decoding, OnUndecodable
from headrace.extensions.arrow.decode import ArrowDecoder
from headrace.extensions.arrow.reducer import dry_run as dry_run_inline
from headrace.extensions.spark.arrow_to_spark import ArrowToSpark
from headrace.extensions.spark.decode import Decoder
from headrace.extensions.spark.dryrun import dry_run
from headrace.testing import FakeRecord, records_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import DryRunBatch, MicroBatch

    #: What each record became: its offset and id, or its offset among those left out.
    Answers = tuple[list[tuple[int, int | None]], list[int]]

SCHEMA = "id INT, name STRING"
WHERE = TopicPartition("events", 0)

#: What is decoded the same by Spark and without it, with and without a row.
VALUES: list[bytes | None] = [
    b"",
    b" ",
    b"\n",
    b" \t\r\n ",
    b"null",
    b"[]",
    b"[1]",
    b"rubbish",
    b'{"id": 1',
    b'{"id": "one"}',
    b'{"id": 99999999999}',
    b"\x00",
    b"\xff",
    b"{}",
    b'{"id": 1, "name": "a"}',
    b'{"id": -5}',
    b'{"name": "b"}',
    b'{"id": null}',
    None,
]

_EMPTY = (b"", b" ", b"\n", b"null")


def _in_sql(df: DataFrame, query: str) -> DataFrame:
    df.createOrReplaceTempView("of_a_test")
    return df.sparkSession.sql(query)


def _seen_twice(df: DataFrame) -> DataFrame:
    """Run one action and throw it away, as a reducer does that looks before it plans."""
    df.where("id is not null").limit(1).count()
    return df.where("id is not null")


def _swallowed(df: DataFrame) -> DataFrame:
    """Catch what Spark raises, and go on."""
    try:
        df.where("id > 0").collect()
    except Exception:  # noqa: BLE001 - this is what some reducers do
        return df.limit(0)
    return df.where("id > 0")


#: Plans in which a predicate within the plan would be passed over, moved or never reached.
REDUCERS: dict[str, Callable[[DataFrame], DataFrame | None]] = {
    "all": lambda df: df,
    "not null": lambda df: df.where("id IS NOT NULL"),
    "greater": lambda df: df.where("id > 0"),
    "by name": lambda df: df.where("name = 'a'"),
    "never": lambda df: df.where("false"),
    "sql": lambda df: _in_sql(df, "SELECT id FROM of_a_test WHERE id IS NOT NULL"),
    "sql having": lambda df: _in_sql(
        df, "SELECT name, count(*) n FROM of_a_test WHERE id > 0 GROUP BY name HAVING n > 0"
    ),
    "dropna": lambda df: df.dropna(subset=["id"]),
    "dropna all": lambda df: df.dropna("all", subset=["id", "name"]),
    "aggregate": lambda df: df.where("id is not null").groupBy("name").count(),
    "count": lambda df: df.groupBy().count(),
    "constant": lambda df: df.selectExpr("1 as one"),
    "of kafka": lambda df: df.selectExpr("_kafka.offset"),
    "limit": lambda df: df.limit(1),
    "limit 0": lambda df: df.limit(0),
    "limit after filter": lambda df: df.where("id > 0").limit(1),
    "join": lambda df: df.join(df.selectExpr("id as other"), df.id == 1, "inner"),
    "join with a table": lambda df: df.join(df.sparkSession.range(5), "id"),
    "semi join": lambda df: df.join(df.sparkSession.range(5), "id", "left_semi"),
    "union": lambda df: df.where("id > 0").union(df.where("id < 0")),
    "distinct": lambda df: df.where("id is not null").select("name").distinct(),
    "sorted": lambda df: df.where("id is not null").orderBy("id").limit(1),
    "sampled": lambda df: df.sample(0.0),
    "cached": lambda df: df.where("id is not null").cache(),
    "checkpointed": lambda df: df.where("id is not null").localCheckpoint(),
    "looked at before": _seen_twice,
    "swallowed": _swallowed,
    "another table": lambda df: df.sparkSession.range(3),
    "nothing": lambda _: None,
}


def of_spark(
    runtime: SparkRuntime,
    values: Sequence[bytes | None],
    plan: Callable[[DataFrame], DataFrame | None],
    treating: OnUndecodable,
) -> DryRunBatch:
    """Reduce values with Spark, in two tasks."""
    decode = Decode(Decoding.JSON, SCHEMA, treating)

    def reduce(df: DataFrame, _: MicroBatch) -> DataFrame | None:
        return plan(df)

    return dry_run(runtime.session, reduce, records_table(values), decode)


def of_arrow(values: Sequence[bytes | None], treating: OnUndecodable) -> DryRunBatch:
    """Reduce values without Spark."""
    decode = Decode(Decoding.JSON, SCHEMA, treating)
    return dry_run_inline(lambda table, _: table, records_table(values), decode)


@pytest.mark.parametrize("name", REDUCERS)
def test_an_undecodable_value_fails_under_any_plan(spark_runtime: SparkRuntime, name: str) -> None:
    """An empty value fails its batch whatever the reducer makes of the others, and is named."""
    values = [b'{"id": 1, "name": "a"}', b'{"id": 2}', b"", b'{"id": 3}', b" "]

    with pytest.raises(UndecodableRecordError) as raised:
        of_spark(spark_runtime, values, REDUCERS[name], OnUndecodable.FAIL)

    assert (raised.value.partition, raised.value.offset) == (WHERE, 2)


@pytest.mark.parametrize("name", ["limit", "limit 0", "join", "count", "not null", "nothing"])
def test_skipped_records_are_counted_under_any_plan(spark_runtime: SparkRuntime, name: str) -> None:
    """With skip each undecodable record is counted once, however little the plan reads."""
    values = [*_EMPTY, b'{"id": 1, "name": "a"}', *_EMPTY]

    found = of_spark(spark_runtime, values, REDUCERS[name], OnUndecodable.SKIP)

    assert found.skipped == {WHERE: [0, 1, 2, 3, 5, 6, 7, 8]}


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=8),
    name=st.sampled_from(sorted(REDUCERS)),
)
def test_each_record_is_answered_for_as_without_spark(
    spark_runtime: SparkRuntime, values: list[bytes | None], name: str
) -> None:
    """The records that reach the reducer, are left out or fail are those of the arrow decoder."""
    expected = of_arrow(values, OnUndecodable.SKIP)
    seen: list[Any] = []

    def looking(df: DataFrame) -> DataFrame | None:
        seen.extend(df.toArrow().to_pylist())
        return REDUCERS[name](df)

    found = of_spark(spark_runtime, values, looking, OnUndecodable.SKIP)

    assert isinstance(expected.rows, pa.Table)
    assert sorted(seen, key=_offset) == expected.rows.to_pylist()
    assert found.skipped == expected.skipped
    assert len(seen) + sum(map(len, found.skipped.values())) == len(values)
    if expected.skipped:
        with pytest.raises(UndecodableRecordError) as without:
            of_arrow(values, OnUndecodable.FAIL)
        with pytest.raises(UndecodableRecordError) as raised:
            of_spark(spark_runtime, values, REDUCERS[name], OnUndecodable.FAIL)
        assert raised.value.offset == without.value.offset
    else:
        of_spark(spark_runtime, values, REDUCERS[name], OnUndecodable.FAIL)


def loader() -> Callable[[bytes], Any]:
    """Return a decoder of a user's own."""
    return json.loads


@pytest.mark.parametrize("at_hand", [True, False], ids=["by value", "by reference"])
@pytest.mark.parametrize("custom", [False, True], ids=["json", "custom"])
def test_letters_are_made_of_the_same_as_without_spark(
    spark_runtime: SparkRuntime, at_hand: bool, custom: bool
) -> None:
    """Key, value, headers, time and reason of what is to be a dead letter, in order.

    Where the daemon has the records it takes them from there, and Spark says which ones.
    """
    records = [
        FakeRecord(
            partition_=place % 2,
            key_=None if place % 3 else b"k%d" % place,
            value_=value,
            headers_=[("h", b"1"), ("h", None)] if place % 4 == 0 else None,
            timestamp_=1_700_000_000_123 + place,
        )
        for place, value in enumerate(VALUES)
    ]
    table = records_table(records)
    decode = Decode(Decoding.JSON, SCHEMA, OnUndecodable.DEAD_LETTER)
    if custom:
        decode = replace(decode, kind=Decoding.CUSTOM, custom=CustomDecoder(f"{__name__}:loader"))
    frame = ArrowToSpark(spark_runtime.new_session()).data_frame(table)
    batches = [table.filter(pc.field("partition") == number) for number in (1, 2, 0)]

    with Decoder(decode).decoded(frame, batches if at_hand else None) as decoded:
        rows = decoded.frame.count()

    expected = ArrowDecoder(decode).apply(table)
    assert decoded.rejected == expected.rejected
    assert decoded.skipped == {}
    assert rows + sum(map(len, decoded.rejected.values())) == len(VALUES)
    assert rows == expected.table.num_rows


def _offset(row: dict[str, Any]) -> int:
    offset: int = row["_kafka"]["offset"]
    return offset
