"""Topics of visits by key and of lines of words, and the counts that have to come of them.

For a join the visits are in two topics, each second one in the other.
"""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from confluent_kafka import Producer

from benchmarks import stack
from headrace.core.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from headrace.devstack import LocalStack

#: Counts by the number of a key and the begin of a window, which is 0 where there are none.
Counts = dict[tuple[int, int], int]

#: Milliseconds.
MINUTE = 60_000
HOPPING = 5 * MINUTE
GAP = GRACE = 30_000
WITHIN = 10_000

#: Words of a line.
WORDS = 8

#: Records of the shortest topic; each next one is twice as long.
_SHORTEST = 25_000

#: Seconds that filling a topic may take.
_TIMEOUT = 300.0

#: Milliseconds that all records are older than now, at least: brokers refuse times to come.
_AGE = MINUTE

#: As topics of ``keyed``: by key as Java's clients have it, and uncompressed.
_PRODUCER = {
    "compression.type": "none",
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "linger.ms": 20,
    "queue.buffering.max.messages": 500_000,
    "delivery.report.only.error": True,
}

#: Records between two looks for errors.
_SERVE_EVERY = 1_000


class StreamTopics:
    """Fills topics when they are first asked for, with a record each millisecond of event time.

    ``kind`` is ``lines``, in JSON without a key, or visits: a key, and ``{}``, in one topic, or for
    ``pairs`` by turns in two.
    """

    def __init__(
        self, servers: LocalStack, *, keys: int, partitions: int, most: int, kind: str = "visits"
    ) -> None:
        self._servers = servers
        self._keys, self._partitions, self._most = keys, partitions, most
        self._kind = kind
        self._words = kind == "lines"
        # on a minute, so that windows are the same in all rounds
        now = int(time.time() * 1000)
        self._begin = (now - most - _AGE) // HOPPING * HOPPING
        self._made: dict[int, stack.Topic] = {}

    def of(self, records: float) -> stack.Topic:
        """Return the topic whose length comes closest to that. Blocks while it is filled."""
        doublings = max(0, round(math.log2(max(1.0, min(records, self._most)) / _SHORTEST)))
        if doublings not in self._made:
            self._made[doublings] = self._make(_SHORTEST << doublings)
        return self._made[doublings]

    def counted(self, records: int) -> int:
        """Return how many records are counted of a topic of so many."""
        return records * WORDS if self._words else records

    def counts(self, records: int, kind: str) -> Counts:
        """Return the counts of a topic of so many records."""
        return counts_of(self._drawn(records), kind, self._begin)

    def _drawn(self, records: int) -> npt.NDArray[np.int64]:
        shape = (records, WORDS) if self._words else (records,)
        return np.random.default_rng(records).integers(0, self._keys, shape)

    def _make(self, records: int) -> stack.Topic:
        name = f"{self._kind}-{records}"
        names = (name, other_of(name)) if self._kind == "pairs" else (name,)
        for each in names:
            stack.create(self._servers, each, self._partitions)
        size = self._fill(names, records)
        ends = stack.ends(self._servers, name, self._partitions)
        return stack.Topic(name, records, size, ends)

    def _fill(self, names: Sequence[str], records: int) -> int:
        """Produce the records, and return the bytes of their values."""
        failed: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": self._servers.bootstrap_servers,
                **_PRODUCER,
                "on_delivery": lambda error, _: failed.append(error.str()) if error else None,
            }
        )
        size, deadline = 0, Deadline.after(_TIMEOUT)
        for number, (key, value) in enumerate(self._records(records)):
            name = names[number % len(names)]
            while True:
                try:
                    producer.produce(name, value, key, timestamp=self._begin + number)
                    break
                except BufferError:
                    producer.poll(deadline.at_most(0.1))
            size += len(value)
            if number % _SERVE_EVERY == 0:
                producer.poll(0)
        left = producer.flush(deadline.left)
        if left or failed:
            raise AssertionError(
                f"{left + len(failed)} records did not reach {names}: {failed[:1]}"
            )
        return size

    def _records(self, records: int) -> Iterator[tuple[bytes | None, bytes]]:
        drawn = self._drawn(records).tolist()
        if not self._words:
            names = [key_of(number) for number in range(self._keys)]
            yield from ((names[number], b"{}") for number in drawn)
            return
        words = [key_of(number).decode() for number in range(self._keys)]
        for number, line in enumerate(drawn):
            text = " ".join([words[word] for word in line])
            yield None, json.dumps({"line": number, "text": text, "book": "Kafka"}).encode()


def key_of(number: int) -> bytes:
    """Return the key, or the word, of a number."""
    return b"customer-%05d" % number


def other_of(topic: str) -> str:
    """Return the name of the topic that a topic is joined with."""
    return f"{topic}-other"


def counts_of(drawn: npt.NDArray[np.int64], kind: str, begin: int) -> Counts:
    """Return how often each key is in each window. The n-th record is n ms after ``begin``."""
    keys = drawn.ravel()
    if kind in {"count", "wordcount"}:
        return _counted(keys, np.zeros(len(keys), np.int64))
    times = begin + np.arange(len(keys), dtype=np.int64)
    if kind == "join":
        return _pairs(keys, times)
    if kind == "session":
        order = np.argsort(keys, kind="stable")
        keys, times = keys[order], times[order]
        is_new = np.ones(len(keys), np.bool_)
        is_new[1:] = (np.diff(keys) != 0) | (np.diff(times) > GAP)
        firsts = np.flatnonzero(is_new)
        sizes = np.diff(np.append(firsts, len(keys)))
        places = zip(keys[firsts].tolist(), times[firsts].tolist(), strict=True)
        return dict(zip(places, sizes.tolist(), strict=True))
    panes = times // MINUTE * MINUTE
    windows = range(0, HOPPING if kind == "hopping" else MINUTE, MINUTE)
    starts = np.concatenate([panes - before for before in windows])
    return _counted(np.tile(keys, len(windows)), starts)


def _pairs(keys: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> Counts:
    """Return how many pairs each key has, of records by turns in two topics."""
    found: Counts = {}
    span = int(times[-1]) + WITHIN + 1
    sides = [keys[at::2] * span + times[at::2] for at in (0, 1)]
    left, right = (np.sort(each) for each in sides)
    counts = np.searchsorted(right, left + WITHIN, "right") - np.searchsorted(right, left - WITHIN)
    for key, number in zip((left // span).tolist(), counts.tolist(), strict=True):
        if number:
            found[key, 0] = found.get((key, 0), 0) + number
    return found


def _counted(keys: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> Counts:
    lowest = int(starts.min())
    numbers = (starts - lowest) // MINUTE
    wide = int(numbers.max(initial=0)) + 1
    codes, counts = np.unique(keys * wide + numbers, return_counts=True)
    begins = codes % wide * MINUTE + lowest
    places = zip((codes // wide).tolist(), begins.tolist(), strict=True)
    return dict(zip(places, counts.tolist(), strict=True))


def last_counts(
    servers: str, topic: str, partitions: int, *, adds: bool = False
) -> tuple[Counts, int]:
    """Return the last committed count of each key and window, and how many records there are.

    A record's value is JSON: ``n``, and ``begin`` where there are windows. With ``adds`` the counts
    of a key are added up. Blocks.

    Raises:
        TimeoutError: the end was not reached.
    """
    found: dict[tuple[bytes, int], int] = {}
    records = 0
    for key, text in stack.committed_records(servers, topic, partitions):
        records += 1
        # of a session that became a longer one
        if text is not None:
            value: dict[str, Any] = orjson.loads(text)
            place = (key or b"", value.get("begin", 0))
            found[place] = value["n"] + (found.get(place, 0) if adds else 0)
    counted = {(int(key[-5:]), begin): number for (key, begin), number in found.items()}
    return counted, records
