"""Reading single records, with a consumer that is open for no longer than that."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from headrace.errors import KafkaUnavailableError
from headrace.kafka import properties
from headrace.kafka.clients import open_consumer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Consumer

    from headrace.clock import Deadline
    from headrace.records import Record, TopicPartition

#: Seconds of one poll.
_TURN = 0.2

#: What the broker says of an offset behind which it has nothing, or that it has no more.
_NOTHING_THERE = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)  # noqa: SLF001 - public names of the client's


class KafkaRecordReader:
    """A ``RecordReader`` on the brokers. Any thread."""

    def __init__(self, client_properties: Mapping[str, Any], group: str) -> None:
        self._properties = {
            **properties.consumer(properties.silent(client_properties), group),
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # one record is wanted, whatever follows it
            "queued.min.messages": 1,
        }

    def read(self, partition: TopicPartition, offset: int, deadline: Deadline) -> Record | None:
        """Return the record with exactly this offset, None if there is none (any more). Blocks."""
        found = self.first(partition, offset, deadline)
        return None if found is None or found.offset() != offset else found

    def first(self, partition: TopicPartition, offset: int, deadline: Deadline) -> Record | None:
        """Return the first record from an offset on, None if there is none (any more). Blocks.

        Raises:
            KafkaUnavailableError: no answer by the deadline.
        """
        where = ClientPartition(partition.topic, partition.partition, offset)
        with closing(open_consumer(self._properties)) as consumer:
            consumer.assign([where])
            return self._first(consumer, partition, offset, deadline)

    @staticmethod
    def _first(
        consumer: Consumer, partition: TopicPartition, offset: int, deadline: Deadline
    ) -> Record | None:
        while not deadline.expired:
            # typed without what a Record has: values without a type of their own are bytes
            message: Any = consumer.poll(deadline.at_most(_TURN))
            if message is None:
                continue
            error = message.error()
            if error is None:
                found: Record = message
                return found
            if error.code() in _NOTHING_THERE:
                return None
        raise KafkaUnavailableError(f"{partition}: the record at {offset} was not read in time")
