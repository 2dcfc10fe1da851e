"""Group offsets in Kafka, with the claim's epoch in each commit's metadata."""

from __future__ import annotations

import json
from collections import deque
from contextlib import closing, suppress
from dataclasses import asdict
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeGuard

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.records import TopicPartition, stored_topic, topic_fields
from headrace.kafka import clients
from headrace.kafka.clients import open_consumer
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.fencing import GroupPartition, fence_producers
from headrace.kafka.offset_log import PRODUCER, document_of
from headrace.kafka.ports import (
    ChangelogMark,
    CommitFailure,
    CommitRefusal,
    OffsetStore,
    StoredOffset,
)
from headrace.kafka.transactional_producer import STUCK_AFTER, TransactionalProducer
from headrace.kafka.truncation import first_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.kafka.fencing import FencingLock
    from headrace.kafka.ports import Commit


#: Version of the metadata format. Later ones may add keys; ``version`` and ``epoch`` keep their
#: meaning in all, so that members of different versions know a former owner by its epoch.
METADATA_VERSION = 1

#: What metadata may say besides, in numbers.
_NUMBERS = ("leader_epoch", "commits", "stream_time")

#: Where a channel with state says which topic has it.
_CHANGELOG = "changelog"

#: Characters of another program's metadata that are kept for the log.
_SHOWN = 100


def entry(
    partition: TopicPartition, stored: StoredOffset, producer: str | None = None
) -> ClientPartition:
    """Return an offset as the client takes it, with the id of the producer that sends it.

    Names of members and groups have 249 bytes at most and a topic id 22: far from the 4 KiB that
    brokers allow for metadata.
    """
    document: dict[str, object] = {
        "version": METADATA_VERSION,
        "epoch": stored.epoch,
        "member": stored.by,
        **topic_fields(stored.topic_id),
    }
    for name in _NUMBERS:
        number = getattr(stored, name)
        if number is not None:
            document[name] = number
    if stored.changelog is not None:
        document[_CHANGELOG] = asdict(stored.changelog)
    if producer is not None:
        document[PRODUCER] = producer
    return ClientPartition(*partition, stored.offset, metadata=json.dumps(document))


def stored_in(found: ClientPartition) -> StoredOffset | None:
    """Return what the client found, None if there is no offset."""
    if found.offset < 0:
        return None
    metadata = _metadata(found)
    ours = _document(metadata)
    if ours is None:
        return StoredOffset(found.offset, 0, metadata[:_SHOWN])
    return StoredOffset(found.offset, **ours)


def _metadata(found: ClientPartition) -> str:
    """Return the metadata of an offset, empty where they cannot be read.

    The client writes a zero byte behind metadata, and reads up to one: behind those of other
    clients it may read what there happens to be in its memory.
    """
    try:
        return found.metadata or ""
    except UnicodeDecodeError:
        return ""


def _document(metadata: str) -> dict[str, Any] | None:
    """Return what metadata of ours say besides the offset, None where they are another's."""
    document = document_of(metadata)
    if document is None:
        return None
    version, epoch = document.get("version"), document.get("epoch")
    if not (_is_number(version) and version >= METADATA_VERSION and _is_number(epoch)):
        return None
    member = _text(document.get("member"))
    topic_id = stored_topic(_text(document.get("topic_uuid")), _text(document.get("topic_id")))
    numbers = {name: number for name in _NUMBERS if _is_number(number := document.get(name))}
    changelog = _changelog(document.get(_CHANGELOG))
    return {
        "epoch": epoch,
        "by": member or "",
        "topic_id": topic_id,
        "changelog": changelog,
        **numbers,
    }


def _changelog(document: Any) -> ChangelogMark | None:
    """Return where the state is, None where that is not said in full."""
    if not isinstance(document, dict):
        return None
    topic_id, has_rows = _text(document.get("topic_id")), document.get("has_rows")
    start, partitions = document.get("start"), document.get("partitions")
    if (
        topic_id is None
        or not (_is_number(start) and _is_number(partitions))
        or not isinstance(has_rows, bool)
    ):
        return None
    end, epoch = document.get("end"), document.get("leader_epoch")
    return ChangelogMark(
        topic_id,
        start,
        partitions,
        has_rows,
        _text(document.get("key")),
        end if _is_number(end) else None,
        epoch if _is_number(epoch) else None,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


log = structlog.get_logger(__name__)

#: Seconds of one poll. A poll that hands over a callback and no record waits its time out all the
#: same, and keeps other threads' requests waiting, while a commit takes about 5 ms.
_POLL = 0.005


class KafkaOffsetStore(OffsetStore):
    """Commits a group's offsets to Kafka by a plain consumer: ``fencing: metadata``, the default.

    Commits are asynchronous with a deadline, because a synchronous one blocks for 45 s when there
    is no group coordinator. The answer is handed over only while the client is polled.

    Kafka takes commits from every client that assigns partitions to itself. A former owner's is
    known by the epoch in its metadata, and is fixed by the owner; see
    ``channel.commits.OffsetGuard``.

    ``quiet``: the client has nothing to say between two requests, so that it need not be served.
    ``produced_in``: the group that owners' producers store offsets in, where it is another one.
    ``lock`` is held for each producer that is shut out. ``changelogs`` are topics that only owners
    write to, and that keep each key's last row.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        group: str,
        *,
        quiet: bool = False,
        produced_in: str | None = None,
        lock: FencingLock | None = None,
        changelogs: Collection[str] = (),
    ) -> None:
        self._group = group
        self._changelogs = frozenset(changelogs)
        self._lock = lock
        self._produced_in = produced_in or group
        self._properties = dict(client_properties)
        self._answers: list[tuple[object, list[ClientPartition]]] = []
        self._unanswered = 0
        said = clients.silent if quiet else clients.base
        self._consumer = open_consumer(
            {
                **clients.consumer(said(client_properties), group),
                "on_commit": lambda error, offsets: self._answers.append((error, offsets)),
            }
        )

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        wanted = [ClientPartition(*each) for each in partitions]
        try:
            found = self._consumer.committed(wanted, timeout=deadline.left)
        except KafkaException as error:
            raise self._unreadable(partitions, error.args[0]) from error
        offsets = {}
        for each in found:
            partition = TopicPartition(each.topic, each.partition)
            if each.error is not None:
                raise self._unreadable([partition], each.error)
            stored = stored_in(each)
            if stored is not None:
                offsets[partition] = stored
        return offsets

    def _unreadable(
        self, partitions: Collection[TopicPartition], error: KafkaError
    ) -> OffsetStoreError:
        late = error.code() == KafkaError._TIMED_OUT  # noqa: SLF001 - the client's public name for it
        return OffsetStoreError(
            f"group {self._group}: the offset of {first_of(partitions)} cannot be read: "
            f"{error.str()}",
            timed_out=late,
        )

    def commit(
        self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline
    ) -> Mapping[TopicPartition, CommitFailure]:
        """Commit offsets to Kafka, as those of the consumer group; see ``OffsetStore.commit``."""
        try:
            self._consumer.commit(
                offsets=[entry(p, stored) for p, stored in offsets.items()], asynchronous=True
            )
        except KafkaException as error:
            return dict.fromkeys(offsets, CommitFailure(error.args[0].str()))
        self._unanswered += 1
        wanted = {p: stored.offset for p, stored in offsets.items()}
        while not deadline.expired:
            self._consumer.poll(deadline.at_most(_POLL))
            while self._answers:
                problem, answered = self._answers.pop(0)
                self._unanswered -= 1
                if {TopicPartition(a.topic, a.partition): a.offset for a in answered} == wanted:
                    return _failures(problem, answered)
                log.info("late_commit_answer", group=self._group, error=str(problem))
        return dict.fromkeys(offsets, CommitFailure("no answer from the group coordinator in time"))

    def group_metadata(self) -> object:
        """Return what a transactional producer has to know of the group: its name only.

        A consumer that only assigns has no member id by which the group's coordinator
        could refuse it.
        """
        return self._consumer.consumer_group_metadata()

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        place = GroupPartition(self._produced_in, partition, self._changelogs)
        fence_producers(self._properties, transactional_ids, deadline, place, self._lock)

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        """Read past transactions, in the group that producers store offsets in as well."""
        groups = sorted({self._group, self._produced_in})
        return all(self._is_answered(group, partition, deadline) for group in groups)

    def _is_answered(self, group: str, partition: TopicPartition, deadline: Deadline) -> bool:
        settings = clients.consumer(clients.silent(self._properties), group)
        settings["isolation.level"] = "read_uncommitted"
        with closing(open_consumer(settings)) as consumer, suppress(KafkaException):
            (found,) = consumer.committed([ClientPartition(*partition)], timeout=deadline.left)
            return found.error is None
        return False

    def serve(self) -> None:
        self._consumer.poll(0)

    def close(self) -> None:
        """Release the client; does not block.

        With a commit on its way the client ends only when that is answered or has timed out, 45 s
        later. No caller waits for this any more, so it happens on a thread of its own.
        """
        if self._unanswered:
            log.info("commits_unacknowledged", group=self._group, commits=self._unanswered)
            Thread(target=self._consumer.close, name="kafka-close", daemon=True).start()
        else:
            self._consumer.close()


def _failures(error: Any, answered: list[ClientPartition]) -> dict[TopicPartition, CommitFailure]:
    """Return the reason for each partition that failed; the error of the whole counts for all.

    Where one topic does not exist the client says so of all partitions, though the others are
    stored.
    """
    failures = {}
    for each in answered:
        reason = each.error or error
        if reason is not None:
            failures[TopicPartition(each.topic, each.partition)] = CommitFailure(
                reason.str(), topic_missing=reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            )
    return failures


#: Seconds in which the brokers have to answer before a producer counts as hung.
_ASK_TIMEOUT = 1.0

#: Stays that are over and remembered: a claim of one is gone a moment after it.
_MEMBERSHIPS = 16


class TransactionalOffsetStore:
    """An ``OffsetStore`` that commits through a transactional producer, one per membership.

    Its id stands in the epoch node of every claim. A new owner whose predecessor did not end
    cleanly begins again under the predecessor's id, and the brokers refuse what the former producer
    has open or sends later: a commit is stored before the new owner reads the offset, or never. A
    producer that was shut out is not opened again; the member joins again and gets another.

    Reading, and commits of claims without a producer, go through a consumer like that of
    ``KafkaOffsetStore``.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        group: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        lock: FencingLock | None = None,
    ) -> None:
        self._clock = clock
        self._properties = dict(client_properties)
        self._plain = KafkaOffsetStore(client_properties, group, lock=lock)
        self._group = group
        self._member: TransactionalProducer | None = None
        self._ended: deque[str] = deque(maxlen=_MEMBERSHIPS)
        self._shut_out: str | None = None

    def read(self, partition: TopicPartition, deadline: Deadline) -> StoredOffset | None:
        return self._plain.read(partition, deadline)

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        # our own commits of former claims are to be decided before: one that is still on its way
        # could be stored after the reading, and be taken back by what comes next
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
        return self._plain.read_many(partitions, deadline)

    def commit(
        self, offsets: Mapping[TopicPartition, Commit], deadline: Deadline
    ) -> Mapping[TopicPartition, CommitFailure]:
        failures: dict[TopicPartition, CommitFailure] = {}
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
    ) -> CommitFailure | None:
        if transactional_id in self._ended:
            return CommitFailure("this membership of the group is over", CommitRefusal.MEMBERSHIP)
        try:
            member = self._member_of(transactional_id)
        except KafkaException as error:
            return CommitFailure(error.args[0].str())
        entries = [
            entry(partition, commit, transactional_id) for partition, commit in offsets.items()
        ]
        failure = member.commit(entries, self._plain.group_metadata(), deadline)
        if failure is not None and self._is_stuck(member, deadline.clock):
            failure = CommitFailure(
                "our transactional producer does not come back", CommitRefusal.MEMBERSHIP
            )
        if failure is not None and failure.refusal is CommitRefusal.MEMBERSHIP:
            self._end_membership()
        return failure

    def _is_stuck(self, member: TransactionalProducer, clock: Clock) -> bool:
        """Return whether the producer hangs though the brokers answer others."""
        if member.busy_for(clock) < STUCK_AFTER:
            return False
        try:
            self._plain.read_many(member.undecided, Deadline.after(_ASK_TIMEOUT, clock))
        except OffsetStoreError:
            return False
        log.error("producer_stuck", transactional_id=member.transactional_id)
        return True

    def _member_of(self, transactional_id: str) -> TransactionalProducer:
        """Return the producer of a membership; a new membership ends the one before."""
        if self._member is None or self._member.transactional_id != transactional_id:
            self._end_membership()
            self._member = TransactionalProducer(self._properties, transactional_id)
            log.info("producer_opened", group=self._group, transactional_id=transactional_id)
        return self._member

    def _end_membership(self) -> None:
        if self._member is not None:
            self._ended.append(self._member.transactional_id)
            self._member = None

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        self._plain.fence(transactional_ids, partition, deadline)
        member = self._member
        if member is not None and member.transactional_id in transactional_ids:
            self._shut_out = member.transactional_id

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        return self._plain.answers(partition, deadline)

    def serve(self) -> None:
        self._plain.serve()
        if self._member is None:
            return
        self._member.serve()
        self._member.settle(self._clock)
        if self._is_stuck(self._member, self._clock):
            # the next commit in this membership fails, because it is over
            self._end_membership()

    def close(self) -> None:
        self._end_membership()
        self._plain.close()
