"""The fencing of former owners' producers, which also finishes what they left in doubt."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import FINISHED_KEY, TopicPartition
from headrace.kafka import clients
from headrace.kafka.clients import open_consumer
from headrace.kafka.errors import KafkaAccessError, OffsetStoreError
from headrace.kafka.offset_log import sent_offsets
from headrace.kafka.ports import CommitRefusal
from headrace.kafka.source import read_log
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
    from headrace.kafka.transaction_log import Hold

log = structlog.get_logger(__name__)

#: Seconds in which offsets of a group are read that nothing has in doubt, though others' open
#: transactions, which last a moment, have some of them.
_READ_TIMEOUT = 2.0

#: Seconds that finishing takes at most: reading the log may have used up the caller's deadline.
_FINISH_TIMEOUT = 10.0

#: The partition whose offset a finishing commit stores, as it has to store one: any reader of the
#: log may commit it, it is always there, and no channel reads it.
_NEUTRAL = TopicPartition(TRANSACTION_LOG, 0)

#: Decisions with which it matters whether the group's offsets are in doubt.
_OF_USE = frozenset({Decision.COMMIT, Decision.UNKNOWN})

#: What follows an id in that of the producer that stores once more what was decided under it.
_AGAIN = ".again"

#: The header of the record by which a transaction is finished in a partition, with the id's name.
FINISHED_HEADER = "headrace-finished"

if TYPE_CHECKING:
    #: Keeps others from shutting the same producer out meanwhile.
    FencingLock = Callable[[str, Deadline], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group that a producer stored offsets in, and a partition that the group reads.

    Any existing one will do: the brokers mark a group as a whole. ``changelogs`` are topics that
    only owners write to, and of which each key's last row counts.
    """

    group: str
    partition: TopicPartition
    changelogs: frozenset[str] = frozenset()


def fence_producers(
    client_properties: Mapping[str, Any],
    transactional_ids: Collection[str],
    deadline: Deadline,
    place: GroupPartition | None = None,
    lock: FencingLock | None = None,
) -> None:
    """Fence the producer of each transactional id: end its open transaction and refuse it.

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
    """Open a producer under an id, which fences a former one. Blocks.

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
    """Finishes what a producer left, which was begun again under its id. Every method blocks.

    A transaction that finishes is open for a moment, and brokers abort it if this process is killed
    then, with all that it was to finish. So what a decided commit has is stored once more before
    that, under another id: the offsets, and rows of changelogs, which are the same twice. What it
    has in other topics cannot be: readers would find it twice.
    """

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
        held = self._held_partitions(found)
        in_doubt = found.of_group in _OF_USE and not self._is_stable()
        rows = {
            partition: hold
            for partition, hold in held.items()
            if partition.topic in self._place.changelogs
            and found.partitions[partition] is Decision.COMMIT
        }
        offsets = in_doubt and found.of_group is Decision.COMMIT
        if offsets and not self._answers():
            # a commit that the group is not told of is aborted, and with it what was decided
            raise self._failed("the group's coordinator does not answer")
        if offsets or rows:
            self._store_again(rows, offsets=offsets)
        self._finish_offsets(found.of_group, in_doubt=in_doubt)
        return self._finish_held(found, held)

    def _store_again(self, rows: Mapping[TopicPartition, Hold], *, offsets: bool) -> None:
        """Store what a decided commit has of offsets and of changelogs, in one transaction."""
        again = begin_again(self._properties, self._finishing_id, self._answer_deadline())
        entries = self._sent_offsets() if offsets else []
        if not entries and not rows:
            return

        def produce(client: Producer, deadline: Deadline) -> None:
            for partition, hold in sorted(rows.items()):
                self._produce_again(client, partition, hold)
            client.flush(deadline.left)

        failure = again.commit(entries, self._metadata(), self._answer_deadline(), produce)
        if failure is not None and failure.topic_missing:
            # nothing of what was decided is of use any more where the topic is gone
            self._warn_of_once(str(failure))
        elif failure is not None:
            raise self._failed(f"it could not be stored once more: {failure}")

    @property
    def _finishing_id(self) -> str:
        """Return the id of the producer that stores once more what was decided."""
        return f"{self._producer.transactional_id}{_AGAIN}"

    def _warn_of_once(self, error: str) -> None:
        log.warning(
            "decided_commit_stored_once",
            transactional_id=self._producer.transactional_id,
            error=error,
        )

    def _sent_offsets(self) -> list[ClientPartition]:
        producer = self._producer.transactional_id
        try:
            found = sent_offsets(self._properties, self._place.group, producer)
        except HeadraceError as error:
            self._warn_of_once(str(error))
            return []
        return [each.entry(partition) for partition, each in found.items()]

    def _produce_again(self, client: Producer, partition: TopicPartition, hold: Hold) -> None:
        """Produce the rows that readers wait for, but for those that finish transactions."""
        properties = {**self._properties, "isolation.level": "read_uncommitted"}
        bounds = hold.stable, hold.end
        for record in read_log(properties, self._place.group, partition, *bounds):
            key, (_, time) = record.key(), record.timestamp()
            headers: Any = record.headers() or None
            if key is None or key.startswith(FINISHED_KEY):
                continue
            client.produce(
                partition.topic,
                record.value(),
                key=key,
                partition=partition.partition,
                headers=headers,
                timestamp=max(0, time),
            )
            client.poll(0)

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

    def _finish_offsets(self, decision: Decision, *, in_doubt: bool) -> None:
        match decision:
            case Decision.COMMIT:
                if in_doubt:
                    self._commit_offsets()
            case Decision.ABORT | Decision.NONE:
                # which offset it is does not matter: it is never read
                entry = ClientPartition(*self._place.partition, 0)
                self._require(
                    self._producer.abort([entry], self._metadata(), self._answer_deadline()),
                    "an abort",
                )
            case Decision.UNKNOWN:
                if in_doubt:
                    raise self._failed(
                        f"{TRANSACTION_LOG} does not say whether its last transaction was to be "
                        "committed; see transaction_log_unreadable, or finish it by headrace "
                        "transactions settle --as"
                    )

    def _commit_offsets(self) -> None:
        """Commit a transaction of the group, with an offset that means nothing to it."""
        failure = self._producer.commit(
            [ClientPartition(*_NEUTRAL, 0)], self._metadata(), self._answer_deadline()
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
        return self._finish_held(found, self._held_partitions(found))

    def _finish_held(
        self, found: Decided, held: Mapping[TopicPartition, Hold]
    ) -> tuple[TopicPartition, ...]:
        done: list[TopicPartition] = []
        for decision in (Decision.COMMIT, Decision.ABORT):
            partitions = sorted(each for each in held if found.partitions[each] is decision)
            if partitions:
                self._end_topics(partitions, decision)
                done += partitions
        return tuple(done)

    def _held_partitions(self, found: Decided) -> Mapping[TopicPartition, Hold]:
        """Return the topics' partitions that readers wait in for no transaction that goes on."""
        wanted = [each for each in found.partitions if each.topic != OFFSETS_TOPIC]
        try:
            holds = self._log.holds(wanted)
            if any(self._finishing_id in hold.going_on for hold in holds.values()):
                # one that was ended while it did what follows here
                begin_again(self._properties, self._finishing_id, self._answer_deadline())
                holds = self._log.holds(wanted)
        except HeadraceError as error:
            log.warning(
                "transaction_ends_unknown",
                transactional_id=self._producer.transactional_id,
                error=str(error),
            )
            return {}
        return {partition: hold for partition, hold in holds.items() if hold.is_for_good}

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
        self._require(
            act([], self._metadata(), self._answer_deadline(), produce), f"{decision.value} marks"
        )
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
        """Return whether the group's offsets of the topic can be read: no transaction holds any."""
        return self._is_read("read_committed")

    def _answers(self) -> bool:
        """Return whether the group's coordinator answers, whatever is in doubt."""
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
        """Return what a producer has to know of a group, from a client that sends no request."""
        settings = clients.consumer(clients.silent({}), self._place.group)
        with closing(open_consumer(settings)) as consumer:
            return consumer.consumer_group_metadata()

    @staticmethod
    def _answer_deadline() -> Deadline:
        return Deadline.after(_FINISH_TIMEOUT)
