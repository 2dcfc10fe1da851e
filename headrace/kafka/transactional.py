"""Group offsets in Kafka, committed in transactions so that the brokers refuse former owners."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.kafka import properties
from headrace.kafka.offset_metadata import entry
from headrace.kafka.offsets import KafkaOffsetStore
from headrace.kafka.ports import Failure, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.clock import Deadline
    from headrace.kafka.ports import Commit, StoredOffset
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)

#: Milliseconds after which the brokers abort a transaction whose producer is silent. Offsets in an
#: open transaction cannot be read; a new owner does not wait for this, it fences the producer.
TRANSACTION_TIMEOUT_MS = 15_000

_SHUT_OUT = "the brokers shut out our transactional producer"


class _Phase(Enum):
    """Where the producer stands with its transaction; what follows after a time-out."""

    NEW = "new"
    """``init_transactions`` has not succeeded yet."""
    READY = "ready"
    """No transaction is open."""
    OPEN = "open"
    """Its offsets are not all sent: it can only be aborted."""
    COMMITTING = "committing"
    """Its end was asked for: only asking again tells whether it took place."""


class _Member:
    """The producer of one stay in the group. Used by the committer's thread."""

    def __init__(self, client_properties: Mapping[str, Any], transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._phase = _Phase.NEW
        self._producer = Producer(
            {
                **properties.silent(client_properties),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            }
        )

    def commit(
        self, offsets: Mapping[TopicPartition, Commit], group: object, deadline: Deadline
    ) -> None:
        """Store offsets, after what an earlier call left undecided. Raises KafkaException."""
        self._settle(deadline)
        self._producer.begin_transaction()
        self._phase = _Phase.OPEN
        entries = [entry(partition, commit) for partition, commit in offsets.items()]
        self._producer.send_offsets_to_transaction(entries, group, _left(deadline))
        self._phase = _Phase.COMMITTING
        self._producer.commit_transaction(_left(deadline))
        self._phase = _Phase.READY

    def _settle(self, deadline: Deadline) -> None:
        match self._phase:
            case _Phase.NEW:
                self._producer.init_transactions(_left(deadline))
            case _Phase.OPEN:
                self._producer.abort_transaction(_left(deadline))
            case _Phase.COMMITTING:
                self._producer.commit_transaction(_left(deadline))
        self._phase = _Phase.READY

    def failed(self, error: KafkaError) -> Failure:
        """Return what an error means, and be ready for what is to follow."""
        if error.fatal() or error.code() in _FENCED:
            return Failure(f"{_SHUT_OUT}: {error.str()}", Refusal.MEMBERSHIP)
        if error.txn_requires_abort():
            self._phase = _Phase.OPEN
        return Failure(error.str())


class TransactionalOffsetStore:
    """An ``OffsetStore`` that commits through a transactional producer, one for each stay.

    Its id stands in the epoch node of every claim. A new owner whose predecessor did not end
    cleanly begins anew under the predecessor's id, and the brokers refuse what the former producer
    has open or sends later: a commit is stored before the new owner reads the offset, or never. A
    producer that was shut out is not opened again; the member joins anew and gets another.

    Reading, and commits of claims without a producer, go through a consumer like that of
    ``KafkaOffsetStore``.
    """

    def __init__(self, client_properties: Mapping[str, Any], group: str) -> None:
        self._properties = dict(client_properties)
        self._plain = KafkaOffsetStore(client_properties, group)
        self._group = group
        self._member: _Member | None = None
        self._ended: set[str] = set()

    def read(self, partition: TopicPartition, deadline: Deadline) -> StoredOffset | None:
        """Return the group's offset of one partition, once no transaction has it in doubt."""
        return self._plain.read(partition, deadline)

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return the group's offsets, once no transaction has them in doubt."""
        return self._plain.read_many(partitions, deadline)

    def commit(
        self, offsets: Mapping[TopicPartition, Commit], deadline: Deadline
    ) -> Mapping[TopicPartition, Failure]:
        """Store offsets, those of each stay in the group in one transaction."""
        failures: dict[TopicPartition, Failure] = {}
        for transactional_id in {commit.transactional_id for commit in offsets.values()}:
            some = {p: c for p, c in offsets.items() if c.transactional_id == transactional_id}
            if transactional_id is None:
                failures |= self._plain.commit(some, deadline)
                continue
            failure = self._commit_as(transactional_id, some, deadline)
            if failure is not None:
                failures |= dict.fromkeys(some, failure)
        return failures

    def _commit_as(
        self, transactional_id: str, offsets: Mapping[TopicPartition, Commit], deadline: Deadline
    ) -> Failure | None:
        if transactional_id in self._ended:
            return Failure("this stay in the group is over", Refusal.MEMBERSHIP)
        member: _Member | None = None
        try:
            member = self._member_of(transactional_id)
            member.commit(offsets, self._plain.group_metadata(), deadline)
        except KafkaException as error:
            reason = error.args[0]
            failure = Failure(reason.str()) if member is None else member.failed(reason)
            if failure.refusal is Refusal.MEMBERSHIP:
                self._end()
            return failure
        return None

    def _member_of(self, transactional_id: str) -> _Member:
        """Return the producer of a stay in the group; a new stay ends the one before."""
        if self._member is None or self._member.transactional_id != transactional_id:
            self._end()
            self._member = _Member(self._properties, transactional_id)
            log.info("producer_opened", group=self._group, transactional_id=transactional_id)
        return self._member

    def _end(self) -> None:
        if self._member is not None:
            self._ended.add(self._member.transactional_id)
            self._member = None

    def fence(self, transactional_ids: Collection[str], deadline: Deadline) -> None:
        """Shut out the producers of former owners."""
        self._plain.fence(transactional_ids, deadline)

    def serve(self) -> None:
        """Run what callbacks have come."""
        self._plain.serve()

    def close(self) -> None:
        """Release the clients."""
        self._end()
        self._plain.close()


#: What the brokers say to a producer whose id was begun anew, or which they ended themselves.
#: ``_STATE``: the client has lost track of its transaction; another producer has to go on.
_FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - public names of the client's
        KafkaError._STATE,  # noqa: SLF001 - as above
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.PRODUCER_FENCED,
    }
)


def _left(deadline: Deadline) -> float:
    return max(0.001, deadline.remaining)
