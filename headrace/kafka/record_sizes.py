"""How large records are, without reading all of them: a sample of each topic."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from headrace.clock import Deadline
from headrace.errors import ConfigError
from headrace.kafka import properties
from headrace.kafka.clients import open_consumer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Consumer, Message

    from headrace.clock import Clock
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)

#: Records of a topic that are read to know how large one is.
SAMPLE = 200

#: What a record is taken to be as long as none was seen, in bytes.
GUESS = 1024

#: Seconds for one sample of all topics, and between two of the same topic: one that gave
#: something, one that gave nothing.
SAMPLE_TIMEOUT = 2.0
INTERVAL = 300.0
RETRY_INTERVAL = 10.0


class RecordSizes:
    """The mean size of a topic's records, in bytes of key, value and headers.

    Used by one thread. It reads with a consumer of its own, which is open for the sample only.
    """

    def __init__(self, client_properties: Mapping[str, Any], group: str, clock: Clock) -> None:
        self._properties = {
            **properties.consumer(properties.silent(client_properties), group),
            "enable.partition.eof": True,
            # no more than the sample is to be fetched
            "queued.min.messages": SAMPLE,
            "queued.max.messages.kbytes": 1024,
            "fetch.message.max.bytes": 1 << 20,
            # where the sample's offset is gone there are others behind it
            "auto.offset.reset": "earliest",
        }
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def of(self, topic: str) -> int:
        """Return what a record takes: as last sampled, or a guess. At least 1."""
        return self._sizes.get(topic, GUESS)

    def sample(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read some records at these positions, of each topic whose sample is due. Blocks."""
        now = self._clock.monotonic()
        chosen: dict[str, ClientPartition] = {}
        for (topic, partition), offset in positions.items():
            if self._due.get(topic, now) <= now and topic not in chosen:
                chosen[topic] = ClientPartition(topic, partition, offset)
        if not chosen:
            return
        found = self._read(chosen.values())
        for topic in chosen:
            sizes = found.get(topic)
            self._due[topic] = now + (INTERVAL if sizes else RETRY_INTERVAL)
            if sizes:
                self._sizes[topic] = max(1, sum(sizes) // len(sizes))
                log.debug("record_size_sampled", topic=topic, size=self._sizes[topic])

    def _read(self, partitions: Iterable[ClientPartition]) -> dict[str, list[int]]:
        open_ones = {each.topic: each for each in partitions}
        found: dict[str, list[int]] = {}
        deadline = Deadline.after(SAMPLE_TIMEOUT, self._clock)
        try:
            with closing(open_consumer(self._properties)) as consumer:
                consumer.assign(list(open_ones.values()))
                while open_ones and not deadline.expired:
                    self._take(consumer, consumer.poll(deadline.remaining), open_ones, found)
        except (KafkaException, ConfigError) as error:
            log.warning("record_sizes_unknown", topics=sorted(open_ones), error=str(error))
        return found

    @staticmethod
    def _take(
        consumer: Consumer,
        message: Message | None,
        open_ones: dict[str, ClientPartition],
        found: dict[str, list[int]],
    ) -> None:
        topic = None if message is None else message.topic()
        if message is None or topic not in open_ones:
            return
        error = message.error()
        if error is None:
            sizes = found.setdefault(topic, [])
            sizes.append(_size(message))
            done = len(sizes) >= SAMPLE
        else:
            done = error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name for it
        if done:
            consumer.pause([open_ones.pop(topic)])


def _size(message: Message) -> int:
    key: bytes | None = message.key()
    headers: Any = message.headers()
    extra = sum(len(name) + len(data or b"") for name, data in headers or ())
    return len(message) + len(key or b"") + extra
