"""Results and the offsets they are of, produced and stored in one transaction."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

import structlog
from confluent_kafka import KafkaError, KafkaException

from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.errors import (
    FencedError,
    HeadraceError,
    RowsRefusedError,
    SinkConflictError,
    SinkFailedError,
    StartError,
)
from headrace.core.records import FIRST_TIME, TopicPartition
from headrace.core.result_columns import ResultColumns, each_of
from headrace.kafka.broker_lines import lose_marks
from headrace.kafka.catalog import KafkaTopicCatalog
from headrace.kafka.errors import KafkaUnavailableError, OffsetStoreError, ProduceError
from headrace.kafka.fencing import Finishing, GroupPartition
from headrace.kafka.offsets import KafkaOffsetStore, entry
from headrace.kafka.ports import CommitRefusal, StoredOffset
from headrace.kafka.transactional_producer import STUCK_AFTER, TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from confluent_kafka import Producer

    from headrace.core.records import ResultRecord
    from headrace.core.result_columns import Results
    from headrace.kafka.columnar.producer import ColumnProducer
    from headrace.kafka.ports import ChangelogMark, CommitFailure


#: Seconds that one look at a full queue waits for room.
_ROOM_POLL_INTERVAL = 0.1

#: Records between two looks for errors. Serving the client costs about as much as one record.
_SERVE_EVERY = 100


#: What the client takes for no choice of a partition, and of a time.
_ANY_PARTITION, _NOW = -1, 0

#: What the client says of a partition that it does not know.
_NO_PARTITION = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - a public name of the client's

#: What is said of records that will not be taken another time, either.
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        _NO_PARTITION,
    }
)


#: What is said of records that go down with the transaction of others.
_DROPPED = frozenset(
    {
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - public names of the client's
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - public names of the client's
    }
)

#: Seconds in which the client says why a transaction is lost, after it has dropped what waited.
_REASON_TIMEOUT = 1.0


def produce_all(
    results: Results,
    producer: Producer,
    deadline: Deadline,
    columns: ColumnProducer | None = None,
) -> None:
    """Produce results in their order, and return when the brokers have all of them. Blocks.

    ``columns`` is the same producer's, for those in columns; without it they go one by one, too.

    Raises:
        RowsRefusedError: a record cannot be produced, now or later.
        ProduceError: they were not taken by the deadline, or one was not for another reason.
        KafkaException: the client cannot go on.
    """
    deliveries = _Deliveries(producer, columns, deadline)
    if columns is not None:
        columns.forget()
    for index, record in enumerate(_singles(results, columns), 1):
        _produce(record, producer, deliveries.report, deadline)
        if index % _SERVE_EVERY == 0:
            deliveries.served(lambda: producer.poll(0))
    if left := deliveries.served(lambda: producer.flush(deadline.left)):
        raise ProduceError(f"{left} records were not taken in time; are the brokers busy?")


class _Deliveries:
    """The deliveries of records that were handed to a producer, in columns or one by one."""

    def __init__(
        self, producer: Producer, columns: ColumnProducer | None, deadline: Deadline
    ) -> None:
        self._producer = producer
        self._columns = columns
        self._deadline = deadline
        self._failures: list[tuple[int, str, str]] = []

    def report(self, error: KafkaError | None, message: Any) -> None:
        """Record the delivery report of one record. Called by the client, within calls of it."""
        if error is not None:
            self._failures.append((error.code(), message.topic(), error.str()))

    def served(self, call: Callable[[], int]) -> int:
        """Return what a call of the client returns.

        Raises:
            RowsRefusedError, ProduceError: a record was not taken.
        """
        left = _served(call)
        if self._has_failed():
            # a transaction that is lost drops what waits, and says so before it says why
            patience = self._deadline.at_most(_REASON_TIMEOUT)
            _served(lambda: self._producer.flush(patience))
            self._has_failed()
            raise _not_taken(*min(self._failures, key=lambda each: _is_consequence(each[0])))
        return left

    def _has_failed(self) -> bool:
        if self._columns is not None and (failure := self._columns.failure()) is not None:
            self._failures.append(failure)
        return bool(self._failures)


def _is_consequence(code: int) -> bool:
    return code in _DROPPED


def _not_taken(code: int, topic: str, said: str) -> HeadraceError:
    kind = RowsRefusedError if code in _REFUSED else ProduceError
    step = _TIMES if code == KafkaError.INVALID_TIMESTAMP else ""
    return kind(f"the brokers did not take a record: topic {topic}: {said}{step}")


#: The next step where a record's time is refused. Brokers allow one hour ahead unless told.
_TIMES = (
    ": a record's time is further from now than message.timestamp.after.max.ms or "
    "message.timestamp.before.max.ms of the topic allows; raise that, or correct the time"
)


def _singles(results: Results, columns: ColumnProducer | None) -> Iterator[ResultRecord]:
    """Produce what can be in columns, and yield the others in between."""
    if columns is None:
        yield from each_of(results)
        return
    for each in results:
        if isinstance(each, ResultColumns):
            yield from columns.produce(each)
        else:
            yield each


def _served(call: Callable[[], int]) -> int:
    """Return what a call that runs callbacks returns.

    A fatal error is raised by the call. Where a delivery report comes in the same call, Python
    finds the error set when the report's callback returns, and makes a SystemError of both; or the
    error is lost, and what is left says nothing. The call that decides it meets it again.
    """
    try:
        return call()
    except SystemError as error:
        found: BaseException | None = error
        while found is not None and not isinstance(found, KafkaException):
            found = found.__cause__ or found.__context__
        if found is None:
            raise ProduceError(f"the client gave up without a reason ({error})") from error
        raise found from None


def _produce(
    record: ResultRecord, producer: Producer, report: Callable[..., None], deadline: Deadline
) -> None:
    topic, value, key, headers, partition, timestamp = record
    named: Any = headers or None
    has_looked = False
    while True:
        try:
            producer.produce(
                topic,
                value,
                key,
                partition=_ANY_PARTITION if partition is None else partition,
                on_delivery=report,
                # 0 would be now
                timestamp=_NOW if timestamp is None else timestamp or FIRST_TIME,
                headers=named,
            )
        except BufferError:
            if deadline.expired:
                raise ProduceError(
                    f"topic {record.topic}: the brokers take no more records; are they busy?"
                ) from None
            _served(lambda: producer.poll(deadline.at_most(_ROOM_POLL_INTERVAL)))
        except KafkaException as error:
            if error.args[0].code() not in _REFUSED:
                raise
            if error.args[0].code() == _NO_PARTITION and _has_partition(record, producer, deadline):
                if has_looked:
                    raise ProduceError(f"topic {topic}: {error.args[0].str()}") from error
                # the client had the topic as it was before it was given more, and knows by now
                has_looked = True
                continue
            size = len(record.value or b"") + len(record.key or b"")
            raise RowsRefusedError(
                f"topic {record.topic}: a record with {size} bytes of key and value cannot be "
                f"produced: {error.args[0].str()}"
            ) from error
        else:
            return


def _has_partition(record: ResultRecord, producer: Producer, deadline: Deadline) -> bool:
    """Return whether the brokers have a record's partition; the client knows as much then. Blocks.

    A client asks by itself every five minutes: a topic that was given partitions since then has
    fewer for it.
    """
    patience = deadline.at_most(ANSWER_TIMEOUT)
    try:
        found = producer.list_topics(record.topic, timeout=patience).topics.get(record.topic)
    except KafkaException as error:
        raise ProduceError(f"topic {record.topic}: {error.args[0].str()}") from error
    return found is not None and record.partition in found.partitions


log = structlog.get_logger(__name__)

#: Seconds that one transaction may take, from the first record to the brokers' last answer, and
#: after which the brokers abort one whose producer is silent. The job that computes the result is
#: over before it begins.
TIMEOUT = 60.0

#: Seconds in which the brokers have to answer one question about topics or offsets.
ANSWER_TIMEOUT = 5.0

#: Seconds between two tries to read from a group whose coordinator is just being chosen.
_RETRY = 0.2

#: Seconds in which a transaction that failed is to be decided, so that readers do not wait for it.
SETTLE_TIMEOUT = 5.0

#: Seconds that the end of a channel waits for a call that is about to come back.
_MOMENT = 1.0

#: Stays that are over and remembered, as in :mod:`headrace.kafka.offsets`.
_MEMBERSHIPS = 16

#: What the producers of results begin with: keys go to partitions as with Java's clients, and so
#: with Spark's; a queue that is full has the sink wait, so that rows in flight take this much.
_SETTINGS = {
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "queue.buffering.max.kbytes": 65_536,
    "delivery.report.only.error": True,
    # the topic's limit is the one that counts
    "message.max.bytes": 100_000_000,
}


def sink_group(group: str) -> str:
    """Return the group that a channel's Kafka sink keeps its offsets under.

    Not the channel's own, which the committer writes to: two writers of one offset would each
    take back what the other stored.
    """
    return f"{group}.sink"


class Move(Protocol):
    """The move of one partition's offset from ``start`` to ``next_offset``."""

    @property
    def identity(self) -> str:
        """Return ``cluster id/group/topic id/partition``."""

    @property
    def partition(self) -> TopicPartition:
        """Return the partition."""

    @property
    def start(self) -> int:
        """Return where the offset has to be."""

    @property
    def next_offset(self) -> int:
        """Return where it goes."""

    @property
    def transactional_id(self) -> str | None:
        """Return the producer that the claim names, None where there is no claim."""

    @property
    def leader_epoch(self) -> int | None:
        """Return a leader epoch under which the log was seen to lead there, or None."""


@dataclass(frozen=True, slots=True)
class CountedMove:
    """A :class:`Move` of a partition with state, whose commits are counted.

    The count has to be ``commits`` before it and is ``number`` after it, one more by default, so
    that a commit whose offset does not move can be told from none. ``stream_time`` is in
    milliseconds, and ``changelog`` says where the state is.
    """

    identity: str
    partition: TopicPartition
    start: int
    next_offset: int
    transactional_id: str | None
    leader_epoch: int | None
    commits: int
    stream_time: int | None
    changelog: ChangelogMark | None = None
    number: int | None = None

    @property
    def next_commits(self) -> int:
        """Return the count that is stored with the offset."""
        return self.commits + 1 if self.number is None else self.number


class ResultTransactions:
    """Produces results, and keeps the offsets they are of in the same transactions.

    The offsets are those of :func:`sink_group`. Each membership has a producer of its own,
    whose id every claim of it names: a next owner begins again under that id before it reads
    an offset, and the brokers refuse from then on what the former producer has open or sends.
    Within one process the lock puts the comparison of offsets and the transaction in one step.

    Any thread; every call blocks. ``timeout`` bounds a transaction, in seconds. ``columns`` is what
    produces results in columns; without it they go one by one. ``own_id`` is the producer of moves
    without a claim, one of its own by default.

    Raises:
        KafkaUnavailableError, OffsetStoreError: by a reading, where the brokers did not answer.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        group: str,
        member: str,
        *,
        timeout: float = TIMEOUT,
        clock: Clock = SYSTEM_CLOCK,
        columns: type[ColumnProducer] | None = None,
        own_id: str | None = None,
    ) -> None:
        # offsets in open transactions are to be waited for, whatever else is read here
        self._properties = {**client_properties, "isolation.level": "read_committed"}
        self._group = group
        self._member = member
        self._timeout = timeout
        self._clock = clock
        self._columns = columns
        self._opening, self._lock = Lock(), Lock()
        self._offsets: KafkaOffsetStore | None = None
        self._topics: dict[str, str] = {}
        self._producer: TransactionalProducer | None = None
        self._ended: deque[str] = deque(maxlen=_MEMBERSHIPS)
        #: For moves without a claim. It is not fenced: the hold on the group keeps others away.
        self._own_id = own_id or f"headrace.{group}.{member}.{uuid4().hex[:8]}"

    def require(self, topic: str) -> int:
        """Return how many partitions a topic has.

        Raises:
            StartError: it does not, or no broker answered.
        """
        with closing(KafkaTopicCatalog(self._properties, sink_group(self._group))) as catalog:
            found = catalog.describe([topic], self._answer_deadline())
        if topic not in found:
            raise StartError(
                f"topic {topic}, which results go to, does not exist; create it with as many "
                "partitions as its readers need"
            )
        return found[topic].partitions

    def stored(self, identity: str) -> int | None:
        """Return the offset stored for a partition, once no transaction has it in doubt."""
        found = self.stored_entry(identity)
        return None if found is None else found.offset

    def leader_epoch(self, identity: str) -> int | None:
        """Return the leader epoch stored with it."""
        found = self.stored_entry(identity)
        return None if found is None else found.leader_epoch

    def stored_entry(self, identity: str) -> StoredOffset | None:
        """Return all that is stored for a partition, None where nothing is."""
        topic_id, number = self._parts(identity)
        topic = self._topic(topic_id)
        if topic is None:
            return None
        partition = TopicPartition(topic, number)
        found = self._read_patiently([partition]).get(partition)
        return None if found is None or found.is_of_another(topic_id) else found

    def last_entries(
        self, identities: Collection[str], deadline: Deadline
    ) -> Mapping[str, StoredOffset]:
        """Return what was committed last of partitions of one topic; what has nothing is missing.

        A transaction that has an offset in doubt is passed over.

        Raises:
            KafkaUnavailableError: the brokers did not answer by the deadline.
        """
        wanted: dict[TopicPartition, str] = {}
        for identity in identities:
            topic_id, number = self._parts(identity)
            topic = self._topic(topic_id)
            if topic is not None:
                wanted[TopicPartition(topic, number)] = identity
        if not wanted:
            return {}
        settings = {**self._properties, "isolation.level": "read_uncommitted"}
        with closing(KafkaOffsetStore(settings, sink_group(self._group), quiet=True)) as store:
            try:
                found = self._read_patiently(list(wanted), store, deadline)
            except OffsetStoreError as error:
                raise KafkaUnavailableError(str(error)) from error
        return {
            wanted[partition]: stored
            for partition, stored in found.items()
            if not stored.is_of_another(self._parts(wanted[partition])[0])
        }

    def commit(
        self,
        moves: Sequence[Move],
        records: Results = (),
        beside: OffsetsBeside | None = None,
    ) -> list[SinkConflictError]:
        """Produce the records and move the offsets, both or neither.

        Conflicts are returned, and nothing was stored then. ``beside`` are offsets of another group
        for the same transaction; nothing else may use that meanwhile.

        Raises:
            FencedError: the producer was shut out, or its membership of the group is over.
            RowsRefusedError: a record cannot be produced; nothing was stored.
            SinkFailedError: the transaction failed; the message says why.
            OffsetStoreError: the offsets could not be compared; nothing was stored.
        """
        refused: list[RowsRefusedError] = []

        def produce(client: Producer, deadline: Deadline) -> None:
            try:
                produce_all(records, client, deadline, producer.columns)
            except RowsRefusedError as error:
                refused.append(error)
                raise
            if beside is not None:
                theirs, others = beside
                theirs.add_to(client, producer.transactional_id, others, deadline)

        with self._lock:
            deadline = Deadline.after(self._timeout, self._clock)
            producer = self._producer_for(moves)
            self._require(producer, producer.conclude(deadline))
            self._finish_aborted(producer, moves[0].partition)
            conflicts = self.find_conflicts(moves)
            if beside is not None:
                conflicts += beside.transactions.find_conflicts(beside.moves)
            if conflicts:
                return conflicts
            entries = [self._entry(move, producer.transactional_id) for move in moves]
            failure = producer.commit(entries, self._store().group_metadata(), deadline, produce)
            if failure is not None and not self._is_stored(producer, moves, failure):
                if refused:
                    raise refused[0]
                self._require(producer, failure)
        return []

    def find_conflicts(self, moves: Sequence[Move]) -> list[SinkConflictError]:
        """Return those moves that do not begin where the stored offsets are."""
        found = self._read(moves)
        return [
            SinkConflictError(move.partition, move.start, there.offset)
            for move in moves
            if (there := found.get(move.partition)) is not None and not _is_before(move, there)
        ]

    def add_to(
        self, client: Producer, transactional_id: str, moves: Sequence[Move], deadline: Deadline
    ) -> None:
        """Add moves to the transaction that a client has open, with offsets of another group.

        Raises:
            KafkaException: they were not added.
        """
        entries = [self._entry(move, transactional_id) for move in moves]
        group = self._store().group_metadata()
        client.send_offsets_to_transaction(entries, group, deadline.left)

    def close(self) -> None:
        """Release the clients, after the last call.

        A call that does not come back keeps them: it belongs to a thread that was left behind.
        """
        if not self._lock.acquire(timeout=_MOMENT):
            log.warning("transaction_abandoned", group=sink_group(self._group))
            return
        with self._opening:
            self._producer = None
            if self._offsets is not None:
                self._offsets.close()
                self._offsets = None
        self._lock.release()

    # --- below the lock ---------------------------------------------------------------------

    def _finish_aborted(self, producer: TransactionalProducer, partition: TopicPartition) -> None:
        """Finish what was aborted where a broker may not have marked it.

        There the next transaction ends it too, as a commit: what was aborted would be read.
        """
        if not producer.has_aborted:
            return
        if lose_marks(self._properties, self._answer_deadline()) is not False:
            place = GroupPartition(sink_group(self._group), partition)
            Finishing(self._properties, place, producer).finish()
        producer.has_aborted = False

    def _producer_for(self, moves: Sequence[Move]) -> TransactionalProducer:
        """Return the producer of the moves' membership; a new one ends that before it."""
        named = {move.transactional_id or self._own_id for move in moves}
        if len(named) > 1 or not named.isdisjoint(self._ended):
            raise FencedError(f"group {self._group}: a membership is over: {sorted(named)}")
        (wanted,) = named
        if self._producer is None or self._producer.transactional_id != wanted:
            self._end_producer()
            self._producer = TransactionalProducer(
                {**_SETTINGS, **self._properties, "message.timeout.ms": self._timeout_ms},
                wanted,
                timeout_ms=self._timeout_ms,
                quiet=True,
                columns=self._columns,
            )
            log.info("producer_opened", group=sink_group(self._group), transactional_id=wanted)
        return self._producer

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout * 1000)

    def _end_producer(self) -> None:
        if self._producer is not None:
            self._ended.append(self._producer.transactional_id)
            self._producer = None

    def _require(self, producer: TransactionalProducer, failure: CommitFailure | None) -> None:
        if failure is None:
            return
        stuck = producer.busy_for(self._clock) > self._timeout + STUCK_AFTER
        if stuck:
            log.error("producer_stuck", transactional_id=producer.transactional_id)
        if stuck or failure.refusal is CommitRefusal.MEMBERSHIP:
            self._end_producer()
            raise FencedError(f"group {self._group}: {failure}")
        raise SinkFailedError(
            f"group {self._group}: the results' transaction failed: {failure}; it is made again "
            "with the batch"
        )

    def _is_stored(
        self, producer: TransactionalProducer, moves: Sequence[Move], failure: CommitFailure
    ) -> bool:
        """Decide a failed transaction, and tell by the offsets what became of it."""
        if failure.refusal is CommitRefusal.MEMBERSHIP:
            return False
        undecided = producer.conclude(Deadline.after(SETTLE_TIMEOUT, self._clock))
        if undecided is not None:
            log.warning(
                "kafka_outcome_unknown", group=sink_group(self._group), error=failure.reason
            )
            self._require(producer, undecided)
        found = self._read(moves)
        if not all(_is_done(move, found.get(move.partition)) for move in moves):
            return False
        log.warning(
            "kafka_commit_found_stored", group=sink_group(self._group), error=failure.reason
        )
        return True

    def _read(self, moves: Sequence[Move]) -> dict[TopicPartition, StoredOffset]:
        for move in moves:
            self._topics[self._parts(move.identity)[0]] = move.partition.topic
        found = self._read_patiently([move.partition for move in moves])
        topic_ids = {move.partition: self._parts(move.identity)[0] for move in moves}
        return {
            partition: stored
            for partition, stored in found.items()
            if not stored.is_of_another(topic_ids[partition])
        }

    def _entry(self, move: Move, producer: str) -> Any:
        topic_id, _ = self._parts(move.identity)
        stored = StoredOffset(move.next_offset, 0, self._member, topic_id, move.leader_epoch)
        if isinstance(move, CountedMove):
            stored = replace(
                stored,
                commits=move.next_commits,
                stream_time=move.stream_time,
                changelog=move.changelog,
            )
        return entry(move.partition, stored, producer)

    # --- any thread -------------------------------------------------------------------------

    @staticmethod
    def _parts(identity: str) -> tuple[str, int]:
        """Return topic id and partition of an identity."""
        _, topic_id, number = identity.rsplit("/", 2)
        return topic_id, int(number)

    def _answer_deadline(self) -> Deadline:
        return Deadline.after(ANSWER_TIMEOUT, self._clock)

    def _read_patiently(
        self,
        partitions: Collection[TopicPartition],
        store: KafkaOffsetStore | None = None,
        deadline: Deadline | None = None,
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Read offsets of a group whose coordinator may just be changing."""
        deadline = deadline or self._answer_deadline()
        while True:
            try:
                return (store or self._store()).read_many(partitions, deadline)
            except OffsetStoreError:
                if deadline.remaining <= _RETRY:
                    raise
                Event().wait(_RETRY)

    def _store(self) -> KafkaOffsetStore:
        with self._opening:
            if self._offsets is None:
                self._offsets = KafkaOffsetStore(
                    self._properties, sink_group(self._group), quiet=True
                )
            return self._offsets

    def _topic(self, topic_id: str) -> str | None:
        """Return the name of the topic with an id, None where no such topic exists."""
        if topic_id not in self._topics:
            with closing(KafkaTopicCatalog(self._properties, sink_group(self._group))) as catalog:
                names = catalog.names(self._answer_deadline())
                for info in catalog.describe(names, self._answer_deadline()).values():
                    self._topics[info.topic_id] = info.name
        return self._topics.get(topic_id)


class OffsetsBeside(NamedTuple):
    """Moves of another group's partitions, for the transaction of a first one."""

    transactions: ResultTransactions
    moves: Sequence[Move]


def _is_before(move: Move, stored: StoredOffset) -> bool:
    """Return whether a stored offset is what a move begins at."""
    counted = not isinstance(move, CountedMove) or (stored.commits or 0) == move.commits
    return stored.offset == move.start and counted


def _is_done(move: Move, stored: StoredOffset | None) -> bool:
    """Return whether a stored offset is what a move ends at."""
    if stored is None or stored.offset != move.next_offset:
        return False
    return not isinstance(move, CountedMove) or stored.commits == move.next_commits
