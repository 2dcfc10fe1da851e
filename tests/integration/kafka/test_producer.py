from __future__ import annotations

import uuid

import pytest

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.errors import KafkaUnavailableError, ProduceError
from headrace.kafka.topic_producer import TopicProducer, create_topic


@pytest.fixture
def topic(bootstrap_servers: str) -> str:
    """Name a topic of three partitions that nothing else uses."""
    name = f"produced-{uuid.uuid4().hex[:8]}"
    create_topic({"bootstrap.servers": bootstrap_servers}, name, 3, Deadline.after(30))
    return name


def test_each_sent_record_is_counted_and_stored(bootstrap_servers: str, topic: str) -> None:
    """After a flush the counts and the topic's watermarks agree on what was sent."""
    client = {"bootstrap.servers": bootstrap_servers}
    producer = TopicProducer(client, topic)
    records = [(None if n % 5 == 0 else b"%d" % n, b"value") for n in range(1_000)]
    producer.send(records, Deadline.after(30))
    producer.flush(Deadline.after(30))
    assert (producer.sent, producer.failed) == (1_000, 0)
    catalog = KafkaTopicCatalog(client, "nobody")
    try:
        deadline = Deadline.after(30)
        ends = [catalog.watermarks(TopicPartition(topic, n), deadline)[1] for n in range(3)]
    finally:
        catalog.close()
    assert sum(ends) == 1_000


def test_a_record_that_is_refused_is_named_and_counted(bootstrap_servers: str) -> None:
    """A record that the brokers do not take fails the flush, which says how many and why."""
    client = {"bootstrap.servers": bootstrap_servers, "message.timeout.ms": 5_000}
    producer = TopicProducer({**client, "allow.auto.create.topics": False}, "no-such-topic")
    producer.send([(None, b"value")] * 2, Deadline.after(30))
    with pytest.raises(ProduceError, match=r"2 of 2 records did not reach topic 'no-such-topic'"):
        producer.flush(Deadline.after(30))
    assert (producer.sent, producer.failed) == (2, 2)


def test_a_topic_is_not_created_twice(bootstrap_servers: str, topic: str) -> None:
    """A topic that exists is an error that names it."""
    with pytest.raises(ProduceError, match="already exists"):
        create_topic({"bootstrap.servers": bootstrap_servers}, topic, 3, Deadline.after(30))


def test_brokers_that_do_not_answer_are_named() -> None:
    """Without a broker, creating a topic fails at its deadline and names the address."""
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:1 "):
        create_topic({"bootstrap.servers": "127.0.0.1:1"}, "topic", 1, Deadline.after(1))
