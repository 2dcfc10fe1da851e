"""Where a bounded run ends: offsets that are fixed at the start, one for each partition."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import structlog

from headrace.clock import Deadline
from headrace.kafka.ports import OffsetStoreError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.clock import Clock
    from headrace.kafka.ports import OffsetStore, TopicCatalog

log = structlog.get_logger(__name__)

#: Seconds in which the leader of one partition has to say where its bound is.
ASK_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Until:
    """Up to where a bounded run reads.

    ``timestamp`` is in milliseconds since the Unix epoch: each partition is read up to its first
    record that is not older, or to its end at the start where all are. None: to that end.
    """

    timestamp: int | None = None


class Bounds:
    """The bounds of one channel's partitions; without ``until`` there are none.

    They hold for all partitions of the group, because any of them may come to this member. A
    partition that appears after the start is not part of the run: nothing of it is delivered.
    """

    def __init__(self, until: Until | None, channel: str, clock: Clock) -> None:
        self._until = until
        self._channel = channel
        self._clock = clock
        self._offsets: dict[TopicPartition, int] = {}
        self._unwanted: frozenset[TopicPartition] | None = None
        self._reached: set[TopicPartition] = set()

    def fix(self, catalog: TopicCatalog, counts: Mapping[str, int], deadline: Deadline) -> None:
        """Ask the brokers where the bounds are. Blocks; before the first claim.

        Raises:
            KafkaUnavailableError: a partition's leader did not answer.
        """
        if self._until is None:
            return
        for topic, count in counts.items():
            for number in range(count):
                partition = TopicPartition(topic, number)
                self._offsets[partition] = self._ask(catalog, partition, deadline)
        bounds = {str(partition): offset for partition, offset in self._offsets.items()}
        log.info("bounds_fixed", channel=self._channel, bounds=bounds)

    def _ask(self, catalog: TopicCatalog, partition: TopicPartition, deadline: Deadline) -> int:
        assert self._until is not None
        timestamp = self._until.timestamp
        wait = Deadline.after(deadline.at_most(ASK_TIMEOUT), self._clock)
        # the end first: what is appended between the two questions is not part of the run
        _, end = catalog.watermarks(partition, wait)
        found = None if timestamp is None else catalog.offset_at(partition, timestamp, wait)
        return end if found is None else min(found, end)

    def of(self, partition: TopicPartition) -> float:
        """Return the offset before which a partition's deliveries end. Any thread."""
        return inf if self._until is None else self._offsets.get(partition, 0)

    def nobody_has(self, partitions: frozenset[TopicPartition]) -> None:
        """Take note of the partitions that no member of the group is to have. Any thread."""
        self._unwanted = partitions

    def reached(
        self, own: Mapping[TopicPartition, int | None], store: OffsetStore, deadline: Deadline
    ) -> bool:
        """Whether every partition of the group is committed up to its bound. One thread; blocks.

        ``own`` has what is committed of the partitions held here. About others the group's store
        is asked, until each has been there once; while it does not answer, they are not there.
        Partitions that nobody is to have do not count.
        """
        unwanted = self._unwanted
        if self._until is None or unwanted is None:
            return False
        if not all(self._is_there(partition, offset) for partition, offset in own.items()):
            return False
        others = self._offsets.keys() - own.keys() - unwanted - self._reached
        if not self._others_are_there(sorted(others), store, deadline):
            return False
        left_out = sorted(map(str, self._offsets.keys() & unwanted))
        log.info("bounds_reached", channel=self._channel, unowned=left_out)
        return True

    def _others_are_there(
        self, others: Iterable[TopicPartition], store: OffsetStore, deadline: Deadline
    ) -> bool:
        for partition in others:
            try:
                stored = store.read(partition, deadline)
            except OffsetStoreError as error:
                log.warning("bounds_unsure", channel=self._channel, error=str(error))
                return False
            if not self._is_there(partition, None if stored is None else stored.offset):
                return False
            self._reached.add(partition)
        return True

    def _is_there(self, partition: TopicPartition, offset: int | None) -> bool:
        return offset is not None and offset >= self.of(partition)
