"""Dead-letter topics: what puts records there, and takes them back to where they came from."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.errors import RowsRefusedError
from headrace.kafka import clients
from headrace.kafka.clients import is_denied, open_consumer
from headrace.kafka.errors import (
    KafkaAccessError,
    KafkaUnavailableError,
    OffsetStoreError,
    ProduceError,
)
from headrace.kafka.result_transactions import produce_all
from headrace.kafka.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from headrace.core.records import ResultRecord
    from headrace.core.result_columns import ResultColumns
    from headrace.kafka.columnar.producer import ColumnProducer
    from headrace.kafka.ports import DeadLetter

#: ``enable.idempotence``: all in-sync replicas have it, and a retry of the client's own puts it
#: there once. ``message.timeout.ms``: the client gives a record up when we do, so that what failed
#: does not come out of its queue hours later. ``message.max.bytes``: a record that was read with
#: its headers may pass the client's own limit; the topic's is the one that counts. ``linger.ms``:
#: those of one call go in few requests; without it a broker took twice the processor time.
_SETTINGS = {
    "enable.idempotence": True,
    "linger.ms": 2,
    "message.timeout.ms": 5_000,
    "message.max.bytes": 100_000_000,
}

#: Letters that the client is given at once, and their bytes: they are sent within seconds.
_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 << 20

#: Seconds of one poll: one of more than 0.2 s lasts its whole time in confluent-kafka from 2.13 on.
_POLL_INTERVAL = 0.1


class KafkaDeadLetterStore:
    """A ``DeadLetterStore`` whose producers are made when the first record comes. Any thread.

    A channel without poison has no producer, and none of its threads. What comes in columns has one
    of its own, as what becomes of columns is known for all of a producer.
    """

    def __init__(self, client_properties: Mapping[str, Any]) -> None:
        self._properties = client_properties
        self._lock, self._sending = Lock(), Lock()
        self._producer: Producer | None = None
        self._columnar: tuple[Producer, ColumnProducer | None] | None = None

    def store(self, topic: str, letter: DeadLetter, patience: float) -> None:
        producer = self._open_producer()
        receipts: list[KafkaError | None] = []

        def take_receipt(error: KafkaError | None, _: object) -> None:
            receipts.append(error)

        try:
            producer.produce(
                topic,
                letter.value,
                letter.key,
                headers=list(letter.headers),
                on_delivery=take_receipt,
            )
        except (BufferError, KafkaException) as error:
            raise _failed(topic, str(error)) from error
        deadline = Deadline.after(patience)
        while not receipts and not deadline.expired:
            producer.poll(deadline.at_most(_POLL_INTERVAL))
        if not receipts:
            raise _failed(topic, "no answer in time")
        refused = receipts[0]
        if refused is not None:
            if refused.fatal():
                self._discard_producer(producer)
            raise _failed(topic, refused.str())

    def store_all(self, letters: ResultColumns, patience: float) -> None:
        with self._sending:
            producer, columns = self._open_columnar()
            try:
                # the client gives up what waits in its queue for too long
                for portion in _portions(letters):
                    produce_all([portion], producer, Deadline.after(patience), columns)
            except (RowsRefusedError, ProduceError, KafkaException) as error:
                # what was not confirmed counts as not sent, and is sent again
                producer.purge()
                self._columnar = None
                raise _failed(letters.topic, str(error)) from error

    def _open_producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = self._made()
            return self._producer

    def _open_columnar(self) -> tuple[Producer, ColumnProducer | None]:
        from headrace.kafka.columnar.producer import ColumnProducer  # noqa: PLC0415 - needs Arrow

        if self._columnar is None:
            producer = self._made(**ColumnProducer.plugin(self._properties))
            self._columnar = producer, ColumnProducer.of_the_newest()
        return self._columnar

    def _made(self, **more: str) -> Producer:
        given = clients.base(self._properties)
        return Producer(clients.producer({**_SETTINGS, **more, **given}))

    def _discard_producer(self, producer: Producer) -> None:
        """Discard this producer, which takes no more records; the next record opens another."""
        with self._lock:
            if self._producer is producer:
                self._producer = None

    def close(self) -> None:
        """Release the producers; what is not confirmed counts as not sent."""
        with self._lock:
            if self._producer is not None:
                self._producer.purge()
                self._producer = None
        with self._sending:
            if self._columnar is not None:
                self._columnar[0].purge()
                self._columnar = None


def _portions(letters: ResultColumns) -> Iterator[ResultColumns]:
    """Yield letters in portions that are sent within seconds; one alone may be larger."""
    import pyarrow.compute as pc  # noqa: PLC0415 - a daemon without letters in columns needs it not

    start = size = 0
    lengths = (
        pc.fill_null(pc.binary_length(each), 0).to_pylist()
        for each in (letters.keys, letters.values)
    )
    for place, both in enumerate(zip(*lengths, strict=True)):
        if place - start >= _AT_ONCE or size > _BYTES_AT_ONCE:
            yield letters.slice(start, place - start)
            start, size = place, 0
        size += sum(both)
    yield letters.slice(start, len(letters) - start)


def _failed(topic: str, reason: str) -> ProduceError:
    return ProduceError(
        f"the dead-letter topic {topic} did not take a record: {reason}; headrace doctor looks "
        "whether it exists and names the permission that it needs"
    )


# --- replay --------------------------------------------------------------------------------------

#: Seconds in which the brokers have to answer one question.
_ANSWER_TIMEOUT = 15.0

#: Seconds that one transaction may take, after which the brokers abort it.
_TRANSACTION_TIMEOUT = 60.0

#: Seconds between two tries to read from a group whose coordinator is just being chosen.
_RETRY = 0.2

#: Seconds of the first of them; each next one has twice as long. A consumer that may not read the
#: group waits for its coordinator until the time is over.
_FIRST_PATIENCE = 1.0

#: Bytes of metadata that brokers store with an offset (``offset.metadata.max.bytes``).
_MOST_METADATA = 4096

#: Of the metadata's form; 1 had no groups, and was never released.
_PROGRESS_VERSION = 2

#: Keys go to partitions as with Java's clients, where a record has no partition of its own.
_REPLAY_SETTINGS = {
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
    "message.max.bytes": 100_000_000,
}


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The replayed letters of a group and a partition: those before ``end`` but ``left``."""

    end: int = 0
    left: frozenset[int] = frozenset()

    def __contains__(self, offset: int) -> bool:
        return offset < self.end and offset not in self.left

    @property
    def start(self) -> int:
        """Return the offset of the first letter that is left, or the end."""
        return min(self.left, default=self.end)

    def after(self, replayed: Collection[int], pending: Iterable[int]) -> GroupProgress:
        """Return the progress when ``replayed`` ones are. ``pending`` has all that were not.

        What is no letter of the group, or is one that no replay takes, is not among these.
        """
        end = max(self.end, max(replayed, default=-1) + 1)
        left = {each for each in pending if each < end and each not in self}
        return GroupProgress(end, frozenset(left - {*replayed}))

    def packed(self) -> list[Any]:
        """Return it as JSON has it."""
        bits = bytearray((self.end - self.start + 7) // 8)
        for each in self.left:
            place, bit = divmod(each - self.start, 8)
            bits[place] |= 1 << bit
        packed = b64encode(zlib.compress(bits, 9)).decode("ascii") if bits else ""
        return [self.start, self.end, packed]

    @classmethod
    def unpacked(cls, start: int, end: int, packed: str) -> GroupProgress:
        """Return what ``packed`` returned so."""
        bits = zlib.decompress(b64decode(packed)) if packed else b""
        found = (
            start + 8 * place + bit
            for place, byte in enumerate(bits)
            for bit in range(8)
            if byte >> bit & 1
        )
        return cls(end, frozenset(found))


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The replayed letters of one partition, by their groups; "" is of those without one."""

    groups: Mapping[str, GroupProgress] = field(default_factory=dict)

    def of_group(self, group: str) -> GroupProgress:
        """Return that of the letters of a group."""
        return self.groups.get(group, GroupProgress())

    def after(
        self, replayed: Mapping[str, Collection[int]], pending: Mapping[str, Iterable[int]]
    ) -> ReplayProgress:
        """Return the progress when letters of some groups are replayed, as there."""
        moved = {
            group: self.of_group(group).after(offsets, pending.get(group, ()))
            for group, offsets in replayed.items()
        }
        return ReplayProgress({**self.groups, **moved})

    @property
    def offset(self) -> int:
        """Return the first offset at which something is left, or the end of all."""
        return min((each.start for each in self.groups.values()), default=0)

    def metadata(self, topic_id: str) -> str:
        """Return what is stored beside the offset."""
        document = {
            "version": _PROGRESS_VERSION,
            "topic_id": topic_id,
            "groups": {name: each.packed() for name, each in sorted(self.groups.items())},
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def of(cls, metadata: str | None, topic_id: str) -> ReplayProgress:
        """Return what is stored; nothing where it is of another topic of the same name.

        Raises:
            ValueError: another client stored it, or another version of Headrace.
        """
        document = json.loads(metadata or "")
        if not isinstance(document, dict) or document.get("version") != _PROGRESS_VERSION:
            raise ValueError(metadata)
        if document["topic_id"] != topic_id:
            return cls()
        groups = document["groups"].items()
        return cls({name: GroupProgress.unpacked(*packed) for name, packed in groups})


def replay_group(topic: str) -> str:
    """Return the group whose offsets say which letters of a topic were replayed."""
    return f"{topic}.replay"


def _denial(consumer: Consumer) -> KafkaError | None:
    """Return what the brokers said since to a consumer that may not look for its group."""
    message = consumer.poll(0)
    error = None if message is None else message.error()
    return error if error is not None and is_denied(error) else None


class LetterReplay:
    """Replays letters of one topic, and keeps in the same transactions which ones those are.

    Used by one thread; every call blocks.
    """

    def __init__(self, client_properties: Mapping[str, Any], topic: str, topic_id: str) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._group = replay_group(topic)
        self._properties = dict(client_properties)
        self._producer: TransactionalProducer | None = None

    def progress(self, partitions: Collection[int]) -> dict[int, ReplayProgress]:
        """Return what was replayed of each partition.

        Before ``begin`` a transaction that is open counts as none: a replay that was killed may
        have left one, and to wait for its end would take a minute.

        Raises:
            KafkaAccessError: this user may not read the group's offsets.
            KafkaUnavailableError: the group's coordinator did not answer.
            OffsetStoreError: the group has offsets of another program.
        """
        with closing(self._consumer()) as consumer:
            return self._read(consumer, partitions)

    def _consumer(self) -> Consumer:
        level = "read_uncommitted" if self._producer is None else "read_committed"
        properties = clients.consumer(clients.silent(self._properties), self._group)
        return open_consumer({**properties, "isolation.level": level})

    def _read(self, consumer: Consumer, partitions: Collection[int]) -> dict[int, ReplayProgress]:
        wanted = [ClientPartition(self._topic, number) for number in partitions]
        deadline, patience = Deadline.after(_ANSWER_TIMEOUT), _FIRST_PATIENCE
        while True:
            try:
                found = consumer.committed(wanted, timeout=deadline.at_most(patience))
                errors = [each.error for each in found if each.error is not None]
            except KafkaException as error:
                found, errors = [], [_denial(consumer) or error.args[0]]
            patience *= 2
            if not errors:
                return {each.partition: self._progress(each) for each in found}
            if is_denied(errors[0]):
                raise KafkaAccessError(
                    f"group {self._group}: what was replayed cannot be read: {errors[0].str()}; "
                    f"give this user the operation Read on the group and on topic {self._topic}"
                )
            if deadline.remaining <= _RETRY:
                raise KafkaUnavailableError(
                    f"group {self._group}: what was replayed cannot be read: {errors[0].str()}; "
                    "are the brokers running?"
                )
            Event().wait(_RETRY)

    def _progress(self, found: ClientPartition) -> ReplayProgress:
        if found.offset < 0:
            return ReplayProgress()
        try:
            return ReplayProgress.of(found.metadata, self._topic_id)
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            raise OffsetStoreError(
                f"group {self._group} has an offset for {self._topic}-{found.partition} that is no "
                "record of replays; consumers in that group have to take another one, and its "
                "offsets are to be deleted (kafka-consumer-groups --delete-offsets)"
            ) from error

    def begin(self) -> None:
        """Fence other replays of the topic, so that what they did can be read.

        Raises:
            ProduceError: the brokers did not let us.
        """
        self._producer = TransactionalProducer(
            {**_REPLAY_SETTINGS, **self._properties},
            f"headrace.{self._group}",
            timeout_ms=int(_TRANSACTION_TIMEOUT * 1000),
            quiet=True,
        )
        failure = self._producer.conclude(Deadline.after(_ANSWER_TIMEOUT))
        if failure is not None:
            raise ProduceError(
                f"no transaction can be begun as {self._producer.transactional_id}: {failure}; "
                "check that the brokers answer and that the user may write to that transactional "
                "id; nothing was replayed"
            )

    def commit(
        self, records: Sequence[ResultRecord], progress: Mapping[int, ReplayProgress]
    ) -> None:
        """Produce records and store which letters they were, both or neither.

        Raises:
            ProduceError: neither is known to be done; the next command finds out.
        """
        assert self._producer is not None, "it has begun"
        entries = [self._entry(number, each) for number, each in progress.items()]
        with closing(self._consumer()) as consumer:
            group = consumer.consumer_group_metadata()
        failure = self._producer.commit(
            entries,
            group,
            Deadline.after(_TRANSACTION_TIMEOUT),
            lambda producer, until: produce_all(records, producer, until),
        )
        if failure is not None:
            # readers of committed records are not to wait for what was left open
            self._producer.conclude(Deadline.after(_ANSWER_TIMEOUT))
            raise ProduceError(f"the transaction of {len(records)} records failed: {failure}")

    def _entry(self, number: int, progress: ReplayProgress) -> ClientPartition:
        metadata = progress.metadata(self._topic_id)
        if len(metadata) > _MOST_METADATA:
            raise ProduceError(
                f"{self._topic}-{number}: what is replayed and what is left lie too scattered from "
                f"offset {progress.offset} on to be recorded: {len(metadata)} bytes, of "
                f"{_MOST_METADATA} that brokers store; replay the letters that were left there "
                "first, with fewer filters"
            )
        return ClientPartition(self._topic, number, progress.offset, metadata=metadata)
