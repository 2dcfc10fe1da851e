"""Planning ranges: how far partitions reach, without fetching what is in them."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum
from threading import Event
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # not in __all__, but in the client's documentation

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import ConfigError
from headrace.core.record_runs import OffsetRun
from headrace.core.records import TopicPartition
from headrace.kafka import clients
from headrace.kafka.clients import open_consumer
from headrace.kafka.ports import Fetched, RecordSource
from headrace.kafka.source import LOCAL_TIMEOUT
from headrace.kafka.truncation import STALE_LEADER, LogQuestions, first_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from concurrent.futures import Future

    from confluent_kafka import Message

    from headrace.core.clock import Clock


log = structlog.get_logger(__name__)

#: Records of a topic that are read to know how large one is.
SAMPLE = 200

#: What a record is taken to be as long as none was seen, in bytes.
GUESS = 1024

#: Seconds for one sample of all topics, and between two of the same topic: one that gave
#: something, one that gave nothing.
SAMPLE_TIMEOUT = 2.0
INTERVAL = 300.0
SIZES_RETRY_INTERVAL = 10.0


class RecordSizes:
    """The mean size of a topic's records, in bytes of key, value and headers.

    Used by one thread. It reads with a consumer of its own, which is open for the sample only.
    """

    def __init__(self, client_properties: Mapping[str, Any], group: str, clock: Clock) -> None:
        self._properties = {
            **clients.consumer(clients.silent(client_properties), group),
            "enable.partition.eof": True,
            # no more than the sample is to be fetched
            "queued.min.messages": SAMPLE,
            "queued.max.messages.kbytes": 1024,
            "fetch.message.max.bytes": 1 << 20,
            # where the sample's offset is gone there are others after it
            "auto.offset.reset": "earliest",
        }
        self._clock = clock
        self._sizes: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def of(self, topic: str) -> int:
        """Return what a record takes: as last sampled, or a guess. At least 1."""
        return self._sizes.get(topic, GUESS)

    def sample(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read some records at these positions, of each topic whose sample is due. Blocks."""
        now = self._clock.monotonic()
        chosen: dict[str, ClientPartition] = {}
        for (topic, partition), offset in positions.items():
            if self._due.get(topic, now) <= now and topic not in chosen:
                chosen[topic] = ClientPartition(topic, partition, offset)
        if not chosen:
            return
        found = self._read(chosen.values())
        for topic in chosen:
            sizes = found.get(topic)
            self._due[topic] = now + (INTERVAL if sizes else SIZES_RETRY_INTERVAL)
            if sizes:
                self._sizes[topic] = max(1, sum(sizes) // len(sizes))
                log.debug("record_size_sampled", topic=topic, size=self._sizes[topic])

    def _read(self, partitions: Iterable[ClientPartition]) -> dict[str, list[int]]:
        open_ones = {each.topic: each for each in partitions}
        found: dict[str, list[int]] = {}
        deadline = Deadline.after(SAMPLE_TIMEOUT, self._clock)
        try:
            with closing(open_consumer(self._properties)) as consumer:
                consumer.assign(list(open_ones.values()))
                while open_ones and not deadline.expired:
                    message = consumer.poll(deadline.remaining)
                    topic = None if message is None else message.topic()
                    if message is not None and topic in open_ones:
                        sizes = found.setdefault(topic, [])
                        if _is_last(message, sizes):
                            consumer.pause([open_ones.pop(topic)])
        except (KafkaException, ConfigError) as error:
            log.warning("record_sizes_unknown", topics=sorted(open_ones), error=str(error))
        return found


def _is_last(message: Message, sizes: list[int]) -> bool:
    """Add a record's size; whether the topic's sample is over, or there is nothing more of it."""
    error = message.error()
    if error is not None:
        return error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name for it
    sizes.append(_size(message))
    return len(sizes) >= SAMPLE


def _size(message: Message) -> int:
    key: bytes | None = message.key()
    headers: Any = message.headers()
    extra = sum(len(name) + len(data or b"") for name, data in headers or ())
    return len(message) + len(key or b"") + extra


#: Without types in the client.
_EARLIEST: Any = _OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: Seconds between two questions for the ends of the partitions that are planned up to theirs.
POLL_INTERVAL = 0.05

#: Seconds between two for those whose leaders did not answer the last one.
RETRY_INTERVAL = 1.0

#: Seconds that the leaders may take to answer one.
ANSWER_TIMEOUT = 5.0

#: Offsets of one partition that are planned at a time: in between the fetcher looks at its budget.
MOST_OFFSETS = 100_000


@dataclass(slots=True)
class _PartitionPlan:
    """A partition: the next offset to plan, and its ends as last known.

    ``asked`` has what its leader was asked and has not answered. ``epoch`` is a leader epoch under
    which the log was seen to lead to the position, and ``in_doubt`` that it may not do so any more.
    """

    position: int
    epoch: int | None = None
    in_doubt: bool = False
    low: int | None = None
    high: int | None = None
    paused: bool = False
    reported_end: int | None = None
    out_of_range: bool = False
    troubled: bool = False
    asked: dict[_End, Future[Any]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Return whether it is to be planned."""
        return not self.paused and not self.out_of_range and not self.in_doubt

    @property
    def unread(self) -> bool:
        """Return whether records are known to be there that are not planned."""
        return self.is_open and self.high is not None and self.position < self.high


class _End(Enum):
    """The offset that a leader is asked for."""

    LOW = "low"
    """The first offset that it has."""

    HIGH = "high"
    """The end for readers with the isolation level of the source."""

    TOP = "top"
    """The end after the records of open transactions."""


class KafkaRangeSource(RecordSource):
    """A ``RecordSource`` that finds out how far partitions reach, and fetches nothing.

    What it returns are runs of offsets. How much a record takes is known from samples. The end is
    the last stable offset, unless ``isolation.level`` is ``read_uncommitted``.
    """

    def __init__(
        self, client_properties: Mapping[str, Any], group: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._admin = AdminClient(clients.silent(client_properties))
        uncommitted = client_properties.get("isolation.level") == "read_uncommitted"
        self._isolation = (
            IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        )
        self._sizes = RecordSizes(client_properties, group, clock)
        self._logs = LogQuestions(client_properties, group, clock)
        self._clock = clock
        self._plans: dict[TopicPartition, _PartitionPlan] = {}
        self._stale: set[str] = set()
        self._asked_at = clock.monotonic() - POLL_INTERVAL
        self._retried_at = self._asked_at - RETRY_INTERVAL
        self._never = Event()

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._logs.forget(starts)
        for partition, start in starts.items():
            self._plans[partition] = _PartitionPlan(start, (epochs or {}).get(partition))

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        self._logs.forget(partitions)
        for partition in partitions:
            self._plans.pop(partition, None)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._set_paused(partitions, True)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Collection[TopicPartition], paused: bool) -> None:
        for partition in self._plans.keys() & set(partitions):
            self._plans[partition].paused = paused

    def fetch(self, timeout: float) -> Fetched:
        fetched = self._planned()
        if fetched != Fetched() or timeout <= 0:
            return fetched
        pause = self._asked_at + POLL_INTERVAL - self._clock.monotonic()
        if pause > 0:
            self._never.wait(min(pause, timeout))
        if pause <= timeout:
            self._ask_ends()
            # those in trouble may never come
            sound = [plan for plan in self._plans.values() if not plan.troubled]
            wait([answer for plan in sound for answer in plan.asked.values()], timeout)
            errors = self._take_answers()
            fetched = self._planned()
            fetched.errors.extend(errors)
        return fetched

    def high_watermark(self, partition: TopicPartition) -> int | None:
        plan = self._plans.get(partition)
        return None if plan is None else plan.high

    def close(self) -> None:
        # it has no other end than its last reference's
        del self._admin
        self._logs.close()

    # --- what is planned ------------------------------------------------------------------------

    def _planned(self) -> Fetched:
        self._sizes.sample(
            {partition: plan.position for partition, plan in self._plans.items() if plan.unread}
        )
        fetched = Fetched()
        self._settle_doubts(fetched)
        for partition, plan in self._plans.items():
            if plan.is_open and plan.low is not None and plan.high is not None:
                self._plan(partition, plan, (plan.low, plan.high), fetched)
        return fetched

    def _settle_doubts(self, fetched: Fetched) -> None:
        """Apply the answers on whether logs still lead to positions in doubt."""
        fetched.errors.extend(self._logs.poll(0))
        for partition in [*self._logs.whole, *self._logs.lost]:
            plan = self._plans[partition]
            plan.in_doubt = False
            # asked for again: what is known may be of before
            plan.low = plan.high = None
            if partition in self._logs.lost:
                plan.out_of_range = True
                fetched.truncated.append((partition, self._logs.lost[partition]))
        self._logs.forget([*self._logs.whole, *self._logs.lost])

    def _plan(
        self,
        partition: TopicPartition,
        plan: _PartitionPlan,
        ends: tuple[int, int],
        fetched: Fetched,
    ) -> None:
        low, high = ends
        if not low <= plan.position <= high:
            plan.out_of_range = True
            fetched.out_of_range.append(partition)
        elif plan.position < high:
            end = min(high, plan.position + MOST_OFFSETS)
            run = OffsetRun(plan.position, end, self._sizes.of(partition.topic))
            fetched.chunks.append((partition, run))
            if plan.epoch is not None:
                fetched.leader_epochs[partition] = plan.epoch
            plan.position = end
        elif plan.reported_end != high:
            plan.reported_end = high
            fetched.ends.append((partition, high))

    # --- what brokers are asked -----------------------------------------------------------------

    def _ask_ends(self) -> None:
        """Ask for the ends of what is planned, and for the begins of what is new.

        Partitions in trouble are asked by themselves and not as often: an answer comes when all
        leaders of one question have answered.
        """
        now = self._clock.monotonic()
        self._asked_at = now
        may_retry = now >= self._retried_at + RETRY_INTERVAL
        idle = {p: r for p, r in self._plans.items() if r.is_open and not r.asked}
        if may_retry:
            self._retried_at = now
            self._ask_these({p: r for p, r in idle.items() if r.troubled})
        self._ask_these({p: r for p, r in idle.items() if not r.troubled})

    def _ask_these(self, plans: Mapping[TopicPartition, _PartitionPlan]) -> None:
        self._send(_End.LOW, {p: r for p, r in plans.items() if r.low is None})
        self._send(_End.HIGH, plans)

    def _send(self, what: _End, plans: Mapping[TopicPartition, _PartitionPlan]) -> None:
        if not plans:
            return
        spec = _EARLIEST if what is _End.LOW else _LATEST
        isolation = IsolationLevel.READ_UNCOMMITTED if what is _End.TOP else self._isolation
        answers = self._admin.list_offsets(
            {ClientPartition(*each): spec for each in plans},
            isolation_level=isolation,
            request_timeout=ANSWER_TIMEOUT,
        )
        for asked, answer in answers.items():
            plans[TopicPartition(asked.topic, asked.partition)].asked[what] = answer

    def _answered_offset(
        self, partition: TopicPartition, answer: Future[Any]
    ) -> tuple[int | None, int | None, str]:
        """Return the offset that was answered and its leader epoch, or None and what is wrong."""
        try:
            found = answer.result(0)
        except KafkaException as error:
            problem: KafkaError = error.args[0]
            if problem.code() in STALE_LEADER:
                self._stale.add(partition.topic)
            return None, None, problem.str()
        return int(found.offset), found.leader_epoch, ""

    def _has_new_leader(
        self, partition: TopicPartition, plan: _PartitionPlan, epoch: int | None
    ) -> bool:
        """Record the leader epoch; return True if a change of it puts the position in doubt."""
        if epoch is None or epoch < 0 or plan.in_doubt:
            return False
        before, plan.epoch = plan.epoch, epoch
        if before is None or before == epoch:
            return False
        plan.in_doubt = True
        self._logs.ask(partition, plan.position, before)
        return True

    def _take_answers(self) -> list[str]:
        """Apply the answers that have arrived; return the problems."""
        problems: dict[str, list[TopicPartition]] = {}
        unread: dict[TopicPartition, _PartitionPlan] = {}
        for partition, plan in self._plans.items():
            for what in [each for each, answer in plan.asked.items() if answer.done()]:
                offset, epoch, problem = self._answered_offset(partition, plan.asked.pop(what))
                plan.troubled = offset is None
                if what is _End.HIGH and self._has_new_leader(partition, plan, epoch):
                    continue
                if offset is None:
                    problems.setdefault(problem, []).append(partition)
                elif what is _End.LOW:
                    plan.low = offset
                elif what is _End.HIGH and offset < plan.position:
                    unread[partition] = plan
                else:
                    # a position among the records of an open transaction is in range
                    in_range = what is _End.TOP and plan.position <= offset
                    plan.high = plan.position if in_range else offset
        # the client is to learn the leaders of topics that had an election
        for topic in self._stale:
            with suppress(KafkaException):
                self._admin.list_topics(topic, timeout=LOCAL_TIMEOUT)
        self._stale.clear()
        self._send(_End.TOP, unread)
        return [f"{first_of(partitions)}: {problem}" for problem, partitions in problems.items()]
