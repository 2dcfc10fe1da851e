"""Topics of JSON values, as long as a side needs them to be busy for a while."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from benchmarks import stack
from headrace.core.clock import Deadline
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from headrace.devstack import LocalStack

#: Different values of a topic; each key is in as many of them as any other.
_VARIETY = 10 * stack.KEYS

#: Records of the shortest topic; each next one is twice as long.
_SHORTEST = 25_000

#: Seconds that filling a topic may take.
_FILL_TIMEOUT = 300.0

#: Uncompressed, because unpacking costs all sides about the same and would bring ratios closer to
#: one; spread at random, so that the partitions grow alike.
_PRODUCER = {"compression.type": "none", "partitioner": "random"}


class Topics:
    """Fills topics when they are first asked for. ``size`` of the values is in bytes."""

    def __init__(self, servers: LocalStack, *, size: int, partitions: int, most: int) -> None:
        self._servers = servers
        self._values = [_value(number, size) for number in range(_VARIETY)]
        self._partitions = partitions
        self._most = most
        self._made: dict[int, stack.Topic] = {}

    def of(self, records: float) -> stack.Topic:
        """Return the topic whose length comes closest to that. Blocks while it is filled."""
        doublings = max(0, round(math.log2(max(1.0, min(records, self._most)) / _SHORTEST)))
        if doublings not in self._made:
            self._made[doublings] = self._make(_SHORTEST << doublings)
        return self._made[doublings]

    def _make(self, records: int) -> stack.Topic:
        name = f"peers-{records}"
        stack.create(self._servers, name, self._partitions)
        client = {"bootstrap.servers": self._servers.bootstrap_servers, **_PRODUCER}
        producer, deadline = TopicProducer(client, name), Deadline.after(_FILL_TIMEOUT)
        values = self._values
        producer.send(((None, values[n % _VARIETY]) for n in range(records)), deadline)
        producer.flush(deadline)
        ends = stack.ends(self._servers, name, self._partitions)
        return stack.Topic(name, records, records * len(values[0]), ends)


def counts(records: int) -> dict[str, int]:
    """Return how often each key is in a topic of so many records."""
    whole, rest = divmod(records, stack.KEYS)
    return {_key(number): whole + (number < rest) for number in range(stack.KEYS)}


def _key(number: int) -> str:
    return f"key-{number % stack.KEYS:02d}"


def _value(number: int, size: int) -> bytes:
    """Return an object with a handful of fields, filled up with text."""
    fields = {
        "key": _key(number),
        "id": 100_000 + number,
        "at": 1_700_000_000_000 + number,
        "price": 12.5,
        "paid": True,
        "note": "",
    }
    fields["note"] = "x" * (size - len(json.dumps(fields)))
    return json.dumps(fields).encode()
