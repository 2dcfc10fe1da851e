"""An operator's seek and skip, with Spark and a Delta table behind the channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from headrace.core.clock import Deadline
from headrace.core.positions import Replay
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.spark.engine import SparkEngine
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.integration.extensions.spark.channels import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch

P0 = TopicPartition("events", 0)


def refuse_poison(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Keep each record's offset, unless there is one that cannot be processed."""
    assert batch.records > 0
    if df.filter(F.col("value") == F.lit(b"poison")).count():
        raise ValueError("cannot be processed")
    return df.select("offset")


def _channel(runtime: SparkRuntime, folder: Path, broker: InMemoryBroker) -> InboundKafkaChannel:
    processor = MicroBatchProcessor(SparkEngine(runtime, refuse_poison), DeltaSink(folder))
    backoff = {"backoff": "1h", "max_backoff": "1h"}
    return in_memory_channel(processor, broker, retry=backoff, max_in_flight=2)


def _broker(*values: bytes) -> InMemoryBroker:
    broker = InMemoryBroker()
    broker.create_topic("events", 1)
    broker.produce(P0, *values)
    return broker


def _offsets(folder: Path) -> list[int]:
    rows: list[int] = DeltaTable(folder).to_pyarrow_table()["offset"].to_pylist()
    return sorted(rows)


def _eventually(condition: Callable[[], bool]) -> None:
    assert wait_for(condition, Deadline.after(SECONDS))


def test_a_seek_moves_the_table_with_the_group(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    """Back, the records come again; forward, they are passed over; the history says who."""
    broker = _broker(*(b"%d" % number for number in range(10)))
    channel = _channel(spark_runtime, tmp_path, broker)
    with running(channel):
        assert broker.wait_committed("group", P0, 10, Deadline.after(SECONDS))
        for offset, value, end in ((7, b"10", 11), (12, b"12", 13)):
            channel.pause(by="test")
            assert channel.wait_paused(Deadline.after(SECONDS))
            if offset > end - 2:
                broker.produce(P0, b"11")
            deadline = Deadline.after(SECONDS)
            channel.seek(P0, offset, by="ann", deadline=deadline, replay=Replay.APPEND)
            assert broker.wait_committed("group", P0, offset, Deadline.after(SECONDS))
            broker.produce(P0, value)
            channel.resume(by="test")
            assert broker.wait_committed("group", P0, end, Deadline.after(SECONDS))
    assert _offsets(tmp_path) == sorted([*range(11), 7, 8, 9, 12])
    history = str(DeltaTable(tmp_path).history())
    assert "seek by ann" in history


def test_a_poison_record_is_left_out_of_a_micro_batch(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """The rest of its batch is in the table, and so is what comes behind a batch of it alone."""
    broker = _broker(b"0", b"poison", b"2")
    channel = _channel(spark_runtime, tmp_path, broker)
    with running(channel):
        _eventually(lambda: any(each.state == "backing_off" for each in channel.partitions()))
        channel.skip(P0, 1, reason="no JSON", by="ann")
        assert broker.wait_committed("group", P0, 3, Deadline.after(SECONDS))
        broker.produce(P0, b"poison")
        _eventually(lambda: any(each.state == "backing_off" for each in channel.partitions()))
        channel.skip(P0, 3, reason="no JSON", by="ann")
        assert broker.wait_committed("group", P0, 4, Deadline.after(SECONDS))
        broker.produce(P0, b"4")
        assert broker.wait_committed("group", P0, 5, Deadline.after(SECONDS))
    assert _offsets(tmp_path) == [0, 2, 4]
