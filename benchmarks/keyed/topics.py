"""Topics of records with keys, and the counts that have to come of them."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from benchmarks import stack
from headrace.core.clock import Deadline
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from headrace.devstack import LocalStack

#: Records of the shortest topic; each next one is twice as long.
_SHORTEST = 25_000

#: Seconds that filling a topic, or reading one, may take.
_TIMEOUT = 300.0

#: By key as Java's clients have it, or the readers that keep state would look elsewhere; and
#: uncompressed, because unpacking costs all sides about the same.
_PRODUCER = {"compression.type": "none", "partitioner": "murmur2_random"}

#: Records that one call of the client returns, and seconds that it may wait for them.
_FETCHED, _WAIT = 10_000, 1.0


class KeyedTopics:
    """Fills topics when they are first asked for: keys drawn at random, ``size`` of values in
    bytes.
    """

    def __init__(
        self, servers: LocalStack, *, keys: int, size: int, partitions: int, most: int
    ) -> None:
        self._servers = servers
        self._keys = [b"customer-%05d" % number for number in range(keys)]
        self._value = b"x" * size
        self._partitions = partitions
        self._most = most
        self._made: dict[int, stack.Topic] = {}

    def of(self, records: float) -> stack.Topic:
        """Return the topic whose length comes closest to that. Blocks while it is filled."""
        doublings = max(0, round(math.log2(max(1.0, min(records, self._most)) / _SHORTEST)))
        if doublings not in self._made:
            self._made[doublings] = self._make(_SHORTEST << doublings)
        return self._made[doublings]

    def counts(self, records: int) -> Counter[bytes]:
        """Return how often each key is in a topic of so many records."""
        return Counter(self._drawn(records))

    def _drawn(self, records: int) -> list[bytes]:
        return Random(records).choices(self._keys, k=records)  # noqa: S311 - data, not secrets

    def _make(self, records: int) -> stack.Topic:
        name = f"keyed-{records}"
        stack.create(self._servers, name, self._partitions)
        client = {"bootstrap.servers": self._servers.bootstrap_servers, **_PRODUCER}
        producer, deadline = TopicProducer(client, name), Deadline.after(_TIMEOUT)
        producer.send(((key, self._value) for key in self._drawn(records)), deadline)
        producer.flush(deadline)
        ends = stack.ends(self._servers, name, self._partitions)
        return stack.Topic(name, records, records * len(self._value), ends)


def last_values(servers: str, topic: str, partitions: int) -> tuple[dict[bytes, bytes], int]:
    """Return the last committed value of each key, and how many records there are. Blocks.

    Raises:
        TimeoutError: the end was not reached.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "benchmark-check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    found: dict[bytes, bytes] = {}
    records, deadline = 0, Deadline.after(_TIMEOUT)
    try:
        read = [ClientPartition(topic, number, 0) for number in range(partitions)]
        ends = {each.partition: consumer.get_watermark_offsets(each, 30.0)[1] for each in read}
        consumer.assign(read)
        while any(each.offset < ends[each.partition] for each in consumer.position(read)):
            if deadline.expired:
                raise TimeoutError(f"{topic} was not read in {_TIMEOUT:.0f} s")
            if not any(ends.values()):
                break
            for message in consumer.consume(_FETCHED, _WAIT):
                found[message.key() or b""] = message.value() or b""
                records += 1
    finally:
        consumer.close()
    return found, records
