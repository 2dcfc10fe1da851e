"""A channel whose records another process reads, and which are gone by then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import OffsetOutOfRangeError
from headrace.core.record_runs import OffsetRun
from headrace.core.records import TopicPartition
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from headrace.testing.broker import InMemorySource
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.core.records import Batch
    from headrace.kafka.ports import Fetched

P0 = TopicPartition("events", 0)


class PlanningSource(InMemorySource):
    """Finds out how far partitions reach, and fetches nothing."""

    def _read(self, partition: TopicPartition, position: int, into: Fetched) -> None:
        super()._read(partition, position, into)
        for place, (found, records) in enumerate(into.chunks):
            if found == partition and not isinstance(records, OffsetRun):
                end = self._positions[partition]
                into.chunks[place] = (partition, OffsetRun(position, end, 100))


class PlannedBroker(InMemoryBroker):
    """A broker whose records are planned."""

    def source(self) -> InMemorySource:
        """Return a source of offsets."""
        return PlanningSource(self)


@pytest.fixture
def broker() -> PlannedBroker:
    """A broker with the topic ``events`` of one partition with ten records."""
    made = PlannedBroker()
    made.create_topic("events")
    made.produce(P0, *[b"%d" % number for number in range(10)])
    return made


def committed(broker: InMemoryBroker, offset: int) -> bool:
    """Wait for a commit of the group."""
    return broker.wait_committed("group", P0, offset, Deadline.after(PATIENCE))


def test_planned_records_are_batches_like_any_other(broker: PlannedBroker) -> None:
    """They are cut by the same limits, passed behind gaps, and committed when answered."""
    recorder = Recorder()
    broker.skip(P0, 2)
    channel = in_memory_channel(recorder, broker, batch={"max_records": 4, "linger": 0})
    with running(channel):
        assert committed(broker, 12)
    assert recorder.delivered()[:2] == [(0, 4, 1), (4, 8, 1)]


def test_a_batch_whose_records_are_gone_follows_the_policy(broker: PlannedBroker) -> None:
    """It is withdrawn; reading goes on where the broker begins, with no attempt counted."""
    broken: list[int] = []

    def read(batch: Batch) -> BatchResponse:
        """Fail as a job does that finds nothing at the first offset."""
        if not broken:
            broken.append(batch.first_offset)
            broker.expire(P0, 6)
            raise RuntimeError("cannot fetch offset 0")
        return BatchResponse.advance()

    recorder = Recorder(read)
    channel = in_memory_channel(recorder, broker, batch={"max_records": 4, "linger": 0})
    with running(channel):
        assert committed(broker, 10)
    assert recorder.errors() == [OffsetOutOfRangeError]
    assert recorder.delivered() == [(0, 4, 1), (6, 10, 1)]


def test_a_failure_for_another_reason_is_one(broker: PlannedBroker) -> None:
    """The same batch comes again while its records exist."""
    failures = [RuntimeError("mine")]

    def read(_: Batch) -> BatchResponse:
        if failures:
            raise failures.pop()
        return BatchResponse.advance()

    recorder = Recorder(read)
    channel = in_memory_channel(recorder, broker, batch={"max_records": 10, "linger": 0})
    with running(channel):
        assert committed(broker, 10)
    assert recorder.errors() == [RuntimeError]
    assert recorder.delivered() == [(0, 10, 1), (0, 10, 2)]
