"""A channel with a Spark reducer and a sink that keeps nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import reducers
from benchmarks.committed import committed
from benchmarks.pace import pace
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.core.clock import Deadline
from headrace.extensions.spark.runtime import SparkRuntime
from headrace.extensions.spark.settings import spark_settings
from headrace.processors.factory import build_processor

if TYPE_CHECKING:
    from benchmarks.sides import Request, Result
    from headrace.config import Config

#: Seconds that a round may take.
_PATIENCE = 200.0

#: Seconds that Spark may take to start: a cluster's executors have to start as well.
_START = 240.0

#: Seconds between two looks whether everything has come.
_LOOK = 0.2


#: What a round's time is said by; ``reduce`` has the seconds in which a Spark job runs.
STAGES = ("arrow", "reduce", "sink_commit", "on_next_batch")


class SparkChannel:
    """Reads whole topics through a controller; the Spark session stays from round to round."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._configs: dict[str, Config] = {
            name: load(Path(path)) for name, path in settings["configs"].items()
        }
        some = next(iter(self._configs.values()))
        self._runtime = SparkRuntime(replace(spark_settings(some.spark), start_timeout=_START))
        self._runtime.start()

    def round(self, request: Request) -> Result:
        """Read the topic as ``group``, up to ``ends``, or so many ``records`` of one that grows.

        Into the Delta table ``table`` or the topic ``output`` where there is one.
        """
        config = _of_round(self._configs[request["config"]], request)
        reducers.reset(counting=request["counting"])
        processor = build_processor(
            config.channels["bench"], lambda: self._runtime, config.instance_id, config.kafka
        )
        controller = KafkaController(config, processors={"bench": processor})
        ends = request.get("ends")
        expected = sum(ends.values()) if ends else request["records"]
        controller.start(Deadline.after(60))
        try:
            failure = _wait(controller, expected)
        finally:
            left = controller.stop(Deadline.after(30)).left
        if failure is not None or left:
            raise AssertionError(f"the channel failed with {failure}, left {left}")
        found = committed(config, ends) if ends else None
        if sum(reducers.NOTES.sizes) != expected or found != ends:
            raise AssertionError(f"of {ends}: {found}, {sum(reducers.NOTES.sizes)}")
        return pace(reducers.NOTES.begun, reducers.NOTES.sizes) | {
            "counted": reducers.NOTES.counted,
            **{f"{stage}_s": _seconds(controller, stage) for stage in STAGES},
        }

    def close(self) -> None:
        """End Spark."""
        self._runtime.stop(Deadline.after(30))


def _seconds(controller: KafkaController, stage: str) -> float:
    """Return the seconds that a stage took in one controller's life, over all threads."""
    value = controller.metrics.registry.get_sample_value(
        "headrace_stage_seconds_sum", {"channel": "bench", "stage": stage}
    )
    return round(value or 0.0, 3)


def _of_round(config: Config, request: Request) -> Config:
    channel = config.channels["bench"]
    changes: dict[str, Any] = {"group": request["group"]}
    if "topic" in request:
        changes["topics"] = (request["topic"],)
    if "table" in request and channel.sink is not None:
        changes["sink"] = channel.sink.model_copy(update={"path": request["table"]})
    if "output" in request and channel.sink is not None:
        changes["sink"] = channel.sink.model_copy(update={"topic": request["output"]})
    return config.model_copy(update={"channels": {"bench": channel.model_copy(update=changes)}})


def _wait(controller: KafkaController, expected: int) -> BaseException | None:
    """Wait until the last micro-batch began; the channel's stop waits for its end."""
    deadline = time.monotonic() + _PATIENCE
    while sum(reducers.NOTES.sizes) < expected:
        failure = controller.wait(_LOOK)
        if failure is not None:
            return failure
        if time.monotonic() > deadline:
            return TimeoutError(f"{sum(reducers.NOTES.sizes)} of {expected} records came")
    return None
