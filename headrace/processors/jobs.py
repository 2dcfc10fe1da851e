"""A micro-batch on its way: what it is made of, what the sink has to store, who still wants it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.errors import BatchCancelledError, JobCancelledError
from headrace.core.spans import linked_span
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch, ranges_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.core.records import Batch
    from headrace.core.spans import Span
    from headrace.core.undecodable import UndecodableRecords
    from headrace.processors.pending import PendingWork, Task
    from headrace.sinks.channel_sink import Staged


@dataclass(eq=False, slots=True)
class Job:
    """One micro-batch between its plan and its commit: ``work``, and all ``batches`` of that.

    ``number`` counts the jobs of a channel in the order in which their batches were taken.
    ``staged`` is there once its result is, ``seconds`` is what it took to get there. Its dead
    letters are sent once, also where it is committed by itself after that failed with others.
    """

    number: int
    work: Sequence[PendingWork]
    batches: Sequence[Batch]
    micro_batch: MicroBatch
    span: Span
    staged: Staged = field(init=False)
    seconds: float = 0.0
    has_sent_letters: bool = False

    @property
    def size(self) -> int:
        """Return what its records take, in bytes."""
        return sum(batch.size for batch in self.batches)

    def rejected(self) -> Iterator[tuple[Batch, UndecodableRecords]]:
        """Yield its undecodable records that are to be dead letters, by batch."""
        for batch in self.batches:
            records = self.staged.rejected.get(batch.partition)
            found = records and records.between(batch.start, batch.next_offset)
            if found:
                yield batch, found

    @property
    def context(self) -> dict[str, Any]:
        """Return what lines that are logged on the way say of the micro-batch."""
        found = {"channel": self.micro_batch.channel, "micro_batch": self.micro_batch.id}
        if len(self.batches) > 1:
            names = [f"{each.partition}@{each.start}" for each in self.batches]
            return {**found, "batches": names}
        batch = self.batches[0]
        topic, partition = batch.partition
        own = {"topic": topic, "partition": partition, "epoch": batch.assignment.epoch}
        return {**found, **own, "batch": batch.first_offset if batch.records else batch.start}


def context_of(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return what lines that are logged say while these jobs are committed, in one transaction or
    not.
    """
    if len(jobs) == 1:
        return jobs[0].context
    names = [f"{each.partition}@{each.start}" for job in jobs for each in job.batches]
    ids = [job.micro_batch.id for job in jobs]
    return {"channel": jobs[0].micro_batch.channel, "micro_batches": ids, "batches": names}


def planned(number: int, channel: str, work: Sequence[PendingWork]) -> Job:
    """Return the job of this work. Its span begins, below the first batch's.

    Raises:
        ValueError: the batches of a partition do not follow upon one another.
    """
    batches = [batch for pending in work for batch in pending.batches]
    micro_batch = MicroBatch(
        uuid.uuid4().hex[:16],
        channel,
        ranges_of(batches),
        max(batch.attempt for batch in batches),
    )
    span = linked_span(
        [batch.span for batch in batches],
        "micro_batch",
        id=micro_batch.id,
        records=micro_batch.records,
        batches=len(batches),
    )
    return Job(number, work, batches, micro_batch, span)


def commits_of(batches: Sequence[Batch]) -> list[PartitionCommit]:
    """Return what the sink has to store for the batches: one share for each partition."""
    held = {batch.partition: batch.assignment for batch in batches}
    return [
        PartitionCommit(
            held[key].identity,
            key,
            part.start,
            part.next_offset,
            held[key].transactional_id,
            held[key].leader_epoch,
            is_tick=part.next_offset == part.start,
        )
        for part in ranges_of(batches)
        for key in [part.topic_partition]
    ]


def wanted(work: Sequence[PendingWork]) -> list[PendingWork]:
    """Return the work whose outcome may still take effect; answer what is lost.

    After some that was withdrawn no other of its task is wanted: that is withdrawn as well, by the
    channel, or by who made it of several batches, one piece after the other.
    """
    ended: list[Task] = []
    for pending in work:
        task = pending.task
        if any(task is one for one in ended):
            pending.withdraw("the batch before it was withdrawn")
        elif not pending.future.done() and not task.is_current():
            partition = pending.batches[0].partition
            message = f"{partition}: the claim ended, or was in doubt, before the batch was stored"
            pending.fail(BatchCancelledError(partition, message))
        if pending.future.done():
            ended.append(task)
    return [pending for pending in work if not pending.future.done()]


def require_all(work: Sequence[PendingWork]) -> None:
    """Return if all of it is still wanted.

    Raises:
        JobCancelledError: some is not.
    """
    if len(wanted(work)) < len(work):
        raise JobCancelledError("a batch of the micro-batch is no longer wanted")
