"""Records and batches, which travel through a channel, and the assignment they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.core.spans import NO_SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.core.spans import Span


class TopicPartition(NamedTuple):
    """One partition of one topic. Sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def all_partitions(counts: Mapping[str, int]) -> list[TopicPartition]:
    """Return the partitions of topics that have so many each, in order."""
    return [TopicPartition(topic, n) for topic in sorted(counts) for n in range(counts[topic])]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each topic; topics and partitions are in order."""
    found: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition)
    return found


def identity_of(cluster: str, group: str, topic_id: str, partition: int) -> str:
    """Return the name under which a sink keeps a partition's offset.

    It names the data, not just the topic: a topic that is created again has another id.
    """
    return f"{cluster}/{group}/{topic_id}/{partition}"


#: How the key begins of the empty record by which a transaction is finished in a topic. It says
#: nothing but that: no reader of ours takes it for a fact.
FINISHED_KEY = b"headrace-finished:"

#: Characters of a topic id: 16 bytes in base64, without padding.
_TOPIC_ID_LENGTH = 22

#: Kafka writes topic ids in the alphabet of base64 that is safe in URLs and paths. librdkafka
#: writes them in the other one, and so did earlier versions of Headrace.
_TO_KAFKAS = str.maketrans("+/", "-_")
_TO_FORMER = str.maketrans("-_", "+/")


def kafkas_topic_id(topic_id: str) -> str:
    """Return a topic id as Kafka's own tools print it, whichever alphabet it comes in."""
    return topic_id.translate(_TO_KAFKAS)


def former_topic_id(topic_id: str) -> str | None:
    """Return how earlier versions stored a topic id; None where that was the same."""
    former = topic_id.translate(_TO_FORMER)
    return former if len(topic_id) == _TOPIC_ID_LENGTH and former != topic_id else None


def topic_fields(topic_id: str | None) -> dict[str, str]:
    """Return the field of a stored offset that names the topic.

    It has another name where earlier versions wrote the same id otherwise: they would compare the
    two and take the topic for another one. So they find none, which they trust.
    """
    if topic_id is None:
        return {}
    return {"topic_id" if former_topic_id(topic_id) is None else "topic_uuid": topic_id}


def stored_topic(topic_uuid: str | None, topic_id: str | None) -> str | None:
    """Return the id of the topic that a stored offset names in one of the two fields."""
    topic = topic_uuid or topic_id
    return None if topic is None else kafkas_topic_id(topic)


def former_identity(identity: str) -> str | None:
    """Return the name that earlier versions stored a partition's offset under; None: the same."""
    data, _, partition = identity.rpartition("/")
    head, _, topic_id = data.rpartition("/")
    former = former_topic_id(topic_id)
    return None if former is None else f"{head}/{former}/{partition}"


def present_identity(stored: str) -> str:
    """Return an identity that any version stored as it is written now.

    For custom sinks, too, whose stored identities are to be renamed once.
    """
    data, _, partition = stored.rpartition("/")
    # a topic id in the former alphabet may have a "/" in it
    head, topic_id = data[:-_TOPIC_ID_LENGTH], data[-_TOPIC_ID_LENGTH:]
    if not head.endswith("/"):
        return stored
    return f"{head}{kafkas_topic_id(topic_id)}/{partition}"


class Record(Protocol):
    """One Kafka record as the client delivers it (``confluent_kafka.Message`` fits).

    ``len(record)`` is the size of the value in bytes, 0 for a tombstone.
    """

    def topic(self) -> str | None:
        """Return the topic's name."""

    def partition(self) -> int | None:
        """Return the partition's number."""

    def offset(self) -> int | None:
        """Return the record's own offset."""

    def key(self) -> bytes | None:
        """Return the key, None where the producer set none."""

    def value(self) -> bytes | None:
        """Return the value, None for a tombstone."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers in order, None where there are none."""

    def timestamp(self) -> tuple[int, int]:
        """Return (timestamp type, milliseconds since the Unix epoch)."""

    def __len__(self) -> int: ...


#: The first millisecond that clients take for a time: 0 means now to them.
FIRST_TIME = 1


class ResultRecord(NamedTuple):
    """A record that is to be produced: one row of a result.

    ``partition`` None leaves it to the partitioner, by the key; ``timestamp`` is in milliseconds
    since the Unix epoch, None for the time at which it is produced.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp: int | None = None


class Assignment(Protocol):
    """One member's hold on one partition, from ``on_assigned`` to its end.

    Every property may be read on any thread and may have moved on when the caller looks again.
    Offsets always mean the next record to read.
    """

    @property
    def partition(self) -> TopicPartition:
        """Return the partition held."""

    @property
    def identity(self) -> str:
        """Return ``cluster id/group/topic id/partition``, which is unique to the data."""

    @property
    def epoch(self) -> int:
        """Return the claim's epoch: it rises with every change of ownership."""

    @property
    def transactional_id(self) -> str | None:
        """Return the producer that the claim names for this member; shut out by the next owner."""

    @property
    def leader_epoch(self) -> int | None:
        """Return a leader epoch under which the log was seen to lead to all that was delivered."""

    @property
    def position(self) -> int:
        """Return the next offset to deliver."""

    @property
    def committed(self) -> int | None:
        """Return the offset a restart would begin at, None before the start position is stored."""

    @property
    def high_watermark(self) -> int | None:
        """Return the partition's end as the fetcher last saw it, None before the first fetch."""

    @property
    def delivery_end(self) -> int | None:
        """Return where delivery ends: as ``high_watermark``, or the bound of a run before that."""

    def is_current(self) -> bool:
        """Return whether work for this assignment may still take effect (claim, lease, not
        abandoned).

        Where the sink or one of its outputs keeps no offsets, not while ZooKeeper is silent either.
        """


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one partition, delivered once and answered once.

    ``start`` is the position the batch continues from: the previous batch's ``next_offset``. The
    first record may lie past it, because compaction, transaction markers and retention leave
    gaps. ``attempt`` counts deliveries of its records from 1, those in a larger batch that failed
    included. ``size`` is in bytes. ``span`` is its place in a trace.
    """

    assignment: Assignment
    start: int
    records: Sequence[Record] = field(repr=False)
    next_offset: int
    size: int
    attempt: int = 1
    span: Span = field(default=NO_SPAN, repr=False, compare=False)

    @property
    def partition(self) -> TopicPartition:
        """Return the partition all records are of."""
        return self.assignment.partition

    @property
    def first_offset(self) -> int:
        """Return the offset of the first record."""
        return offset_of(self.records[0])

    @property
    def last_offset(self) -> int:
        """Return the offset of the last record."""
        return offset_of(self.records[-1])

    def __len__(self) -> int:
        return len(self.records)


def made_at(record: Record) -> float | None:
    """Return a record's timestamp in seconds since the epoch, None if it has none."""
    kind, milliseconds = record.timestamp()
    return milliseconds / 1000 if kind else None


def offset_of(record: Record) -> int:
    """Return the offset of a fetched record."""
    offset = record.offset()
    assert offset is not None, "the client sets an offset on every fetched record"
    return offset
