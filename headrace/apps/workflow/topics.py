"""The topics of a workflow executor: their names, how they are made, and reading one of them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.records import TopicPartition, offset_of
from headrace.extensions.keyed.codecs import partition_of
from headrace.kafka import KafkaRecordSource, KafkaTopicCatalog, clients
from headrace.kafka.catalog import NewTopic
from headrace.kafka.errors import KafkaAccessError, KafkaUnavailableError, UnknownTopicError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Self

    from headrace.core.records import Record

log = structlog.get_logger(__name__)

#: Seconds in which the brokers have to take a message, or to answer a question.
ANSWER_TIMEOUT = 30.0

#: Seconds of one wait for records, after which the end of the wait is looked at.
FETCH_TIMEOUT = 0.2

#: Seconds between two looks whether brokers know a topic that was created.
_RETRY = 0.1

#: Bytes that the client may prefetch.
_PREFETCH = 4 << 20

#: Of producers: as the reducer's outputs have it, and Java's clients.
PARTITIONER = {"partitioner": "murmur2_random"}

#: No offset is committed for it, and no membership kept.
_GROUP = "headrace-workflow-reader"


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that all nodes of one workflow executor have in common, by their first word."""

    name: str = "workflow"

    @property
    def events(self) -> str:
        """Return the topic of starts and of workers' answers."""
        return self.name

    @property
    def assignments(self) -> str:
        """Return the topic of calls that are to be made, and of those that are cancelled."""
        return f"{self.name}.assignments"

    @property
    def results(self) -> str:
        """Return the topic of every event of every instance."""
        return f"{self.name}.results"

    @property
    def outcomes(self) -> str:
        """Return one record for each instance, compacted."""
        return f"{self.name}.outcomes"

    @property
    def history(self) -> str:
        """Return the state of an instance after each step, where a reducer writes it."""
        return f"{self.name}.history"

    @property
    def dead_letters(self) -> str:
        """Return what was produced to ``events`` and is none."""
        return f"{self.name}.dead"


def create_topics(
    client: Mapping[str, Any],
    topics: Topics,
    *,
    partitions: int,
    assignments: int,
    replication_factor: int | None = None,
    history: bool = False,
) -> list[str]:
    """Create the topics that are not there; return their names, once brokers know them. Blocks.

    ``assignments`` is how many partitions there are for calls: as many workers can have a share.
    ``history`` has that of the states created as well.

    Raises:
        KafkaUnavailableError: the brokers do not answer.
        StartError: they refuse, or the topic of outcomes was there and is not compacted.
    """
    compacted = {"cleanup.policy": "compact"}
    wanted = [
        NewTopic(topics.events, partitions, {}, replication_factor),
        NewTopic(topics.assignments, assignments, {}, replication_factor),
        NewTopic(topics.results, partitions, {}, replication_factor),
        NewTopic(topics.outcomes, partitions, compacted, replication_factor),
        NewTopic(topics.dead_letters, 1, {}, replication_factor),
    ]
    if history:
        wanted.append(NewTopic(topics.history, partitions, {}, replication_factor))
    catalog = KafkaTopicCatalog(client, _GROUP)
    try:
        deadline = Deadline.after(ANSWER_TIMEOUT)
        made = [each.name for each in wanted if catalog.create(each, deadline)]
        if topics.outcomes not in made:
            _check_outcomes(catalog, topics.outcomes, deadline)
        # brokers learn of a topic a moment after it was created
        while missing := sorted(set(made) - catalog.describe(made, deadline).keys()):
            if deadline.expired:
                raise KafkaUnavailableError(
                    f"topic {missing[0]} was created and is not there; is the broker busy?"
                )
            Event().wait(deadline.at_most(_RETRY))
        return made
    finally:
        catalog.close()


def _check_outcomes(catalog: KafkaTopicCatalog, topic: str, deadline: Deadline) -> None:
    try:
        policy = catalog.settings(topic, deadline).get("cleanup.policy", "")
    except KafkaUnavailableError as error:  # as a rule this user may not ask
        log.warning("outcomes_topic_unknown", topic=topic, error=str(error))
        return
    if "compact" not in policy.split(","):
        raise StartError(
            f"topic {topic!r} has cleanup.policy={policy}: outcomes are deleted before they are "
            f"asked for; set it: kafka-configs.sh --alter --topic {topic} --add-config "
            "cleanup.policy=compact"
        )


class TopicReader:
    """Reads the partitions of a topic, in no group. Used on one thread; a context manager.

    It begins at the topic's first records, or at its end as it is when this is made. With ``key``
    it reads the partition of that key only.

    Raises:
        UnknownTopicError, KafkaUnavailableError: it is not there, or the brokers do not answer.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        *,
        from_beginning: bool,
        key: bytes | None = None,
    ) -> None:
        with ExitStack() as stack:
            self._catalog = KafkaTopicCatalog(client, _GROUP)
            stack.callback(self._catalog.close)
            deadline = Deadline.after(ANSWER_TIMEOUT)
            info = self._catalog.describe([topic], deadline).get(topic)
            if info is None:
                raise UnknownTopicError(f"there is no topic {topic!r}; create it, or name another")
            self._source = KafkaRecordSource(client, _GROUP, _PREFETCH)
            stack.callback(self._source.close)
            count = info.partitions
            numbers = range(count) if key is None else [partition_of(key, count)]
            partitions = [TopicPartition(topic, number) for number in numbers]
            marks = {each: self._catalog.watermarks(each, deadline) for each in partitions}
            #: Where the topic ended when this was made.
            self.ends = {each: high for each, (_, high) in marks.items()}
            starts = {each: low if from_beginning else high for each, (low, high) in marks.items()}
            self._source.assign(starts)
            self.positions = starts
            self.topic = topic
            self._error = ""
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fetch(self, timeout: float) -> Iterator[Record]:
        """Yield what has come, waiting ``timeout`` seconds for it at most.

        Records that are deleted before they are read are passed over. A log that has lost its end
        is read on from there, or again from its beginning where the place is not known. What the
        client complains of beside that is logged, and told by ``unread``: it goes on by itself.

        Raises:
            KafkaAccessError: this user may not read the topic.
            KafkaUnavailableError: a leader does not say where its log begins and ends.
        """
        fetched = self._source.fetch(timeout)
        for partition, records in fetched.chunks:
            for record in records:
                self.positions[partition] = offset_of(record) + 1
                yield record
        self.positions.update(fetched.ends)
        for error in fetched.errors:
            self._note_error(error)
        lost = dict(fetched.truncated)
        if moved := {*fetched.out_of_range, *lost}:
            self._seek(moved, lost)

    def _note_error(self, error: str) -> None:
        """Record an error of the client."""
        if clients.is_refused_topic(error):
            raise KafkaAccessError(
                f"topic {self.topic!r} cannot be read: {error}; give this user the right to READ it"
            )
        if error != self._error:
            log.warning("topic_reader_error", topic=self.topic, error=error)
        self._error = error

    def _seek(
        self, moved: Collection[TopicPartition], lost: Mapping[TopicPartition, int | None]
    ) -> None:
        """Read partitions on, of which some have ``lost`` what came after an offset, if known."""
        deadline = Deadline.after(ANSWER_TIMEOUT)
        for partition in moved:
            low, high = self._catalog.watermarks(partition, deadline)
            position = min(max(low, lost.get(partition) or low), high)
            if partition in lost:
                log.warning(
                    "topic_reader_truncated",
                    topic=self.topic,
                    partition=partition.partition,
                    position=position,
                    before=self.positions[partition],
                )
            self.positions[partition] = position
            self.ends[partition] = min(self.ends[partition], high)
        self._source.seek({partition: self.positions[partition] for partition in moved})

    def unread(self, seconds: float) -> KafkaUnavailableError:
        """Return what to raise where the end was not reached within so many seconds."""
        said = f": {self._error}" if self._error else "; are the brokers busy?"
        return KafkaUnavailableError(
            f"topic {self.topic!r} was not all read after {seconds:g} s{said}"
        )

    @property
    def is_at_end(self) -> bool:
        """Return whether everything was read that was there when this was made."""
        return all(self.positions[each] >= end for each, end in self.ends.items())


def document_of(record: Record) -> dict[str, Any] | None:
    """Return the JSON object that a record has, None where it has none."""
    try:
        found = json.loads(record.value() or b"null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
