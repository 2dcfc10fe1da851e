"""Group offsets in Kafka, committed in transactions so that the brokers refuse former owners."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaException

from headrace.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.kafka.offset_metadata import entry
from headrace.kafka.offsets import KafkaOffsetStore
from headrace.kafka.ports import Failure, OffsetStoreError, Refusal
from headrace.kafka.transactional_producer import STUCK_AFTER, TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.kafka.ports import Commit, StoredOffset
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)

#: Seconds in which the brokers have to answer before a producer counts as hung.
_ASK_TIMEOUT = 1.0

#: Stays that are over and remembered: a claim of one is gone a moment after it.
_STAYS = 16


class TransactionalOffsetStore:
    """An ``OffsetStore`` that commits through a transactional producer, one for each stay.

    Its id stands in the epoch node of every claim. A new owner whose predecessor did not end
    cleanly begins anew under the predecessor's id, and the brokers refuse what the former producer
    has open or sends later: a commit is stored before the new owner reads the offset, or never. A
    producer that was shut out is not opened again; the member joins anew and gets another.

    Reading, and commits of claims without a producer, go through a consumer like that of
    ``KafkaOffsetStore``.
    """

    def __init__(
        self, client_properties: Mapping[str, Any], group: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self._properties = dict(client_properties)
        self._plain = KafkaOffsetStore(client_properties, group)
        self._group = group
        self._member: TransactionalProducer | None = None
        self._ended: deque[str] = deque(maxlen=_STAYS)
        self._shut_out: str | None = None

    def read(self, partition: TopicPartition, deadline: Deadline) -> StoredOffset | None:
        """Return the group's offset of one partition, once no transaction has it in doubt."""
        return self._plain.read(partition, deadline)

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return the group's offsets, once no transaction has them in doubt.

        Our own earlier commits of former claims are to be decided before: one that is still on its
        way could otherwise be stored behind the reading, and be taken back by what comes next.
        """
        member = self._member
        doubtful = frozenset() if member is None else member.undecided.intersection(partitions)
        if member is not None and doubtful and member.transactional_id != self._shut_out:
            raise OffsetStoreError(
                f"group {self._group}: a commit of {', '.join(map(str, sorted(doubtful)))} under a "
                "former claim of ours is not decided yet; it is asked for again"
            )
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
        if failure is not None and self._is_stuck(member, deadline.clock):
            failure = Failure("our transactional producer does not come back", Refusal.MEMBERSHIP)
        if failure is not None and failure.refusal is Refusal.MEMBERSHIP:
            self._end()
        return failure

    def _is_stuck(self, member: TransactionalProducer, clock: Clock) -> bool:
        """Whether the producer hangs though the brokers answer others."""
        if member.busy_for(clock) < STUCK_AFTER:
            return False
        try:
            self._plain.read_many(member.undecided, Deadline.after(_ASK_TIMEOUT, clock))
        except OffsetStoreError:
            return False
        log.error("producer_stuck", transactional_id=member.transactional_id)
        return True

    def _member_of(self, transactional_id: str) -> TransactionalProducer:
        """Return the producer of a stay in the group; a new stay ends the one before."""
        if self._member is None or self._member.transactional_id != transactional_id:
            self._end()
            self._member = TransactionalProducer(self._properties, transactional_id)
            log.info("producer_opened", group=self._group, transactional_id=transactional_id)
        return self._member

    def _end(self) -> None:
        if self._member is not None:
            self._ended.append(self._member.transactional_id)
            self._member = None

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        """Shut out the producers of former owners."""
        self._plain.fence(transactional_ids, partition, deadline)
        member = self._member
        if member is not None and member.transactional_id in transactional_ids:
            self._shut_out = member.transactional_id

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        """Read past transactions."""
        return self._plain.answers(partition, deadline)

    def serve(self) -> None:
        """Run what callbacks have come."""
        self._plain.serve()
        if self._member is None:
            return
        self._member.serve()
        self._member.settle(self._clock)
        if self._is_stuck(self._member, self._clock):
            # whoever commits next in this stay is told that it is over
            self._end()

    def close(self) -> None:
        """Release the clients."""
        self._end()
        self._plain.close()
