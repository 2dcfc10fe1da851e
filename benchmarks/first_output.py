"""The time at which the first record of an output is read by another client."""

from __future__ import annotations

from threading import Event, Thread

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import SYSTEM_CLOCK


def open_consumer(servers: str) -> Consumer:
    """Return a consumer of committed records that hears of them at once; it is assigned nothing."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench-watch",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )


class FirstOutput:
    """Watches a topic, from where it ends now, for its next committed record. One thread."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._consumer = open_consumer(servers)
        places = [ClientPartition(topic, each, 0) for each in range(partitions)]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, 30.0)[1]
        self._consumer.assign(places)
        self._topic = topic
        self._came, self._stop = Event(), Event()
        self._at = 0.0
        self._thread = Thread(target=self._watch, name="watch-output", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._at = SYSTEM_CLOCK.monotonic()
                self._came.set()
                break
        self._consumer.close()

    def wait(self, seconds: float) -> float:
        """Return when the record was read, as the system's monotonic clock has it. Blocks.

        Raises:
            AssertionError: none came in so many seconds.
        """
        came = self._came.wait(seconds)
        self._stop.set()
        self._thread.join()
        if not came:
            raise AssertionError(f"no output in {self._topic} in {seconds:.0f} s")
        return self._at
