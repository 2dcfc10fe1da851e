"""Records that a policy leaves out: each counted, and told of now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.processors.contract import ChannelContext
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)

#: Seconds between two log events of one partition: a topic full of rubbish must not fill the disk.
_QUIET = 10.0

#: Offsets that a log event names.
_NAMED = 5


class SkippedRecords:
    """Counts the undecodable records of one channel. Used by one thread."""

    def __init__(self, context: ChannelContext) -> None:
        self._context = context
        self._since: dict[TopicPartition, int] = {}
        self._due: dict[TopicPartition, float] = {}

    def count(self, skipped: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Count the records left out of a stored micro-batch; ``skipped`` has their offsets."""
        channel = self._context.channel
        for partition, offsets in skipped.items():
            counter = self._context.metrics.skipped.labels(channel, partition.topic, "undecodable")
            counter.inc(len(offsets))
            self._since[partition] = self._since.get(partition, 0) + len(offsets)
            now = self._context.clock.monotonic()
            if now >= self._due.get(partition, now):
                self._due[partition] = now + _QUIET
                self._tell(partition, offsets)

    def _tell(self, partition: TopicPartition, offsets: Sequence[int]) -> None:
        log.warning(
            "records_skipped",
            reason="undecodable",
            channel=self._context.channel,
            topic=partition.topic,
            partition=partition.partition,
            records=self._since.pop(partition),
            first_offsets=list(offsets[:_NAMED]),
        )
