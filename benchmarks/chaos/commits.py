"""Every commit that the broker ever stored, in its order, from its own topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from headrace.core.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_TOPIC = "__consumer_offsets"

#: Seconds without anything read after which the rest is not to be had.
_PATIENCE = 60.0

#: Versions of the key of a commit; others are keys of what else the coordinator keeps.
_COMMIT_KEYS = (0, 1)


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of one partition. ``at`` is in seconds since the epoch."""

    group: str
    topic: str
    partition: int
    offset: int
    at: float = 0.0


def backwards(commits: Iterable[Commit], groups: Iterable[str]) -> dict[str, int]:
    """Count by group how often a commit was lower than the one before it."""
    counts = dict.fromkeys(groups, 0)
    last: dict[tuple[str, str, int], int] = {}
    for commit in commits:
        key = (commit.group, commit.topic, commit.partition)
        if commit.offset < last.get(key, 0) and commit.group in counts:
            counts[commit.group] += 1
        last[key] = commit.offset
    return counts


def read_commits(servers: str) -> list[Commit]:
    """Return all commits; those in transactions only when these were committed. Blocks."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "chaos-oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        topics = consumer.list_topics(_TOPIC, timeout=_PATIENCE).topics
        return list(_read(consumer, topics[_TOPIC].partitions))
    finally:
        consumer.close()


def _read(consumer: Consumer, partitions: Mapping[int, object]) -> Iterator[Commit]:
    consumer.assign([TopicPartition(_TOPIC, number, OFFSET_BEGINNING) for number in partitions])
    open_, deadline = set(partitions), Deadline.after(_PATIENCE)
    while open_:
        if deadline.expired:
            raise AssertionError(f"nothing more of {_TOPIC} could be read in {_PATIENCE:.0f} s")
        if messages := consumer.consume(1000, deadline.at_most(0.5)):
            deadline = Deadline.after(_PATIENCE)
        for message in messages:
            error = message.error()
            if error is None:
                commit = _decoded(message.key(), message.value(), message.timestamp()[1] / 1000)
                if commit is not None:
                    yield commit
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
                open_.discard(message.partition() or 0)


def _decoded(key: bytes | None, value: bytes | None, at: float = 0.0) -> Commit | None:
    """Return a commit; None for a tombstone and for what else is in the topic.

    A key is its version, group and topic with their lengths, and the partition's number; a value
    begins with its version and the offset.
    """
    if key is None or value is None or _number(key, 0, 2) not in _COMMIT_KEYS:
        return None
    group, position = _text(key, 2)
    topic, position = _text(key, position)
    return Commit(group, topic, _number(key, position, 4), _number(value, 2, 8), at)


def _text(data: bytes, position: int) -> tuple[str, int]:
    end = position + 2 + _number(data, position, 2)
    return data[position + 2 : end].decode(), end


def _number(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "big", signed=True)
