"""Group offsets in Kafka, with the claim's epoch in each commit's metadata."""

from __future__ import annotations

import json
from threading import Thread
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from headrace.kafka import properties
from headrace.kafka.clients import open_consumer
from headrace.kafka.ports import OffsetStoreError, StoredOffset
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.clock import Deadline

log = structlog.get_logger(__name__)

#: Version of the metadata format; a reader that does not know it takes the offset without epoch.
METADATA_VERSION = 1

#: Seconds in which the client hands over a callback that has come.
_POLL = 0.1


class KafkaOffsetStore:
    """An ``OffsetStore`` on one librdkafka client.

    Commits are asynchronous with a deadline, because a synchronous one blocks for 45 s when there
    is no group coordinator. The answer is handed over only while the client is polled.
    """

    def __init__(self, client_properties: Mapping[str, Any], group: str) -> None:
        self._group = group
        self._answers: list[tuple[object, list[ClientPartition]]] = []
        self._unanswered = 0
        self._consumer = open_consumer(
            {
                **properties.consumer(properties.base(client_properties), group),
                "on_commit": lambda error, offsets: self._answers.append((error, offsets)),
            }
        )

    def read(self, partition: TopicPartition, deadline: Deadline) -> StoredOffset | None:
        """Return the group's offset of one partition."""
        wanted = ClientPartition(partition.topic, partition.partition)
        try:
            found = self._consumer.committed([wanted], timeout=max(0.001, deadline.remaining))[0]
        except KafkaException as error:
            raise OffsetStoreError(
                f"group {self._group}: the offset of {partition} cannot be read: "
                f"{error.args[0].str()}"
            ) from error
        if found.error is not None:
            raise OffsetStoreError(
                f"group {self._group}: the offset of {partition} cannot be read: "
                f"{found.error.str()}"
            )
        if found.offset < 0:
            return None
        return StoredOffset(found.offset, _epoch(found.metadata))

    def commit(
        self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline
    ) -> Mapping[TopicPartition, str]:
        """Store offsets and wait for the coordinator's answer."""
        try:
            self._consumer.commit(
                offsets=[_entry(p, stored) for p, stored in offsets.items()], asynchronous=True
            )
        except KafkaException as error:
            return dict.fromkeys(offsets, error.args[0].str())
        self._unanswered += 1
        wanted = {p: stored.offset for p, stored in offsets.items()}
        while not deadline.expired:
            self._consumer.poll(deadline.at_most(_POLL))
            while self._answers:
                problem, answered = self._answers.pop(0)
                self._unanswered -= 1
                if {TopicPartition(a.topic, a.partition): a.offset for a in answered} == wanted:
                    return _failures(problem, answered)
                log.info("late_commit_answer", group=self._group, error=str(problem))
        return dict.fromkeys(offsets, "no answer from the group coordinator in time")

    def serve(self) -> None:
        """Run what callbacks have come."""
        self._consumer.poll(0)

    def close(self) -> None:
        """Release the client; does not block.

        With a commit on its way the client ends only when that is answered or has timed out, 45 s
        later. Nobody waits for this any more, so it happens on a thread of its own.
        """
        if self._unanswered:
            log.info("commit_left_behind", group=self._group, commits=self._unanswered)
            Thread(target=self._consumer.close, name="kafka-close", daemon=True).start()
        else:
            self._consumer.close()


def _entry(partition: TopicPartition, stored: StoredOffset) -> ClientPartition:
    metadata = json.dumps({"version": METADATA_VERSION, "epoch": stored.epoch})
    return ClientPartition(partition.topic, partition.partition, stored.offset, metadata=metadata)


def _epoch(metadata: str | None) -> int:
    """Return the epoch in a commit's metadata, 0 where another program committed."""
    try:
        document = json.loads(metadata or "")
    except ValueError:
        return 0
    if not isinstance(document, dict) or document.get("version") != METADATA_VERSION:
        return 0
    epoch = document.get("epoch")
    return epoch if isinstance(epoch, int) else 0


def _failures(error: Any, answered: list[ClientPartition]) -> dict[TopicPartition, str]:
    """Return the reason for each partition that failed; the error of the whole counts for all."""
    failures = {}
    for entry in answered:
        reason = entry.error or error
        if reason is not None:
            failures[TopicPartition(entry.topic, entry.partition)] = reason.str()
    return failures
