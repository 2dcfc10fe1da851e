"""The thread that finds partitions which stand still though their logs grow."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from headrace.channel.states import PartitionState
from headrace.channel.threads import Patrol
from headrace.clock import Deadline
from headrace.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.channel.fetcher import Fetcher
    from headrace.channel.partition import OwnedPartition
    from headrace.clock import Clock
    from headrace.kafka.ports import TopicCatalog
    from headrace.metrics import Metrics
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)

#: Seconds between two looks. A partition is taken for stalled after two of them at the earliest:
#: far longer than a client takes to find a new leader.
LOOK_INTERVAL = 30.0

#: Seconds to wait for a partition's leader to say where the log ends.
ASK_TIMEOUT = 2.0


@dataclass(slots=True)
class _Seen:
    """Where a partition stood at the last look; ``end`` is that of its log, as its leader said."""

    position: int
    end: int
    refetched: int = 0


class StallWatch(Patrol):
    """Asks, for each partition from which nothing came since the last look, where its log ends.

    One that did not get to where the log ended a look before has stalled. It is fetched anew, and
    when that does not help it is reported at every look. What waits for something else than the
    fetcher is left alone: a batch that is out, a pause, a full buffer. It costs a
    request for each idle partition at each look, one after the other: one for all of them has no
    answer for any while a broker is away.
    """

    def __init__(
        self,
        *,
        partitions: Callable[[], Iterable[OwnedPartition]],
        fetcher: Fetcher,
        catalog: TopicCatalog,
        metrics: Metrics,
        channel: str,
        clock: Clock,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._partitions = partitions
        self._fetcher = fetcher
        self._catalog = catalog
        self._metrics = metrics
        self._channel = channel
        self._clock = clock
        self._seen: dict[OwnedPartition, _Seen] = {}
        super().__init__(f"{channel}-stalls", fail)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_INTERVAL):
            self._look()

    def _look(self) -> None:
        before, self._seen = self._seen, {}
        if not self._fetcher.fetching:
            return
        waiting = {owned.partition: owned for owned in self._partitions() if _waits(owned)}
        silent = []
        for partition, owned in sorted(waiting.items()):
            if self._stopping.is_set():
                return
            try:
                end = self._end_of(partition)
            except KafkaUnavailableError:
                silent.append(str(partition))
            else:
                self._compare(owned, end, before.get(owned))
        if silent:
            # the client itself says nothing of a partition without a leader
            log.warning("leaders_silent", channel=self._channel, partitions=silent)

    def _end_of(self, partition: TopicPartition) -> int:
        _, end = self._catalog.watermarks(partition, Deadline.after(ASK_TIMEOUT, self._clock))
        return end

    def _compare(self, owned: OwnedPartition, end: int, before: _Seen | None) -> None:
        position = owned.buffer.expected
        if before is None or before.position != position:
            before = None
        seen = _Seen(position, end, 0 if before is None else before.refetched)
        self._seen[owned] = seen
        if before is not None and position < before.end:
            self._stalled(owned, seen)

    def _stalled(self, owned: OwnedPartition, seen: _Seen) -> None:
        """Fetch anew; say it louder when that was done before."""
        topic, number = owned.partition
        self._metrics.stalls.labels(self._channel, topic).inc()
        log.log(
            logging.ERROR if seen.refetched else logging.WARNING,
            "partition_stalled",
            channel=self._channel,
            topic=topic,
            partition=number,
            epoch=owned.epoch,
            position=seen.position,
            end=seen.end,
            refetched=seen.refetched,
        )
        seen.refetched += 1
        self._fetcher.seek(owned)


def _waits(owned: OwnedPartition) -> bool:
    """Whether nothing but the fetcher holds a partition up."""
    idle = owned.state is PartitionState.WAITING and not owned.buffer.complete
    return idle and not (owned.outstanding or owned.pending or owned.buffer.records)
