"""Produces numbered records at a steady rate, and writes down which of them were acknowledged.

Run as ``python -m benchmarks.chaos.producer BROKERS TOPIC PARTITIONS RATE FILE``; SIGTERM ends it,
after everything on the way is acknowledged. A line of the file is a number and its offset.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from threading import Event
from typing import IO, TYPE_CHECKING

from confluent_kafka import Producer

from headrace.core.clock import SYSTEM_CLOCK
from headrace.kafka import clients

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

#: Keys of each partition: a key's records are all in one.
_KEYS = 25

#: Seconds between two turns.
_TURN = 0.05

#: Seconds that what is on the way has at the end.
_FLUSH = 120.0

#: A broker that is down for a while costs time, not records; a retry of the client's own must not
#: put a record there twice.
_SETTINGS = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.timeout.ms": 600_000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}


class NumberedProducer:
    """Produces 0, 1, 2 and so on, each to the partition that its number falls to."""

    def __init__(self, servers: str, topic: str, partitions: int, ledger: IO[str]) -> None:
        self._producer = Producer(clients.producer({"bootstrap.servers": servers, **_SETTINGS}))
        self._topic = topic
        self._partitions = partitions
        self._ledger = ledger
        self.next_number = 0

    def send_up_to(self, number: int) -> None:
        """Send what is due; what the client has no room for is sent at a later turn."""
        while self.next_number < number:
            value, partition = b"%d" % self.next_number, self.next_number % self._partitions
            key = b"%d" % (self.next_number % (self._partitions * _KEYS))
            try:
                self._producer.produce(
                    self._topic, value, key, partition=partition, on_delivery=self._delivered
                )
            except BufferError:
                break
            self.next_number += 1
        self._producer.poll(0)
        self._ledger.flush()

    def finish(self) -> int:
        """Wait for what is on the way; return how many records that was in vain for."""
        left: int = self._producer.flush(_FLUSH)
        self._ledger.flush()
        return left

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._ledger.write(f"{(message.value() or b'').decode()} {message.offset()}\n")


def main(servers: str, topic: str, partitions: str, rate: str, path: str) -> int:
    """Produce until SIGTERM, and return the exit code."""
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with Path(path).open("w", encoding="utf-8") as ledger:
        producer = NumberedProducer(servers, topic, int(partitions), ledger)
        begun = SYSTEM_CLOCK.monotonic()
        while not stopped.wait(_TURN):
            producer.send_up_to(int((SYSTEM_CLOCK.monotonic() - begun) * float(rate)))
        return 1 if producer.finish() else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
