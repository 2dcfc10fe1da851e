"""Group offsets in Kafka, committed in transactions so that the brokers refuse former owners."""

from __future__ import annotations

from enum import Enum
from threading import Thread
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.clock import Deadline
from headrace.kafka import properties
from headrace.kafka.offset_metadata import entry
from headrace.kafka.offsets import KafkaOffsetStore
from headrace.kafka.ports import Failure, OffsetStoreError, Refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka import TopicPartition as ClientPartition

    from headrace.clock import Clock
    from headrace.kafka.ports import Commit, StoredOffset
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)

#: Milliseconds after which the brokers abort a transaction whose producer is silent. Offsets in an
#: open transaction cannot be read; a new owner does not wait for this, it fences the producer.
TRANSACTION_TIMEOUT_MS = 15_000

#: Milliseconds that a request may stay unanswered. The client's call that adds offsets to a
#: transaction waits for this, whatever time-out it is given: 15 s with the client's own choice.
SOCKET_TIMEOUT_MS = 5_000

#: Seconds after which a call of the client counts as hung, provided that the brokers answer: what
#: a transaction left open is aborted by them before that.
STUCK_AFTER = 2 * TRANSACTION_TIMEOUT_MS / 1000

#: Seconds in which the brokers have to answer for that.
_ASK_TIMEOUT = 1.0

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
    """The producer of one stay in the group. Used by the committer's thread.

    Its calls run on a thread of their own, one commit at a time: the client does not heed every
    time-out, and after some outages a call never comes back.
    """

    def __init__(self, client_properties: Mapping[str, Any], transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._phase = _Phase.NEW
        self._call: Thread | None = None
        self._called_at = 0.0
        self._outcome: Failure | None = None
        self._producer = Producer(
            {
                "socket.timeout.ms": SOCKET_TIMEOUT_MS,
                **properties.base(client_properties),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            }
        )

    def commit(
        self, entries: list[ClientPartition], group: object, deadline: Deadline
    ) -> Failure | None:
        """Store offsets, after what an earlier call left undecided; None if they are stored."""
        if self.busy_for(deadline.clock) > 0:
            return Failure("the producer is still busy with an earlier commit")
        self._called_at = deadline.clock.monotonic()
        self._call = Thread(
            target=self._run, args=[entries, group, deadline], name="kafka-commit", daemon=True
        )
        self._call.start()
        self._call.join(deadline.remaining)
        if self._call.is_alive():
            return Failure("no answer to the transaction in time")
        return self._outcome

    def busy_for(self, clock: Clock) -> float:
        """Return the seconds for which a call has not come back, 0.0 if there is none."""
        if self._call is None or not self._call.is_alive():
            return 0.0
        return max(clock.monotonic() - self._called_at, 0.001)

    def serve(self) -> None:
        """Hand over what the client has to say."""
        self._producer.poll(0)

    # --- on the thread of a call ------------------------------------------------------------

    def _run(self, entries: list[ClientPartition], group: object, deadline: Deadline) -> None:
        try:
            self._transact(entries, group, deadline)
        except KafkaException as error:
            self._outcome = self._failed(error.args[0])
        else:
            self._outcome = None

    def _transact(self, entries: list[ClientPartition], group: object, deadline: Deadline) -> None:
        self._settle(deadline)
        self._producer.begin_transaction()
        self._phase = _Phase.OPEN
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

    def _failed(self, error: KafkaError) -> Failure:
        """Return what an error means, and be ready for what is to follow."""
        if error.fatal() or error.code() in _FENCED:
            return Failure(f"{_SHUT_OUT}: {error.str()}", Refusal.MEMBERSHIP)
        if error.txn_requires_abort():
            self._phase = _Phase.OPEN
        missing = error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return Failure(error.str(), topic_missing=missing)


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

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return the group's offsets, once no transaction has them in doubt."""
        return self.read_many(partitions, deadline)

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
        try:
            member = self._member_of(transactional_id)
        except KafkaException as error:
            return Failure(error.args[0].str())
        entries = [entry(partition, commit) for partition, commit in offsets.items()]
        failure = member.commit(entries, self._plain.group_metadata(), deadline)
        if failure is not None and self._is_stuck(member, offsets, deadline):
            failure = Failure("our transactional producer does not come back", Refusal.MEMBERSHIP)
        if failure is not None and failure.refusal is Refusal.MEMBERSHIP:
            self._end()
        return failure

    def _is_stuck(
        self, member: _Member, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> bool:
        """Whether the producer hangs though the brokers answer others."""
        if member.busy_for(deadline.clock) < STUCK_AFTER:
            return False
        try:
            self._plain.read_many(partitions, Deadline.after(_ASK_TIMEOUT, deadline.clock))
        except OffsetStoreError:
            return False
        log.error("producer_stuck", transactional_id=member.transactional_id)
        return True

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
        if self._member is not None:
            self._member.serve()

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
