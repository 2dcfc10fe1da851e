from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from headrace.clock import Deadline
from headrace.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    OwnershipLostError,
    SinkConflictError,
    StartError,
)
from headrace.metrics import Metrics
from headrace.processors.contract import ChannelContext
from headrace.processors.pending import MergeLimits
from headrace.processors.responses import BatchResponse
from headrace.processors.spark import SparkProcessor
from headrace.records import TopicPartition
from headrace.spark.failures import JobCancelledError, JobTimeoutError, JvmDiedError
from headrace.spark.sinks.contract import CommitConflictError, PartitionCommit
from headrace.testing.records import FakeAssignment, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.records import Batch
    from headrace.spark.micro_batch import MicroBatch

ADVANCE = BatchResponse.advance()


@dataclass
class Engine:
    """A double that runs no Spark.

    The scripts have what the next calls of ``stage`` and ``commit`` do: call with the job, or raise
    an error; when they are empty the calls succeed.
    """

    stage_script: list[Exception | Callable[[MicroBatch], None] | None] = field(
        default_factory=list
    )
    commit_script: list[Exception | None] = field(default_factory=list)
    jobs: list[MicroBatch] = field(default_factory=list)
    stored: list[list[PartitionCommit]] = field(default_factory=list)
    moved: list[list[PartitionCommit]] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    left_out: dict[TopicPartition, list[int]] = field(default_factory=dict)
    revived: int = 0
    revive_error: Exception | None = None
    turn: Callable[[], None] = field(init=False)

    def open(self, channel: str, turn: Callable[[], None]) -> None:
        """Leave the turns to the test."""
        assert channel == "channel"
        self.turn = turn

    def stored_offset(self, identity: str) -> int | None:
        """Return a number made of the identity."""
        return len(identity)

    def prepare(self, batch: Batch) -> Any:
        """Return the batch's start as its table."""
        return batch.start

    def stage(self, micro_batch: MicroBatch, tables: Sequence[Any], seconds: float | None) -> str:
        """Do what the script says."""
        assert seconds == 5.0
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

    def commit(self, staged: str, offsets: Sequence[PartitionCommit]) -> None:
        """Do what the script says."""
        assert staged == self.jobs[-1].id
        step = self.commit_script.pop(0) if self.commit_script else None
        if step is not None:
            raise step
        self.stored.append(list(offsets))

    def discard(self, staged: str) -> None:
        """Take note."""
        self.discarded.append(staged)

    def move(self, offsets: Sequence[PartitionCommit]) -> None:
        """Take note."""
        self.moved.append(list(offsets))

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

    def __init__(self, limits: MergeLimits | None = None) -> None:
        self.engine = Engine()
        self.metrics = Metrics()
        self.processor = SparkProcessor(self.engine, limits=limits, job_timeout=5.0)
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

    def turn(self) -> None:
        """Run the lane once."""
        self.engine.turn()


@pytest.fixture
def bench() -> Bench:
    """A processor with the usual limits."""
    return Bench()


def error_of(future: Future[BatchResponse]) -> BaseException | None:
    """Return the future's error; it must be done."""
    return future.exception(0)


def test_batches_of_several_partitions_become_one_commit(bench: Bench) -> None:
    """What waits is merged: one job, one commit, every future answered with advance."""
    futures = [bench.send(0), bench.send(1), bench.send(0, 10), bench.send(2, 40)]

    bench.turn()

    assert [future.result(0) for future in futures] == [ADVANCE] * 4
    assert bench.engine.stored_ranges == [[(0, 0, 20), (1, 0, 10), (2, 40, 50)]]
    assert [job.records for job in bench.engine.jobs] == [40]
    assert bench.engine.discarded == []


def test_the_sinks_identity_goes_with_each_offset(bench: Bench) -> None:
    """A commit names partitions by the assignment's identity, as stored_offset does."""
    bench.send(3)

    bench.turn()

    identity = bench.assignments[3].identity
    assert bench.engine.stored[0][0] == PartitionCommit(identity, TopicPartition("t", 3), 0, 10)
    assert bench.processor.stored_offset(bench.assignments[3]) == len(identity)


@pytest.mark.parametrize(
    "limits", [MergeLimits(max_records=25), MergeLimits(max_bytes=25), MergeLimits(max_records=1)]
)
def test_a_micro_batch_keeps_its_limits(limits: MergeLimits) -> None:
    """Records and bytes bound a micro-batch, and a single batch runs whatever its size."""
    bench = Bench(limits)
    futures = [bench.send(0), bench.send(1), bench.send(2)]

    for _ in range(3):
        bench.turn()

    sizes = [job.records for job in bench.engine.jobs]
    assert sizes == ([10, 10, 10] if limits.max_records == 1 else [20, 10])
    assert all(future.result(0) == ADVANCE for future in futures)


def test_a_batch_that_failed_before_runs_alone(bench: Bench) -> None:
    """A second attempt takes no other batch with it, and those around it still merge."""
    bench.send(0)
    bench.send(1)
    bench.send(2, attempt=2)
    bench.send(3)

    for _ in range(3):
        bench.turn()

    assert [len(job.ranges) for job in bench.engine.jobs] == [2, 1, 1]
    assert [job.attempt for job in bench.engine.jobs] == [1, 2, 1]


def test_only_the_batch_that_fails_alone_fails(bench: Bench) -> None:
    """A merged micro-batch that fails is run batch by batch; the innocent are committed."""

    def refuse_partition_1(job: MicroBatch) -> None:
        if any(part.partition == 1 for part in job.ranges):
            raise ValueError("poison")

    bench.engine.stage_script = [refuse_partition_1] * 4
    good, bad, other = bench.send(0), bench.send(1), bench.send(2)

    bench.turn()

    assert isinstance(error_of(bad), ValueError)
    assert (good.result(0), other.result(0)) == (ADVANCE, ADVANCE)
    assert bench.engine.stored_ranges == [[(0, 0, 10)], [(2, 0, 10)]]


def test_nothing_of_a_failed_partition_is_committed_behind_its_failure(bench: Bench) -> None:
    """Later batches are withdrawn: in the same micro-batch, waiting, and still on their way."""
    poison = ValueError("poison")
    bench.engine.stage_script = [poison, poison]
    first, second = bench.send(0, 0), bench.send(0, 10)
    bench.turn()
    third = bench.send(0, 10)

    assert error_of(first) is poison
    assert isinstance(error_of(second), BatchCancelledError)
    assert isinstance(error_of(third), BatchCancelledError)
    assert bench.engine.stored == []


def test_a_waiting_batch_is_withdrawn_when_the_one_before_it_fails() -> None:
    """A batch that waits for the next job does not outlive the failure of its predecessor."""
    bench = Bench(MergeLimits(max_records=10))
    bench.engine.stage_script = [ValueError("poison")]
    bench.send(0, 0)
    waiting, other = bench.send(0, 10), bench.send(1, 0)

    bench.turn()
    bench.turn()

    assert isinstance(error_of(waiting), BatchCancelledError)
    assert other.result(0) == ADVANCE


def test_a_redelivery_ends_the_withdrawal(bench: Bench) -> None:
    """The same start again is accepted, and so is what follows it."""
    bench.engine.stage_script = [ValueError("poison")]
    bench.send(0, 0)
    bench.turn()

    again, behind = bench.send(0, 0), bench.send(0, 10)
    bench.turn()

    assert (again.result(0), behind.result(0)) == (ADVANCE, ADVANCE)


def test_a_decision_of_the_channel_ends_the_withdrawal(bench: Bench) -> None:
    """After on_exception the batch behind the failed one is accepted: the policy skipped it."""
    poison = ValueError("poison")
    bench.engine.stage_script = [poison]
    failed = bench.batch(0, 0)
    bench.processor.on_next_batch(failed)
    bench.turn()

    assert bench.processor.on_exception(bench.assignments[0], poison, failed) is None
    bench.processor.pass_over(failed)
    behind = bench.send(0, 10)
    bench.turn()

    assert behind.result(0) == ADVANCE
    assert [(o.start, o.next_offset) for o in bench.engine.moved[0]] == [(0, 10)]


def test_a_lost_partition_is_left_out_before_the_commit(bench: Bench) -> None:
    """Ownership that ends under the job discards the result; the rest is computed again."""

    def lose_partition_1(_: MicroBatch) -> None:
        bench.assignments[1].current = False

    bench.engine.stage_script = [lose_partition_1]
    kept, lost = bench.send(0), bench.send(1)

    bench.turn()

    assert isinstance(error_of(lost), OwnershipLostError)
    assert kept.result(0) == ADVANCE
    assert bench.engine.stored_ranges == [[(0, 0, 10)]]
    assert bench.engine.discarded == [bench.engine.jobs[0].id]


def test_a_batch_lost_before_its_turn_is_not_run(bench: Bench) -> None:
    """A batch whose claim ended while it waited costs no job."""
    lost = bench.send(0)
    bench.assignments[0].current = False

    bench.turn()

    assert isinstance(error_of(lost), OwnershipLostError)
    assert bench.engine.jobs == []


def test_a_withdrawn_batch_cancels_its_job_and_the_rest_runs_again(bench: Bench) -> None:
    """Cancelling one future cancels the job it is part of; the others are answered all the same."""
    withdrawn, kept = bench.send(0), bench.send(1)

    def withdraw(job: MicroBatch) -> None:
        assert withdrawn.cancel()
        assert bench.engine.cancelled == [job.id]
        raise JobCancelledError("cancelled")

    bench.engine.stage_script = [withdraw]
    bench.turn()

    assert kept.result(0) == ADVANCE
    assert bench.engine.stored_ranges == [[(1, 0, 10)]]


def test_on_partition_lost_cancels_the_job_and_drops_what_waits() -> None:
    """A lost partition's batches end at once, in the job and in the queue."""
    bench = Bench(MergeLimits(max_records=10))
    running, waiting = bench.send(0), bench.send(0, 10)

    def lose(job: MicroBatch) -> None:
        bench.processor.on_partition_lost(bench.assignments[0])
        assert bench.engine.cancelled == [job.id]

    bench.engine.stage_script = [lose]
    bench.turn()

    assert isinstance(error_of(running), BatchCancelledError)
    assert isinstance(error_of(waiting), BatchCancelledError)
    assert bench.engine.stored == []


def test_a_conflict_fails_only_its_partition(bench: Bench) -> None:
    """A sink that stands elsewhere for one partition gets the others in a new micro-batch."""
    conflict = SinkConflictError(TopicPartition("t", 1), 0, 7)
    bench.engine.commit_script = [CommitConflictError([conflict])]
    kept, moved, behind = bench.send(0), bench.send(1), bench.send(1, 10)

    bench.turn()

    assert kept.result(0) == ADVANCE
    assert error_of(moved) is conflict
    assert isinstance(error_of(behind), BatchCancelledError)
    assert bench.engine.stored_ranges == [[(0, 0, 10)]]
    assert bench.engine.discarded == [bench.engine.jobs[0].id]


def test_a_conflict_of_unknown_partitions_is_a_failure(bench: Bench) -> None:
    """A conflict that names none of the micro-batch's partitions does not go round for ever."""
    error = CommitConflictError([SinkConflictError(TopicPartition("other", 0), 0, 7)])
    bench.engine.commit_script = [error]
    future = bench.send(0)

    bench.turn()

    assert error_of(future) is error


def test_a_failed_commit_is_tried_by_batch(bench: Bench) -> None:
    """A commit that stored nothing is a failure of the micro-batch like any other."""
    bench.engine.commit_script = [OSError("disk full"), OSError("disk full")]
    first, second = bench.send(0), bench.send(1)

    bench.turn()

    assert isinstance(error_of(first), OSError)
    assert second.result(0) == ADVANCE


def test_a_dead_jvm_is_revived_and_the_micro_batch_replayed(bench: Bench) -> None:
    """A JVM that dies once under a merged micro-batch costs nothing but time."""
    bench.engine.stage_script = [JvmDiedError("gone")]
    futures = [bench.send(0), bench.send(1)]

    bench.turn()

    assert [future.result(0) for future in futures] == [ADVANCE] * 2
    assert bench.engine.revived == 1
    assert bench.engine.stored_ranges == [[(0, 0, 10), (1, 0, 10)]]


def test_a_batch_that_kills_every_jvm_fails_alone(bench: Bench) -> None:
    """After two deaths the batches run one by one, and the one that kills again has failed."""

    def die_of_partition_1(job: MicroBatch) -> None:
        if any(part.partition == 1 for part in job.ranges):
            raise JvmDiedError("out of memory")

    bench.engine.stage_script = [die_of_partition_1] * 9
    good, bad = bench.send(0), bench.send(1)

    bench.turn()

    assert good.result(0) == ADVANCE
    assert isinstance(error_of(bad), JvmDiedError)
    assert bench.engine.revived == 4


def test_spark_that_cannot_be_revived_fails_the_batches(bench: Bench) -> None:
    """Without Spark the futures fail, so that the channel delivers the batches again later."""
    bench.engine.stage_script = [JvmDiedError("gone")]
    bench.engine.revive_error = StartError("no Java")
    futures = [bench.send(0), bench.send(1)]

    bench.turn()

    assert [error_of(future) for future in futures] == [bench.engine.revive_error] * 2


def test_a_job_past_its_deadline_is_a_timeout_of_the_batch(bench: Bench) -> None:
    """The channel sees BatchTimeoutError, and a merged job is tried batch by batch first."""
    late = JobTimeoutError("late")
    bench.engine.stage_script = [late, late]
    bad, good = bench.send(0), bench.send(1)

    bench.turn()

    assert isinstance(error_of(bad), BatchTimeoutError)
    assert good.result(0) == ADVANCE


def test_skipped_records_are_counted_when_they_are_committed(bench: Bench) -> None:
    """Records left out count under their topic, once their micro-batch is stored."""
    bench.engine.left_out = {TopicPartition("t", 0): [3, 5, 8]}
    bench.engine.commit_script = [OSError("disk full")]
    bench.send(0)
    bench.turn()
    assert bench.metrics.skipped.labels("channel", "t", "undecodable")._value.get() == 0

    bench.send(0)
    bench.turn()

    assert bench.metrics.skipped.labels("channel", "t", "undecodable")._value.get() == 3


def test_close_answers_what_is_open(bench: Bench) -> None:
    """After close no future is left open, and a batch that comes late is refused."""
    waiting = bench.send(0)

    bench.processor.close(Deadline.after(1))
    late = bench.send(1)

    assert isinstance(error_of(waiting), BatchCancelledError)
    assert isinstance(error_of(late), BatchCancelledError)


def test_a_job_cancelled_by_close_is_not_run_again(bench: Bench) -> None:
    """When the channel stops under a job, its batches are withdrawn, not retried."""

    def close(_: MicroBatch) -> None:
        bench.processor.close(Deadline.after(1))
        raise JobCancelledError("lane stops")

    bench.engine.stage_script = [close]
    futures = [bench.send(0), bench.send(1)]

    bench.turn()

    assert [type(error_of(future)) for future in futures] == [BatchCancelledError] * 2
    assert len(bench.engine.jobs) == 1


def test_an_orderly_release_leaves_nothing(bench: Bench) -> None:
    """on_stream_termination answers nothing and leaves no batch of the partition behind."""
    open_batch = bench.send(0)

    assert bench.processor.on_stream_termination(bench.assignments[0]) is None

    assert isinstance(error_of(open_batch), BatchCancelledError)


def test_a_turn_without_work_does_nothing(bench: Bench) -> None:
    """A lane with nothing to do runs no job."""
    bench.turn()

    assert bench.engine.jobs == []
