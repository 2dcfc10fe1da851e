"""The Spark processor with micro-batches between their job and their commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import (
    BatchCancelledError,
    EngineDiedError,
    FencedError,
    SinkConflictError,
    SinkFailedError,
)
from headrace.core.records import TopicPartition
from headrace.processors.pending import MergeLimits
from headrace.processors.sink_commits import ROOM
from headrace.sinks.errors import CommitConflictError
from tests.unit.processors.spark_bench import ADVANCE, Bench, error_of

if TYPE_CHECKING:
    from headrace.sinks.micro_batch import MicroBatch


def test_a_micro_batch_is_staged_while_another_waits_for_its_commit(bench: Bench) -> None:
    """The lane goes on, nothing is answered before its commit, and commits keep the order."""
    first, second = bench.staged(0), bench.staged(0, 10)
    assert len(bench.engine.jobs) == 2
    assert bench.sink.stored == []
    assert not first.done()

    assert bench.runner.commits.run_once()
    assert first.result(0) == ADVANCE
    assert not second.done()
    assert bench.runner.commits.run_once()
    assert second.result(0) == ADVANCE
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(0, 10, 20)]]


def test_only_so_many_results_are_staged(bench: Bench) -> None:
    """The lane takes no batch when the line is full, and goes on when a commit makes room."""
    answers = [bench.staged(0, 10 * number) for number in range(ROOM + 1)]
    assert len(bench.engine.jobs) == ROOM

    assert bench.runner.commits.run_once()
    bench.runner.run_once()
    bench.commit()

    assert len(bench.engine.jobs) == ROOM + 1
    assert [answer.result(0) for answer in answers] == [ADVANCE] * (ROOM + 1)


def test_results_staged_after_a_failed_commit_are_not_committed(bench: Bench) -> None:
    """A result that shares a partition is discarded; another one is stored."""
    bench.sink.script = [OSError("away")]
    first, second, other = bench.staged(0), bench.staged(0, 10), bench.staged(1)
    bench.commit()

    assert bench.sink.stored_ranges == [[(1, 0, 10)]]
    assert bench.sink.discarded == [job.id for job in bench.engine.jobs[:2]]
    assert [first.done(), second.done(), other.done()] == [False, False, True]
    bench.runner.run_once()
    assert isinstance(error_of(first), SinkFailedError)
    assert isinstance(error_of(second), BatchCancelledError)


def test_merged_batches_behind_a_failed_commit_follow_it(bench: Bench) -> None:
    """The failed micro-batch is brought to its answers first, batch by batch, then the next one."""
    bench.sink.script = [OSError("away")]
    merged = [bench.send(0), bench.send(1)]
    bench.runner.run_once()
    behind = bench.staged(0, 10)
    bench.commit()
    bench.runner.run_once()

    assert [answer.result(0) for answer in [*merged, behind]] == [ADVANCE] * 3
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(1, 0, 10)], [(0, 10, 20)]]


def test_a_batch_fails_only_when_nothing_of_its_partition_is_staged(bench: Bench) -> None:
    """The channel may move the sink's offset at once after a failure, as no commit is pending."""
    staged: list[bool] = []
    bench.sink.script = [OSError("away")] * 2
    failing = bench.staged(0)
    failing.add_done_callback(
        lambda _: staged.append(bench.processor.may_still_store(bench.assignments[0]))
    )
    behind = bench.staged(0, 10)
    assert bench.processor.may_still_store(bench.assignments[0])

    bench.commit()
    bench.runner.run_once()

    assert staged == [False]
    assert isinstance(error_of(behind), BatchCancelledError)
    assert bench.sink.stored == []


def test_a_failed_job_does_not_overtake_what_waits_for_its_commit(bench: Bench) -> None:
    """The job's batches fail once the line is empty, and those before them are stored by then."""
    first = bench.staged(0)
    bench.engine.script = [ValueError("bad")]
    failed, behind = bench.staged(0, 10), bench.send(0, 20)

    bench.runner.run_once()
    assert not failed.done()
    bench.commit()
    bench.runner.run_once()

    assert first.result(0) == ADVANCE
    assert len(bench.engine.jobs) == 2
    assert str(error_of(failed)) == "bad"
    assert isinstance(error_of(behind), BatchCancelledError)
    assert bench.sink.stored_ranges == [[(0, 0, 10)]]


def test_a_partition_lost_between_job_and_commit_is_left_out(bench: Bench) -> None:
    """Claims have to be current right before the commit; the other batches are computed again."""
    lost, kept = bench.send(0), bench.send(1)
    bench.runner.run_once()
    bench.assignments[0].current = False

    bench.commit()
    assert bench.sink.stored == []
    bench.runner.run_once()

    assert isinstance(error_of(lost), BatchCancelledError)
    assert kept.result(0) == ADVANCE
    assert bench.sink.stored_ranges == [[(1, 0, 10)]]


def test_a_withdrawn_partition_is_withdrawn_from_all_that_is_staged() -> None:
    """No staged result of a lost partition is stored."""
    bench = Bench(MergeLimits(max_records=20))
    answers = [bench.send(number % 2, 10 * (number // 2)) for number in range(4)]
    for _ in range(2):
        bench.runner.run_once()

    bench.processor.on_partition_lost(bench.assignments[0])
    bench.commit()
    bench.runner.run_once()

    assert isinstance(error_of(answers[0]), BatchCancelledError)
    assert isinstance(error_of(answers[2]), BatchCancelledError)
    assert bench.sink.stored_ranges == [[(1, 0, 10)], [(1, 10, 20)]]


def test_a_conflict_withdraws_results_staged_after_it(bench: Bench) -> None:
    """The partition in conflict is withdrawn; the other continues in order."""
    conflict = SinkConflictError(TopicPartition("t", 1), 0, 7)
    bench.sink.script = [CommitConflictError([conflict])]
    kept, moved = bench.send(0), bench.send(1)
    bench.runner.run_once()
    kept_behind, moved_behind = bench.send(0, 10), bench.send(1, 10)
    bench.runner.run_once()

    bench.commit()
    bench.runner.run_once()

    assert error_of(moved) is conflict
    assert isinstance(error_of(moved_behind), BatchCancelledError)
    assert [kept.result(0), kept_behind.result(0)] == [ADVANCE] * 2
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(0, 10, 20)]]


def test_a_fenced_member_runs_nothing_again(bench: Bench) -> None:
    """A sink that refuses this member fails the batches; those behind them are withdrawn."""
    fenced = FencedError("shut out")
    bench.sink.script = [fenced]
    answers = [bench.send(0), bench.send(1)]
    bench.runner.run_once()
    behind = bench.staged(1, 10)

    bench.commit()
    bench.runner.run_once()

    assert [error_of(answer) for answer in answers] == [fenced] * 2
    assert isinstance(error_of(behind), BatchCancelledError)
    assert len(bench.engine.jobs) == 2


def test_a_jvm_that_dies_leaves_staged_results_alone(bench: Bench) -> None:
    """A result that was staged before is committed, and the job that had no result runs again."""
    first = bench.staged(0)
    bench.engine.script = [EngineDiedError("gone")]
    second = bench.staged(0, 10)

    bench.commit()
    bench.runner.run_once()

    assert [first.result(0), second.result(0)] == [ADVANCE] * 2
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(0, 10, 20)]]
    assert bench.engine.revived == 1


def test_a_commit_may_fail_while_the_next_job_runs(bench: Bench) -> None:
    """The result of that job is discarded at its end, and computed again in order."""

    def commit_meanwhile(_: MicroBatch) -> None:
        assert bench.runner.commits.run_once()

    merged = [bench.send(0), bench.send(1)]
    bench.runner.run_once()
    bench.sink.script = [OSError("away")]
    bench.engine.script = [commit_meanwhile]
    behind = bench.staged(0, 10)
    bench.commit()
    bench.runner.run_once()

    assert bench.sink.discarded == [job.id for job in bench.engine.jobs[:2]]
    assert [answer.result(0) for answer in [*merged, behind]] == [ADVANCE] * 3
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(1, 0, 10)], [(0, 10, 20)]]


def test_a_sink_that_wants_to_exit_is_a_failure_like_others(bench: Bench) -> None:
    """The thread that commits goes on; the batch has failed."""
    bench.sink.script = [SystemExit(3)]
    answer, other = bench.staged(0), bench.staged(1)
    bench.commit()
    bench.runner.run_once()

    assert isinstance(error_of(answer), SystemExit)
    assert other.result(0) == ADVANCE
