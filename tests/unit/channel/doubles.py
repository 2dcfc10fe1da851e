"""Ports in memory that answer as a test has them answer."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

from headrace.testing.broker import InMemoryCatalog, InMemoryOffsets, InMemorySource

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.core.clock import Deadline
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import CommitFailure, Fetched, StoredOffset, TopicInfo
    from headrace.testing import InMemoryBroker


class ReportingSource(InMemorySource):
    """Reports what a test hands over in addition to what it fetches."""

    def __init__(self, broker: InMemoryBroker) -> None:
        super().__init__(broker)
        self._reports: SimpleQueue[Fetched] = SimpleQueue()

    def report(self, fetched: Fetched) -> None:
        """Bring these reports with the next fetch. Safe on any thread."""
        self._reports.put(fetched)

    def fetch(self, timeout: float) -> Fetched:
        """Fetch, and add the reports."""
        fetched = super().fetch(timeout)
        while not self._reports.empty():
            report = self._reports.get()
            fetched.out_of_range.extend(report.out_of_range)
            fetched.truncated.extend(report.truncated)
        return fetched


class KnownLeaderSource(InMemorySource):
    """Compares no leader epochs, as a client that has known the present leader before."""

    def fetch(self, timeout: float) -> Fetched:
        """Fetch; a truncated log is one that does not have the position."""
        fetched = super().fetch(timeout)
        fetched.out_of_range.extend(partition for partition, _ in fetched.truncated)
        fetched.truncated.clear()
        return fetched


class NotedOffsets(InMemoryOffsets):
    """Notes the offsets that it is asked to commit, also those that it refuses."""

    def __init__(self, broker: InMemoryBroker, group: str = "group") -> None:
        super().__init__(broker, group)
        self.asked: list[tuple[TopicPartition, int]] = []

    def commit(
        self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline
    ) -> Mapping[TopicPartition, CommitFailure]:
        """Note the offsets, and commit them."""
        self.asked.extend((partition, each.offset) for partition, each in offsets.items())
        return super().commit(offsets, deadline)


class NotedCatalog(InMemoryCatalog):
    """Notes the partitions whose offsets it is asked for, and counts the looks at topics."""

    def __init__(self, broker: InMemoryBroker) -> None:
        super().__init__(broker)
        self.asked: list[TopicPartition] = []
        self.looks = 0

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Note the partition, and return its offsets."""
        self.asked.append(partition)
        return super().watermarks(partition, deadline)

    def describe(self, topics: Collection[str], deadline: Deadline) -> Mapping[str, TopicInfo]:
        """Count the look, and describe topics."""
        self.looks += 1
        return super().describe(topics, deadline)
