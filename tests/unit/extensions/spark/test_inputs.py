from __future__ import annotations

import pytest

from headrace.core.record_runs import OffsetRun, UnreadRecord
from headrace.core.records import Batch, TopicPartition
from headrace.extensions.spark.arrow_to_spark import (
    ByReference,
    _wanted_condition,
    reading,
    stretches_of,
)
from headrace.testing.records import FakeAssignment

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def run(partition: TopicPartition, start: int, first: int, end: int) -> Batch:
    """Return a batch that continues from ``start`` and has what lies from ``first`` on."""
    return Batch(FakeAssignment(partition), start, OffsetRun(first, end, 1), end, 0)


def test_batches_that_follow_each_other_are_read_in_one() -> None:
    """One stretch for each partition, in the order in which they came."""
    found = stretches_of([run(ONE, 5, 5, 9), run(OTHER, 0, 0, 3), run(ONE, 9, 9, 12)])
    assert found == {ONE: [(5, 12)], OTHER: [(0, 3)]}
    assert _wanted_condition(found) is None


def test_lost_records_before_a_batch_are_not_read() -> None:
    """A batch may continue from a position that the broker has no more."""
    assert stretches_of([run(ONE, 0, 40, 50)]) == {ONE: [(40, 50)]}


def test_records_that_an_operator_skipped_are_not_read() -> None:
    """Records in the middle are excluded by a condition, those at the ends by the range."""
    kept = [UnreadRecord(at, 1) for at in (11, 12, 15, 16, 18)]
    batch = Batch(FakeAssignment(ONE), 10, kept, 20, 0)
    found = stretches_of([batch, run(ONE, 20, 20, 25)])
    assert found == {ONE: [(11, 13), (15, 17), (18, 19), (20, 25)]}
    assert _wanted_condition(found) == " and ".join(
        f"not (topic = 't' and partition = 0 and offset >= {start} and offset < {end})"
        for start, end in [(13, 15), (17, 18), (19, 20)]
    )


@pytest.mark.parametrize(("largest", "at_once"), [(1, "500"), (500, "500"), (25_000, "25000")])
def test_an_executor_takes_a_whole_range_and_no_more(largest: int, at_once: str) -> None:
    """Records polled beyond a range would stay in memory, for each partition ever read."""
    assert reading(largest)["kafka.max.poll.records"] == at_once
    assert ByReference({}, "group", largest)._options["kafka.max.poll.records"] == at_once


def test_consumer_properties_of_the_user_take_precedence() -> None:
    """Executors use the properties of the channel's consumer."""
    source = ByReference({"max.poll.records": "7", "fetch.max.wait.ms": "200"}, "group", 25_000)
    assert source._options["kafka.max.poll.records"] == "7"
    assert source._options["kafka.fetch.max.wait.ms"] == "200"
