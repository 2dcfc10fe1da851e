"""The end of a bounded run: offsets that are fixed at the start, one for each partition.

Those of a channel that reads what another one of the same run writes are fixed when that one is
done: its input is not there before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import ChannelFailedError
from headrace.core.records import TopicPartition, all_partitions
from headrace.kafka.errors import KafkaUnavailableError, OffsetStoreError

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
    ``after`` has, by topic, the channel of the same run that writes it: its partitions are read up
    to their ends when that channel is done.
    """

    timestamp: int | None = None
    after: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _GroupPartitions:
    """Partitions with an owner, and those that are meant to have none."""

    owned: frozenset[TopicPartition]
    unowned: frozenset[TopicPartition]


class Bounds:
    """The bounds of one channel's partitions; without ``until`` there are none.

    They hold for all partitions of the group, because any of them may come to this member. A
    partition that appears after they are fixed is not part of the run: nothing of it is delivered.

    Until those of a channel that comes after another one are fixed, there are none.
    """

    def __init__(
        self,
        until: Until | None,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._until = until
        self._is_fixed = False
        self._fail = fail
        self._channel = channel
        self._clock = clock
        self._offsets: dict[TopicPartition, int] = {}
        self._group: _GroupPartitions | None = None
        self._reached: set[TopicPartition] = set()

    def fix(self, catalog: TopicCatalog, counts: Mapping[str, int], deadline: Deadline) -> None:
        """Ask the brokers where the bounds are. Blocks; before the first claim.

        Not for a channel that comes after another one: see ``fix_late``.

        Raises:
            KafkaUnavailableError: a partition's leader did not answer.
        """
        if self._until is not None and not self._until.after:
            self._fix(catalog, counts, deadline)

    def _fix(self, catalog: TopicCatalog, counts: Mapping[str, int], deadline: Deadline) -> None:
        self._offsets = {
            partition: self._ask_end(catalog, partition, deadline)
            for partition in all_partitions(counts)
        }
        self._is_fixed = True
        bounds = {str(partition): offset for partition, offset in self._offsets.items()}
        log.info("bounds_fixed", channel=self._channel, bounds=bounds)

    def _ask_end(self, catalog: TopicCatalog, partition: TopicPartition, deadline: Deadline) -> int:
        assert self._until is not None
        timestamp = None if partition.topic in self._until.after else self._until.timestamp
        wait = Deadline.after(deadline.at_most(ASK_TIMEOUT), self._clock)
        # the end first: what is appended between the two questions is not part of the run
        _, end = catalog.watermarks(partition, wait)
        found = None if timestamp is None else catalog.offset_at(partition, timestamp, wait)
        return end if found is None else min(found, end)

    def of(self, partition: TopicPartition) -> float:
        """Return the offset before which a partition's deliveries end. Any thread."""
        return self._offsets.get(partition, 0) if self._is_fixed else inf

    def fix_late(
        self, catalog: TopicCatalog, counts: Mapping[str, int], deadline: Deadline
    ) -> bool:
        """Fix those of a channel that comes after another one, which is done. Blocks.

        Returns:
            True if they were fixed by this call; where the brokers do not answer, a later one does.
        """
        if self._is_fixed or self._until is None or not self._until.after:
            return False
        try:
            self._fix(catalog, counts, deadline)
        except KafkaUnavailableError as error:
            log.warning("bounds_progress_unknown", channel=self._channel, error=str(error))
            return False
        return True

    def topic_missing(self, topic: str) -> None:
        """Fail the channel where the run would wait for a topic that was deleted. Any thread."""
        is_input = self._until is not None and not self._is_fixed
        wanted = self._offsets.keys() - (self._group.unowned if self._group else frozenset())
        if is_input or any(partition.topic == topic for partition in wanted):
            self._fail(
                ChannelFailedError(
                    f"channel {self._channel}: topic {topic} was deleted before the bounded run "
                    f"was over; what is left of it cannot be read. Start the run again without it"
                )
            )

    def group_is(
        self, owned: Collection[TopicPartition], unowned: Collection[TopicPartition]
    ) -> None:
        """Record which partitions have an owner, and which are meant to have none.

        Any thread.
        """
        self._group = _GroupPartitions(frozenset(owned), frozenset(unowned))

    def reached(
        self, own: Mapping[TopicPartition, int | None], store: OffsetStore, deadline: Deadline
    ) -> bool:
        """Return whether every partition of the group is committed up to its bound. One thread;
        blocks.

        ``own`` has what is committed of the partitions held here. About others the group's store
        is asked, until each has been there once; while it does not answer, they are not there.
        Partitions meant to have no owner do not count. The others need an owner, because a commit
        of before may be ahead of the sink that the owner goes by.
        """
        group = self._group
        if not self._is_fixed or group is None:
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
