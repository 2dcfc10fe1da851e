"""A Python worker of Spark's that ends in the middle of its task, and what is blamed for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.core.tables import Decode, Decoding
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.spark.engine import SparkEngine
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryDeadLetters, in_memory_channel, running
from tests.integration.extensions.spark.channels import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import MicroBatch

pytestmark = pytest.mark.timeout(300)

_EVENTS = TopicPartition("events", 0)

#: One failure for which records may be to blame, and they are given up.
_AT_ONCE: dict[str, Any] = {"retry": {"attempts": 1, "backoff": "1ms", "max_backoff": "1ms"}}
_SKIP = _AT_ONCE | {"rejects": {"failing": "skip"}}
_DEAD_LETTER = _AT_ONCE | {"rejects": {"failing": "dead_letter", "topic": "dead"}}


class _Run:
    """A channel that had ten records with the ids 0 to 9, and what became of them."""

    def __init__(
        self, runtime: SparkRuntime, folder: Path, reducer: Reducer, policy: dict[str, Any]
    ) -> None:
        broker, self.letters, self.metrics = InMemoryBroker(), InMemoryDeadLetters(), Metrics()
        broker.create_topic("events", 1)
        broker.create_topic("dead")
        broker.produce(_EVENTS, *[json.dumps({"id": number}).encode() for number in range(10)])
        engine = SparkEngine(runtime, reducer, Decode(Decoding.JSON, "id INT"))
        channel = in_memory_channel(
            MicroBatchProcessor(engine, DeltaSink(folder)),
            broker,
            dead_letters=self.letters,
            metrics=self.metrics,
            **policy,
        )
        with running(channel):
            assert broker.wait_committed("group", _EVENTS, 10, Deadline.after(SECONDS))
        table = DeltaTable(folder).to_pyarrow_table() if DeltaTable.is_deltatable(folder) else None
        self.ids = [] if table is None else sorted(table["id"].to_pylist())

    def divided(self) -> float:
        """Return how often a batch was divided."""
        (metric,) = self.metrics.bisections.collect()
        return sum(sample.value for sample in metric.samples if sample.name.endswith("_total"))


@pytest.mark.parametrize("policy", [_SKIP, _DEAD_LETTER], ids=["skip", "dead_letter"])
def test_no_record_is_blamed_for_a_killed_worker(
    spark_runtime: SparkRuntime, tmp_path: Path, policy: dict[str, Any]
) -> None:
    """SIGKILL of a worker, as when memory is short: its batch comes again whole, and is stored."""
    marker = tmp_path / "killed"

    def reduce(df: DataFrame, _batch: MicroBatch) -> DataFrame:
        result = df.select("id")
        return result.mapInArrow(_killed_once(str(marker)), result.schema)

    run = _Run(spark_runtime, tmp_path / "table", reduce, policy)

    assert marker.exists()
    assert run.ids == [*range(10)]
    assert run.letters.letters == []
    assert run.divided() == 0


@pytest.mark.slow
def test_a_record_that_makes_workers_crash_is_found(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """A segmentation fault is told from a kill, by Spark's fault handler: it is a dead letter."""

    def reduce(df: DataFrame, _batch: MicroBatch) -> DataFrame:
        result = df.select("id")
        return result.mapInArrow(_crashing, result.schema)

    run = _Run(spark_runtime, tmp_path / "table", reduce, _DEAD_LETTER)

    assert run.ids == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert run.letters.said("offset") == ["7"]
    assert "Segmentation fault" in run.letters.said("message")[0]


def _killed_once(marker: str) -> Callable[[Any], Any]:
    def pass_on(frames: Any) -> Any:
        import os  # noqa: PLC0415 - runs in a Python worker
        import signal  # noqa: PLC0415

        part = list(frames)  # to the end: Spark says other things of what was not read
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            yield from part
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_on


def _crashing(frames: Any) -> Any:
    import os  # noqa: PLC0415 - runs in a Python worker
    import signal  # noqa: PLC0415

    for frame in frames:
        if 7 in frame.column("id").to_pylist():
            os.kill(os.getpid(), signal.SIGSEGV)
        yield frame
