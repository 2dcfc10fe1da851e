"""Headrace: a controller with one channel, and ZooKeeper and commits as in a daemon.

``settings`` name the configuration file, whose processor or reducer is one of ``headrace_work``.
The process serves round after round, so that a Spark session is started once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from benchmarks.peer_sides.headrace_work import ROUND, for_round
from benchmarks.peer_sides.wire import Meter, Request, Wire
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import spark_settings
from headrace.processors.factory import build_processor

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.core.records import Assignment
    from headrace.processors import BatchProcessor

#: Seconds that a channel may take to begin or to end.
_PATIENCE = 60.0

#: Seconds that Spark may take to start, on a machine that has other work too.
_SPARK_PATIENCE = 240.0

#: Seconds between two looks for the channel's end by an error.
_LOOK = 0.2


class _Rounds:
    """Runs rounds, with one Spark session for all of them where there is a need for it."""

    def __init__(self) -> None:
        self._runtime: SparkRuntime | None = None

    def read(self, wire: Wire, request: Request) -> None:
        """Read once."""
        config = for_round(load(Path(request.settings["config"])), request.topic, request.group)
        meter = Meter(wire, request.records)
        ROUND.begin(meter)
        processor = build_processor(
            config.channels["bench"], lambda: self._spark(config), config.instance_id, config.kafka
        )
        _watch_assignment(processor, meter)
        controller = KafkaController(config, processors={"bench": processor})
        controller.start(Deadline.after(_PATIENCE))
        failure = None
        try:
            while failure is None and not ROUND.finished.wait(_LOOK):
                failure = controller.wait(0.001)
        finally:
            left = controller.stop(Deadline.after(_PATIENCE)).left
        if failure is not None or left:
            raise AssertionError(f"unfinished: failure {failure}, left {left}")

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


def _watch_assignment(processor: BatchProcessor, meter: Meter) -> None:
    """Note the first assignment, whatever the processor makes of it."""
    assigned = processor.on_assigned

    def watched(assignment: Assignment) -> None:
        meter.assigned()
        assigned(assignment)

    processor.on_assigned = watched  # type: ignore[method-assign]


def main() -> None:
    """Serve rounds."""
    wire = Wire()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    rounds = _Rounds()
    try:
        for request in wire.requests():
            rounds.read(wire, request)
            wire.tell("stopped")
    finally:
        rounds.close()


if __name__ == "__main__":
    main()
