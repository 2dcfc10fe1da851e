from __future__ import annotations

import pytest

from headrace.core.records import TopicPartition
from headrace.sinks.micro_batch import MicroBatch, OffsetRange, ranges_of
from headrace.testing.records import FakeAssignment, make_batch


def test_batches_of_one_partition_become_one_range() -> None:
    """Consecutive batches of a partition join; partitions stand in order of arrival."""
    one, two = (FakeAssignment(TopicPartition("t", number)) for number in (1, 2))
    batches = [
        make_batch([b""] * 3, assignment=two, start=10, next_offset=15),
        make_batch([b""] * 2, assignment=one, start=0),
        make_batch([b""] * 4, assignment=two, start=15),
    ]

    ranges = ranges_of(batches)

    assert ranges == (
        OffsetRange("t", 2, 10, 19, 7, two.identity),
        OffsetRange("t", 1, 0, 2, 2, one.identity),
    )
    assert MicroBatch("id", "channel", ranges).records == 9


def test_batches_that_do_not_follow_one_another_are_refused() -> None:
    """A hole between two batches of a partition is an error, because it would be committed over."""
    batches = [make_batch([b""]), make_batch([b""], start=2)]

    with pytest.raises(ValueError, match="events-0: 2 does not follow 1"):
        ranges_of(batches)
