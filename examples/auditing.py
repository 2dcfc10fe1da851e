"""A custom processor, as examples/headrace.yaml names it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace import Assignment, Batch, BatchProcessor, BatchResponse, TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future


class Processor(BatchProcessor):
    """Counts records by day and partition, and forgets what a partition had when it goes."""

    def __init__(self, retention_days: int) -> None:
        self.retention_days = retention_days
        self.days: dict[TopicPartition, Counter[int]] = {}

    def on_assigned(self, assignment: Assignment) -> None:
        """Begin with nothing: another member may have counted meanwhile."""
        self.days[assignment.partition] = Counter()

    def on_next_batch(self, batch: Batch) -> BatchResponse | Future[BatchResponse]:
        """Count the days that are not too old."""
        days = [record.timestamp()[1] // 86_400_000 for record in batch.records]
        newest = max(days)
        kept = (day for day in days if newest - day <= self.retention_days)
        self.days[batch.partition].update(kept)
        return BatchResponse.advance()

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Drop the partition's counts."""
        self.days.pop(assignment.partition, None)
