"""The protocols a channel needs of Kafka; the adapters here and the test doubles provide them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headrace.kafka.errors import ProduceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.core.clock import Deadline
    from headrace.core.record_runs import Run
    from headrace.core.records import Record, TopicPartition
    from headrace.core.result_columns import ResultColumns


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one fetch, in order.

    ``ends`` says where the fetcher stood when a partition's end was reached; ``out_of_range``
    names partitions whose position the broker does not have; ``errors`` are other complaints of
    the client, for the log, and ``denied`` the topics of those that say that the user may not read.

    A partition that is out of range is no longer fetched until a seek. The report may be late and
    speak of a position from before a seek, and it ends the fetching all the same: who hears it
    asks what the broker has, and seeks again even if nothing is wrong.

    ``truncated`` names partitions whose log does not lead to their position any more: it lost its
    end, and may have grown again. With each is where the former log ends, None where that is not
    known. They are no longer fetched either. ``leader_epochs`` has the newest leader epochs of
    what was fetched.
    """

    chunks: list[tuple[TopicPartition, Run]] = field(default_factory=list)
    ends: list[tuple[TopicPartition, int]] = field(default_factory=list)
    out_of_range: list[TopicPartition] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    truncated: list[tuple[TopicPartition, int | None]] = field(default_factory=list)
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)


class RecordSource(Protocol):
    """One consumer that only assigns. Used by one thread, its fetcher, which also closes it."""

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Start fetching partitions at the offsets given, paused or not before.

        Other partitions keep what was prefetched. ``epochs`` has leader epochs under which the log
        was seen to lead to these offsets: nothing is fetched of a partition whose log does not any
        more, and it is reported as truncated.
        """

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching partitions and drop what was prefetched of them."""

    def seek(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Fetch assigned partitions from the offsets given, and end their pauses.

        Nothing that was fetched of them before comes after this returns. ``epochs``: as in
        ``assign``.
        """
        # librdkafka's own seek fails for a partition that is not being fetched yet
        self.unassign(starts)
        self.assign(starts, epochs)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching assigned partitions for a while; their prefetched records are dropped."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Resume fetching paused partitions from where their last record ended."""

    def fetch(self, timeout: float) -> Fetched:
        """Return what has come, waiting ``timeout`` seconds for it at most."""

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the end of an assigned partition as last seen, without asking the broker."""

    def close(self) -> None:
        """Release the client."""


@dataclass(frozen=True, slots=True)
class ChangelogMark:
    """The changelog that has the state of a partition, as it is stored with the input's offset.

    ``start`` is the first offset that has to be there, and ``partitions`` how many the input had
    when state was first committed. ``has_rows``: whether a row of this partition was ever written.
    ``key`` is where facts have their key from, None where that was not said. ``end`` is where rows
    of a commit before ended that was looked at, and ``leader_epoch`` one under which the log led
    there; None where neither is known.
    """

    topic_id: str
    start: int
    partitions: int
    has_rows: bool
    key: str | None = None
    end: int | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A group's offset for one partition, and the epoch of the claim that stored it (0: none).

    ``by`` says for the log who that was: a member's name, or what another program left there.
    ``topic_id`` is that of the topic whose records the offset counts, None where the one who
    stored it did not say; :meth:`is_of_another`. ``leader_epoch`` is one under which the log was
    seen to lead to the offset, None where that is not known. Of a channel with state ``commits``
    counts the commits of the partition, ``stream_time`` is in milliseconds, and ``changelog`` says
    where its state is, None where an earlier version stored it.
    """

    offset: int
    epoch: int
    by: str = field(default="", compare=False)
    topic_id: str | None = field(default=None, compare=False)
    leader_epoch: int | None = field(default=None, compare=False)
    commits: int | None = field(default=None, compare=False, kw_only=True)
    stream_time: int | None = field(default=None, compare=False, kw_only=True)
    changelog: ChangelogMark | None = field(default=None, compare=False, kw_only=True)

    def is_of_another(self, topic_id: str | None) -> bool:
        """Return whether the offset is known to be of another topic, of the same name or not."""
        return None not in {self.topic_id, topic_id} and self.topic_id != topic_id


@dataclass(frozen=True, slots=True)
class Commit(StoredOffset):
    """An offset to be stored on behalf of a claim, and what a store can tell a zombie by.

    ``node_version`` is the version of the partition's epoch node since the claim.
    ``transactional_id`` names the producer of the claim's membership, where one commits.
    """

    node_version: int = 0
    transactional_id: str | None = None


class CommitRefusal(Enum):
    """The meaning of a failed commit for the one who tried it."""

    NONE = "none"
    """Nothing: it may be tried again. Whether it is stored is not known."""
    CLAIM = "claim"
    """Another claimed the partition after us; nothing was or will be stored under our claim."""
    MEMBERSHIP = "membership"
    """Our transactional producer is fenced: no claim of this membership can commit any more."""


@dataclass(frozen=True, slots=True)
class CommitFailure:
    """The reason why an offset is not known to be stored.

    ``topic_missing``: there is no such topic, be it this partition's or another's that was to be
    stored together with it.
    """

    reason: str
    refusal: CommitRefusal = CommitRefusal.NONE
    topic_missing: bool = False

    def __str__(self) -> str:
        return self.reason


class OffsetStore(Protocol):
    """The store of the group's offsets. Any thread but where it says; what has a deadline blocks.

    Raises:
        OffsetStoreError: offsets could not be read by the deadline, or former owners not fenced.
    """

    def read(self, partition: TopicPartition, deadline: Deadline) -> StoredOffset | None:
        """Return where the group stands, None if it never was there."""
        return self.find([partition], deadline).get(partition)

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return what ``read`` would of each partition, in few requests; None is missing."""
        return self.read_many(partitions, deadline)

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return what this store itself holds of each partition, also if another is ahead of it."""

    def commit(
        self, offsets: Mapping[TopicPartition, Commit], deadline: Deadline
    ) -> Mapping[TopicPartition, CommitFailure]:
        """Store offsets; return why for each partition that failed. The committer's thread.

        A partition that is not in the result is stored. When the deadline passes first, those
        without an answer are in the result, and whether they are stored is not known: the store
        may yet execute the commit, unless it refuses zombies and another member claimed meanwhile.
        """

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        """Fence the producers of former owners, so that nothing they sent counts any more.

        What they had committed before can be read when this returns, of all partitions;
        ``partition`` is one that they had.
        """

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        """Return whether the offset can be read if transactions that have it in doubt are passed
        over.

        After an ``OffsetStoreError`` that ``timed_out`` this tells the two reasons apart.
        """

    def serve(self) -> None:
        """Run the client's callbacks. The committer's thread; does not block."""

    def close(self) -> None:
        """Release the client."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the brokers describe it. ``topic_id`` changes when it is created again.

    ``internal`` ones are for the brokers' own use. ``replicas`` has the partition with the fewest;
    None where it is not known.
    """

    name: str
    topic_id: str
    partitions: int
    internal: bool = False
    replicas: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class LogLook:
    """The result of a look at a log: its leader's epoch, and whether it lost what was before there.

    ``leader_epoch`` is that of the leader, or of its last record; None: not known. ``end`` is where
    a truncated log ends that led to the position, None where that is not known.
    """

    leader_epoch: int | None
    is_truncated: bool = False
    end: int | None = None


class TopicCatalog(Protocol):
    """The catalog of topics to read. Any thread; what has a deadline blocks until then at most.

    Raises:
        KafkaUnavailableError: by a call with a deadline that no broker answered until then.
    """

    def cluster_id(self, deadline: Deadline) -> str:
        """Return the id of the Kafka cluster."""

    def names(self, deadline: Deadline) -> Collection[str]:
        """Return the names of all topics that this user may describe."""

    def describe(self, topics: Collection[str], deadline: Deadline) -> Mapping[str, TopicInfo]:
        """Return those of ``topics`` that exist."""

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return the first offset and the end of a partition, asked from its leader."""

    def leader_epoch(self, partition: TopicPartition, deadline: Deadline) -> int | None:
        """Return the leader epoch of a partition's end, None where it is not known."""

    def look_at_log(self, partition: TopicPartition, position: int, epoch: int) -> Future[LogLook]:
        """Ask whether the log leads to where it led under a leader epoch. Does not block.

        The answer fails where none comes in time, and is cancelled when the same partition is
        asked about again.
        """

    def truncated_at(
        self, partition: TopicPartition, position: int, epoch: int, deadline: Deadline
    ) -> tuple[bool, int | None]:
        """Return whether a log does not lead to where it led under a leader epoch; its end if
        known.
        """

    def has_records(
        self, partition: TopicPartition, start: int, end: int, deadline: Deadline
    ) -> bool:
        """Return whether a reader finds records from ``start`` on before ``end``, markers aside."""

    def offset_at(
        self, partition: TopicPartition, timestamp: int, deadline: Deadline
    ) -> int | None:
        """Return the offset of the first record that is not older than ``timestamp``.

        Times are milliseconds since the Unix epoch, as in the records. None: all are older.
        """

    def close(self) -> None:
        """Release the client."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record for a dead-letter topic, with the headers that say where it comes from and why."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class DeadLetterStore(Protocol):
    """The store that puts records into dead-letter topics. Any thread."""

    def store(self, topic: str, letter: DeadLetter, patience: float) -> None:
        """Put a record into a topic, and return when all in-sync replicas have it. Blocks.

        The brokers have ``patience`` seconds for it.

        Raises:
            ProduceError: it is not known to be there; it may be, or come there yet.
        """

    def store_all(self, letters: ResultColumns, patience: float) -> None:
        """Put records into their topic as :meth:`store` does, in few requests. Blocks.

        The brokers may take as long as they need, with ``patience`` seconds for each thousand.
        """

    def close(self) -> None:
        """Release the client."""


class RecordReader(Protocol):
    """The reader of single records that the channel knows by reference only. Any thread.

    Raises:
        KafkaUnavailableError: no answer by the deadline.
    """

    def read(self, partition: TopicPartition, offset: int, deadline: Deadline) -> Record | None:
        """Return the record with exactly this offset, None if there is none (any more). Blocks."""


class NoDeadLetters:
    """Stands in for a channel that was built without a way to a dead-letter topic.

    Reads no records either.
    """

    def store(self, topic: str, letter: DeadLetter, patience: float) -> None:
        del letter, patience
        raise ProduceError(f"this channel was built without a way to the topic {topic}")

    def store_all(self, letters: ResultColumns, patience: float) -> None:
        del patience
        raise ProduceError(f"this channel was built without a way to the topic {letters.topic}")

    def read(self, partition: TopicPartition, offset: int, deadline: Deadline) -> Record | None:
        del offset, deadline
        raise ProduceError(f"this channel was built without a way to read {partition}")

    def close(self) -> None:
        pass
