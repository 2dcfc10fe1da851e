from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import BatchCancelledError
from headrace.core.records import TopicPartition
from headrace.core.tables import table_of
from headrace.processors.contract import BatchResponse
from headrace.processors.pending import MergeLimits, OpenBatches, PendingBatch
from headrace.processors.task_merge import MergeRules, TaskMerge
from headrace.testing.channel import FakeClock
from headrace.testing.records import FakeAssignment, FakeRecord, make_batch

if TYPE_CHECKING:
    from headrace.processors.pending import PendingWork

MAX_IDLE, HOLD = 5.0, 2.0


@dataclass
class Merge:
    """A merge of one task of the topics a and b, whose thread is the test."""

    clock: FakeClock = field(default_factory=FakeClock)
    enforced: int = 0
    free: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.open = OpenBatches(MergeLimits())
        topics = ("a", "b", *sorted(self.free))
        self.held = {
            topic: FakeAssignment(TopicPartition(topic, 0), high_watermark=100) for topic in topics
        }
        self.merge = TaskMerge(
            "tasks",
            MergeRules(topics, MAX_IDLE, free=self.free),
            self.open,
            self.clock,
            on_done=lambda _: None,
            on_enforced=self._count,
            hold=lambda: HOLD,
            fail=lambda error: pytest.fail(str(error)),
        )
        for held in self.held.values():
            self.merge.add(held)

    def _count(self) -> None:
        self.enforced += 1

    def put(self, topic: str, *times: int) -> PendingBatch:
        """Deliver records of these times."""
        held = self.held[topic]
        records = [FakeRecord(timestamp_=time) for time in times]
        batch = make_batch(records, assignment=held, start=held.position)
        held.position = batch.next_offset
        pending = PendingBatch(batch, table_of(batch))
        self.merge.put(pending)
        return pending

    def taken(self) -> list[PendingWork]:
        """Return the work that is in order by now."""
        return self.open.take(0.0)


def places(work: PendingWork) -> list[tuple[str, int]]:
    """Return topic and offset of each record, in order."""
    columns: list[list[Any]] = [work.prepared.column(name).to_pylist() for name in _PLACE]
    return list(zip(*columns, strict=True))


_PLACE = ("topic", "offset")


@pytest.fixture
def merge() -> Merge:
    """Return a merge that has nothing yet."""
    return Merge()


def test_a_topic_that_has_more_holds_its_task_up_however_long(merge: Merge) -> None:
    """The other is not taken while the end is not reached, or not known."""
    merge.put("a", 1, 2)
    for end in (100, None):
        merge.held["b"].high_watermark = end
        merge.clock.advance(10 * MAX_IDLE)
        assert merge.taken() == []
    assert merge.enforced == 0


def test_a_topic_at_its_end_is_waited_for_so_long(merge: Merge) -> None:
    """The task goes on without it once it was there for max_idle, and that is counted."""
    merge.held["b"].high_watermark = 0
    merge.put("a", 1, 2)
    assert merge.taken() == []
    merge.clock.advance(MAX_IDLE)
    merge.put("a", 3)
    (work,) = merge.taken()
    assert places(work) == [("a", 0), ("a", 1), ("a", 2)]
    assert [(b.partition.topic, b.start, b.next_offset) for b in work.batches][-1] == ("b", 0, 0)
    assert merge.enforced == 1


def test_records_above_the_lowest_last_time_wait(merge: Merge) -> None:
    """Records above the lowest last time stay, and of equal times those of later topics."""
    merge.put("b", 1, 5, 5, 9)
    merge.put("a", 3, 5)
    (work,) = merge.taken()
    assert places(work) == [("b", 0), ("a", 0), ("a", 1)]


def test_a_free_topic_waits_for_none_and_none_waits_for_it() -> None:
    """The records are taken as they come, and those of others without them; none is enforced."""
    merge = Merge(free=frozenset("c"))
    merge.put("c", 7, 3)
    merge.put("a", 1, 5)
    first, *none = merge.taken()
    assert (places(first), none) == ([("c", 0), ("c", 1)], [])
    merge.put("b", 4, 9)
    (work,) = merge.taken()
    assert places(work) == [("a", 0), ("b", 0), ("a", 1)]
    assert merge.enforced == 0


def test_a_record_of_a_free_topic_that_failed_is_taken_alone() -> None:
    """The records before it are a piece of their own, and those after it another."""
    merge = Merge(free=frozenset("c"))
    held = merge.held["c"]
    merge.held["a"].current = False  # so that all of them wait
    for attempt in (1, 2, 1):
        batch = make_batch([FakeRecord()], assignment=held, start=held.position, attempt=attempt)
        held.position = batch.next_offset
        merge.merge.put(PendingBatch(batch, table_of(batch)))
    merge.held["a"].current = True
    merge.merge.look()
    found = []
    while taken := merge.taken():
        found += [places(each) for each in taken]
        taken[-1].advance(0.0)
    assert found == [[("c", 0)], [("c", 1)], [("c", 2)]]


def test_a_batch_is_answered_once_all_of_it_is_stored(merge: Merge) -> None:
    """The first of two pieces of work answers the batch that it has whole, and no other."""
    first, second = merge.put("a", 1, 5), merge.put("b", 2)
    (work,) = merge.taken()
    work.advance(0.0)
    assert second.future.result(0) == BatchResponse.advance()
    assert not first.future.done()
    merge.put("b", 6)
    (rest,) = merge.taken()
    assert places(rest) == [("a", 1)]
    rest.advance(0.0)
    assert first.future.result(0) == BatchResponse.advance()


def test_a_batch_stored_in_part_is_answered_by_its_offset(merge: Merge) -> None:
    """The rest of its task is withdrawn: what failed after it is no failure of the stored part."""
    first, second = merge.put("a", 1, 5), merge.put("b", 2)
    (work,) = merge.taken()
    work.advance(0.0)
    third = merge.put("b", 6)
    (rest,) = merge.taken()
    rest.fail(ValueError("bad"))
    assert second.future.result(0) == BatchResponse.advance()
    assert first.future.result(0) == BatchResponse.advance(offset=1)
    assert isinstance(third.future.exception(0), BatchCancelledError)


def test_records_that_wait_too_long_go_back(merge: Merge) -> None:
    """A pause or a release of their partition does not wait for the other topic."""
    first, second = merge.put("a", 1), merge.put("a", 2)
    merge.clock.advance(HOLD)
    merge.merge.look()
    assert isinstance(first.future.exception(0), BatchCancelledError)
    assert isinstance(second.future.exception(0), BatchCancelledError)
    merge.held["a"].position = 0
    merge.put("a", 1, 2)
    merge.put("b", 7)
    (work,) = merge.taken()
    assert places(work) == [("a", 0), ("a", 1)]
