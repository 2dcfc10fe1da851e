from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.core.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    JobFailedError,
    ReducerError,
    UndecodableRecordError,
)
from headrace.core.records import TopicPartition
from headrace.core.tables import Decode, Decoding, OnUndecodable
from headrace.extensions.spark.reducer import WorkerReducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch

from tests.integration.extensions.spark.channels import (
    ADVANCE,
    SECONDS,
    Channel,
    _merged,
    _wait_for_tasks,
    count,
    places,
    slow,
)
from tests.metrics import value_of


def test_records_reach_the_table_with_their_offsets(channel: Callable[..., Channel]) -> None:
    """Every record of several partitions is in the table once, and the offsets are behind them."""
    ch = channel(places)
    futures = [ch.send(number, [b"v"] * 50, start) for start in (0, 50) for number in range(3)]

    assert [future.result(SECONDS) for future in futures] == [ADVANCE] * 6
    assert ch.offsets() == [100, 100, 100, None]
    found = sorted((row["partition"], row["offset"]) for row in ch.rows())
    assert found == [(number, offset) for number in range(3) for offset in range(100)]


def test_undecodable_records_fail_their_batch_only(channel: Callable[..., Channel]) -> None:
    """The batch with the bad record fails and names it; the others of the job are stored."""
    ch = channel(count, decode=Decode(Decoding.JSON, "id INT"))
    good = ch.send(0, [b'{"id": 1}', None])
    bad = ch.send(1, [b'{"id": 1}', b"rubbish"], start=10)

    assert good.result(SECONDS) == ADVANCE
    error = bad.exception(SECONDS)
    assert isinstance(error, UndecodableRecordError)
    assert (error.partition, error.offset) == (TopicPartition("t", 1), 11)
    assert ch.offsets()[:2] == [2, None]
    assert ch.rows() == [{"partition": 0, "count(id)": 1}]


def test_undecodable_records_are_skipped_and_counted(channel: Callable[..., Channel]) -> None:
    """With skip the batch is stored without the bad records, which the metric counts."""
    decode = Decode(Decoding.JSON, "id INT", OnUndecodable.SKIP)
    ch = channel(count, decode=decode)

    assert ch.send(0, [b'{"id": 1}', b"rubbish", b""]).result(SECONDS) == ADVANCE

    assert ch.rows() == [{"partition": 0, "count(id)": 1}]
    assert value_of(ch.metrics.skipped.labels("channel", "t", "undecodable")) == 2


def test_none_moves_the_offsets(channel: Callable[..., Channel]) -> None:
    """A reducer that returns None stores offsets only, once there is a table to keep them."""

    def sometimes(df: DataFrame, batch: MicroBatch) -> DataFrame | None:
        return places(df, batch) if batch.ranges[0].start == 0 else None

    ch = channel(sometimes)

    assert ch.send(0, [b"v"]).result(SECONDS) == ADVANCE
    assert ch.send(0, [b"v"], start=1).result(SECONDS) == ADVANCE

    assert ch.offsets()[0] == 2
    assert len(ch.rows()) == 1


def test_the_channel_gets_the_reducers_error(channel: Callable[..., Channel]) -> None:
    """Python's own errors arrive as they are, Spark's as a ReducerError with Spark's words.

    A plan that Spark refuses is blamed on no record.
    """

    def fail(df: DataFrame, batch: MicroBatch) -> DataFrame:
        match batch.ranges[0].partition:
            case 0:
                raise KeyError("mine")
            case 1:
                return df.select("no_such_column")
            case 2:
                return df.selectExpr(
                    "1 / 0 as x", "cast(raise_error('row reached') as string) as y"
                )
            case _:
                return "no frame"  # type: ignore[return-value]

    ch = channel(fail)
    errors = [ch.send(number, [b"v"], attempt=2).exception(SECONDS) for number in range(4)]

    assert isinstance(errors[0], KeyError)
    assert isinstance(errors[1], JobFailedError)
    assert "no_such_column" in str(errors[1])
    assert type(errors[2]) is ReducerError
    assert "JVM stacktrace" not in str(errors[2])
    assert isinstance(errors[3], TypeError)
    assert "must return a DataFrame" in str(errors[3])
    assert ch.rows() == []


def test_a_reducers_exit_does_not_end_the_lane(channel: Callable[..., Channel]) -> None:
    """sys.exit() in a reducer fails its batch, and the next batch is processed."""

    def leave(df: DataFrame, batch: MicroBatch) -> DataFrame:
        if batch.ranges[0].partition == 0:
            raise SystemExit(1)
        return places(df, batch)

    ch = channel(leave)

    assert isinstance(ch.send(0, [b"v"]).exception(SECONDS), SystemExit)
    assert ch.send(1, [b"v"]).result(SECONDS) == ADVANCE


def test_a_withdrawn_batch_cancels_its_job(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """Cancelling one future ends a job that would take ten minutes; the rest of it is stored."""
    ch = channel(slow)
    withdrawn, kept = _merged(ch, spark_runtime, 1, 0)

    assert withdrawn.cancel()

    assert kept.result(SECONDS) == ADVANCE
    assert ch.offsets()[:2] == [1, None]


def test_a_job_past_its_deadline_times_out(channel: Callable[..., Channel]) -> None:
    """The job is cancelled, and only the batch that is slow alone has timed out."""
    ch = channel(slow, job_timeout=5.0)
    ok, late = ch.send(0, [b"v"]), ch.send(1, [b"v"])

    assert ok.result(SECONDS) == ADVANCE
    assert isinstance(late.exception(SECONDS), BatchTimeoutError)
    assert ch.offsets()[:2] == [1, None]


@pytest.mark.slow
def test_close_cancels_a_running_job(
    channel: Callable[..., Channel], spark_runtime: SparkRuntime
) -> None:
    """Closing ends a job that would take ten minutes, and answers its batch."""
    ch = channel(slow)
    future = ch.send(1, [b"v"])
    _wait_for_tasks(spark_runtime)

    ch.close()

    assert isinstance(future.exception(0), BatchCancelledError)


def test_a_channel_reduces_in_the_workers(channel: Callable[..., Channel]) -> None:
    """The function runs in Spark's workers on decoded columns, and its rows are in the table."""
    reducer = WorkerReducer(_doubled, "id INT, offset BIGINT")
    ch = channel(reducer, decode=Decode(Decoding.JSON, "id INT"))

    assert ch.send(0, [b'{"id": 1}', b'{"id": 2}']).result(SECONDS) == ADVANCE

    assert sorted(row["id"] for row in ch.rows()) == [2, 4]


def _doubled(table: pa.Table, _batch: MicroBatch) -> pa.Table:
    offsets = pc.struct_field(table["_kafka"], "offset")
    return pa.table({"id": pc.multiply(table["id"], 2), "offset": offsets})
