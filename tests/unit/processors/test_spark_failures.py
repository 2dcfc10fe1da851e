"""The Spark processor when something goes wrong: losses, conflicts, dead JVMs, stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    EngineDiedError,
    JobCancelledError,
    JobTimeoutError,
    RowsRefusedError,
    SinkConflictError,
    SinkFailedError,
    StartError,
)
from headrace.core.records import TopicPartition
from headrace.processors.pending import MergeLimits
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from headrace.sinks.micro_batch import MicroBatch

from tests.metrics import value_of
from tests.unit.processors.spark_bench import ADVANCE, Bench, error_of


def test_a_lost_partition_is_left_out_before_the_commit(bench: Bench) -> None:
    """Ownership that ends under the job discards the result; the rest is computed again."""

    def lose_partition_1(_: MicroBatch) -> None:
        bench.assignments[1].current = False

    bench.engine.script = [lose_partition_1]
    kept, lost = bench.send(0), bench.send(1)

    bench.run_once()

    assert isinstance(error_of(lost), BatchCancelledError)
    assert kept.result(0) == ADVANCE
    assert bench.sink.stored_ranges == [[(0, 0, 10)]]
    assert bench.sink.discarded == [bench.engine.jobs[0].id]


def test_a_batch_lost_before_its_turn_is_not_run(bench: Bench) -> None:
    """A batch whose claim ended while it waited costs no job."""
    lost = bench.send(0)
    bench.assignments[0].current = False

    bench.run_once()

    assert isinstance(error_of(lost), BatchCancelledError)
    assert bench.engine.jobs == []


def test_a_withdrawn_batch_cancels_its_job_and_the_rest_runs_again(bench: Bench) -> None:
    """Cancelling one future cancels the job it is part of; the others are answered all the same."""
    withdrawn, kept = bench.send(0), bench.send(1)

    def withdraw(job: MicroBatch) -> None:
        assert withdrawn.cancel()
        assert bench.engine.cancelled == [job.id]
        raise JobCancelledError("cancelled")

    bench.engine.script = [withdraw]
    bench.run_once()

    assert kept.result(0) == ADVANCE
    assert bench.sink.stored_ranges == [[(1, 0, 10)]]


def test_on_partition_lost_cancels_the_job_and_the_queue() -> None:
    """A lost partition's batches end at once, in the job and in the queue."""
    bench = Bench(MergeLimits(max_records=10))
    running, waiting = bench.send(0), bench.send(0, 10)

    def lose(job: MicroBatch) -> None:
        bench.processor.on_partition_lost(bench.assignments[0])
        assert bench.engine.cancelled == [job.id]

    bench.engine.script = [lose]
    bench.run_once()

    assert isinstance(error_of(running), BatchCancelledError)
    assert isinstance(error_of(waiting), BatchCancelledError)
    assert bench.sink.stored == []


def test_a_conflict_fails_only_its_partition(bench: Bench) -> None:
    """A sink that stands elsewhere for one partition gets the others in a new micro-batch."""
    conflict = SinkConflictError(TopicPartition("t", 1), 0, 7)
    bench.sink.script = [CommitConflictError([conflict])]
    kept, moved, behind = bench.send(0), bench.send(1), bench.send(1, 10)

    bench.run_once()

    assert kept.result(0) == ADVANCE
    assert error_of(moved) is conflict
    assert isinstance(error_of(behind), BatchCancelledError)
    assert bench.sink.stored_ranges == [[(0, 0, 10)]]
    assert bench.sink.discarded == [bench.engine.jobs[0].id]


def test_a_conflict_of_unknown_partitions_is_a_failure(bench: Bench) -> None:
    """A conflict that names none of the micro-batch's partitions does not go round for ever."""
    error = CommitConflictError([SinkConflictError(TopicPartition("other", 0), 0, 7)])
    bench.sink.script = [error]
    future = bench.send(0)

    bench.run_once()

    assert error_of(future) is error


def test_a_failed_commit_is_tried_by_batch(bench: Bench) -> None:
    """A commit that stored nothing fails the micro-batch, and is blamed on no record."""
    bench.sink.script = [OSError("disk full"), OSError("disk full")]
    first, second = bench.send(0), bench.send(1)

    bench.run_once()

    failure = error_of(first)
    assert isinstance(failure, SinkFailedError)
    assert isinstance(failure.__cause__, OSError)
    assert second.result(0) == ADVANCE


def test_refused_rows_reach_the_policy_as_they_are(bench: Bench) -> None:
    """A sink that knows rows to be at fault is believed."""
    refused = RowsRefusedError("too long")
    bench.sink.script = [refused]
    future = bench.send(0)

    bench.run_once()

    assert error_of(future) is refused


def test_a_dead_jvm_is_revived_and_the_micro_batch_replayed(bench: Bench) -> None:
    """A JVM that dies once under a merged micro-batch costs nothing but time."""
    bench.engine.script = [EngineDiedError("gone")]
    futures = [bench.send(0), bench.send(1)]

    bench.run_once()

    assert [future.result(0) for future in futures] == [ADVANCE] * 2
    assert bench.engine.revived == 1
    assert bench.sink.stored_ranges == [[(0, 0, 10), (1, 0, 10)]]


def test_a_batch_that_kills_every_jvm_fails_alone(bench: Bench) -> None:
    """After two deaths the batches run one by one, and the one that kills again has failed."""

    def die_of_partition_1(job: MicroBatch) -> None:
        if any(part.partition == 1 for part in job.ranges):
            raise EngineDiedError("out of memory")

    bench.engine.script = [die_of_partition_1] * 9
    good, bad = bench.send(0), bench.send(1)

    bench.run_once()

    assert good.result(0) == ADVANCE
    assert isinstance(error_of(bad), EngineDiedError)
    assert bench.engine.revived == 4


def test_spark_that_cannot_be_revived_fails_the_batches(bench: Bench) -> None:
    """Without Spark the futures fail, so that the channel delivers the batches again later."""
    bench.engine.script = [EngineDiedError("gone")]
    bench.engine.revive_error = StartError("no Java")
    futures = [bench.send(0), bench.send(1)]

    bench.run_once()

    assert [error_of(future) for future in futures] == [bench.engine.revive_error] * 2


def test_a_job_past_its_deadline_is_a_timeout_of_the_batch(bench: Bench) -> None:
    """The channel sees BatchTimeoutError, and a merged job is tried batch by batch first."""
    late = JobTimeoutError("late")
    bench.engine.script = [late, late]
    bad, good = bench.send(0), bench.send(1)

    bench.run_once()

    assert isinstance(error_of(bad), BatchTimeoutError)
    assert good.result(0) == ADVANCE


def test_skipped_records_are_counted_when_they_are_committed(bench: Bench) -> None:
    """Records left out count under their topic, once their micro-batch is stored."""
    bench.engine.left_out = {TopicPartition("t", 0): [3, 5, 8]}
    bench.sink.script = [OSError("disk full")]
    bench.send(0)
    bench.run_once()
    assert value_of(bench.metrics.skipped.labels("channel", "t", "undecodable")) == 0

    bench.send(0)
    bench.run_once()

    assert value_of(bench.metrics.skipped.labels("channel", "t", "undecodable")) == 3


def test_a_close_answers_open_batches(bench: Bench) -> None:
    """No future is open after the close, and a later batch is refused."""
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

    bench.engine.script = [close]
    futures = [bench.send(0), bench.send(1)]

    bench.run_once()

    assert [type(error_of(future)) for future in futures] == [BatchCancelledError] * 2
    assert len(bench.engine.jobs) == 1


def test_an_orderly_release_leaves_nothing(bench: Bench) -> None:
    """on_stream_termination answers nothing and leaves no batch of the partition behind."""
    open_batch = bench.send(0)

    assert bench.processor.on_stream_termination(bench.assignments[0]) is None

    assert isinstance(error_of(open_batch), BatchCancelledError)


def test_a_turn_without_work_does_nothing(bench: Bench) -> None:
    """A lane with nothing to do runs no job."""
    bench.run_once()

    assert bench.engine.jobs == []
