from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.errors import BatchCancelledError
from headrace.core.record_runs import OffsetRun
from headrace.core.records import TopicPartition
from headrace.processors.contract import BatchResponse
from headrace.processors.micro_batch_processor import cut
from headrace.testing import FakeRecord
from headrace.testing.records import FakeAssignment, make_batch
from tests.unit.processors.spark_bench import ADVANCE, Bench, error_of

if TYPE_CHECKING:
    from headrace.core.records import Batch


def test_a_batch_is_cut_where_a_part_of_the_sink_stands(bench: Bench) -> None:
    """The part before that is stored, and the answer has the rest come again."""
    bench.sink.boundaries[0] = 4
    first, other = bench.send(0), bench.send(1)
    bench.run_once()
    assert bench.sink.stored_ranges == [[(0, 0, 4), (1, 0, 10)]]
    assert first.result(0) == BatchResponse.advance(offset=4)
    assert other.result(0) == ADVANCE


def test_batches_after_a_cut_batch_are_withdrawn(bench: Bench) -> None:
    """The channel sent them before the cut; a batch that begins at the boundary is accepted."""
    bench.sink.boundaries[0] = 4
    bench.send(0)
    assert isinstance(error_of(bench.send(0, 10)), BatchCancelledError)
    # its answer is not settled before that of the first, and another may be cut meanwhile
    assert isinstance(error_of(bench.send(0, 20)), BatchCancelledError)
    bench.sink.boundaries.clear()
    bench.run_once()
    rest = bench.send(0, 4, records=6)
    bench.run_once()
    assert rest.result(0) == ADVANCE
    assert bench.sink.stored_ranges == [[(0, 0, 4)], [(0, 4, 10)]]


def test_batches_after_a_cut_batch_that_failed_are_withdrawn(bench: Bench) -> None:
    """The batch comes again as the channel knows it."""
    bench.sink.boundaries[0] = 4
    bench.engine.script.append(ValueError("no"))
    first = bench.send(0)
    bench.run_once()
    assert isinstance(error_of(first), ValueError)
    assert isinstance(error_of(bench.send(0, 10)), BatchCancelledError)


def test_offsets_without_records_before_the_boundary_are_passed_over(bench: Bench) -> None:
    """There is nothing to compute, and the offsets move all the same."""
    assignment = bench.assignments[0]
    bench.sink.boundaries[0] = 5
    batch = make_batch([FakeRecord(offset_=7)], assignment=assignment, start=3)
    assert bench.processor.on_next_batch(batch).result(0) == BatchResponse.advance(offset=5)
    [[moved]] = bench.sink.moved
    assert (moved.start, moved.next_offset) == (3, 5)
    assert bench.engine.jobs == []


def _of_run() -> Batch:
    run = OffsetRun(10, 30, 100)
    made = make_batch([b"v"], assignment=FakeAssignment(TopicPartition("t", 0)))
    return type(made)(made.assignment, 10, run, 30, run.size)


def test_a_run_of_offsets_is_cut_as_one() -> None:
    """The part of a run by reference, which has no records in memory, is a run again."""
    part = cut(_of_run(), 17)
    assert isinstance(part.records, OffsetRun)
    assert (part.start, part.next_offset, part.size) == (10, 17, 700)
    assert (part.records.start, part.records.next_offset) == (10, 17)
