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
from headrace.kafka.record_sizes import RecordSizes
from headrace.records import TopicPartition
from headrace.references import OffsetRun

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from concurrent.futures import Future

    from headrace.clock import Clock

#: Without types in the client.
_EARLIEST: Any = _OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: Seconds between two questions for the ends of the partitions that are planned up to theirs.
POLL_INTERVAL = 0.05

#: Seconds that the leaders may take to answer one.
ANSWER_TIMEOUT = 5.0

#: Offsets of one partition that are planned at a time: in between the fetcher looks at its budget.
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

    @property
    def is_open(self) -> bool:
        """Whether it is to be planned."""
        return not self.paused and not self.out_of_range


class KafkaRangeSource:
    """A ``RecordSource`` that finds out how far partitions reach, and fetches nothing.

    What it returns are runs of offsets. How much a record takes is known from samples. The end is
    the last stable offset, unless ``isolation.level`` is ``read_uncommitted``.
    """

    def __init__(
        self, client_properties: Mapping[str, Any], group: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._admin = AdminClient(properties.silent(client_properties))
        uncommitted = client_properties.get("isolation.level") == "read_uncommitted"
        self._isolation = (
            IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        )
        self._sizes = RecordSizes(client_properties, group, clock)
        self._clock = clock
        self._readings: dict[TopicPartition, _Reading] = {}
        self._asked_at = clock.monotonic() - POLL_INTERVAL
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
        """Plan from ``offset``, once the broker has said that it has it."""
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
        """Return what is known to be there; where nothing is, wait and ask for more."""
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
        # it has no other end than its last reference's
        del self._admin

    # --- what is planned ------------------------------------------------------------------------

    def _planned(self) -> Fetched:
        self._sizes.sample(
            {
                partition: reading.position
                for partition, reading in self._readings.items()
                if reading.is_open and reading.high is not None and reading.position < reading.high
            }
        )
        fetched = Fetched()
        for partition, reading in self._readings.items():
            if reading.is_open and reading.low is not None and reading.high is not None:
                self._plan(partition, reading, (reading.low, reading.high), fetched)
        return fetched

    def _plan(
        self,
        partition: TopicPartition,
        reading: _Reading,
        ends: tuple[int, int],
        fetched: Fetched,
    ) -> None:
        low, high = ends
        if not low <= reading.position <= high:
            reading.out_of_range = True
            fetched.out_of_range.append(partition)
        elif reading.position < high:
            end = min(high, reading.position + MOST_OFFSETS)
            run = OffsetRun(reading.position, end, self._sizes.of(partition.topic))
            fetched.chunks.append((partition, run))
            reading.position = end
        elif reading.told_end != high:
            reading.told_end = high
            fetched.ends.append((partition, high))

    # --- what brokers are asked -----------------------------------------------------------------

    def _ask(self) -> list[str]:
        """Ask for the ends of what is planned, and for the begins of what is new; return errors."""
        self._asked_at = self._clock.monotonic()
        reading = {p: r for p, r in self._readings.items() if r.is_open}
        errors: list[str] = []
        new = [partition for partition, each in reading.items() if each.low is None]
        lows = self._asked(new, _EARLIEST, self._isolation)
        highs = self._asked(reading, _LATEST, self._isolation)
        for partition, offset in _answers(lows, errors).items():
            reading[partition].low = offset
        for partition, offset in _answers(highs, errors).items():
            reading[partition].high = offset
        self._look_behind_transactions(reading, errors)
        return errors

    def _look_behind_transactions(
        self, reading: Mapping[TopicPartition, _Reading], errors: list[str]
    ) -> None:
        """Take a position for the end that lies among the records of an open transaction.

        Such a position is in range, though nothing can be read there yet.
        """
        behind = [p for p, r in reading.items() if r.high is not None and r.position > r.high]
        tops = self._asked(behind, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        for partition, offset in _answers(tops, errors).items():
            each = reading[partition]
            if offset is None or each.position <= offset:
                each.high = None if offset is None else each.position

    def _asked(
        self, partitions: Collection[TopicPartition], which: Any, isolation: IsolationLevel
    ) -> dict[TopicPartition, Future[Any]]:
        if not partitions:
            return {}
        asked = {ClientPartition(p.topic, p.partition): which for p in partitions}
        answers = self._admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=ANSWER_TIMEOUT
        )
        return {TopicPartition(p.topic, p.partition): answer for p, answer in answers.items()}


def _answers(
    asked: Mapping[TopicPartition, Future[Any]], errors: list[str]
) -> dict[TopicPartition, int | None]:
    """Wait for the answers; None is an error, of which ``errors`` has the text, or silence."""
    wait(asked.values(), ANSWER_TIMEOUT)
    return {partition: _answer(partition, each, errors) for partition, each in asked.items()}


def _answer(partition: TopicPartition, answer: Future[Any], errors: list[str]) -> int | None:
    if not answer.done():
        return None
    try:
        return int(answer.result(0).offset)
    except KafkaException as error:
        problem: KafkaError = error.args[0]
        errors.append(f"{partition}: {problem.str()}")
        return None
