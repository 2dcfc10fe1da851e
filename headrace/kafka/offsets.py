"""Group offsets in Kafka, with the claim's epoch in each commit's metadata."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from headrace.kafka import properties
from headrace.kafka.clients import open_consumer
from headrace.kafka.fencing import Place, fence_producers
from headrace.kafka.offset_metadata import entry, stored_in
from headrace.kafka.ports import Failure, OffsetStoreError, OffsetTimeoutError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.clock import Deadline
    from headrace.kafka.ports import StoredOffset

log = structlog.get_logger(__name__)

#: Seconds of one poll. A poll that hands over a callback and no record waits its time out all the
#: same, and keeps other threads' requests waiting, while a commit takes about 5 ms.
_POLL = 0.005


class KafkaOffsetStore:
    """An ``OffsetStore`` on one librdkafka client.

    Commits are asynchronous with a deadline, because a synchronous one blocks for 45 s when there
    is no group coordinator. The answer is handed over only while the client is polled.

    Kafka takes commits from every client that assigns partitions to itself. A former owner's is
    known by the epoch in its metadata, and is mended by the owner; see ``channel.offset_guard``.

    ``quiet``: the client has nothing to say between two requests, so that it need not be served.
    ``produced_in``: the group that owners' producers store offsets in, where it is another one.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        group: str,
        *,
        quiet: bool = False,
        produced_in: str | None = None,
    ) -> None:
        self._group = group
        self._produced_in = produced_in or group
        self._properties = dict(client_properties)
        self._answers: list[tuple[object, list[ClientPartition]]] = []
        self._unanswered = 0
        said = properties.silent if quiet else properties.base
        self._consumer = open_consumer(
            {
                **properties.consumer(said(client_properties), group),
                "on_commit": lambda error, offsets: self._answers.append((error, offsets)),
            }
        )

    def read(self, partition: TopicPartition, deadline: Deadline) -> StoredOffset | None:
        """Return the group's offset of one partition."""
        return self.read_many([partition], deadline).get(partition)

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return the group's offsets with one request."""
        return self.read_many(partitions, deadline)

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return the group's offsets with one request."""
        wanted = [ClientPartition(p.topic, p.partition) for p in partitions]
        try:
            found = self._consumer.committed(wanted, timeout=max(0.001, deadline.remaining))
        except KafkaException as error:
            raise self._unreadable(partitions, error.args[0]) from error
        offsets = {}
        for each in found:
            partition = TopicPartition(each.topic, each.partition)
            if each.error is not None:
                raise self._unreadable([partition], each.error)
            stored = stored_in(each)
            if stored is not None:
                offsets[partition] = stored
        return offsets

    def _unreadable(
        self, partitions: Collection[TopicPartition], error: KafkaError
    ) -> OffsetStoreError:
        first = next(iter(partitions), None)
        more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
        late = error.code() == KafkaError._TIMED_OUT  # noqa: SLF001 - the client's public name for it
        return (OffsetTimeoutError if late else OffsetStoreError)(
            f"group {self._group}: the offset of {first}{more} cannot be read: {error.str()}"
        )

    def commit(
        self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline
    ) -> Mapping[TopicPartition, Failure]:
        """Store offsets and wait for the coordinator's answer."""
        try:
            self._consumer.commit(
                offsets=[entry(p, stored) for p, stored in offsets.items()], asynchronous=True
            )
        except KafkaException as error:
            return dict.fromkeys(offsets, Failure(error.args[0].str()))
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
        return dict.fromkeys(offsets, Failure("no answer from the group coordinator in time"))

    def group_metadata(self) -> object:
        """Return what a transactional producer has to know of the group: its name only.

        A consumer that only assigns has no member id, so that the group's coordinator refuses
        nobody by it.
        """
        return self._consumer.consumer_group_metadata()

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        """Shut out the producers of members that committed through transactions."""
        place = Place(self._produced_in, partition)
        fence_producers(self._properties, transactional_ids, deadline, place)

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        """Read past transactions, in the group that producers store offsets in as well."""
        groups = sorted({self._group, self._produced_in})
        return all(self._tells(group, partition, deadline) for group in groups)

    def _tells(self, group: str, partition: TopicPartition, deadline: Deadline) -> bool:
        settings = properties.consumer(properties.silent(self._properties), group)
        consumer = open_consumer({**settings, "isolation.level": "read_uncommitted"})
        try:
            wanted = [ClientPartition(partition.topic, partition.partition)]
            (found,) = consumer.committed(wanted, timeout=max(0.001, deadline.remaining))
        except KafkaException:
            return False
        else:
            return found.error is None
        finally:
            consumer.close()

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


def _failures(error: Any, answered: list[ClientPartition]) -> dict[TopicPartition, Failure]:
    """Return the reason for each partition that failed; the error of the whole counts for all.

    Where one topic does not exist the client says so of all partitions, though the others are
    stored.
    """
    failures = {}
    for each in answered:
        reason = each.error or error
        if reason is not None:
            failures[TopicPartition(each.topic, each.partition)] = Failure(
                reason.str(), topic_missing=reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            )
    return failures
