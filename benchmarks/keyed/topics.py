"""Topics of records with keys, and the counts that have to come of them."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from benchmarks import stack
from headrace.core.clock import Deadline
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from headrace.devstack import LocalStack

#: Records of the shortest topic; each next one is twice as long.
_SHORTEST = 25_000

#: Seconds that filling a topic may take.
_TIMEOUT = 300.0

#: By key as Java's clients have it, or the readers that keep state would look elsewhere; and
#: uncompressed, because unpacking costs all sides about the same.
_PRODUCER = {"compression.type": "none", "partitioner": "murmur2_random"}


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
    found: dict[bytes, bytes] = {}
    records = 0
    for key, value in stack.committed_records(servers, topic, partitions):
        found[key or b""] = value or b""
        records += 1
    return found, records
