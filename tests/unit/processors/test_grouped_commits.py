"""The Spark processor on a sink that takes what waits in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.errors import (
    BatchCancelledError,
    FencedError,
    RowsRefusedError,
    SinkConflictError,
)
from headrace.core.records import TopicPartition
from headrace.processors.pending import MergeLimits
from headrace.processors.sink_commits import GROUPING_BYTES, GROUPING_ROOM, ROOM
from headrace.sinks.errors import CommitConflictError
from tests.unit.processors.spark_bench import ADVANCE, Bench, GroupingSink, error_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from headrace.processors.contract import BatchResponse


@pytest.fixture
def bench() -> Bench:
    """A processor whose sink takes several results at once."""
    return Bench(sink=GroupingSink())


def chain(bench: Bench) -> list[Future[BatchResponse]]:
    """Stage two micro-batches of partition 0, one of partition 1 between them."""
    return [bench.staged(0), bench.staged(1), bench.staged(0, 10)]


def test_all_that_waits_is_one_commit(bench: Bench) -> None:
    """Each partition goes from where the first begins to where the last ends; answers in order."""
    answered: list[int] = []
    answers = chain(bench)
    for number, answer in enumerate(answers):
        answer.add_done_callback(lambda _, number=number: answered.append(number))  # type: ignore[misc]

    assert bench.runner.commits.run_once()

    assert bench.sink.committed == [[job.id for job in bench.engine.jobs]]
    assert bench.sink.stored_ranges == [[(0, 0, 20), (1, 0, 10)]]
    assert answered == [0, 1, 2]
    assert [answer.result(0) for answer in answers] == [ADVANCE] * 3
    assert bench.sink.discarded == []


def test_the_stage_is_counted_once(bench: Bench) -> None:
    """The time of a commit is not counted for each micro-batch in it."""
    chain(bench)
    bench.commit()

    count = bench.metrics.registry.get_sample_value(
        "headrace_stage_seconds_count", {"channel": "channel", "stage": "sink_commit"}
    )
    assert count == 1


def test_more_results_are_staged_than_one_by_one(bench: Bench) -> None:
    """There is room for small ones while others are committed, and for no more than so many."""
    answers = [bench.staged(0, 10 * number) for number in range(GROUPING_ROOM + 1)]
    assert len(bench.engine.jobs) == GROUPING_ROOM

    bench.commit()
    bench.runner.run_once()
    bench.commit()

    assert [answer.result(0) for answer in answers] == [ADVANCE] * (GROUPING_ROOM + 1)
    assert [len(each) for each in bench.sink.committed] == [GROUPING_ROOM, 1]


def test_large_results_are_as_few_as_one_by_one(bench: Bench) -> None:
    """Results of many bytes take no more room than without grouping."""
    for number in range(ROOM + 1):
        bench.staged(0, 10 * number, size=GROUPING_BYTES // ROOM + 1)

    assert len(bench.engine.jobs) == ROOM


def test_results_that_come_during_a_commit_wait_for_the_next(bench: Bench) -> None:
    """The results of a commit under way do not change."""

    def stage_meanwhile() -> None:
        behind.append(bench.staged(0, 20))

    behind: list[Future[BatchResponse]] = []
    answers = chain(bench)
    bench.sink.script = [stage_meanwhile]
    bench.commit()

    assert [answer.result(0) for answer in [*answers, *behind]] == [ADVANCE] * 4
    assert bench.sink.stored_ranges == [[(0, 0, 20), (1, 0, 10)], [(0, 20, 30)]]


def test_results_that_fail_together_are_committed_one_by_one(bench: Bench) -> None:
    """No result is computed again or discarded, as the failure may be that of one of them."""
    bench.sink.script = [OSError("away")]
    answers = chain(bench)
    with capture_logs() as logs:
        bench.commit()

    assert [answer.result(0) for answer in answers] == [ADVANCE] * 3
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(1, 0, 10)], [(0, 10, 20)]]
    assert (len(bench.engine.jobs), bench.sink.discarded) == (3, [])
    (divided,) = [each for each in logs if each["event"] == "commit_split"]
    assert divided["error"].endswith("OSError: away")


def test_refused_rows_fail_their_own_micro_batch_only(bench: Bench) -> None:
    """A later batch of its partition comes again after it; other partitions are stored."""
    refused = RowsRefusedError("too long")
    bench.sink.script = [refused, refused]
    bad, other, behind = chain(bench)
    bench.commit()

    assert bench.sink.stored_ranges == [[(1, 0, 10)]]
    assert bench.sink.discarded == [bench.engine.jobs[0].id, bench.engine.jobs[2].id]
    bench.runner.run_once()
    assert error_of(bad) is refused
    assert other.result(0) == ADVANCE
    assert isinstance(error_of(behind), BatchCancelledError)


def test_a_conflict_fails_the_partition_that_moved(bench: Bench) -> None:
    """The others of the same transaction are stored right after."""
    conflict = CommitConflictError([SinkConflictError(TopicPartition("t", 1), 0, 7)])
    bench.sink.script = [conflict, None, conflict]
    first, moved, behind = chain(bench)
    bench.commit()
    bench.runner.run_once()

    assert error_of(moved) is conflict.conflicts[0]
    assert [first.result(0), behind.result(0)] == [ADVANCE] * 2
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(0, 10, 20)]]


def test_a_lost_partition_is_left_out_and_the_rest_is_one_commit(bench: Bench) -> None:
    """Claims of each micro-batch have to be current right before the transaction."""
    lost, kept, lost_as_well, kept_as_well = [*chain(bench), bench.staged(1, 10)]
    bench.assignments[0].current = False
    bench.commit()
    bench.runner.run_once()

    assert bench.sink.stored_ranges == [[(1, 0, 20)]]
    assert isinstance(error_of(lost), BatchCancelledError)
    assert error_of(lost_as_well) is not None
    assert [kept.result(0), kept_as_well.result(0)] == [ADVANCE] * 2


def test_results_after_a_withdrawn_batch_are_not_committed() -> None:
    """A withdrawn merged micro-batch takes with it all results that share a partition."""
    bench = Bench(MergeLimits(max_records=20), sink=GroupingSink())
    withdrawn, merged = bench.send(0), bench.send(1)
    bench.runner.run_once()
    behind, other = bench.staged(1, 10), bench.staged(2)
    withdrawn.cancel()

    bench.commit()
    assert bench.sink.stored_ranges == [[(2, 0, 10)]]
    bench.runner.run_once()

    assert [each.result(0) for each in (merged, behind, other)] == [ADVANCE] * 3
    assert bench.sink.stored_ranges[1:] == [[(1, 0, 10)], [(1, 10, 20)]]


def test_results_withdrawn_during_a_failed_group_are_not_tried_alone(bench: Bench) -> None:
    """Claims are checked again before each commit that follows."""

    def lose() -> None:
        bench.processor.on_partition_lost(bench.assignments[0])
        raise OSError("away")

    bench.sink.script = [lose]
    lost, kept, behind = chain(bench)
    bench.commit()
    bench.runner.run_once()

    assert bench.sink.stored_ranges == [[(1, 0, 10)]]
    assert kept.result(0) == ADVANCE
    assert all(isinstance(error_of(each), BatchCancelledError) for each in (lost, behind))


def test_a_fenced_member_tries_nothing_one_by_one(bench: Bench) -> None:
    """A sink that refuses this member is asked once; all of it fails, or is withdrawn."""
    fenced = FencedError("shut out")
    bench.sink.script = [fenced]
    first, other, behind = chain(bench)
    bench.commit()
    bench.runner.run_once()

    assert bench.sink.stored == []
    assert (error_of(first), error_of(other)) == (fenced, fenced)
    assert isinstance(error_of(behind), BatchCancelledError)
    assert len(bench.engine.jobs) == len(bench.sink.discarded) == 3


def test_ranges_that_do_not_follow_are_no_transaction(bench: Bench) -> None:
    """The sink itself has to say what it makes of a gap."""
    bench.staged(0)
    bench.staged(0, 50)
    bench.commit()

    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(0, 50, 60)]]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_sink_that_wants_to_exit_fails_like_others(bench: Bench, error: BaseException) -> None:
    """The thread that commits goes on."""
    bench.sink.script = [error]
    answers = chain(bench)
    bench.commit()

    assert [answer.result(0) for answer in answers] == [ADVANCE] * 3


def test_no_stored_result_is_discarded_when_an_answer_fails(bench: Bench) -> None:
    """An error after the commit returns its batches, and the rows stay."""
    bench.engine.left_out = FailsOnce(lambda: ValueError("cannot be counted"))
    answers = chain(bench)
    bench.commit()

    assert bench.sink.discarded == []
    assert [answer.done() for answer in answers] == [False, True, True]
    assert bench.line.has_returned


class FailsOnce(dict[TopicPartition, list[int]]):
    """No skipped records, once it was asked for."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self._errors = [error()]

    def items(self):  # type: ignore[no-untyped-def] # noqa: ANN201 - as a dict's
        """Raise at the first time."""
        if self._errors:
            raise self._errors.pop()
        return super().items()
