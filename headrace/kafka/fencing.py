"""How former owners' producers are shut out, and what they left in doubt is finished."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, KafkaAccessError
from headrace.core.records import FINISHED_KEY, TopicPartition
from headrace.kafka import clients
from headrace.kafka.clients import open_consumer
from headrace.kafka.ports import CommitRefusal, OffsetStoreError
from headrace.kafka.transaction_log import (
    OFFSETS_TOPIC,
    TRANSACTION_LOG,
    UNDECIDABLE,
    Decided,
    Decision,
    TransactionLog,
)
from headrace.kafka.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.kafka.ports import CommitFailure

log = structlog.get_logger(__name__)

#: Seconds in which offsets of a group are read that nothing has in doubt, though others' open
#: transactions, which last a moment, have some of them.
_READ_TIMEOUT = 2.0

#: Seconds that finishing takes at most: reading the log may have used up the caller's deadline.
_FINISH_TIMEOUT = 10.0

#: The partition whose offset a finishing commit stores, as it has to store one: whoever reads the
#: log may commit it, it is always there, and no channel reads it.
_NEUTRAL = TopicPartition(TRANSACTION_LOG, 0)

#: The header of the record by which a transaction is finished in a partition, with the id's name.
FINISHED_HEADER = "headrace-finished"

if TYPE_CHECKING:
    #: Keeps others from shutting the same producer out meanwhile.
    FencingLock = Callable[[str, Deadline], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group that a producer stored offsets in, and a partition that the group reads.

    Any existing one will do: the brokers mark a group as a whole.
    """

    group: str
    partition: TopicPartition


def fence_producers(
    client_properties: Mapping[str, Any],
    transactional_ids: Collection[str],
    deadline: Deadline,
    place: GroupPartition | None = None,
    lock: FencingLock | None = None,
) -> None:
    """Begin again under each id, which ends what its producer had open and refuses it from then on.

    A transaction that was being committed is completed first, one that was not is aborted. Blocks;
    any thread. One short-lived client for each id.

    With a ``place``, what was decided is finished as well, under the same id: brokers may hold a
    transaction for complete though the group, or a topic, was never told (KAFKA-20734). A commit is
    finished by a commit, an abort by an abort, as the brokers' own log says; where that log cannot
    tell and the group's offsets are in doubt, nothing is done and the error says so. Other
    producers' transactions, and what is committed, stay as they are.

    Raises:
        OffsetStoreError: a producer may still commit, or what it left in doubt is not finished.
    """
    for transactional_id in sorted(transactional_ids):
        with nullcontext() if lock is None else lock(transactional_id, deadline):
            producer = begin_again(client_properties, transactional_id, deadline)
            if place is not None:
                Finishing(client_properties, place, producer).finish()
            log.info("producer_fenced", transactional_id=transactional_id)


def begin_again(
    client_properties: Mapping[str, Any], transactional_id: str, deadline: Deadline
) -> TransactionalProducer:
    """Begin as a producer under an id, which shuts a former one out. Blocks.

    Raises:
        OffsetStoreError: the former one may still commit.
    """
    producer = TransactionalProducer(client_properties, transactional_id, quiet=True)
    failure = producer.conclude(deadline)
    if failure is not None:
        raise OffsetStoreError(
            f"the former owner's producer {transactional_id!r} cannot be fenced: {failure}; until "
            "it is, the partitions it had wait. Check that the brokers answer and that the user "
            "may write to transactional ids of this prefix"
        )
    return producer


class Finishing:
    """Finishes what a producer left, which was begun again under its id. Every method blocks."""

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        place: GroupPartition,
        producer: TransactionalProducer,
    ) -> None:
        self._properties = dict(client_properties)
        self._place = place
        self._producer = producer
        self._log = TransactionLog(client_properties)

    def finish(self, known: Decided | None = None) -> tuple[TopicPartition, ...]:
        """Finish by what the log says, or by what is ``known``; return the topics' partitions.

        Raises:
            OffsetStoreError: the brokers did not do it, or the log cannot tell what to do.
        """
        found = self._decided() if known is None else known
        self._finish_offsets(found.of_group)
        return self.finish_topics(found)

    def _decided(self) -> Decided:
        transactional_id = self._producer.transactional_id
        try:
            return self._log.decided([transactional_id])[transactional_id]
        except KafkaAccessError as error:
            log.warning(
                "transaction_log_unreadable", transactional_id=transactional_id, error=str(error)
            )
            return UNDECIDABLE
        except HeadraceError as error:
            raise self._failed(str(error)) from error

    def _finish_offsets(self, decision: Decision) -> None:
        match decision:
            case Decision.COMMIT:
                if not self._is_stable():
                    self._commit_offsets()
            case Decision.ABORT | Decision.NONE:
                # which offset it is does not matter: nobody will ever read it
                entry = ClientPartition(*self._place.partition, 0)
                self._require(
                    self._producer.abort([entry], self._metadata(), self._soon()), "an abort"
                )
            case Decision.UNKNOWN:
                if not self._is_stable():
                    raise self._failed(
                        f"{TRANSACTION_LOG} does not say whether its last transaction was to be "
                        "committed; see transaction_log_unreadable, or finish it by headrace "
                        "transactions settle --as"
                    )

    def _commit_offsets(self) -> None:
        """Commit a transaction of the group, with an offset that means nothing to it."""
        if not self._answers():
            # one that the group is not told of would be aborted, and with it what was decided
            raise self._failed("the group's coordinator does not answer")
        failure = self._producer.commit(
            [ClientPartition(*_NEUTRAL, 0)], self._metadata(), self._soon()
        )
        self._require(failure, "a commit")
        log.warning(
            "transaction_finished",
            transactional_id=self._producer.transactional_id,
            decision=Decision.COMMIT.value,
            group=self._place.group,
        )

    def finish_topics(self, found: Decided) -> tuple[TopicPartition, ...]:
        """Finish what the id left in topics where no transaction goes on; return where that was.

        Raises:
            OffsetStoreError: the brokers did not do it.
        """
        wanted = [each for each in found.partitions if each.topic != OFFSETS_TOPIC]
        try:
            held = self._log.held_for_good(wanted)
        except HeadraceError as error:
            log.warning(
                "transaction_ends_unknown",
                transactional_id=self._producer.transactional_id,
                error=str(error),
            )
            return ()
        done: list[TopicPartition] = []
        for decision in (Decision.COMMIT, Decision.ABORT):
            partitions = sorted(each for each in held if found.partitions[each] is decision)
            if partitions:
                self._end_topics(partitions, decision)
                done += partitions
        return tuple(done)

    def _end_topics(self, partitions: Collection[TopicPartition], decision: Decision) -> None:
        """End a transaction in each partition that has an empty record there, as it has to."""
        transactional_id = self._producer.transactional_id

        def produce(client: Producer, deadline: Deadline) -> None:
            for topic, number in partitions:
                client.produce(
                    topic,
                    None,
                    key=FINISHED_KEY + transactional_id.encode(),
                    partition=number,
                    headers={FINISHED_HEADER: transactional_id.encode()},
                )
            client.flush(deadline.left)

        act = self._producer.commit if decision is Decision.COMMIT else self._producer.abort
        self._require(act([], self._metadata(), self._soon(), produce), f"{decision.value} marks")
        log.warning(
            "transaction_finished",
            transactional_id=transactional_id,
            decision=decision.value,
            partitions=[str(each) for each in partitions],
        )

    def _require(self, failure: CommitFailure | None, done: str) -> None:
        """Raise unless it is done.

        A refusal for good is another owner that began again under the id after us, and does it.
        """
        if failure is not None and failure.refusal is not CommitRefusal.MEMBERSHIP:
            raise self._failed(f"it could not be finished by {done}: {failure}")

    def _failed(self, reason: str) -> OffsetStoreError:
        return OffsetStoreError(
            f"the former owner's producer {self._producer.transactional_id!r} is shut out, but "
            f"what it may have left in doubt in group {self._place.group} is not finished: "
            f"{reason}; until it is, the partitions it had wait. Check that the brokers answer and "
            f"that the user may read the group and {TRANSACTION_LOG}"
        )

    def _is_stable(self) -> bool:
        """Whether the group's offsets of the topic can be read: none stays in a transaction."""
        return self._is_read("read_committed")

    def _answers(self) -> bool:
        """Whether the group's coordinator answers, whatever is in doubt."""
        return self._is_read("read_uncommitted")

    def _is_read(self, isolation: str) -> bool:
        """Return whether offsets are read in time."""
        settings = clients.consumer(clients.silent(self._properties), self._place.group)
        deadline = Deadline.after(_READ_TIMEOUT)
        topic = self._place.partition.topic
        with closing(open_consumer({**settings, "isolation.level": isolation})) as consumer:
            try:
                known = consumer.list_topics(topic, timeout=deadline.left).topics[topic].partitions
                wanted = [ClientPartition(topic, number) for number in known]
                found = consumer.committed(
                    wanted or [ClientPartition(*self._place.partition)], timeout=deadline.left
                )
            except KafkaException:
                return False
        return all(each.error is None for each in found)

    def _metadata(self) -> object:
        """Return what a producer has to know of a group, from a client that asks nobody."""
        settings = clients.consumer(clients.silent({}), self._place.group)
        with closing(open_consumer(settings)) as consumer:
            return consumer.consumer_group_metadata()

    @staticmethod
    def _soon() -> Deadline:
        return Deadline.after(_FINISH_TIMEOUT)
