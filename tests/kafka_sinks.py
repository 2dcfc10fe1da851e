"""Topics that Kafka sinks write to and keep offsets of, for tests on a real broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition, identity_of
from headrace.kafka import KafkaTopicCatalog, ResultTransactions
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from confluent_kafka import Message

    from tests.brokers import Broker

WAIT = 30.0
PARTITIONS = 3


class KafkaPlace:
    """A topic that is read, one that results go to, and a group."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.group = f"group.{uuid4().hex[:12]}"
        self.source = broker.create_topic(PARTITIONS)
        self.topic = broker.create_topic(2)
        self.properties = {"bootstrap.servers": broker.address, "log_level": 0}
        catalog = KafkaTopicCatalog(self.properties, self.group)
        self.topic_id = catalog.describe([self.source], Deadline.after(WAIT))[self.source].topic_id
        catalog.close()
        self.made: list[KafkaSink] = []

    def results(self, member: str = "m") -> ResultTransactions:
        """Return what a sink commits through."""
        return ResultTransactions(self.properties, self.group, member)

    def sink(self) -> KafkaSink:
        """Return a sink on the topic."""
        self.made.append(KafkaSink(self.results(), self.topic))
        return self.made[-1]

    def close(self) -> None:
        """Close all sinks."""
        for sink in self.made:
            sink.close()

    def identity(self, number: int) -> str:
        """Return what a partition of the source is known by."""
        return identity_of("cluster", self.group, self.topic_id, number)

    def share(
        self, number: int, start: int, next_offset: int, transactional_id: str | None = None
    ) -> PartitionCommit:
        """Return one partition's share of a commit."""
        partition = TopicPartition(self.source, number)
        return PartitionCommit(
            self.identity(number), partition, start, next_offset, transactional_id
        )

    def records(self) -> list[Message]:
        """Return what a reader of committed records finds, by partition and offset."""
        return committed_records(self.broker.address, self.topic)

    def rows(self) -> list[dict[str, Any]]:
        """Return the values, which are JSON."""
        return [json.loads(message.value() or b"") for message in self.records()]


def committed_records(bootstrap_servers: str, topic: str) -> list[Message]:
    """Return all records of a topic that are not part of an open or aborted transaction."""
    return records_as(bootstrap_servers, topic, "read_committed")


def records_as(bootstrap_servers: str, topic: str, isolation: str) -> list[Message]:
    """Return all records of a topic that a reader with this ``isolation.level`` is shown."""
    with Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader.{uuid4().hex}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,  # the broker would wait for more at the end
            "log_level": 0,
        }
    ) as consumer:
        known = consumer.list_topics(topic, timeout=WAIT).topics[topic].partitions
        left = set(known)
        consumer.assign([ClientPartition(topic, number, 0) for number in known])
        found: list[Message] = []
        deadline = Deadline.after(WAIT)
        while left:
            assert not deadline.expired, f"no end of partitions {left}"
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is None:
                found.append(message)
            else:
                left.discard(message.partition())
    return sorted(found, key=lambda each: (each.partition() or 0, each.offset() or 0))
