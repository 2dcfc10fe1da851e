"""Planning ranges: how far partitions reach, without fetching what is in them."""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # not in __all__, but in the client's documentation

from headrace.clock import SYSTEM_CLOCK
from headrace.kafka import properties
from headrace.kafka.ports import Fetched
from headrace.records import TopicPartition
from headrace.references import OffsetRun

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from concurrent.futures import Future

    from headrace.clock import Clock

#: Without types in the client.
_EARLIEST: Any = _OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: Seconds between two questions for the ends of the partitions that are read up to theirs.
POLL_INTERVAL = 0.05

#: Seconds that the leaders may take to answer one.
ANSWER_TIMEOUT = 5.0

#: Offsets of one partition that are planned at a time: the memory budget is looked at in between.
MOST_OFFSETS = 100_000


@dataclass(slots=True)
class _Reading:
    """A partition: the next offset to plan, and its ends as last heard of."""

    position: int
    low: int | None = None
    high: int | None = None
    paused: bool = False
    told_end: int | None = None
    out_of_range: bool = False


class KafkaRangeSource:
    """A ``RecordSource`` that finds out how far partitions reach, and fetches nothing.

    What it returns are runs of offsets; ``size_of`` says what a record of a topic takes, in bytes.
    The end is the last stable offset, unless ``isolation.level`` is ``read_uncommitted``.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        record_size: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._admin = AdminClient(properties.silent(client_properties))
        uncommitted = client_properties.get("isolation.level") == "read_uncommitted"
        self._isolation = (
            IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        )
        self._record_size = record_size
        self._clock = clock
        self._readings: dict[TopicPartition, _Reading] = {}
        self._asked_at = -POLL_INTERVAL
        self._never = Event()

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Begin to plan; other partitions go on."""
        for partition, start in starts.items():
            self._readings[partition] = _Reading(start)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Plan no further."""
        for partition in partitions:
            self._readings.pop(partition, None)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Plan from ``offset``."""
        self.assign({partition: offset})

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Plan no further for a while."""
        for partition in partitions:
            if partition in self._readings:
                self._readings[partition].paused = True

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Go on."""
        for partition in partitions:
            if partition in self._readings:
                self._readings[partition].paused = False

    def fetch(self, timeout: float) -> Fetched:
        """Return what is known to be there, or ask for it once, and wait for more."""
        fetched = self._planned()
        if fetched != Fetched() or timeout <= 0:
            return fetched
        pause = self._asked_at + POLL_INTERVAL - self._clock.monotonic()
        if pause > 0:
            self._never.wait(min(pause, timeout))
        if pause <= timeout:
            errors = self._ask()
            fetched = self._planned()
            fetched.errors.extend(errors)
        return fetched

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the end as last heard of."""
        reading = self._readings.get(partition)
        return None if reading is None else reading.high

    def close(self) -> None:
        """Release the client."""
        del self._admin

    def _planned(self) -> Fetched:
        fetched = Fetched()
        for partition, reading in self._readings.items():
            if not reading.paused and not reading.out_of_range and reading.high is not None:
                self._plan(partition, reading, reading.high, fetched)
        return fetched

    def _plan(
        self, partition: TopicPartition, reading: _Reading, high: int, fetched: Fetched
    ) -> None:
        if reading.position > high or reading.position < (reading.low or 0):
            reading.out_of_range = True
            fetched.out_of_range.append(partition)
        elif reading.position < high:
            end = min(high, reading.position + MOST_OFFSETS)
            run = OffsetRun(reading.position, end, self._record_size)
            fetched.chunks.append((partition, run))
            reading.position = end
        elif reading.told_end != high:
            reading.told_end = high
            fetched.ends.append((partition, high))

    def _ask(self) -> list[str]:
        """Ask for the ends of what is read, and for the begins of what is new; return errors."""
        self._asked_at = self._clock.monotonic()
        reading = {p: r for p, r in self._readings.items() if not r.paused and not r.out_of_range}
        new = [p for p, r in reading.items() if r.low is None]
        lows = self._offsets(new, _EARLIEST)
        highs = self._offsets(reading, _LATEST)
        wait([*lows.values(), *highs.values()], ANSWER_TIMEOUT)
        errors: list[str] = []
        for partition, answer in highs.items():
            reading[partition].high = _offset(partition, answer, errors)
        for partition, answer in lows.items():
            reading[partition].low = _offset(partition, answer, errors)
        return errors

    def _offsets(
        self, partitions: Collection[TopicPartition], which: Any
    ) -> dict[TopicPartition, Future[Any]]:
        if not partitions:
            return {}
        asked = {ClientPartition(p.topic, p.partition): which for p in partitions}
        answers = self._admin.list_offsets(
            asked, isolation_level=self._isolation, request_timeout=ANSWER_TIMEOUT
        )
        return {TopicPartition(p.topic, p.partition): answer for p, answer in answers.items()}


def _offset(partition: TopicPartition, answer: Future[Any], errors: list[str]) -> int | None:
    """Return the offset that was answered; None where none was, which is an error or silence."""
    if not answer.done():
        return None
    try:
        return int(answer.result(0).offset)
    except KafkaException as error:
        problem: KafkaError = error.args[0]
        errors.append(f"{partition}: {problem.str()}")
        return None
