"""Fetching records: a consumer that is assigned its partitions and never joins a group."""

from __future__ import annotations

from contextlib import closing, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.memory import relax
from headrace.core.records import TopicPartition, offset_of
from headrace.kafka import clients
from headrace.kafka.clients import open_consumer
from headrace.kafka.errors import KafkaAccessError, KafkaUnavailableError
from headrace.kafka.ports import Fetched, RecordSource
from headrace.kafka.truncation import NO_EPOCH, note

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace.core.record_runs import Run
    from headrace.core.records import Record


#: Seconds of one poll.
_POLL_INTERVAL = 0.2

#: What the broker says of an offset after which it has nothing, or that it has no more.
_NOTHING_THERE = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)  # noqa: SLF001 - public names of the client's


class KafkaRecordReader:
    """A ``RecordReader`` on the brokers. Any thread."""

    def __init__(self, client_properties: Mapping[str, Any], group: str) -> None:
        self._properties = {
            **clients.consumer(clients.silent(client_properties), group),
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # one record is wanted, whatever follows it
            "queued.min.messages": 1,
        }

    def read(self, partition: TopicPartition, offset: int, deadline: Deadline) -> Record | None:
        found = self.first(partition, offset, deadline)
        return None if found is None or found.offset() != offset else found

    def first(self, partition: TopicPartition, offset: int, deadline: Deadline) -> Record | None:
        """Return the first record from an offset on, None if there is none (any more). Blocks.

        Raises:
            KafkaUnavailableError: no answer by the deadline.
        """
        with closing(open_consumer(self._properties)) as consumer:
            consumer.assign([ClientPartition(*partition, offset)])
            while not deadline.expired:
                # typed without what a Record has: values without a type of their own are bytes
                message: Any = consumer.poll(deadline.at_most(_POLL_INTERVAL))
                error = None if message is None else message.error()
                if error is not None and error.code() in _NOTHING_THERE:
                    return None
                if message is not None and error is None:
                    found: Record = message
                    return found
        raise KafkaUnavailableError(f"{partition}: the record at {offset} was not read in time")

    def between(
        self, bounds: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
    ) -> list[Record]:
        """Return the records of partitions from one offset to another each. Blocks.

        Raises:
            KafkaUnavailableError: they were not read by the deadline.
        """
        found: list[Record] = []
        left = {each: end for each, (start, end) in bounds.items() if start < end}
        properties = {**self._properties, "queued.min.messages": MAX_RECORDS}
        with closing(open_consumer(properties)) as consumer:
            consumer.assign([ClientPartition(*each, bounds[each][0]) for each in left])
            while left:
                if deadline.expired:
                    raise KafkaUnavailableError(
                        f"{', '.join(map(str, left))}: not read in time; are the brokers busy?"
                    )
                message: Any = consumer.poll(deadline.at_most(_POLL_INTERVAL))
                if message is None:
                    continue
                partition = TopicPartition(message.topic(), message.partition())
                if message.error() is not None:
                    if message.error().code() in _NOTHING_THERE:
                        left.pop(partition, None)
                elif message.offset() < left.get(partition, 0):
                    found.append(message)
                    if message.offset() + 1 == left[partition]:
                        del left[partition]
                else:
                    left.pop(partition, None)
        return found


#: Records taken from the client in one call: enough to make the call's cost disappear.
MAX_RECORDS = 1000

#: Bytes that a reading of a whole log may have fetched before they are taken.
_LOG_PREFETCH = 32 << 20

#: Seconds of one fetch, and those after which a log that brings nothing is given up.
_FETCH_TIMEOUT = 0.5
_SILENCE = 60.0


def read_log(
    client_properties: Mapping[str, Any],
    group: str,
    partition: TopicPartition,
    start: int,
    end: int,
) -> Iterator[Record]:
    """Yield the records of a partition from one offset to another, in their order. Blocks.

    Raises:
        KafkaAccessError: this user may not read the topic.
        KafkaUnavailableError: nothing came for a minute, or what is left was deleted meanwhile.
    """
    if start >= end:
        return
    position = start
    source = KafkaRecordSource(client_properties, group, _LOG_PREFETCH)
    try:
        source.assign({partition: position})
        silence, said = Deadline.after(_SILENCE), ""
        while position < end:
            fetched = source.fetch(_FETCH_TIMEOUT)
            for _, records in fetched.chunks:
                silence = Deadline.after(_SILENCE)
                for record in records:
                    position = max(position, offset_of(record) + 1)
                    if position <= end:
                        yield record
            position = max([position, *(offset for _, offset in fetched.ends)])
            if fetched.denied:
                raise KafkaAccessError(
                    f"topic {partition.topic}: the brokers do not let this user read it; give it "
                    "the operation Read on the topic"
                )
            if fetched.out_of_range or fetched.truncated:
                raise KafkaUnavailableError(
                    f"{partition}: offset {position} of {end} is not there any more: records were "
                    "deleted while they were read; run the command again"
                )
            said = next((f": {each}" for each in fetched.errors), said)
            if silence.expired:
                raise KafkaUnavailableError(
                    f"{partition} brought nothing for {_SILENCE:.0f} s, at offset {position} "
                    f"of {end}{said}; are its leader and its coordinator well?"
                )
    finally:
        source.close()


#: Seconds the client may take to answer what it knows without asking a broker, or with a short
#: question to one.
LOCAL_TIMEOUT = 1.0


class KafkaRecordSource(RecordSource):
    """A ``RecordSource`` on one librdkafka consumer.

    Drains what has come without waiting and waits only when there is nothing: a single waiting
    call for a thousand records would wait for the whole thousand. Python's garbage collector is
    relaxed for it.
    """

    def __init__(self, client_properties: Mapping[str, Any], group: str, prefetch: int) -> None:
        relax()
        self._consumer = open_consumer(clients.source(client_properties, group, prefetch))
        self._assigned: dict[str, set[int]] = {}  # asking the client takes its time with many
        self._known: set[str] = set()

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        for topic in sorted({p.topic for p in starts} - self._known):
            # by itself the client asks for leaders once a second only
            with suppress(KafkaException):
                self._consumer.list_topics(topic, timeout=LOCAL_TIMEOUT)
                self._known.add(topic)
        known = epochs or {}
        self._consumer.incremental_assign(
            [
                ClientPartition(*p, offset, leader_epoch=known.get(p, NO_EPOCH))
                for p, offset in starts.items()
            ]
        )
        # the client may remember a pause beyond an assignment
        self._consumer.resume(_client(starts))
        for topic, number in starts:
            self._assigned.setdefault(topic, set()).add(number)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.incremental_unassign(_client(partitions))
        for topic, number in partitions:
            self._assigned[topic].discard(number)
            if not self._assigned[topic]:
                del self._assigned[topic]

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.pause(_client(partitions))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.resume(_client(partitions))

    def fetch(self, timeout: float) -> Fetched:
        messages = self._consumer.consume(MAX_RECORDS, 0)
        if not messages:
            message = self._consumer.poll(timeout)
            if message is None:
                return Fetched()
            messages = [message]
        if any(map(Message.error, messages)):
            return self._with_events(messages)
        return self._fetched(messages)

    def _fetched(self, messages: list[Message]) -> Fetched:
        chunks = self._chunks(messages)
        epochs = {
            partition: epoch
            for partition, records in chunks
            if (epoch := cast("Message", records[-1]).leader_epoch()) is not None
        }
        return Fetched(chunks, leader_epochs=epochs)

    def _with_events(self, messages: list[Message]) -> Fetched:
        """Separate records from what the client reports in their place."""
        fetched = self._fetched([m for m in messages if m.error() is None])
        for message in messages:
            error = message.error()
            if error is not None:
                number = message.partition()
                partition = TopicPartition(message.topic() or "", -1 if number is None else number)
                note(fetched, partition, message.offset() or 0, error.code(), error.str())
        return fetched

    def _chunks(self, messages: list[Message]) -> list[tuple[TopicPartition, Run]]:
        """Split by partition; order within a partition stays."""
        if not messages:
            return []
        numbers = list(map(Message.partition, messages))
        if len(self._assigned) == 1:
            keys: list[Any] = numbers
        else:
            keys = list(zip(map(Message.topic, messages), numbers, strict=True))
        if keys.count(keys[0]) == len(keys):
            return [(self._partition(messages[0]), cast("list[Record]", messages))]
        chunks: dict[Any, list[Any]] = {}
        start = 0
        for key, run in groupby(keys):
            end = start + len(list(run))
            chunks.setdefault(key, []).extend(messages[start:end])
            start = end
        return [(self._partition(chunk[0]), chunk) for chunk in chunks.values()]

    @staticmethod
    def _partition(message: Message) -> TopicPartition:
        return TopicPartition(cast("str", message.topic()), cast("int", message.partition()))

    def high_watermark(self, partition: TopicPartition) -> int | None:
        try:
            _, high = self._consumer.get_watermark_offsets(
                _client([partition])[0], timeout=LOCAL_TIMEOUT, cached=True
            )
        except KafkaException:
            return None
        return high if high >= 0 else None

    def close(self) -> None:
        self._consumer.close()


def _client(partitions: Collection[TopicPartition]) -> list[ClientPartition]:
    return [ClientPartition(*each) for each in partitions]
