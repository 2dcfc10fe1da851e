"""Steady input, and how long each record took until it was committed to a Delta table."""

from __future__ import annotations

import time
from threading import Event
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.extensions.delta.table import LogFiles
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Digits of a value that have the nanoseconds of its making; those of its number follow.
PRODUCED = 20

#: Parts of a second in which records are produced together.
_TICKS = 100


def produce(bootstrap_servers: str, topic: str, rate: int, records: int) -> None:
    """Produce so many records, ``rate`` a second. Blocks."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "partitioner": "random",
        "linger.ms": 0,
        "sticky.partitioning.linger.ms": 0,
    }
    producer = TopicProducer(settings, topic)
    deadline = Deadline.after(2 * records / rate + 60)
    began, sent, pause = SYSTEM_CLOCK.monotonic(), 0, Event()
    for tick in range(records * _TICKS // rate + 1):
        due = min(records, (tick + 1) * rate // _TICKS)
        producer.send(_records(sent, due), deadline)
        sent = due
        pause.wait(max(0.0, began + (tick + 1) / _TICKS - SYSTEM_CLOCK.monotonic()))
    producer.flush(deadline)


def _records(first: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    for number in range(first, end):
        value = b"%0*d%0*d" % (PRODUCED, time.time_ns(), 160 - PRODUCED, number)
        yield b"key-%02d" % (number % 100), value


def latencies(table: Path, warm_up: float) -> list[float]:
    """Return by record the seconds from its timestamp to the commit that has it.

    Without those that were produced in the first ``warm_up`` seconds. Reads the whole log.
    """
    entries = LogFiles(table)
    found: list[tuple[float, float]] = []
    version = 0
    while (actions := entries.read(version)) is not None:
        at = next(a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a) / 1000
        for action in actions:
            if "add" in action and action["add"]["dataChange"]:
                column = pq.read_table(table / action["add"]["path"]).column("timestamp")
                found += [(each.timestamp(), at) for each in column.to_pylist()]
        version += 1
    begun = min((produced for produced, _ in found), default=0.0) + warm_up
    return [at - produced for produced, at in found if produced >= begun]
