"""Headrace with a topology: a controller with its channels, and ZooKeeper as in a daemon."""

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

from benchmarks.peer_sides.wire import Request, Wire
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.core.memory import GarbageCollector, limit_memory
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import settings_of
from headrace.processors.factory import build_processor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config import Config
    from headrace.core.records import Assignment
    from headrace.extensions.keyed.runtime.processor import KeyedProcessor
    from headrace.extensions.keyed.sink import StagedState
    from headrace.sinks.contract import PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch

#: Seconds that the channels may take to begin, to read all, and to end.
_PATIENCE = 60.0
_ROUND = 280.0

#: Seconds that Spark may take to start, on a machine that has other work too.
_SPARK_PATIENCE = 240.0

#: Seconds between two looks whether all is committed.
_LOOK = 0.02


class Tally:
    """What a round's commits were of. Changed on the channels' threads."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lock = Lock()
        self._staged: dict[str, int] = {}
        self.assigned = self.last = 0.0
        #: Records of the topology's last part that are committed, without transactions' markers.
        self.records = 0
        self.commits = self.micro_batches = self.touched = 0

    def on_assigned(self) -> None:
        """Begin with the first partition."""
        with self._lock:
            if not self.assigned:
                self.assigned = time.perf_counter()
                self._wire.tell("assigned")

    def on_stage(self, micro_batch: MicroBatch) -> None:
        """Note how many records a micro-batch has."""
        with self._lock:
            self._staged[micro_batch.id] = sum(part.records for part in micro_batch.ranges)

    def on_commit(self, staged: Sequence[StagedState]) -> None:
        """Count what is committed now."""
        with self._lock:
            self.last = time.perf_counter()
            self.commits += 1
            self.micro_batches += len(staged)
            self.touched += sum(each.counts.changed for each in staged)
            self.records += sum(self._staged.pop(each.layer.name) for each in staged)


class _Session:
    """The Spark session of the process, which starts once where a topology needs it."""

    def __init__(self) -> None:
        self._runtime: SparkRuntime | None = None

    def runtime(self, config: Config) -> SparkRuntime:
        """Return the session, as the first configuration says."""
        if self._runtime is None:
            settings = replace(settings_of(config), start_timeout=_SPARK_PATIENCE)
            self._runtime = SparkRuntime(settings)
            self._runtime.start()
        return self._runtime

    def close(self) -> None:
        """End it, if there is one."""
        if self._runtime is not None:
            self._runtime.stop(Deadline.after(_PATIENCE))


def _read(wire: Wire, request: Request, session: _Session) -> None:
    """Read once."""
    config = load(Path(request.settings["config"]))
    folder = Path(request.settings["directory"]) / request.group
    tally = Tally(wire)
    processors: dict[str, Any] = {}
    for name, channel in config.channels.items():
        processors[name] = build_processor(
            channel,
            lambda: session.runtime(config),
            config.instance_id,
            config.kafka,
            folder / name,
        )
    # channels stand in the order in which records go through them
    first, *_, last = [*processors.values(), *processors.values()]
    _watch_begin(cast("KeyedProcessor", first), tally)
    _watch_end(cast("KeyedProcessor", last), tally)
    controller = KafkaController(config, processors=processors)
    controller.start(Deadline.after(_PATIENCE))
    failure, deadline = None, Deadline.after(_ROUND)
    counted = request.settings["counted"]
    try:
        while failure is None and tally.records < counted and not deadline.expired:
            failure = controller.wait(_LOOK)
        wire.tell(
            "complete",
            records=tally.records,
            from_assignment=tally.last - tally.assigned,
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


def _watch_begin(processor: KeyedProcessor, tally: Tally) -> None:
    """Note the first assignment."""
    assigned = processor.on_assigned

    def on_assigned(assignment: Assignment) -> None:
        tally.on_assigned()
        assigned(assignment)

    processor.on_assigned = on_assigned  # type: ignore[method-assign]


def _watch_end(processor: KeyedProcessor, tally: Tally) -> None:
    """Note every commit."""
    sink: Any = processor.parts.sink
    stage, commit_all = sink.stage, sink.commit_all

    def on_stage(micro_batch: MicroBatch, result: Any) -> StagedState:
        tally.on_stage(micro_batch)
        return cast("StagedState", stage(micro_batch, result))

    def on_commit(staged: Sequence[StagedState], shares: Sequence[PartitionCommit]) -> None:
        commit_all(staged, shares)
        tally.on_commit(staged)

    sink.stage, sink.commit_all = on_stage, on_commit


def main() -> None:
    """Serve rounds, with memory as a daemon has it."""
    limit_memory()
    wire = Wire()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    session = _Session()
    with closing(session), GarbageCollector(set).running():
        for request in wire.requests():
            _read(wire, request, session)
            wire.tell("stopped")


if __name__ == "__main__":
    main()
