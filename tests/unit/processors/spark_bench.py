"""A Spark processor on an engine that only pretends to run jobs, and a sink in memory."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from headrace.core.records import TopicPartition
from headrace.core.supervision import LoopThread
from headrace.processors.contract import BatchResponse, ChannelContext
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.sinks.channel_sink import Staged
from headrace.sinks.contract import Guarantee
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.thread_time import ThreadActivity
from headrace.testing.records import FakeAssignment, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from headrace.core.records import Batch
    from headrace.core.tables import OnUndecodable
    from headrace.processors.admission import AdmissionRules
    from headrace.processors.micro_batches import MicroBatchRunner
    from headrace.processors.pending import MergeLimits
    from headrace.processors.sink_commits import CommitQueue
    from headrace.sinks.channel_sink import ChannelSink
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Result
    from headrace.sinks.micro_batch import MicroBatch

ADVANCE = BatchResponse.advance()


@dataclass
class Engine:
    """A double that runs no Spark.

    The script has what the next calls of ``execute`` do: call with the job, or with nothing, or
    raise an error; when it is empty the calls succeed.
    """

    name: ClassVar = "spark"
    activity: ClassVar = ThreadActivity.SPARK
    span: ClassVar = "spark_job"

    script: list[Exception | Callable[[MicroBatch], None] | None] = field(default_factory=list)
    jobs: list[MicroBatch] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    left_out: dict[TopicPartition, list[int]] = field(default_factory=dict)
    revived: int = 0
    revive_error: Exception | None = None
    undecodable: OnUndecodable | None = None
    seconds: float = 5.0

    def open(self, channel: str) -> None:
        """Check the channel's name alone."""
        assert channel == "channel"

    def admitted(self) -> AbstractContextManager[None]:
        """Return a context of nothing."""
        return nullcontext()

    def set_undecodable(self, undecodable: OnUndecodable) -> None:
        """Note what becomes of undecodable records."""
        self.undecodable = undecodable

    def prepare(self, batch: Batch) -> Any:
        """Return the batch's start as its table."""
        return batch.start

    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[Any],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        """Do what the script says."""
        assert seconds == self.seconds
        assert prepared
        self.jobs.append(micro_batch)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            step(micro_batch)
        return Staged(sink.stage(micro_batch, None, lambda result: result), self.left_out)

    def cancel(self, micro_batch_id: str) -> None:
        """Record the call."""
        self.cancelled.append(micro_batch_id)

    def revive(self) -> None:
        """Record the call, and fail as the test wants."""
        self.revived += 1
        if self.revive_error is not None:
            raise self.revive_error

    def close(self) -> None:
        """Close without jobs to cancel."""


@dataclass
class MemorySink:
    """A double that notes what becomes of all that is staged.

    The script has what the next commits do: call, or raise an error; when it is empty they succeed.
    ``history`` has each step of what was staged: staged, tried, stored, moved or discarded.
    """

    guarantee: ClassVar = Guarantee.EXACTLY_ONCE

    script: list[BaseException | Callable[[], None] | None] = field(default_factory=list)
    history: dict[str, list[str]] = field(default_factory=dict)
    stored: list[list[PartitionCommit]] = field(default_factory=list)
    committed: list[list[str]] = field(default_factory=list)
    moves: list[tuple[OffsetMove, str]] = field(default_factory=list)
    moved: list[list[PartitionCommit]] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)
    boundaries: dict[int, int] = field(default_factory=dict)
    without_data: set[str] = field(default_factory=set)
    move_error: Exception | None = None

    def open(self) -> None:
        """Open without resources."""

    def close(self) -> None:
        """Close without resources."""

    def stored_offset(self, identity: str) -> int | None:
        """Return a number made of the identity."""
        return len(identity)

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return another number made of the identity."""
        return len(identity) + 1

    def boundary(self, identity: str, start: int) -> int | None:
        """Return where the test has a part of the sink stand, if that is past the start."""
        found = self.boundaries.get(int(identity.rpartition("-")[2]))
        return found if found is not None and start < found else None

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> str:
        """Keep the micro-batch's name."""
        assert result is None
        self.history[micro_batch.id] = ["staged"]
        if not micro_batch.ranges:
            self.without_data.add(micro_batch.id)
        return micro_batch.id

    def commit(self, staged: str, offsets: Sequence[PartitionCommit]) -> None:
        """Store, or move without data."""
        if staged in self.without_data:
            self.move(staged, offsets)
        else:
            self.store([staged], offsets)

    def store(self, staged: Sequence[str], offsets: Sequence[PartitionCommit]) -> None:
        """Do what the script says."""
        self._note("tried", staged)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, BaseException):
            raise step
        if step is not None:
            step()
        self._note("stored", staged)
        self.committed.append(list(staged))
        self.stored.append(list(offsets))

    def move(self, staged: str, offsets: Sequence[PartitionCommit]) -> None:
        """Record the call, and fail as the test wants."""
        self._note("tried", [staged])
        if self.move_error is not None:
            raise self.move_error
        self._note("moved", [staged])
        self.moved.append(list(offsets))

    def discard(self, staged: str) -> None:
        """Record the call."""
        self._note("discarded", [staged])
        self.discarded.append(staged)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Record the moves."""
        self.moves += [(move, note) for move in moves]

    def _note(self, step: str, staged: Sequence[str]) -> None:
        for each in staged:
            self.history[each].append(step)

    @property
    def stored_ranges(self) -> list[list[tuple[int, int, int]]]:
        """Return what was committed: (partition, start, next offset) by commit."""
        return [
            [(o.partition.partition, o.start, o.next_offset) for o in commit]
            for commit in self.stored
        ]

    def require_one_end_each(self) -> None:
        """All that was staged was stored, moved or discarded: once, as the last that became of it.

        What was discarded was not tried again, and what was stored was not discarded.
        """
        for steps in self.history.values():
            first, *tries, last = steps
            assert first == "staged"
            assert set(tries) <= {"tried"}
            assert last in {"stored", "moved", "discarded"}


@dataclass
class GroupingSink(MemorySink):
    """A double that takes several results at once."""

    def commit_all(self, staged: Sequence[str], offsets: Sequence[PartitionCommit]) -> None:
        """Store them."""
        self.store(staged, offsets)


class Bench:
    """A processor over the doubles, with partitions 0 to 3 assigned, whose threads are the test."""

    def __init__(
        self,
        limits: MergeLimits | None = None,
        engine: Engine | None = None,
        sink: MemorySink | None = None,
        *,
        admission: AdmissionRules | None = None,
        job_timeout: float = 5.0,
    ) -> None:
        self.engine = engine or Engine()
        self.sink = sink or MemorySink()
        self.metrics = Metrics()
        self.processor = MicroBatchProcessor(
            self.engine, self.sink, limits=limits, job_timeout=job_timeout, admission=admission
        )
        with patch.object(LoopThread, "start"):
            self.processor.open(ChannelContext("channel", "group", self.metrics))
        self.assignments = [FakeAssignment(TopicPartition("t", number)) for number in range(4)]
        for assignment in self.assignments:
            self.processor.on_assigned(assignment)

    def send(
        self, partition: int, start: int = 0, *, records: int = 10, attempt: int = 1
    ) -> Future[BatchResponse]:
        """Hand a batch of one partition to the processor."""
        return self.processor.on_next_batch(self.batch(partition, start, records, attempt))

    def batch(self, partition: int, start: int = 0, records: int = 10, attempt: int = 1) -> Batch:
        """Make a batch of one partition."""
        assignment = self.assignments[partition]
        return make_batch([b"v"] * records, assignment=assignment, start=start, attempt=attempt)

    @property
    def runner(self) -> MicroBatchRunner:
        """Return the runner that has the turns of lane and sink."""
        runner = self.processor._runner
        assert runner is not None
        return runner

    @property
    def line(self) -> CommitQueue:
        """Return the line between the lane and the sink."""
        return self.runner._line

    def staged(
        self, partition: int, start: int = 0, size: int | None = None
    ) -> Future[BatchResponse]:
        """Hand over a batch, of so many bytes if that matters, and run the lane once."""
        batch = self.batch(partition, start)
        whole = batch if size is None else replace(batch, size=size)
        answer = self.processor.on_next_batch(whole)
        self.runner.run_once()
        return answer

    def run_once(self) -> None:
        """Run the lane once, commit what it staged, and have it see to what came back."""
        self.runner.run_once()
        self.commit()
        if self.line.has_returned:
            self.runner.run_once()

    def commit(self) -> None:
        """Commit all that is in line."""
        while self.line._waiting:
            assert self.runner.commits.run_once()


def error_of(future: Future[BatchResponse]) -> BaseException | None:
    """Return the future's error; it must be done."""
    return future.exception(0)
