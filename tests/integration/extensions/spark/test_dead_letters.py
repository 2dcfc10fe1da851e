"""Records that a reducer fails for, with sinks that keep offsets and sinks that do not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.core.tables import Decode, Decoding, OnUndecodable
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.spark.engine import SparkEngine
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.sinks.jsonl import JsonLinesSink
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryDeadLetters, in_memory_channel, running
from tests.integration.extensions.spark.channels import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch

pytestmark = pytest.mark.timeout(300)

_GOOD, _BAD = TopicPartition("events", 0), TopicPartition("events", 1)

ON_ERROR: dict[str, Any] = {
    "retry": {"attempts": 2, "backoff": "1ms", "max_backoff": "1ms"},
    "rejects": {"failing": "dead_letter", "topic": "dead"},
}


def invert(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Fail in the job, for a record with id 0."""
    assert batch.records > 0
    return df.selectExpr("id", "1 / id AS inverse")


def _fill(broker: InMemoryBroker) -> set[int]:
    """Produce to both partitions; return the ids that can be processed."""
    broker.create_topic("events", 2)
    broker.create_topic("dead")
    broker.produce(_GOOD, *[_value(number) for number in range(100, 110)])
    broker.produce(_BAD, *[_value(number) for number in range(1, 6)])
    broker.produce(_BAD, _value(0), _value(7), b"no JSON", _value(9))
    return {*range(100, 110), *range(1, 6), 7, 9}


def _value(number: int) -> bytes:
    return json.dumps({"id": number}).encode()


def whole(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Return what has an id."""
    assert batch.records > 0
    return df.where("id IS NOT NULL").select("id")


def test_undecodable_records_are_letters_of_the_first_delivery(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """The micro-batch that has them is stored without them, and nothing is bisected."""
    broker, letters, metrics = InMemoryBroker(), InMemoryDeadLetters(), Metrics()
    expected = _fill(broker) | {0}
    decode = Decode(Decoding.JSON, "id INT", OnUndecodable.DEAD_LETTER)
    sink = JsonLinesSink(tmp_path / "lines")
    processor = MicroBatchProcessor(SparkEngine(spark_runtime, whole, decode), sink)
    channel = in_memory_channel(
        processor, broker, dead_letters=letters, metrics=metrics, **ON_ERROR
    )
    with running(channel):
        for partition, end in ((_GOOD, 10), (_BAD, 9)):
            assert broker.wait_committed("group", partition, end, Deadline.after(SECONDS))

    assert letters.said("offset") == ["7"]
    assert letters.said("attempt") == ["1"]
    assert "[NOT_JSON] at byte 0" in letters.said("message")[0]
    lines = (tmp_path / "lines").read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == sorted(expected)
    labels = {"channel": "member", "topic": "events"}
    assert not metrics.registry.get_sample_value("headrace_bisections_total", labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keeps_offsets",
    [pytest.param(True, id="delta"), pytest.param(False, id="jsonl", marks=pytest.mark.slow)],
)
def test_a_record_that_fails_in_spark_is_found_and_the_rest_stored(
    spark_runtime: SparkRuntime, tmp_path: Path, *, keeps_offsets: bool
) -> None:
    """A job's error and an undecodable value; every other record is in the sink, once in Delta."""
    broker, letters = InMemoryBroker(), InMemoryDeadLetters()
    expected = _fill(broker)
    table, lines = tmp_path / "table", tmp_path / "lines"
    sink = DeltaSink(table) if keeps_offsets else JsonLinesSink(lines)
    decode = Decode(Decoding.JSON, "id INT")
    processor = MicroBatchProcessor(SparkEngine(spark_runtime, invert, decode), sink)
    channel = in_memory_channel(
        processor, broker, dead_letters=letters, **ON_ERROR, max_in_flight=2
    )
    with running(channel):
        for partition, end in ((_GOOD, 10), (_BAD, 9)):
            assert broker.wait_committed("group", partition, end, Deadline.after(SECONDS))
    assert letters.said("offset") == ["5", "7"]
    assert letters.said("error") == ["ReducerError", "UndecodableRecordError"]
    if keeps_offsets:
        ids = [row["id"] for row in DeltaTable(table).to_pyarrow_table().to_pylist()]
        assert sink.stored_offset("in-memory/group/id-1/1") == 9
    else:
        ids = [json.loads(line)["id"] for line in lines.read_text().splitlines()]
    assert sorted(ids) == sorted(expected)
