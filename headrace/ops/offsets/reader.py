"""The known offsets of a partition: the log's, the group's and the sink's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.records import TopicPartition, all_partitions, identity_of
from headrace.kafka.catalog import matching
from headrace.kafka.errors import OffsetStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from headrace.config.subscription import Subscription
    from headrace.core.clock import Clock
    from headrace.kafka.ports import OffsetStore, StoredOffset, TopicCatalog, TopicInfo
    from headrace.sinks.contract import TransactionalOffsets


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """One topic, with all its partitions where ``numbers`` is None."""

    topic: str
    numbers: tuple[int, ...] | None = None


def parse_selection(text: str) -> TopicSelection:
    """Return what one ``--topic`` names.

    Raises:
        ValueError: it is not of the form TOPIC or TOPIC:N,N.
    """
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not re.fullmatch("[0-9]{1,9}(,[0-9]{1,9})*", numbers)):
        raise ValueError(f"{text!r} is not of the form TOPIC or TOPIC:0,3")
    return TopicSelection(topic, tuple(map(int, numbers.split(","))) if colon else None)


def selected(
    choices: Sequence[TopicSelection], subscription: Subscription, known: Mapping[str, TopicInfo]
) -> list[TopicPartition]:
    """Return the chosen partitions of a channel in order; no choice means all.

    ``known`` are those of its topics that exist.

    Raises:
        UsageError: a choice is not of the channel, or does not exist on the brokers.
    """
    problems: list[str] = []
    partitions: set[TopicPartition] = set()
    for selection in choices or map(TopicSelection, {*subscription.names, *known}):
        info = known.get(selection.topic)
        if not subscription.covers(selection.topic):
            problems.append(
                f"topic {selection.topic} is not of this channel, which reads {subscription}"
            )
        elif info is None:
            problems.append(
                f"topic {selection.topic} does not exist on the brokers; create it, or choose "
                "others with --topic"
            )
        else:
            partitions.update(_of_topic(selection, info, problems))
    if problems:
        raise UsageError(*problems)
    return sorted(partitions)


def _of_topic(
    selection: TopicSelection, info: TopicInfo, problems: list[str]
) -> list[TopicPartition]:
    numbers = range(info.partitions) if selection.numbers is None else selection.numbers
    problems += [
        f"topic {selection.topic} has no partition {number}; it has {info.partitions}, from 0 on"
        for number in numbers
        if number >= info.partitions
    ]
    return [TopicPartition(selection.topic, number) for number in numbers]


T = TypeVar("T")

#: Seconds in which the brokers have to answer one question, as at a channel's start.
ANSWER_TIMEOUT = 15.0

_SINK_COUNTS = "the sink's offset counts, not the group's"

#: Seconds between two tries to read a group whose coordinator is just being chosen.
_RETRY = 0.2


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """One partition's offsets. They always mean the next record.

    ``low`` and ``high`` bound what the broker has. ``group`` is what the group committed and
    ``sink`` what the sink stored, None where there is nothing. ``topic_id`` is the topic's, as it
    is now.
    """

    partition: TopicPartition
    identity: str
    low: int
    high: int
    group: StoredOffset | None
    sink: int | None
    topic_id: str | None = None

    @property
    def is_of_former_topic(self) -> bool:
        """Return whether the group's offset is of a topic of that name that was deleted since."""
        return self.group is not None and self.group.is_of_another(self.topic_id)

    @property
    def next(self) -> int | None:
        """Return where a start goes on: the sink's offset wins; None: ``initial_offset`` does."""
        if self.sink is not None:
            return self.sink
        if self.is_of_former_topic:
            return self.low
        return None if self.group is None else self.group.offset

    @property
    def lag(self) -> int | None:
        """Return how many offsets a start has before it, None where its policies decide."""
        if self.next is None or not self.low <= self.next <= self.high:
            return None
        return self.high - self.next

    def log_facts(self) -> dict[str, int | None]:
        """Return what the log has of it, by the names that commands give it in JSON."""
        return {"log_start": self.low, "log_end": self.high, "lag": self.lag}

    @property
    def disagreement(self) -> tuple[str, ...]:
        """Return lines that say that sink and group differ, and which of them counts."""
        group = None if self.group is None else self.group.offset
        return () if self.sink in {None, group} else (_SINK_COUNTS,)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return what a reader of the numbers should know, beside a disagreement."""
        if self.is_of_former_topic and self.sink is None:
            return ("the group's offset is of a former topic of that name: the first record",)
        if self.next is None:
            return ("no offset yet: initial_offset decides",)
        if not self.low <= self.next <= self.high:
            return ("outside of the log: offset_out_of_range decides",)
        return ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """The Kafka cluster and those of a channel's topics that it has."""

    id: str
    topics: Mapping[str, TopicInfo]

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return all partitions of these topics, in order."""
        return all_partitions({name: info.partitions for name, info in self.topics.items()})


class Reader:
    """Reads offsets. Every call blocks; each question has its own deadline."""

    def __init__(
        self,
        catalog: TopicCatalog,
        store: OffsetStore,
        sink_offsets: TransactionalOffsets | None,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._sink_offsets = sink_offsets
        self._clock = clock

    def topics(self, subscription: Subscription) -> tuple[str, ...]:
        """Return the topics that a channel names, and those that exist and match its patterns.

        Raises:
            KafkaUnavailableError: no broker answered.
        """
        matched = matching(self._catalog, subscription, self._deadline())
        return tuple(dict.fromkeys([*subscription.names, *matched]))

    def cluster(self, topics: Collection[str]) -> Cluster:
        """Return what there is.

        Raises:
            KafkaUnavailableError: no broker answered.
        """
        deadline = Deadline.after(ANSWER_TIMEOUT, self._clock)
        return Cluster(self._catalog.cluster_id(deadline), self._catalog.describe(topics, deadline))

    def offsets(
        self, partitions: Iterable[TopicPartition], cluster: Cluster, group: str
    ) -> list[PartitionOffsets]:
        """Return the offsets of partitions that exist.

        Raises:
            KafkaUnavailableError, OffsetStoreError: the brokers did not answer.
            HeadraceError: the sink cannot be read.
        """
        wanted = list(partitions)
        stored = self.of_group(wanted) if wanted else {}
        return [self.around(stored.get(each), each, cluster, group) for each in wanted]

    def of(self, partition: TopicPartition, cluster: Cluster, group: str) -> PartitionOffsets:
        """Return the offsets of one partition; see :meth:`offsets`."""
        stored = self._read_patiently(lambda deadline: self._store.read(partition, deadline))
        return self.around(stored, partition, cluster, group)

    def around(
        self, stored: StoredOffset | None, partition: TopicPartition, cluster: Cluster, group: str
    ) -> PartitionOffsets:
        """Return the same for a partition whose ``stored`` offset is known; :meth:`offsets`."""
        topic_id = cluster.topics[partition.topic].topic_id
        identity = identity_of(cluster.id, group, topic_id, partition.partition)
        low, high = self._catalog.watermarks(partition, self._deadline())
        return PartitionOffsets(
            partition=partition,
            identity=identity,
            low=low,
            high=high,
            group=stored,
            sink=self._of_sink(partition, identity),
            topic_id=topic_id,
        )

    def offset_at(self, partition: TopicPartition, timestamp: int) -> int | None:
        """Return the first offset that is not older, None where all are.

        Raises:
            KafkaUnavailableError: the brokers did not answer.
        """
        return self._catalog.offset_at(partition, timestamp, self._deadline())

    def of_group(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return what the store has of partitions, with one request. What it has not is missing.

        Raises:
            OffsetStoreError: the group's coordinator did not answer.
        """
        return self._read_patiently(lambda deadline: self._store.read_many(partitions, deadline))

    def _read_patiently(self, read: Callable[[Deadline], T]) -> T:
        """Ask the group's coordinator, which may be changing just now."""
        deadline = self._deadline()
        while True:
            try:
                return read(deadline)
            except OffsetStoreError:
                if deadline.remaining <= _RETRY:
                    raise
                Event().wait(_RETRY)

    def _of_sink(self, partition: TopicPartition, identity: str) -> int | None:
        if self._sink_offsets is None:
            return None
        try:
            return self._sink_offsets.stored_offset(identity)
        except Exception as error:
            raise HeadraceError(
                f"{partition}: the sink's offset cannot be read: {type(error).__name__}: {error}; "
                "nothing was changed"
            ) from error

    def _deadline(self) -> Deadline:
        return Deadline.after(ANSWER_TIMEOUT, self._clock)
