"""Topics as brokers describe them, when a leader has just moved."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka.catalog import KafkaTopicCatalog
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITION = TopicPartition("events", 0)


class Consumer:
    """A client whose brokers say these errors, one after the other, before they answer."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.looks = 0
        self.partitions = {0}

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Answer, or not yet."""
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop(0)))
        return 3, 7

    def list_topics(self, topic: str, **_: Any) -> SimpleNamespace:
        """Count how often the brokers were asked who leads."""
        self.looks += 1
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=self.partitions)})

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def consumer() -> Consumer:
    """A client whose brokers answer."""
    return Consumer()


@pytest.fixture
def catalog(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaTopicCatalog]:
    """A catalog on that client."""
    monkeypatch.setattr("headrace.kafka.catalog.Consumer", lambda _: consumer)
    with closing(KafkaTopicCatalog({"bootstrap.servers": "127.0.0.1:1"}, "g")) as made:
        yield made


def test_a_leader_that_moves_is_looked_for_again(
    catalog: KafkaTopicCatalog, consumer: Consumer
) -> None:
    """Ends are known once the next one leads: after a restart, or where a topic was just made."""
    moving = [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ]
    consumer.codes = list(moving)
    assert catalog.watermarks(PARTITION, Deadline.after(30)) == (3, 7)
    assert consumer.looks == len(moving)


def test_a_leader_is_looked_for_until_the_deadline(
    catalog: KafkaTopicCatalog, consumer: Consumer
) -> None:
    """And the error says what the brokers said last."""
    consumer.codes = [KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000
    with pytest.raises(KafkaUnavailableError, match="Not leader"):
        catalog.watermarks(PARTITION, Deadline.after(0.3))


def test_a_missing_partition_is_looked_for_once(
    catalog: KafkaTopicCatalog, consumer: Consumer
) -> None:
    """The client may know the topic from before the partition was added; the brokers do not."""
    consumer.codes = [KafkaError.UNKNOWN_TOPIC_OR_PART] * 2
    consumer.partitions.clear()
    with pytest.raises(KafkaUnavailableError):
        catalog.watermarks(PARTITION, Deadline.after(30))
    assert consumer.looks == 1
