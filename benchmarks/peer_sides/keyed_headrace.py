"""Headrace with state: a controller with one keyed channel, and ZooKeeper as in a daemon.

The process serves round after round, so that a Spark session is started once. With the setting
``transactions`` false, outputs are produced without one and the changelog is left out: what the
same channel takes where nothing is exactly once.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import structlog
from confluent_kafka import Producer

from benchmarks.peer_sides.wire import Request, Wire
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.core.memory import GarbageCollector, limit_memory
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import spark_settings
from headrace.kafka.columnar.producer import ColumnProducer
from headrace.kafka.result_transactions import produce_all
from headrace.processors.factory import build_processor

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.config import Config
    from headrace.core.errors import SinkConflictError
    from headrace.core.records import Assignment
    from headrace.core.result_columns import Results
    from headrace.extensions.keyed.runtime.processor import KeyedProcessor
    from headrace.extensions.keyed.sink import StagedState
    from headrace.kafka.result_transactions import CountedMove
    from headrace.sinks.contract import PartitionCommit
    from headrace.sinks.sections import KafkaSinkConfig

#: Seconds that a channel may take to begin, to read all, and to end.
_PATIENCE = 60.0
_ROUND = 280.0

#: Seconds that Spark may take to start, on a machine that has other work too.
_SPARK_PATIENCE = 240.0

#: Seconds between two looks whether all is committed.
_LOOK = 0.02

#: What the producer without transactions is set to, as the one with them is.
_PRODUCER = {
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "queue.buffering.max.kbytes": 65_536,
    "delivery.report.only.error": True,
}


class Tally:
    """What a round's commits were of. Changed on the channel's threads."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lock = Lock()
        self.assigned = self.first = self.last = 0.0
        self.records = self.commits = self.touched = self.micro_batches = 0

    def on_assigned(self) -> None:
        """Begin with the first partition."""
        with self._lock:
            if not self.assigned:
                self.assigned = time.perf_counter()
                self._wire.tell("assigned")

    def on_batch(self) -> None:
        """Note that records came."""
        if not self.first:
            self.first = time.perf_counter()

    def on_commit(self, staged: Sequence[StagedState], shares: Sequence[PartitionCommit]) -> None:
        """Count what is committed now."""
        self.last = time.perf_counter()
        self.commits += 1
        self.micro_batches += len(staged)
        self.touched += sum(each.counts.touched for each in staged)
        self.records += sum(share.next_offset - share.start for share in shares)


class PlainProducer:
    """Produces outputs as results are, without transaction, changelog and offsets."""

    def __init__(self, servers: str, changelog: str) -> None:
        properties = {"bootstrap.servers": servers, **_PRODUCER}
        self._producer = Producer({**properties, **ColumnProducer.plugin(properties)})
        self._columns = ColumnProducer.of_the_newest()
        self._changelog = changelog

    def require(self, topic: str) -> None:
        """Take any topic."""

    def stored_entry(self, identity: str) -> None:
        """Keep no offset."""

    def last_entries(self, identities: Collection[str], deadline: Deadline) -> dict[str, Any]:
        """Keep none."""
        del identities, deadline
        return {}

    def commit(
        self, moves: Sequence[CountedMove], records: Results = ()
    ) -> list[SinkConflictError]:
        """Produce what is no row of the changelog."""
        del moves
        outputs = (record for record in records if record.topic != self._changelog)
        produce_all(outputs, self._producer, Deadline.after(_PATIENCE), self._columns)
        return []

    def close(self) -> None:
        """Hold nothing."""


class _Rounds:
    """Runs rounds, with one Spark session for all of them where there is a need for it."""

    def __init__(self) -> None:
        self._runtime: SparkRuntime | None = None

    def read(self, wire: Wire, request: Request) -> None:
        """Read once."""
        config = _config_of(request)
        channel = config.channels["bench"]
        folder = Path(request.settings["directory"]) / request.group
        processor = cast(
            "KeyedProcessor",
            build_processor(
                channel, lambda: self._spark(config), config.instance_id, config.kafka, folder
            ),
        )
        tally = Tally(wire)
        _watch(processor, tally)
        if not request.settings.get("transactions", True):
            sink: Any = processor.parts.sink  # no channel can be configured so
            sink._transactions = PlainProducer(  # noqa: SLF001 - as above
                request.servers, changelog_name(request.group, request.topic)
            )
        controller = KafkaController(config, processors={"bench": processor})
        controller.start(Deadline.after(_PATIENCE))
        failure, deadline = None, Deadline.after(_ROUND)
        try:
            while failure is None and tally.records < request.records and not deadline.expired:
                failure = controller.wait(_LOOK)
            wire.tell(
                "complete",
                records=tally.records,
                from_assignment=tally.last - tally.assigned,
                from_first=tally.last - tally.first,
                commits=tally.commits,
                micro_batches=tally.micro_batches,
                touched=tally.touched,
            )
            wire.wait()
        finally:
            left = controller.stop(Deadline.after(_PATIENCE)).left
        if failure is not None or left:
            raise AssertionError(f"unfinished: failure {failure}, left {left}")
        rmtree(folder)

    def close(self) -> None:
        """End Spark."""
        if self._runtime is not None:
            self._runtime.stop(Deadline.after(_PATIENCE))

    def _spark(self, config: Config) -> SparkRuntime:
        if self._runtime is None:
            settings = replace(spark_settings(config.spark), start_timeout=_SPARK_PATIENCE)
            self._runtime = SparkRuntime(settings)
            self._runtime.start()
        return self._runtime


def _config_of(request: Request) -> Config:
    """Return the configuration with the topics and the group of a round."""
    config = load(Path(request.settings["config"]))
    channel = config.channels["bench"]
    sink = cast("KafkaSinkConfig", channel.sink)
    changed = channel.model_copy(
        update={
            "topics": (request.topic,),
            "group": request.group,
            "sink": sink.model_copy(update={"topic": request.settings["output"]}),
        }
    )
    return config.model_copy(update={"channels": {"bench": changed}})


def _watch(processor: KeyedProcessor, tally: Tally) -> None:
    """Note the first assignment, the first batch, and every commit."""
    assigned, taken = processor.on_assigned, processor.on_next_batch
    sink: Any = processor.parts.sink
    commit_all = sink.commit_all

    def on_assigned(assignment: Assignment) -> None:
        tally.on_assigned()
        assigned(assignment)

    def on_next_batch(batch: Any) -> Any:
        tally.on_batch()
        return taken(batch)

    def on_commit(staged: Sequence[StagedState], shares: Sequence[PartitionCommit]) -> None:
        commit_all(staged, shares)
        tally.on_commit(staged, shares)

    processor.on_assigned = on_assigned  # type: ignore[method-assign]
    processor.on_next_batch = on_next_batch  # type: ignore[method-assign]
    sink.commit_all = on_commit


def main() -> None:
    """Serve rounds, with memory as a daemon has it."""
    limit_memory()
    wire = Wire()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rounds = _Rounds()
    with closing(rounds), GarbageCollector(set).running():
        for request in wire.requests():
            rounds.read(wire, request)
            wire.tell("stopped")


if __name__ == "__main__":
    main()
