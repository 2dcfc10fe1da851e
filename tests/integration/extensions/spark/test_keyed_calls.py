"""A keyed reducer in Spark's workers that hangs or ends them: its key and record are found."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from headrace.core.call_watch import MOST_ENDS, CallWatch
from headrace.core.errors import JobFailedError, JobTimeoutError
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.tables import DEAD_LETTERS
from headrace.extensions.spark.keyed import KeyedSparkEngine
from headrace.extensions.spark.worker_calls import WorkerCalls
from headrace.keyed import Output
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing import FakeRecord, records_table
from headrace.testing.channel import FakeClock
from headrace.testing.keyed import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from headrace.extensions.spark.runtime import SparkRuntime

pytestmark = pytest.mark.timeout(300)

#: Seconds that a job may take that hangs, and one that is to end by itself on a busy machine.
HANGING_SECONDS, OTHER_SECONDS = 16.0, 200.0


def forever() -> None:
    """Run in Python code."""
    while True:
        time.sleep(0.01)


def hold_the_lock() -> None:
    """Sleep in code of C's, while no thread of the process runs Python."""
    ctypes.PyDLL(None).sleep(1000)


def end_the_process() -> None:
    """End the worker."""
    os._exit(3)


def counting(at_bad: Callable[[], None]) -> Callable[..., Any]:
    """Return a reducer that counts, and does something at one value."""

    def reduce(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        del key, now
        for fact in facts:
            if fact.value == "bad":
                at_bad()
            state = (state or 0) + 1
        return state, [Output(state)], {}

    return reduce


class Lane:
    """The work of a lane with a keyed engine, once for each micro-batch of the same records."""

    def __init__(self, runtime: SparkRuntime, folder: Path, at_bad: Callable[[], None]) -> None:
        self._watch = CallWatch()
        self._watch.open("c", print)
        calls: Any = WorkerCalls(self._watch, folder)
        reducer = counting(at_bad)
        settings = FoldSettings(outputs=("out",), value="string", failing="dead_letter")
        state = LayeredState(MemoryStore())
        state.admit(0)
        function = KeyedFunction(Fold(reducer, settings, calls), RowSettings(), state, FakeClock())
        self._engine = KeyedSparkEngine(runtime, function.reduce, reducer, calls)
        self._engine.open(f"c-{id(self)}")
        self._number = 0
        self._reduce([("a", "x"), ("b", "x")], OTHER_SECONDS)  # has workers started

    def reduce(self, seconds: float = OTHER_SECONDS) -> dict[str, tuple[int, list[str]]]:
        """Return by key its state and where its outputs go."""
        sent = [("a", "x"), ("b", "x"), ("a", "x"), ("b", "bad"), ("b", "x"), ("c", "x")]
        return self._reduce(sent, seconds)

    def _reduce(
        self, sent: list[tuple[str, str]], seconds: float
    ) -> dict[str, tuple[int, list[str]]]:
        self._number += 1
        records = records_table(
            [FakeRecord(key_=key.encode(), value_=value.encode()) for key, value in sent]
        )
        parts = (OffsetRange("events", 0, 0, len(sent), len(sent), "i/0"),)
        micro_batch = MicroBatch(f"{id(self)}-{self._number}", "c", parts)
        kept: list[pa.Table] = []
        sink = MagicMock()
        sink.stage = lambda _batch, result, _check: kept.append(result)
        with self._engine.admitted():
            self._engine.execute(micro_batch, [records], seconds, sink)
        return {
            row["key"].decode(): (int(row["state"]), [each["to"] for each in row["outputs"]])
            for row in kept[0].to_pylist()
        }

    def close(self) -> None:
        """End the engine's part of the session, and the watch."""
        self._engine.close()
        self._watch.close()


@contextmanager
def lane(runtime: SparkRuntime, folder: Path, at_bad: Callable[[], None]) -> Iterator[Lane]:
    """A lane, closed at the end."""
    opened = Lane(runtime, folder, at_bad)
    try:
        yield opened
    finally:
        opened.close()


#: What becomes of the records: all but one are counted.
EXPECTED = {
    "a": (2, ["out", "out"]),
    "b": (2, ["out", DEAD_LETTERS, "out"]),
    "c": (1, ["out"]),
}


def timed_out(opened: Lane) -> str:
    """Return how a time-out is named. A job that comes to no call is for a busy machine."""
    for _ in range(5):
        with pytest.raises(JobTimeoutError) as raised:
            opened.reduce(HANGING_SECONDS)
        if "a call for" in str(raised.value):
            break
    return str(raised.value)


@pytest.mark.parametrize(
    "hang",
    [forever, pytest.param(hold_the_lock, marks=pytest.mark.slow)],
    ids=lambda each: each.__name__,
)
def test_a_record_that_hangs_in_a_worker_is_set_aside_after_two_time_outs(
    spark_runtime: SparkRuntime, tmp_path: Path, hang: Callable[[], None]
) -> None:
    """The key is named first; a call that nothing interrupts is known by the worker's file."""
    with lane(spark_runtime, tmp_path, hang) as opened:
        assert "key 'b' of partition 0" in timed_out(opened)
        assert "key 'b' of partition 0, offset 3 of events-0" in timed_out(opened)
        assert opened.reduce() == EXPECTED


def test_a_record_that_ends_its_worker_again_and_again_is_set_aside(
    spark_runtime: SparkRuntime, tmp_path: Path
) -> None:
    """Each time it is named, by its key at first; a few ends might be chance."""
    with lane(spark_runtime, tmp_path, end_the_process) as opened:
        with (
            capture_logs() as logs,
            pytest.raises(JobFailedError, match="ended in a call for key 'b' of partition 0: "),
        ):
            opened.reduce()
        (line,) = [each for each in logs if each["event"] == "worker_ended_in_call"]
        assert (line["channel"], line["partition"], line["key"]) == ("c", 0, "b")
        for _ in range(MOST_ENDS):
            with pytest.raises(JobFailedError, match="offset 3 of events-0"):
                opened.reduce()
        assert opened.reduce() == EXPECTED
