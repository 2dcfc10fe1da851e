"""A worker of the plain asyncio program: makes a step, and produces what comes next.

    python -m benchmarks.peer_sides.workflow_aiokafka SERVERS TOPIC OUTCOMES

Steps are records of one topic, of a group of workers. Offsets are committed each second, behind
what was produced: a step comes at least once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Any

import orjson
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError

from benchmarks.peer_sides.workflow_work import STEPS, Effects

#: Records that are worked on together.
_MOST = 500

#: Calls that are made at once where they take time.
_AT_ONCE = 4

#: Seconds between two commits.
_COMMIT_INTERVAL = 1.0

_NAMES = list(STEPS)


class Worker:
    """Makes the calls of records. On one loop."""

    def __init__(self, outcomes: str, topic: str, producer: AIOKafkaProducer) -> None:
        self._outcomes = outcomes
        self._topic = topic
        self._producer = producer
        self._effects = Effects()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def work(self, record: Any) -> asyncio.Future[Any]:
        """Make the call of a record; return what ends when the broker has what comes next."""
        order = orjson.loads(record.value)
        name = _NAMES[order["step"]]
        instance, pause = order["instance"], order["pause"]
        key = f"{instance}/{name}"
        if pause:
            async with self._room:
                await asyncio.sleep(pause / 2)
                self._effects.apply(instance, name, key)
                await asyncio.sleep(pause / 2)
        else:
            self._effects.apply(instance, name, key)
        order["n"] = STEPS[name](order["n"])
        order["step"] += 1
        topic = self._topic if order["step"] < len(_NAMES) else self._outcomes
        sent: asyncio.Future[Any] = await self._producer.send(
            topic, orjson.dumps(order), key=record.key
        )
        return sent


class Reader(ConsumerRebalanceListener):  # type: ignore[misc]
    """Has records worked on, and commits: each second, and before partitions go to another."""

    def __init__(self, worker: Worker, consumer: AIOKafkaConsumer) -> None:
        self._worker = worker
        self._consumer = consumer
        self._busy = asyncio.Lock()
        self._commit_at = 0.0

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Commit what is done."""
        async with self._busy:
            if revoked:
                await self._commit()

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Go on from what is committed."""

    async def read(self) -> None:
        """Work until the process is ended."""
        while True:
            async with self._busy:
                batches = await self._consumer.getmany(timeout_ms=20, max_records=_MOST)
                records = [record for each in batches.values() for record in each]
                sent = await asyncio.gather(*map(self._worker.work, records))
                await asyncio.gather(*sent)
                if records and time.monotonic() >= self._commit_at:
                    await self._commit()
            await asyncio.sleep(0)

    async def _commit(self) -> None:
        with suppress(CommitFailedError):  # another worker has the partitions by now
            await self._consumer.commit()
        self._commit_at = time.monotonic() + _COMMIT_INTERVAL


async def run(servers: str, topic: str, outcomes: str) -> None:
    """Work until the process is ended."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=f"{topic}.workers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        check_crcs=False,
    )
    producer = AIOKafkaProducer(bootstrap_servers=servers, acks="all")
    reader = Reader(Worker(outcomes, topic, producer), consumer)
    consumer.subscribe([topic], listener=reader)
    async with consumer, producer:
        await reader.read()


if __name__ == "__main__":
    uvloop.run(run(*sys.argv[1:]))
