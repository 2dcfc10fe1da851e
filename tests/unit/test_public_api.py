"""The library's public names, and the example configuration's code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import Batch, BatchResponse
from headrace.config import load
from headrace.core.imports import load_callable
from headrace.extensions.spark.section import SparkProcessorConfig
from headrace.processors.sections import CustomProcessorConfig
from headrace.sinks.sections import FunctionSinkConfig
from headrace.testing import InMemoryBroker, in_memory_channel, make_batch, running

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_public_name_can_be_imported() -> None:
    """Each name in __all__ exists, and a wrong one is an AttributeError."""
    for name in headrace.__all__:
        assert getattr(headrace, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(headrace, "nothing")  # noqa: B009 - the checker knows that it is missing


def test_importing_headrace_imports_no_client_and_no_spark() -> None:
    """The package costs nothing until something of it is used."""
    code = (
        "import sys, headrace; "
        "heavy = ('pyspark', 'pyarrow', 'kazoo', 'confluent_kafka', 'pydantic'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("in_columns", [False, True])
def test_a_processor_makes_a_table_of_each_batch(in_columns: bool) -> None:
    """The table has keys, values and offsets, for any way of fetching."""

    class Tables(headrace.BatchProcessor):
        def __init__(self) -> None:
            self.rows: list[tuple[bytes | None, int]] = []

        def on_next_batch(self, batch: Batch) -> BatchResponse:
            table = headrace.table_of(batch).select(["value", "offset"])
            self.rows += [(row["value"], row["offset"]) for row in table.to_pylist()]
            return BatchResponse.advance()

    broker, tables = InMemoryBroker(), Tables()
    broker.in_columns = in_columns
    broker.create_topic("events")
    partition = headrace.TopicPartition("events", 0)
    broker.produce(partition, b"a", None, b"c")
    with running(in_memory_channel(tables, broker)):
        assert broker.wait_committed("group", partition, 3, headrace.Deadline.after(10))
    assert tables.rows == [(b"a", 0), (None, 1), (b"c", 2)]


def test_a_user_tests_a_processor_in_a_few_lines() -> None:
    """A processor runs in a real channel without any server, and alone with a made batch."""

    class Doubling(headrace.BatchProcessor):
        seen = 0

        def on_next_batch(self, batch: Batch) -> BatchResponse:
            self.seen += 2 * len(batch)
            return BatchResponse.advance()

    doubling = Doubling()
    assert doubling.on_next_batch(make_batch([b"a", b"b"])) == BatchResponse.advance()
    broker = InMemoryBroker()
    broker.create_topic("events")
    partition = headrace.TopicPartition("events", 0)
    broker.produce(partition, b"a", b"b", b"c")
    with running(in_memory_channel(doubling, broker)):
        assert broker.wait_committed("group", partition, 3, headrace.Deadline.after(10))
    assert doubling.seen == 10


def test_the_example_configuration_s_code_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reducer, function and factory that examples/headrace.yaml names can be loaded."""
    monkeypatch.syspath_prepend(EXAMPLES)
    paths = []
    for channel in load(EXAMPLES / "headrace.yaml").channels.values():
        match channel.processor:
            case SparkProcessorConfig(reducer=str(path)) | CustomProcessorConfig(factory=path):
                paths.append(path)
        match channel.sink:
            case FunctionSinkConfig(function=path):
                paths.append(path)
    assert sorted(paths) == ["alerts:send", "auditing:Processor", "reducers:by_carrier"]
    for path in paths:
        assert callable(load_callable(path))
