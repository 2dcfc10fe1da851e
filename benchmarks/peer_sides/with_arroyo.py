"""Arroyo: a stream processor whose strategy runs a task on each message, then commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from arroyo.backends.kafka import KafkaConsumer, KafkaPayload
from arroyo.backends.kafka.configuration import build_kafka_consumer_configuration
from arroyo.commit import ONCE_PER_SECOND
from arroyo.processing import StreamProcessor
from arroyo.processing.strategies import CommitOffsets, RunTask
from arroyo.processing.strategies.abstract import ProcessingStrategyFactory
from arroyo.types import Topic

from benchmarks.peer_sides.wire import Meter, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from arroyo.processing.strategies.abstract import ProcessingStrategy
    from arroyo.types import Commit, Message, Partition


class _Factory(ProcessingStrategyFactory[KafkaPayload]):  # type: ignore[misc]
    def __init__(self, task: Callable[[Message[KafkaPayload]], None], meter: Meter) -> None:
        self._task = task
        self._meter = meter

    def create_with_partitions(
        self, commit: Commit, partitions: Mapping[Partition, int]
    ) -> ProcessingStrategy[KafkaPayload]:
        if partitions:
            self._meter.assigned()
        return RunTask(self._task, CommitOffsets(commit))


def main() -> None:
    """Read once."""
    wire = Wire()
    request = next(wire.requests())
    meter = Meter(wire, request.records)
    loads = orjson.loads
    processors: list[Any] = []

    def total(message: Message[KafkaPayload]) -> None:
        if meter.length(len(message.payload.value)):
            processors[0].signal_shutdown()

    def count(message: Message[KafkaPayload]) -> None:
        if meter.key(loads(message.payload.value)["key"]):
            processors[0].signal_shutdown()

    consumer = KafkaConsumer(
        build_kafka_consumer_configuration(
            {},
            bootstrap_servers=[request.servers],
            group_id=request.group,
            auto_offset_reset="earliest",
            override_params=request.settings["properties"],
        )
    )
    task = total if request.work == "sum" else count
    factory = _Factory(task, meter)
    processors.append(StreamProcessor(consumer, Topic(request.topic), factory, ONCE_PER_SECOND))
    processors[0].run()


if __name__ == "__main__":
    main()
