"""What the brokers' transaction log says of transactions.

The client library lists none, so this reads ``__transaction_state`` as a topic: the transactions'
coordinators write every change of state there before they act on it.
"""

from __future__ import annotations

import struct
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, and not said to be
    AdminClient,
    OffsetSpec,
)

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, KafkaUnavailableError
from headrace.core.records import TopicPartition
from headrace.kafka import clients
from headrace.kafka.catalog import KafkaTopicCatalog
from headrace.kafka.source import read_log

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

#: The topic that coordinators of transactions keep their state in.
TRANSACTION_LOG = "__transaction_state"

#: Seconds in which the brokers have to answer one question.
_ANSWER_TIMEOUT = 15.0

#: The group that the reading client names; it commits nothing.
_GROUP = "headrace-transactions"

#: Versions of the log's records that are understood: 1 has compact lengths and tagged fields.
_VERSIONS = (0, 1)


class TransactionLogError(HeadraceError):
    """The transaction log is of a version that is not known."""


class TransactionState(Enum):
    """Where a transaction is, by the number that the log has."""

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
        """Whether readers of committed records wait for it."""
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


class _Bytes:
    """Reads the fields of a record of the log, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """Return a number of a fixed size."""
        (found,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def varint(self) -> int:
        """Return a number of as many bytes as it needs, without a sign."""
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that another byte follows
                return value
            shift += 7

    def text(self, *, compact: bool) -> str:
        """Return a text."""
        length = self.varint() - 1 if compact else self.number("h")
        found = self._data[self._at : self._at + length]
        self._at += length
        return found.decode()

    def count(self, *, compact: bool) -> int:
        """Return how many items follow; none where there is no list."""
        return max(0, self.varint() - 1 if compact else self.number("i"))

    def skip_tags(self) -> None:
        """Pass over fields that only some versions know."""
        for _ in range(self.varint()):
            self.varint()
            length = self.varint()
            self._at += length


def decode_transaction(key: bytes, value: bytes) -> LoggedTransaction | None:
    """Return what a record of the log says, None where it is of another kind.

    Raises:
        TransactionLogError: it is of a version that is not known.
    """
    try:
        name = _Bytes(key)
        if name.number("h") != 0:
            return None
        transactional_id = name.text(compact=False)
        fields = _Bytes(value)
        version = fields.number("h")
        if version not in _VERSIONS:
            raise TransactionLogError(
                f"{TRANSACTION_LOG} has records of version {version}; this Headrace knows "
                f"{_VERSIONS[0]} and {_VERSIONS[-1]}: use kafka-transactions.sh of the brokers"
            )
        return _decoded(transactional_id, fields, compact=version > 0)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise TransactionLogError(
            f"{TRANSACTION_LOG} has a record that cannot be read ({error}); use "
            "kafka-transactions.sh of the brokers"
        ) from error


def _decoded(transactional_id: str, fields: _Bytes, *, compact: bool) -> LoggedTransaction:
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


class TransactionLog:
    """Reads the state of transactions from the brokers. Every method blocks.

    Raises:
        KafkaAccessError: this user may not read the log.
        KafkaUnavailableError: the brokers did not answer.
        TransactionLogError: the log is not understood.
    """

    def __init__(self, client_properties: Mapping[str, Any]) -> None:
        self._properties = dict(client_properties)

    def transactions(self) -> dict[str, LoggedTransaction]:
        """Return the last state of each transactional id that the brokers remember."""
        found: dict[str, LoggedTransaction] = {}
        for key, value in self._records():
            if value is None:
                # the id is forgotten
                name = _Bytes(key)
                if name.number("h") == 0:
                    found.pop(name.text(compact=False), None)
                continue
            each = decode_transaction(key, value)
            if each is not None:
                found[each.transactional_id] = each
        return found

    def _records(self) -> Iterator[tuple[bytes, bytes | None]]:
        with closing(KafkaTopicCatalog(self._properties, _GROUP)) as catalog:
            info = catalog.describe([TRANSACTION_LOG], self._soon()).get(TRANSACTION_LOG)
            if info is None:
                # no producer has begun a transaction yet; who may not see it would be told so
                return
            for number in range(info.partitions):
                partition = TopicPartition(TRANSACTION_LOG, number)
                low, high = catalog.watermarks(partition, self._soon())
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

    def _ends(
        self, partitions: Collection[TopicPartition], level: IsolationLevel
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # as above
        admin, deadline = AdminClient(clients.silent(self._properties)), self._soon()
        asked = admin.list_offsets(
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
    def _soon() -> Deadline:
        return Deadline.after(_ANSWER_TIMEOUT)
