from __future__ import annotations

from headrace.records import Batch, TopicPartition
from headrace.references import OffsetRun, UnreadRecord
from headrace.spark.inputs import _wanted, stretches_of
from headrace.testing.records import FakeAssignment

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def run(partition: TopicPartition, start: int, first: int, end: int) -> Batch:
    """Return a batch that continues from ``start`` and has what lies from ``first`` on."""
    return Batch(FakeAssignment(partition), start, OffsetRun(first, end, 1), end, 0)


def test_batches_that_follow_each_other_are_read_in_one() -> None:
    """One stretch for each partition, in the order in which they came."""
    found = stretches_of([run(ONE, 5, 5, 9), run(OTHER, 0, 0, 3), run(ONE, 9, 9, 12)])
    assert found == {ONE: [(5, 12)], OTHER: [(0, 3)]}
    assert _wanted(found) is None


def test_what_was_lost_before_a_batch_is_not_read() -> None:
    """A batch may continue from a position that the broker has no more."""
    assert stretches_of([run(ONE, 0, 40, 50)]) == {ONE: [(40, 50)]}


def test_what_an_operator_left_out_is_kept_out() -> None:
    """In the middle by a condition, at the ends by not being read at all."""
    kept = [UnreadRecord(at, 1) for at in (11, 12, 15, 16, 18)]
    batch = Batch(FakeAssignment(ONE), 10, kept, 20, 0)
    found = stretches_of([batch, run(ONE, 20, 20, 25)])
    assert found == {ONE: [(11, 13), (15, 17), (18, 19), (20, 25)]}
    assert _wanted(found) == " and ".join(
        f"not (topic = 't' and partition = 0 and offset >= {start} and offset < {end})"
        for start, end in [(13, 15), (17, 18), (19, 20)]
    )
