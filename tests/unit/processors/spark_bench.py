"""A Spark processor on an engine that only pretends to run jobs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.core.records import TopicPartition
from headrace.processors.contract import BatchResponse, ChannelContext
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.thread_time import ThreadActivity
from headrace.testing.records import FakeAssignment, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.core.clock import Deadline
    from headrace.core.records import Batch
    from headrace.core.tables import Decode
    from headrace.processors.pending import MergeLimits
    from headrace.processors.sink_commits import CommitQueue
    from headrace.sinks.contract import OffsetMove, PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch

ADVANCE = BatchResponse.advance()


@dataclass
class Engine:
    """A double that runs no Spark.

    The scripts have what the next calls of ``stage`` and ``commit`` do: call with the job, or with
    nothing, or raise an error; when they are empty the calls succeed. ``groups`` says whether
    ``commit`` takes several results.
    """

    activity: ClassVar = ThreadActivity.SPARK
    span: ClassVar = "spark_job"

    stage_script: list[Exception | Callable[[MicroBatch], None] | None] = field(
        default_factory=list
    )
    commit_script: list[BaseException | Callable[[], None] | None] = field(default_factory=list)
    jobs: list[MicroBatch] = field(default_factory=list)
    stored: list[list[PartitionCommit]] = field(default_factory=list)
    committed: list[list[str]] = field(default_factory=list)
    moves: list[tuple[OffsetMove, str]] = field(default_factory=list)
    moved: list[list[PartitionCommit]] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    left_out: dict[TopicPartition, list[int]] = field(default_factory=dict)
    boundaries: dict[int, int] = field(default_factory=dict)
    revived: int = 0
    revive_error: Exception | None = None
    move_error: Exception | None = None
    decode: Decode | None = None
    seconds: float = 5.0
    groups: bool = False
    run_once: Callable[[], None] = field(init=False)
    commit_turn: Callable[[], bool] = field(init=False)

    def open(self, channel: str, run_once: Callable[[], None], commit: Callable[[], bool]) -> None:
        """Leave the turns to the test."""
        assert channel == "channel"
        self.run_once = run_once
        self.commit_turn = commit

    def decode_as(self, decode: Decode) -> None:
        """Note how to decode."""
        self.decode = decode

    def stored_offset(self, identity: str) -> int | None:
        """Return a number made of the identity."""
        return len(identity)

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return another number made of the identity."""
        return len(identity) + 1

    def boundary(self, batch: Batch) -> int | None:
        """Return where the test has a part of the sink stand, if that is within the batch."""
        found = self.boundaries.get(batch.partition.partition)
        return found if found is not None and batch.start < found < batch.next_offset else None

    def prepare(self, batch: Batch) -> Any:
        """Return the batch's start as its table."""
        return batch.start

    def stage(self, micro_batch: MicroBatch, tables: Sequence[Any], seconds: float | None) -> str:
        """Do what the script says."""
        assert seconds == self.seconds
        assert tables
        self.jobs.append(micro_batch)
        step = self.stage_script.pop(0) if self.stage_script else None
        if isinstance(step, Exception):
            raise step
        if step is not None:
            step(micro_batch)
        return micro_batch.id

    def skipped(self, staged: str) -> Mapping[TopicPartition, Sequence[int]]:
        """Return what the test left out."""
        assert staged
        return self.left_out

    def commit(self, staged: Sequence[str], offsets: Sequence[PartitionCommit]) -> None:
        """Do what the script says."""
        assert {*staged} <= {job.id for job in self.jobs}
        assert self.groups or len(staged) == 1
        step = self.commit_script.pop(0) if self.commit_script else None
        if isinstance(step, BaseException):
            raise step
        if step is not None:
            step()
        self.committed.append(list(staged))
        self.stored.append(list(offsets))

    def discard(self, staged: str) -> None:
        """Take note."""
        self.discarded.append(staged)

    def move(self, offsets: Sequence[PartitionCommit]) -> None:
        """Take note, and fail as the test wants."""
        if self.move_error is not None:
            raise self.move_error
        self.moved.append(list(offsets))

    def move_to(self, move: OffsetMove, note: str) -> None:
        """Take note."""
        self.moves.append((move, note))

    def cancel(self, micro_batch_id: str) -> None:
        """Take note."""
        self.cancelled.append(micro_batch_id)

    def revive(self) -> None:
        """Take note."""
        self.revived += 1
        if self.revive_error is not None:
            raise self.revive_error

    def close(self, deadline: Deadline) -> bool:
        """Say that it ended."""
        return not deadline.expired

    @property
    def stored_ranges(self) -> list[list[tuple[int, int, int]]]:
        """What was committed: (partition, start, next offset) by commit."""
        return [
            [(o.partition.partition, o.start, o.next_offset) for o in commit]
            for commit in self.stored
        ]


class Bench:
    """A processor over the double, with partitions 0 to 3 assigned."""

    def __init__(self, limits: MergeLimits | None = None, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        self.metrics = Metrics()
        self.processor = MicroBatchProcessor(self.engine, limits=limits, job_timeout=5.0)
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
    def line(self) -> CommitQueue:
        """What is between the lane and the sink."""
        runner = self.processor._runner
        assert runner is not None
        return runner._line

    def staged(
        self, partition: int, start: int = 0, size: int | None = None
    ) -> Future[BatchResponse]:
        """Hand over a batch, of so many bytes if that matters, and run the lane once."""
        batch = self.batch(partition, start)
        whole = batch if size is None else replace(batch, size=size)
        answer = self.processor.on_next_batch(whole)
        self.engine.run_once()
        return answer

    def run_once(self) -> None:
        """Run the lane once, commit what it staged, and have it see to what came back."""
        self.engine.run_once()
        self.commit()
        if self.line.has_returned:
            self.engine.run_once()

    def commit(self) -> None:
        """Commit all that is in line."""
        while self.line._waiting:
            assert self.engine.commit_turn()


def error_of(future: Future[BatchResponse]) -> BaseException | None:
    """Return the future's error; it must be done."""
    return future.exception(0)
