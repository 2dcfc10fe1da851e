"""The fastest loop that reads with this client: what a channel is measured against."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from headrace.config import load
from headrace.core.memory import relax
from headrace.kafka import clients as properties
from headrace.kafka.clients import client_properties

if TYPE_CHECKING:
    from benchmarks.sides import Request, Result
    from headrace.config import Config

#: Seconds without a record after which a round is given up.
_PATIENCE = 30.0


class RawLoop:
    """Reads a whole topic with nothing around the client, and sums the values' lengths.

    Client and garbage collector have the settings that a channel gives them. The client reports the
    end of each partition in place of a record, so a look for errors belongs to the loop. It does
    not commit.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        relax()
        self._config: Config = load(Path(settings["config"]))

    def round(self, request: Request) -> Result:
        """Read ``topic`` up to ``ends``, the end of each partition."""
        channel = self._config.channels["bench"]
        prefetch = int(channel.buffer.max_bytes * properties.PREFETCH_SHARE)
        client = client_properties(self._config.kafka)
        consumer = Consumer(properties.source(client, request["group"], prefetch))
        try:
            return _read(consumer, request["topic"], request["ends"])
        finally:
            consumer.close()

    def close(self) -> None:
        """Hold nothing."""


def _read(consumer: Consumer, topic: str, ends: dict[int, int]) -> Result:
    consumer.list_topics(topic, timeout=10)  # connected before the clock runs, as a channel is
    expected = sum(ends.values())
    cpu, begin = os.times(), time.perf_counter()
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
    count, total = _sum(consumer, expected)
    seconds, used = time.perf_counter() - begin, os.times()
    stand = consumer.position([TopicPartition(topic, number) for number in ends])
    # below 0: nothing was read, because the partition is empty
    found = {entry.partition: max(0, entry.offset) for entry in stand}
    if count != expected or found != ends:
        raise AssertionError(f"read {count} of {expected} records, up to {found} of {ends}")
    return {
        "records": count,
        "bytes": total,
        "seconds": round(seconds, 3),
        "rate": round(count / seconds),
        "cpu_seconds": round(used.user + used.system - cpu.user - cpu.system, 2),
    }


def _sum(consumer: Consumer, expected: int) -> tuple[int, int]:
    """Return how many records came and how long their values are together."""
    consume, poll, error = consumer.consume, consumer.poll, Message.error
    count = total = 0
    waiting_until = time.monotonic() + _PATIENCE
    while count < expected:
        messages = consume(1000, 0)
        if not messages:
            message = poll(0.1)
            if message is None:
                if time.monotonic() > waiting_until:
                    return count, total
                continue
            messages = [message]
        if any(map(error, messages)):
            messages = [message for message in messages if _is_record(message)]
        count += len(messages)
        total += sum(map(len, messages))
    return count, total


def _is_record(message: Message) -> bool:
    """Whether it is a record and not the event that a partition's end was reached.

    Raises:
        AssertionError: it is an error.
    """
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
        raise AssertionError(f"the client reports {error.str()}")
    return error is None
