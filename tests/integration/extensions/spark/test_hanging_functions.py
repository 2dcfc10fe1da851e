"""Functions in Spark's workers that do not return for one record: it is found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.functions import udf
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.core.tables import Decode, Decoding
from headrace.devstack.wait import wait_for
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.spark.engine import SparkEngine
from headrace.extensions.spark.reducer import WorkerReducer
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.testing import InMemoryBroker, InMemoryDeadLetters, in_memory_channel, running

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_EVENTS = TopicPartition("events", 0)

#: The record at which the functions hang.
BAD = 7

#: Seconds of one job: enough for one that does not hang on a busy machine, worker included. One
#: that takes longer all the same comes again.
JOB_SECONDS = 15.0

#: Seconds for all of them.
LONG = 250.0


def returned_but_once(number: int) -> int:
    """Return a number, but never that of the bad record."""
    while number == BAD:
        pass
    return number


def hanging_in_a_udf(df: DataFrame, _batch: MicroBatch) -> DataFrame:
    """Return the ids, each through a function of Python's that is called for it."""
    # pyspark makes something of annotations, which a lambda has none of
    return df.select(udf(lambda number: returned_but_once(number), "int")("id").alias("id"))  # noqa: PLW0108


def hanging_for_a_part(table: pa.Table, _batch: MicroBatch) -> pa.Table:
    """Return the ids of a task's part: what the processor's option ``arrow`` names."""
    while 7 in table.column("id").to_pylist():
        pass
    return table.select(["id"])


@pytest.mark.parametrize(
    "reducer",
    [hanging_in_a_udf, WorkerReducer(hanging_for_a_part, "id INT")],
    ids=["udf", "arrow"],
)
def test_the_record_that_a_function_hangs_at_comes_alone_and_can_be_left_out(
    spark_runtime: SparkRuntime, tmp_path: Path, reducer: Reducer
) -> None:
    """Time-outs divide its batch; what is before it is stored, and it is no dead letter."""
    broker, letters = InMemoryBroker(), InMemoryDeadLetters()
    broker.create_topic("events", 1)
    broker.create_topic("dead")
    broker.produce(_EVENTS, *[json.dumps({"id": number}).encode() for number in range(10)])
    engine = SparkEngine(spark_runtime, reducer, Decode(Decoding.JSON, "id INT"))
    settings: dict[str, Any] = {
        "retry": {"attempts": 1, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "dead_letter", "topic": "dead"},
    }
    channel = in_memory_channel(
        MicroBatchProcessor(engine, DeltaSink(tmp_path), job_timeout=JOB_SECONDS),
        broker,
        dead_letters=letters,
        **settings,
    )

    def is_alone() -> bool:
        return any(
            (each.batch_offset, each.batch_end) == (BAD, BAD + 1) and each.attempts > 1
            for each in channel.partitions()
        )

    with capture_logs() as logs, running(channel):
        assert wait_for(is_alone, Deadline.after(LONG))
        assert broker.wait_committed("group", _EVENTS, BAD, Deadline.after(LONG))
        channel.skip(_EVENTS, BAD, reason="hangs", by="ann")
        assert broker.wait_committed("group", _EVENTS, 10, Deadline.after(LONG))

    errors = [line for line in logs if line["event"] == "processor_error"]
    assert any("did not end in time" in line["error"] for line in errors)
    assert {line["first_offset"] for line in errors} >= {0, BAD}
    assert letters.letters == []
    found = sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist())
    assert found == [number for number in range(10) if number != BAD]
