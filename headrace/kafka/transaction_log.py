"""The state of transactions, as the brokers' transaction log has it.

The client library lists none, so this reads ``__transaction_state`` as a topic: the transactions'
coordinators write every change of state there before they act on it.
"""

from __future__ import annotations

import struct
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, and not said to be
    AdminClient,
    OffsetSpec,
)

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import clients
from headrace.kafka.catalog import KafkaTopicCatalog
from headrace.kafka.errors import KafkaUnavailableError, OffsetStoreError
from headrace.kafka.log_fields import Fields
from headrace.kafka.source import read_log

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

#: The topic that coordinators of transactions keep their state in.
TRANSACTION_LOG = "__transaction_state"

#: The topic that groups' offsets are in.
OFFSETS_TOPIC = "__consumer_offsets"

#: Seconds in which the brokers have to answer one question.
_ANSWER_TIMEOUT = 15.0

#: Seconds in which transactions end that go on, for the most part, and between two looks at that.
_PATIENCE, _LOOK_AGAIN = 0.5, 0.02

#: The group that the reading client names; it commits nothing.
_GROUP = "headrace-transactions"

#: Versions of the log's records that are understood: 1 has compact lengths and tagged fields.
_VERSIONS = (0, 1)


class TransactionState(Enum):
    """The state of a transaction, by the number that the log has."""

    EMPTY = 0
    """A producer has begun with the id, and no transaction."""
    ONGOING = 1
    """It is open."""
    PREPARE_COMMIT = 2
    """It is decided, and its partitions are being told."""
    PREPARE_ABORT = 3
    """The same of an abort."""
    COMPLETE_COMMIT = 4
    """It was committed."""
    COMPLETE_ABORT = 5
    """It was aborted."""
    DEAD = 6
    """The id is being forgotten."""
    PREPARE_EPOCH_FENCE = 7
    """Its producer is being shut out."""

    @property
    def is_open(self) -> bool:
        """Return whether readers of committed records wait for it."""
        return self in _OPEN


_OPEN = frozenset(
    {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """The last state of a transactional id. Times are in milliseconds since the epoch.

    ``started`` is None where no transaction has begun.
    """

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated: int
    started: int | None
    partitions: tuple[TopicPartition, ...]


class Decision(Enum):
    """The decision on the last transaction that a producer had on a partition."""

    COMMIT = "commit"
    """It is to take effect: once that is decided, nothing undoes it."""
    ABORT = "abort"
    """It is to leave nothing."""
    NONE = "none"
    """No transaction was ever decided there."""
    UNKNOWN = "unknown"
    """The log does not say it any more, or may not be read."""


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions on one id's transactions, by partition.

    A transaction leaves the partitions that it does not have as they are, so the last one of an id
    says nothing of those. ``elsewhere`` holds for partitions that are not named.
    """

    partitions: Mapping[TopicPartition, Decision]
    elsewhere: Decision

    @property
    def of_group(self) -> Decision:
        """Return the decision on the offsets: a producer of ours stores them in one group only."""
        found = [each for each in self.partitions if each.topic == OFFSETS_TOPIC]
        return self.partitions[found[0]] if len(found) == 1 else self.elsewhere


#: What is decided of an id that nothing is known of.
UNDECIDABLE = Decided({}, Decision.UNKNOWN)

_DECISIONS = {
    TransactionState.PREPARE_COMMIT: Decision.COMMIT,
    TransactionState.COMPLETE_COMMIT: Decision.COMMIT,
    TransactionState.PREPARE_ABORT: Decision.ABORT,
    TransactionState.COMPLETE_ABORT: Decision.ABORT,
}


def decided(history: Iterable[LoggedTransaction | None]) -> Decided:
    """Return what the log's records of one id, in their order, say; None is one that forgets it.

    Compaction takes the older ones away. Where the first that is there is not the one that began
    the id, what came before is not known. A commit of ours always has an offset, so one whose
    partitions are not named any more holds for the group's; of a topic it says nothing. What was
    decided under another producer id is out of reach.
    """
    found: dict[TopicPartition, Decision] = {}
    elsewhere = Decision.UNKNOWN
    under_way: tuple[TopicPartition, ...] = ()
    producer_id: int | None = None
    is_first = True
    for each in history:
        if each is None or each.producer_id != producer_id:
            found, elsewhere, under_way = {}, Decision.UNKNOWN, ()
        if each is None:
            is_first, producer_id = False, None
            continue
        if is_first and each.state is TransactionState.EMPTY and each.producer_epoch == 0:
            elsewhere = Decision.NONE
        is_first, producer_id = False, each.producer_id
        decision = _DECISIONS.get(each.state)
        under_way = each.partitions or under_way
        if decision is not None:
            found |= dict.fromkeys(under_way, decision)
            if decision is Decision.COMMIT and not under_way:
                elsewhere = decision
            if not each.state.is_open:
                under_way = ()
    return Decided(found, elsewhere)


@dataclass(frozen=True, slots=True)
class Hold:
    """The reason why readers of committed records stop in a partition at ``stable``, of ``end``.

    ``going_on`` are the ids of open transactions there. Where there is none, the mark of a decided
    one was lost, and ``decided`` has the ids that had the partition, with the last decision of
    each.
    """

    stable: int
    end: int
    going_on: tuple[str, ...] = ()
    decided: Mapping[str, Decision] = field(default_factory=dict)

    @property
    def is_for_good(self) -> bool:
        """Return whether waiting does not end it."""
        return not self.going_on

    def __str__(self) -> str:
        if self.going_on:
            who = f"by the open transaction of {', '.join(self.going_on)}"
        elif self.decided:
            each = (f"{name}, decided as {what.value}" for name, what in self.decided.items())
            who = f"for good, as a mark was lost of a transaction of {' or '.join(each)}"
        else:
            who = "for good, by a transaction that the log does not name any more"
        return f"readable up to {self.stable} of {self.end}, held back {who}"


def decode_transaction(key: bytes, value: bytes) -> LoggedTransaction | None:
    """Return what a record of the log says, None where it is of another kind.

    Raises:
        OffsetStoreError: it is of a version that is not known.
    """
    try:
        name = Fields(key)
        if name.number("h") != 0:
            return None
        transactional_id = name.text(compact=False)
        fields = Fields(value)
        version = fields.number("h")
        if version not in _VERSIONS:
            raise OffsetStoreError(
                f"{TRANSACTION_LOG} has records of version {version}; this Headrace knows "
                f"{_VERSIONS[0]} and {_VERSIONS[-1]}: use kafka-transactions.sh of the brokers"
            )
        return _decoded(transactional_id, fields, compact=version > 0)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise OffsetStoreError(
            f"{TRANSACTION_LOG} has a record that cannot be read ({error}); use "
            "kafka-transactions.sh of the brokers"
        ) from error


def _decoded(transactional_id: str, fields: Fields, *, compact: bool) -> LoggedTransaction:
    producer_id, epoch, timeout = (fields.number(form) for form in "qhi")
    state = TransactionState(fields.number("b"))
    partitions: list[TopicPartition] = []
    for _ in range(fields.count(compact=compact)):
        topic = fields.text(compact=compact)
        numbers = [fields.number("i") for _ in range(fields.count(compact=compact))]
        partitions += (TopicPartition(topic, number) for number in numbers)
        if compact:
            fields.skip_tags()
    updated, started = fields.number("q"), fields.number("q")
    return LoggedTransaction(
        transactional_id,
        state,
        producer_id,
        epoch,
        timeout,
        updated,
        started if started > 0 else None,
        tuple(sorted(partitions)),
    )


def internal_partition(name: str, partitions: int) -> int:
    """Return the partition of a topic of the brokers' own that has a name: by Java's hash of it."""
    code = 0
    encoded = name.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", encoded):
        code = (31 * code + unit) & 0xFFFFFFFF
    # the least number has no positive one, and stands for 0
    size = 0 if code == _LEAST else min(code, 2 * _LEAST - code)
    return size % partitions


#: Java's least number, without its sign.
_LEAST = 1 << 31


def holder_of(client_properties: Mapping[str, Any], partition: TopicPartition) -> str:
    """Return what holds readers of committed records up in a partition, as a sentence. Blocks.

    Raises as :class:`TransactionLog` does.
    """
    found = TransactionLog(client_properties).holds([partition]).get(partition)
    return (
        "no transaction holds it back; its leader brings nothing" if found is None else str(found)
    )


class TransactionLog:
    """Reads the state of transactions from the brokers. Every method blocks.

    Raises:
        KafkaAccessError: this user may not read the log.
        KafkaUnavailableError: the brokers did not answer.
        OffsetStoreError: the log is not understood.
    """

    def __init__(self, client_properties: Mapping[str, Any]) -> None:
        self._properties = dict(client_properties)

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(clients.silent(self._properties))

    def transactions(self) -> dict[str, LoggedTransaction]:
        """Return the last state of each transactional id that the brokers remember."""
        found: dict[str, LoggedTransaction] = {}
        for name, each in self._entries(range(self._partitions())):
            if each is None:
                found.pop(name, None)
            else:
                found[name] = each
        return found

    def decided(self, transactional_ids: Collection[str]) -> dict[str, Decided]:
        """Return what was decided of each id's transactions.

        Only the partitions of the log that the ids are in are read.
        """
        total = self._partitions()
        numbers = (
            {internal_partition(each, total) for each in transactional_ids} if total else set()
        )
        history: dict[str, list[LoggedTransaction | None]] = {
            each: [] for each in transactional_ids
        }
        for name, each in self._entries(sorted(numbers)):
            if name in history:
                history[name].append(each)
        return {name: decided(each) for name, each in history.items()}

    def holds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Hold]:
        """Return of :meth:`held_back` who holds each partition back.

        Transactions that go on end a moment later, and what they alone held back is left out: to
        learn who holds a partition takes to read all of the log. One that was held back elsewhere
        before the log was read goes on, too.
        """
        before = self._lasting(self.held_back(partitions))
        if not before:
            return {}
        history: dict[str, list[LoggedTransaction | None]] = {}
        for name, each in self._entries(range(self._partitions())):
            history.setdefault(name, []).append(each)
        after = self.held_back(before)
        made = {name: decided(each).partitions for name, each in history.items()}
        last = {name: each[-1] for name, each in history.items()}
        return {
            partition: Hold(
                stable,
                end,
                tuple(
                    name
                    for name, each in last.items()
                    if each is not None and each.state.is_open and partition in each.partitions
                ),
                {name: each[partition] for name, each in made.items() if partition in each},
            )
            for partition, (stable, end) in after.items()
            if stable == before[partition][0]
        }

    def _partitions(self) -> int:
        """Return how many partitions the log has; 0: no producer has begun a transaction yet."""
        with closing(KafkaTopicCatalog(self._properties, _GROUP)) as catalog:
            info = catalog.describe([TRANSACTION_LOG], self._answer_deadline()).get(TRANSACTION_LOG)
            return 0 if info is None else info.partitions

    def _entries(self, numbers: Iterable[int]) -> Iterator[tuple[str, LoggedTransaction | None]]:
        """Yield ids with each of their states in the order of the log, None: it is forgotten."""
        for key, value in self._records(numbers):
            if value is not None:
                each = decode_transaction(key, value)
                if each is not None:
                    yield each.transactional_id, each
                continue
            name = Fields(key)
            if name.number("h") == 0:
                yield name.text(compact=False), None

    def _records(self, numbers: Iterable[int]) -> Iterator[tuple[bytes, bytes | None]]:
        with closing(KafkaTopicCatalog(self._properties, _GROUP)) as catalog:
            for number in numbers:
                partition = TopicPartition(TRANSACTION_LOG, number)
                low, high = catalog.watermarks(partition, self._answer_deadline())
                for record in read_log(self._properties, _GROUP, partition, low, high):
                    key = record.key()
                    if key is not None:
                        yield key, record.value()

    def held_back(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return where readers of committed records wait, and the end, where these differ."""
        stable = self._ends(partitions, IsolationLevel.READ_COMMITTED)
        ends = self._ends(partitions, IsolationLevel.READ_UNCOMMITTED)
        return {each: (stable[each], ends[each]) for each in ends if stable[each] < ends[each]}

    def _lasting(
        self, held: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return those that are held back for longer than transactions last that go on.

        Once readers have come to where the end was nothing of before is held back any more.
        """
        left = dict(held)
        patience = Deadline.after(_PATIENCE)
        while left and not patience.expired:
            Event().wait(_LOOK_AGAIN)
            stable = self._ends(left, IsolationLevel.READ_COMMITTED)
            left = {
                each: (stable[each], end) for each, (_, end) in left.items() if stable[each] < end
            }
        return left

    def _ends(
        self, partitions: Collection[TopicPartition], level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        deadline = self._answer_deadline()
        asked = self._admin.list_offsets(
            {ClientPartition(*each): latest for each in partitions},
            isolation_level=level,
            request_timeout=deadline.left,
        )
        try:
            return {
                TopicPartition(each.topic, each.partition): clients.answer(future, deadline).offset
                for each, future in asked.items()
            }
        except KafkaException as error:
            raise KafkaUnavailableError(
                f"the ends of partitions cannot be read: {error.args[0].str()}; are the brokers "
                "running, and may this user describe the topics?"
            ) from error

    @staticmethod
    def _answer_deadline() -> Deadline:
        return Deadline.after(_ANSWER_TIMEOUT)
