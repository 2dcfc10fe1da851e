"""A channel that does nothing but sum the lengths of values: what its machinery costs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from benchmarks.committed import committed
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.core.tables import table_of
from headrace.processors import BatchProcessor, BatchResponse

if TYPE_CHECKING:
    import pyarrow as pa

    from benchmarks.sides import Request, Result
    from headrace.config import ChannelConfig, Config
    from headrace.core.records import Assignment, Batch

#: What suits a processor of tables, and one of records. It keeps the interpreter's lock, so that a
#: second worker only takes turns with the first; a few records are still in the processor's cache
#: when they are looked at, and what is done once for a table is better done for many.
BY_TABLES: dict[str, Any] = {"workers": 1, "batch": {"max_records": 20_000}}
BY_RECORDS: dict[str, Any] = {"workers": 1, "batch": {"max_records": 2_000}}

#: Seconds that a round may take.
_PATIENCE = 120.0


def value_bytes(table: pa.Table) -> int:
    """Return how long the values of a table are together."""
    return pc.sum(pc.binary_length(table["value"])).as_py() or 0


class Tally:
    """What came of one partition. Changed by the one worker that has the partition."""

    __slots__ = ("count", "next_offset", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.next_offset = 0


class SummingProcessor(BatchProcessor):
    """Sums the values' lengths, and notes when the first partition came and the last one ended."""

    def __init__(self, ends: dict[int, int]) -> None:
        self._ends = ends
        self.tallies = {number: Tally() for number in ends}
        self.begun = 0.0
        self.ended = 0.0
        self.cpu_before = self.cpu_after = os.times()
        self.finished = Event()
        self._open = dict(ends)

    def on_assigned(self, assignment: Assignment) -> None:
        """Start the clock: fetching begins behind this call."""
        del assignment
        if not self.begun:
            self.begun, self.cpu_before = time.perf_counter(), os.times()

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Sum one batch."""
        number = batch.partition.partition
        tally = self.tallies[number]
        tally.total += self._total(batch)
        tally.count += len(batch)
        tally.next_offset = batch.next_offset
        if batch.next_offset >= self._ends[number]:
            self._finish(number)
        return BatchResponse.advance()

    @property
    def cpu_seconds(self) -> float:
        """What the process used from the first partition's arrival to the last one's end."""
        before, after = self.cpu_before, self.cpu_after
        return round(after.user + after.system - before.user - before.system, 2)

    def _total(self, batch: Batch) -> int:
        """Return how long the batch's values are together, record by record."""
        return sum(map(len, batch.records))

    def _finish(self, number: int) -> None:
        self._open.pop(number, None)
        if not self._open:
            self.ended, self.cpu_after = time.perf_counter(), os.times()
            self.finished.set()


class TableSummingProcessor(SummingProcessor):
    """Does the same with each batch as a table."""

    in_columns = True

    def _total(self, batch: Batch) -> int:
        return value_bytes(table_of(batch))


class SummingChannel:
    """Reads a whole topic through a controller, a channel, ZooKeeper and commits."""

    #: What the channel's batches go to.
    processor: type[SummingProcessor] = TableSummingProcessor

    def __init__(self, settings: dict[str, Any]) -> None:
        self._config: Config = load(Path(settings["config"]))

    def round(self, request: Request) -> Result:
        """Read ``topic`` as ``group`` up to ``ends``, the end of each partition."""
        config = _for_round(self._config, request["topic"], request["group"])
        processor = self.processor(request["ends"])
        controller = KafkaController(config, processors={"bench": processor})
        controller.start(Deadline.after(60))
        try:
            finished = processor.finished.wait(_PATIENCE)
            failure = controller.wait(0.001)
        finally:
            left = controller.stop(Deadline.after(30)).left
        if not finished or failure is not None or left:
            raise AssertionError(f"unfinished: failure {failure}, left {left}")
        _check(config, processor, request)
        seconds = processor.ended - processor.begun
        count = sum(tally.count for tally in processor.tallies.values())
        return {
            "records": count,
            "bytes": sum(tally.total for tally in processor.tallies.values()),
            "seconds": round(seconds, 3),
            "rate": round(count / seconds),
            "cpu_seconds": processor.cpu_seconds,
            "commits": _commits(controller, request["topic"]),
        }

    def close(self) -> None:
        """Hold nothing."""


class RecordSummingChannel(SummingChannel):
    """The same with an object for each record."""

    processor = SummingProcessor


def _for_round(config: Config, topic: str, group: str) -> Config:
    """Return the configuration with the channel on another topic and in a new group."""
    channel: ChannelConfig = config.channels["bench"]
    changed = channel.model_copy(update={"topics": (topic,), "group": group})
    return config.model_copy(update={"channels": {"bench": changed}})


def _check(config: Config, processor: SummingProcessor, request: Request) -> None:
    """Compare what was counted and committed with what is there."""
    ends: dict[int, int] = request["ends"]
    counted = {number: tally.count for number, tally in processor.tallies.items()}
    reached = {number: tally.next_offset for number, tally in processor.tallies.items()}
    stored = committed(config, ends)
    if not counted == reached == stored == ends:
        raise AssertionError(f"of {ends}: {counted} counted, {reached} reached, {stored} committed")


def _commits(controller: KafkaController, topic: str) -> int:
    """Return how many commits of single partitions were stored."""
    labels = {"channel": "bench", "topic": topic}
    return int(controller.metrics.registry.get_sample_value("headrace_commits_total", labels) or 0)
