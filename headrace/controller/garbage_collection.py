"""Giving back what claims that ended were made of."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, TypeAlias

import structlog

from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.core.memory import give_back

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.controller.controller import KafkaController

log = structlog.get_logger(__name__)

#: Seconds between two looks for claims that ended. A look at the garbage holds all threads up for
#: about 50 ms for each 250,000 objects of the process.
INTERVAL = 30.0

#: The channel, by its object, which is no other one's for as long as it is not freed; the topic,
#: the partition and the epoch.
_Claim: TypeAlias = tuple[int, str, int, int]


class GarbageCollector:
    """Has Python's cyclic collector look at everything, some time after the end of a claim.

    The parts of a channel and of its partitions know each other, so that only the collector can
    free them. It looks at what is old after hours, because it is relaxed for the sake of records
    (:mod:`headrace.kafka.clients`): with an operation every three seconds a process grew by 26
    MiB an hour. As long as no claim ends nothing is done. It has a thread of its own, because what
    the collector frees may be a client whose end waits: a Kafka consumer with a commit that is not
    answered takes 45 s.
    """

    def __init__(self, controller: KafkaController, clock: Clock = SYSTEM_CLOCK) -> None:
        self._controller = controller
        self._clock = clock
        self._due = clock.monotonic() + INTERVAL
        self._held: set[_Claim] = set()
        self._ended = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look around on the thread while the block runs. Does not wait for its end."""
        ending = Event()
        Thread(target=self._run, args=[ending], name="sweeping", daemon=True).start()
        try:
            yield
        finally:
            ending.set()

    def _run(self, ending: Event) -> None:
        while not ending.wait(INTERVAL / 10):
            try:
                self.run_once()
            except Exception:
                log.exception("garbage_collection_failed")

    def run_once(self) -> bool:
        """Look around, if it is time, and return whether garbage was collected. Blocks for that."""
        now = self._clock.monotonic()
        if now < self._due:
            return False
        # what ended since the last look may be in hand still, and is garbage at the next one
        garbage = self._ended
        held = self._claims()
        self._ended = not self._held <= held
        self._held = held
        if garbage:
            found = gc.collect()
            give_back()
            seconds = round(self._clock.monotonic() - now, 4)
            log.debug("garbage_collected", objects=found, seconds=seconds)
        self._due = self._clock.monotonic() + INTERVAL
        return garbage

    def _claims(self) -> set[_Claim]:
        return {
            (id(channel), each.topic, each.partition, each.epoch)
            for channel in tuple(self._controller.channels.values())
            for each in channel.partitions()
        }
