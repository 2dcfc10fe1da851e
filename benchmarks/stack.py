"""The servers of a benchmark, its topics and its configuration files."""

from __future__ import annotations

import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack import Blueprint, LocalStack
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.topic_producer import TopicProducer, create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds that filling a topic may take.
_FILL_TIMEOUT = 600.0

#: Seconds that reading a topic may take.
_READ_TIMEOUT = 300.0

#: Records that one call of the client returns, and seconds that it may wait for them.
_FETCHED, _WAIT = 10_000, 1.0

#: Different keys in a topic that is counted by key.
KEYS = 100

#: Records of which the random values of a topic are made again and again.
_VARIETY = 1009

#: Uncompressed, because unpacking costs both sides the same and would bring any ratio closer to
#: one; spread at random, so that the partitions grow alike whatever the keys are.
_PRODUCER = {"compression.type": "none", "partitioner": "random"}

#: Each topic is read by several rounds; a broker that deletes old segments would end that.
_BROKER = {"log.retention.hours": "-1", "log.retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that is filled: its records, their values' bytes, and where each partition ends."""

    name: str
    records: int
    bytes: int
    ends: dict[int, int]


@contextmanager
def servers() -> Iterator[LocalStack]:
    """Run ZooKeeper and a broker in a temporary folder, which is removed with all data."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        LocalStack.start(Path(folder), blueprint=Blueprint(properties=_BROKER)) as stack,
    ):
        yield stack


def fill(
    stack: LocalStack, topic: str, *, records: int, size: int, partitions: int, keyed: bool = False
) -> None:
    """Create ``topic`` with so many records, whose values have ``size`` bytes. Blocks."""
    create(stack, topic, partitions)
    append(stack, topic, records=records, size=size, keyed=keyed)


def create(stack: LocalStack, topic: str, partitions: int) -> None:
    """Create an empty topic."""
    client = {"bootstrap.servers": stack.bootstrap_servers}
    create_topic(client, topic, partitions, Deadline.after(30))


def append(stack: LocalStack, topic: str, *, records: int, size: int, keyed: bool = False) -> None:
    """Produce records to a topic. Blocks."""
    deadline = Deadline.after(_FILL_TIMEOUT)
    source = random.Random(size)  # noqa: S311 - data, not secrets
    values = [source.randbytes(size) for _ in range(_VARIETY)]
    keys = [b"key-%02d" % n if keyed else None for n in range(KEYS)]
    client = {"bootstrap.servers": stack.bootstrap_servers, **_PRODUCER}
    producer = TopicProducer(client, topic)
    producer.send(((keys[n % KEYS], values[n % _VARIETY]) for n in range(records)), deadline)
    producer.flush(deadline)


def ends(stack: LocalStack, topic: str, partitions: int) -> dict[int, int]:
    """Return where each partition ends, asked from the broker."""
    catalog = KafkaTopicCatalog({"bootstrap.servers": stack.bootstrap_servers}, "bench")
    deadline = Deadline.after(30)
    try:
        return {
            number: catalog.watermarks(TopicPartition(topic, number), deadline)[1]
            for number in range(partitions)
        }
    finally:
        catalog.close()


def configuration(
    folder: Path, servers: dict[str, str], channel: dict[str, Any] | None = None, **sections: Any
) -> Path:
    """Write a configuration with the one channel ``bench``, or none; return the file.

    ``servers`` has the addresses ``kafka`` and ``zookeeper``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "headrace.yaml"
    document = {
        "instance_id": "bench",
        "state_dir": str(folder / "state"),
        "kafka": {"bootstrap_servers": servers["kafka"]},
        "zookeeper": {"hosts": servers["zookeeper"]},
        "logging": {"level": "warning"},
        "metrics": {"port": None},
        "channels": {} if channel is None else {"bench": channel},
        **sections,
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def addresses(stack: LocalStack) -> dict[str, str]:
    """Return what :func:`configuration` needs to know of the servers."""
    return {"kafka": stack.bootstrap_servers, "zookeeper": stack.zookeeper_hosts}


def committed_records(
    servers: str, topic: str, partitions: int
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield key and value of each committed record that a topic has now. Blocks.

    Raises:
        TimeoutError: the end was not reached.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "benchmark-check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    deadline = Deadline.after(_READ_TIMEOUT)
    try:
        read = [ClientPartition(topic, number, 0) for number in range(partitions)]
        ends = {each.partition: consumer.get_watermark_offsets(each, 30.0)[1] for each in read}
        consumer.assign(read)
        while any(each.offset < ends[each.partition] for each in consumer.position(read)):
            if deadline.expired:
                raise TimeoutError(f"{topic} was not read in {_READ_TIMEOUT:.0f} s")
            if not any(ends.values()):
                break
            for message in consumer.consume(_FETCHED, _WAIT):
                yield message.key(), message.value()
    finally:
        consumer.close()
