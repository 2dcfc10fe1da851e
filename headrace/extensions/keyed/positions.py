"""The positions of a local store in its changelog, and whether they can be relied on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.store import Position
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from headrace.core.clock import Clock
    from headrace.extensions.keyed.store import RocksStore
    from headrace.extensions.keyed.topics import Changelog
    from headrace.kafka.ports import TopicCatalog

log = structlog.get_logger(__name__)

#: Seconds in which the brokers have to say where a changelog ends.
_ANSWER_TIMEOUT = 5.0

#: The same while other partitions are fetched, which waits meanwhile.
_SHORT_ANSWER_TIMEOUT = 0.5

#: Why what was read of a changelog does not count.
OUT_OF_RANGE = "the changelog lost what was being read"
TRUNCATED = "the changelog lost its end, and does not lead to what was being read"


def misfit(
    position: Position, changelog: Changelog, bounds: tuple[int, int], now: float
) -> str | None:
    """Return why state at a position cannot be continued from its changelog, None where it can.

    ``bounds`` are the changelog's first offset and its end, ``now`` is in seconds since the epoch.
    """
    (low, high), age = bounds, now - position.at
    if position.topic_id != changelog.topic_id:
        return "the changelog is another topic of the same name"
    if not low <= position.offset <= high:
        return f"the changelog has {low} to {high}"
    if age > changelog.delete_retention:
        return (
            f"it is {age:.0f} s old, and the changelog keeps deletions for "
            f"{changelog.delete_retention:.0f} s"
        )
    return None


class StorePositions:
    """Compares a store's positions with the changelog. One thread; what asks brokers blocks."""

    def __init__(
        self,
        name: str,
        changelog: Changelog,
        store: RocksStore,
        catalog: TopicCatalog,
        clock: Clock,
    ) -> None:
        self._name = name
        self._changelog = changelog
        self._store = store
        self._catalog = catalog
        self._clock = clock

    def partition(self, number: int) -> TopicPartition:
        """Return a partition of the changelog."""
        return TopicPartition(self._changelog.topic, number)

    def at(self, offset: int, leader_epoch: int | None) -> Position:
        """Return a position of now."""
        return Position(self._changelog.topic_id, offset, self._clock.time(), leader_epoch)

    def ends(self, number: int, *, hurried: bool) -> tuple[int, int]:
        """Ask where a partition begins and ends; for not long where others wait for the answer.

        Raises:
            StateStoreError: the changelog has no such partition.
            KafkaUnavailableError: no broker answered.
        """
        patience = _SHORT_ANSWER_TIMEOUT if hurried else _ANSWER_TIMEOUT
        deadline = Deadline.after(patience, self._clock)
        topic = self._changelog.topic
        try:
            return self._catalog.watermarks(self.partition(number), deadline)
        except KafkaUnavailableError:
            deadline = Deadline.after(patience, self._clock)
            found = self._catalog.describe([topic], deadline).get(topic)
            if found is None or number < found.partitions:
                raise
            raise StateStoreError(
                f"topic {topic} has {found.partitions} partitions and none for partition {number} "
                "of the input, which was given more of them; stop the channel: its next start says "
                "what to do"
            ) from None

    def find_truncation(self, number: int, position: Position) -> str | None:
        """Return a text if a log that ends at a position is another one than led there."""
        partition, epoch = self.partition(number), position.leader_epoch
        deadline = Deadline.after(_ANSWER_TIMEOUT, self._clock)
        if epoch is None or self._catalog.leader_epoch(partition, deadline) in {None, epoch}:
            return None
        at = partition, position.offset, epoch
        return TRUNCATED if self._catalog.truncated_at(*at, deadline)[0] else None

    def epoch_of_end(self, number: int) -> int | None:
        """Return the leader epoch of a partition's end, None where no broker says it now."""
        deadline = Deadline.after(_SHORT_ANSWER_TIMEOUT, self._clock)
        with suppress(KafkaUnavailableError):
            return self._catalog.leader_epoch(self.partition(number), deadline)
        return None

    def find_valid(self, number: int, low: int, high: int, lost: str | None = None) -> int | None:
        """Return how far the store follows the changelog, None where that cannot be relied on.

        State that is older than deletions are kept would have keys that were deleted meanwhile.
        """
        position = self._store.position(number)
        if position is None:
            return None
        reason = lost or misfit(position, self._changelog, (low, high), self._clock.time())
        if reason is None:
            return position.offset
        log.warning(
            "local_state_dropped",
            channel=self._name,
            partition=number,
            position=position.offset,
            reason=reason,
        )
        return None
