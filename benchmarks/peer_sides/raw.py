"""The fastest loop around confluent-kafka: the ceiling. It commits nothing."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, cast

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from benchmarks.peer_sides.wire import Meter, Wire

if TYPE_CHECKING:
    from collections.abc import Callable

#: librdkafka says with this code that the end of a partition was reached.
_PARTITION_EOF = -191


def main() -> None:
    """Read once."""
    gc.set_threshold(100_000)  # as a channel does; Python's own 700 doubles the time
    wire = Wire()
    request = next(wire.requests())
    meter = Meter(wire, request.records)
    consumer = Consumer(
        {
            "bootstrap.servers": request.servers,
            "group.id": request.group,
            **request.settings["properties"],
        }
    )
    partitions = consumer.list_topics(request.topic, timeout=10).topics[request.topic].partitions
    meter.assigned()
    consumer.assign(
        [TopicPartition(request.topic, number, OFFSET_BEGINNING) for number in partitions]
    )
    (_sum if request.work == "sum" else _count)(consumer, meter)
    consumer.close()


def _sum(consumer: Consumer, meter: Meter) -> None:
    while not (batch := _next(consumer)) or not meter.lengths(len(batch), sum(map(len, batch))):
        pass


def _count(consumer: Consumer, meter: Meter) -> None:
    loads, value = orjson.loads, cast("Callable[[Message], bytes]", Message.value)
    while not (batch := _next(consumer)) or not meter.each_key(
        [loads(each)["key"] for each in map(value, batch)], len(batch)
    ):
        pass


def _next(consumer: Consumer) -> list[Message]:
    """Return what is there, or what comes within a tenth of a second."""
    messages = consumer.consume(1000, 0)
    if not messages:
        message = consumer.poll(0.1)
        messages = [] if message is None else [message]
    if any(map(Message.error, messages)):
        messages = [message for message in messages if _is_record(message)]
    return messages


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is not None and error.code() != _PARTITION_EOF:
        raise AssertionError(f"the client reports {error.str()}")
    return error is None


if __name__ == "__main__":
    main()
