"""Counts by key as a sink under attack: what its members run on each fact, and what is left."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from benchmarks.chaos.world import MEMBER, PLACE
from headrace.core.clock import Deadline
from headrace.keyed import Event, Output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from confluent_kafka import Message

    from headrace.keyed import Fired

#: What ``headrace state verify`` says of a partition.
_COMPARED = re.compile(r": (\d+) keys compared, (\d+) differ")

#: Seconds without anything read after which the rest of a topic is not to be had.
_PATIENCE = 60.0


def count(
    key: str, state: int | None, facts: Sequence[Event[int] | Fired], now: int
) -> tuple[int, list[Output], dict[str, Any]]:
    """Count a key's facts. Who counted is in the output only: the state is the facts' alone."""
    del key, now
    total, outputs = state or 0, []
    for fact in facts:
        assert isinstance(fact, Event), "there are no timers"
        total += 1
        found = {"number": fact.value, "n": total, "member": os.environ[MEMBER]}
        outputs.append(Output({**found, "partition": fact.partition, "offset": fact.offset}))
    return total, outputs, {}


@dataclass(frozen=True, slots=True)
class Counted:
    """What is left of counts by key.

    ``miscounted`` keys have outputs that are not 1, 2, 3 and so on, in the order of their facts, or
    a state that is not the last of them. ``rows`` of all members' stores together were compared
    with the changelog by ``headrace state verify``, of which ``wrong_rows`` differ.
    """

    keys: int
    facts: int
    miscounted: int
    rows: int
    wrong_rows: int


@dataclass(frozen=True, slots=True)
class _Place:
    servers: str
    topic: str
    changelog: str


def is_counted(directory: Path) -> bool:
    """Whether a sink's folder is of counts by key."""
    return (directory / PLACE).exists()


def rows(directory: Path) -> Iterator[tuple[int, int, int, str]]:
    """Yield partition, offset, number and member of each output, in the order of the topic."""
    place = _place(directory)
    for message in committed(place.servers, place.topic):
        found = json.loads(message.value() or b"")
        yield found["partition"], found["offset"], found["number"], found["member"]


def _place(directory: Path) -> _Place:
    return _Place(**json.loads((directory / PLACE).read_text(encoding="utf-8")))


def check(directory: Path, verified: Iterable[str]) -> Counted:
    """Compare outputs and changelog, and count what the members' stores were ``verified`` to be.

    Blocks.
    """
    place = _place(directory)
    outputs: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for message in committed(place.servers, place.topic):
        found = json.loads(message.value() or b"")
        outputs[message.key() or b""].append((found["offset"], found["n"]))
    rows = {each.key() or b"": each.value() for each in committed(place.servers, place.changelog)}
    states = {key: int(value) for key, value in rows.items() if value is not None}
    compared = [compared_rows(said) for said in verified]
    return Counted(
        keys=len(outputs),
        facts=sum(map(len, outputs.values())),
        miscounted=miscounted(outputs, states),
        rows=sum(count for count, _ in compared),
        wrong_rows=sum(wrong for _, wrong in compared),
    )


def compared_rows(said: str) -> tuple[int, int]:
    """Return how many rows ``headrace state verify`` says that it compared, and how many differ."""
    found = _COMPARED.findall(said)
    return sum(int(count) for count, _ in found), sum(int(wrong) for _, wrong in found)


def miscounted(
    outputs: Mapping[bytes, Sequence[tuple[int, int]]], states: Mapping[bytes, int]
) -> int:
    """Return how many keys are wrong; ``outputs`` has offset and count of each key's, in order."""
    keys = outputs.keys() | states.keys()
    return sum(not _is_right(outputs.get(key, ()), states.get(key)) for key in keys)


def _is_right(found: Sequence[tuple[int, int]], state: int | None) -> bool:
    offsets, counts = [offset for offset, _ in found], [count for _, count in found]
    return (
        counts == list(range(1, len(found) + 1))
        and offsets == sorted(set(offsets))
        and state == len(found)
    )


def committed(servers: str, topic: str) -> Iterator[Message]:
    """Yield the committed records of a topic, each partition's in order. Blocks.

    Up to where it ends now: one that is written to might have no end.
    """
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
        numbers = consumer.list_topics(topic, timeout=_PATIENCE).topics[topic].partitions
        wanted = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers]
        last = {each.partition: _end(consumer, each) - 1 for each in wanted}
        consumer.assign(wanted)
        open_, deadline = set(numbers), Deadline.after(_PATIENCE)
        while open_:
            if deadline.expired:
                raise AssertionError(f"nothing more of {topic} could be read in {_PATIENCE:.0f} s")
            if messages := consumer.consume(1000, deadline.at_most(0.5)):
                deadline = Deadline.after(_PATIENCE)
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                    if (message.offset() or 0) >= last[message.partition() or 0]:
                        open_.discard(message.partition() or 0)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
                    open_.discard(message.partition() or 0)
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    _, end = consumer.get_watermark_offsets(partition, _PATIENCE)
    return int(end)
