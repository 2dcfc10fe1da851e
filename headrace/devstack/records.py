"""Records to try a stack with: of a folder's files, each for the topic of its name."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import NewTopic
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds for the records of one file.
_TIMEOUT = 60.0

_PARTITIONS = 4

#: The coordinator of a broker that has just started says for a moment that it is not there yet.
_PLAIN = {"enable.idempotence": False}


def produce_records(
    folder: Path, servers: str, *, only_new: bool = False
) -> Iterator[tuple[Path, int]]:
    """Produce each line of ``TOPIC.jsonl`` to its topic, and yield the file with their number.

    A topic that is missing is made; with ``only_new`` nothing is produced to one that is there.
    Nothing is done where there is no such folder. Blocks.

    Raises:
        HeadraceError: the brokers do not take the records.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        return
    properties = {"bootstrap.servers": servers}
    with closing(KafkaTopicCatalog(properties, "headrace-local")) as catalog:
        for file in files:
            deadline = Deadline.after(_TIMEOUT)
            is_new = catalog.create(NewTopic(file.stem, _PARTITIONS), deadline)
            if only_new and not is_new:
                continue
            values = [line for line in file.read_bytes().splitlines() if line.strip()]
            producer = TopicProducer({**properties, **_PLAIN}, file.stem)
            producer.send(((None, value) for value in values), deadline)
            producer.flush(deadline)
            yield file, len(values)
