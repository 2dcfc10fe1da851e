"""Where a bounded run ends: offsets that are fixed at the start, one for each partition."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import TopicDeletedError
from headrace.core.records import TopicPartition, all_partitions
from headrace.kafka.ports import OffsetStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.core.clock import Clock
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


@dataclass(frozen=True, slots=True)
class _GroupPartitions:
    """Partitions that somebody owns, and those that nobody is to have."""

    owned: frozenset[TopicPartition]
    unowned: frozenset[TopicPartition]


class Bounds:
    """The bounds of one channel's partitions; without ``until`` there are none.

    They hold for all partitions of the group, because any of them may come to this member. A
    partition that appears after the start is not part of the run: nothing of it is delivered.
    """

    def __init__(
        self,
        until: Until | None,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._until = until
        self._fail = fail
        self._channel = channel
        self._clock = clock
        self._offsets: dict[TopicPartition, int] = {}
        self._group: _GroupPartitions | None = None
        self._reached: set[TopicPartition] = set()

    def fix(self, catalog: TopicCatalog, counts: Mapping[str, int], deadline: Deadline) -> None:
        """Ask the brokers where the bounds are. Blocks; before the first claim.

        Raises:
            KafkaUnavailableError: a partition's leader did not answer.
        """
        if self._until is None:
            return
        for partition in all_partitions(counts):
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

    def topic_missing(self, topic: str) -> None:
        """Fail the channel where the run would wait for a topic that was deleted. Any thread."""
        wanted = self._offsets.keys() - (self._group.unowned if self._group else frozenset())
        if any(partition.topic == topic for partition in wanted):
            self._fail(
                TopicDeletedError(
                    f"channel {self._channel}: topic {topic} was deleted before the bounded run "
                    f"was over; what is left of it cannot be read. Start the run again without it"
                )
            )

    def group_is(
        self, owned: Collection[TopicPartition], unowned: Collection[TopicPartition]
    ) -> None:
        """Take note of who has what: partitions with an owner, and those nobody is to have.

        Any thread.
        """
        self._group = _GroupPartitions(frozenset(owned), frozenset(unowned))

    def reached(
        self, own: Mapping[TopicPartition, int | None], store: OffsetStore, deadline: Deadline
    ) -> bool:
        """Whether every partition of the group is committed up to its bound. One thread; blocks.

        ``own`` has what is committed of the partitions held here. About others the group's store
        is asked, until each has been there once; while it does not answer, they are not there.
        Partitions that nobody is to have do not count. The others need an owner, because a commit
        of before may be ahead of the sink that the owner goes by.
        """
        group = self._group
        if self._until is None or group is None:
            return False
        wanted = self._offsets.keys() - group.unowned
        if not wanted <= group.owned | own.keys():
            return False
        if not all(self._is_there(partition, offset) for partition, offset in own.items()):
            return False
        if not self._others_are_there(wanted - own.keys() - self._reached, store, deadline):
            return False
        left_out = sorted(map(str, self._offsets.keys() & group.unowned))
        log.info("bounds_reached", channel=self._channel, unowned=left_out)
        return True

    def _others_are_there(
        self, others: Collection[TopicPartition], store: OffsetStore, deadline: Deadline
    ) -> bool:
        if not others:
            return True
        try:
            stored = store.read_many(others, deadline)
        except OffsetStoreError as error:
            log.warning("bounds_progress_unknown", channel=self._channel, error=str(error))
            return False
        self._reached |= {p for p, each in stored.items() if self._is_there(p, each.offset)}
        return self._reached.issuperset(others)

    def _is_there(self, partition: TopicPartition, offset: int | None) -> bool:
        return offset is not None and offset >= self.of(partition)
