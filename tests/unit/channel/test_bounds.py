"""Bounded runs: where each partition's deliveries end, and when a channel is done."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.channel.bounds import Bounds, Until
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import ChannelFailedError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.ports import Commit, StoredOffset
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import (
    FakeRecord,
    InMemoryBroker,
    InMemoryZooKeeper,
    in_memory_channel,
    running,
)
from headrace.testing.records import TIMESTAMP
from tests.unit.channel.in_memory import P0, P1, committed, fail, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch

LATEST = Until()


def done(channel: InboundKafkaChannel) -> bool:
    """Ask until the channel says that its run is over."""
    deadline = Deadline.after(PATIENCE)
    return wait_for(lambda: channel.reached_bounds(deadline), deadline) is True


def knows_owners(metrics: Metrics, member: str) -> bool:
    """Return whether one of two members has seen that each partition has an owner."""
    pending = {"channel": member, "condition": "pending"}
    members = metrics.registry.get_sample_value("headrace_group_members", {"channel": member})
    return (
        members == 2
        and metrics.registry.get_sample_value("headrace_group_partitions", pending) == 0
    )


def at(*seconds: int) -> list[FakeRecord]:
    """Return records so many seconds after the first moment."""
    return [FakeRecord(value_=b"%d" % s, timestamp_=TIMESTAMP + 1000 * s) for s in seconds]


def test_a_run_until_latest_ends_where_the_log_ended_at_its_start(broker: InMemoryBroker) -> None:
    """The last batch is cut at the bound, what came later stays, and the bound is committed."""
    broker.produce(P0, *values(15))
    recorder = Recorder()

    def answer(batch: Batch) -> BatchResponse:
        if batch.start == 0:
            broker.produce(P0, *values(20))
            broker.produce(P1, *values(20))
        return BatchResponse.advance()

    recorder.answer = answer
    channel = in_memory_channel(recorder, broker, until=LATEST)
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == [(0, 10, 1), (10, 15, 1)]
    assert recorder.delivered(1) == []
    assert broker.committed("group", P0) == StoredOffset(15, 1)
    assert broker.committed("group", P1) == StoredOffset(0, 1)


def test_the_last_batch_does_not_linger(broker: InMemoryBroker) -> None:
    """The last batch is delivered at once, because no record can join it any more."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, until=LATEST, batch={"linger": "1h"})
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == [(0, 5, 1)]


@pytest.mark.parametrize(("records", "delivered"), [(5, [(0, 9, 1)]), (0, [])])
def test_a_gap_before_the_bound_is_part_of_the_run(
    broker: InMemoryBroker, records: int, delivered: list[tuple[int, ...]]
) -> None:
    """Markers and compacted offsets at the end are committed, with or without a batch."""
    broker.produce(P0, *values(records))
    broker.skip(P0, 4)
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, until=LATEST, batch={"linger": "1h"})
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == delivered
    assert broker.committed("group", P0) == StoredOffset(records + 4, 1)


def test_a_gap_that_later_records_follow_ends_at_the_bound(broker: InMemoryBroker) -> None:
    """The first record behind the bound proves that nothing before it is missing."""
    broker.skip(P0, 4)
    broker.produce(P0, *at(10, 20))
    recorder = Recorder()
    until = Until(TIMESTAMP + 1000 * 5)
    channel = in_memory_channel(recorder, broker, until=until)
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == []
    assert broker.committed("group", P0) == StoredOffset(4, 1)


def test_a_run_until_a_moment_ends_before_the_first_record_not_older(
    broker: InMemoryBroker,
) -> None:
    """A partition whose records are all older is read to its end at the start."""
    broker.produce(P0, *at(1, 2, 3, 4))
    broker.produce(P1, *at(1, 2))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, until=Until(TIMESTAMP + 3000))
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == [(0, 2, 1)]
    assert recorder.delivered(1) == [(0, 2, 1)]


def test_a_partition_at_or_past_its_bound_is_left_alone(broker: InMemoryBroker) -> None:
    """A group at or past the bound gets no record, and its offset does not move back."""
    broker.produce(P0, *at(1, 2, 3, 4))
    broker.store("group").commit({P0: Commit(3, 0)}, Deadline.after(PATIENCE))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, until=Until(TIMESTAMP + 2000))
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == []
    assert broker.committed("group", P0) == StoredOffset(3, 1)


def test_a_sink_that_is_behind_the_group_is_caught_up(broker: InMemoryBroker) -> None:
    """The group's commit alone ends nothing: a start goes by the sink."""
    for partition in (P0, P1):
        broker.produce(partition, *values(5))
        broker.store("group").commit({partition: Commit(5, 0)}, Deadline.after(PATIENCE))
    recorder = Recorder()
    recorder.stored = {0: 2}
    channel = in_memory_channel(recorder, broker, until=LATEST)
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == [(2, 5, 1)]
    assert recorder.delivered(1) == []


def test_a_failed_batch_at_the_bound_is_delivered_again(broker: InMemoryBroker) -> None:
    """The run is not over before the last batch succeeded and is committed."""
    broker.produce(P0, *values(5))
    failures = iter([ValueError("once"), ValueError("twice")])

    def answer(_: Batch) -> BatchResponse:
        error = next(failures, None)
        if error is not None:
            raise error
        return BatchResponse.advance()

    recorder = Recorder(answer)
    channel = in_memory_channel(recorder, broker, until=LATEST)
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == [(0, 5, 1), (0, 5, 2), (0, 5, 3)]


def test_a_seek_back_from_the_bound_is_followed(broker: InMemoryBroker) -> None:
    """A processor that goes back gets the records again, and the run ends after them."""
    broker.produce(P0, *values(5))
    answers = iter([BatchResponse.advance(), BatchResponse.advance(offset=2)])
    recorder = Recorder(lambda _: next(answers, BatchResponse.advance()))
    channel = in_memory_channel(
        recorder, broker, until=LATEST, batch={"max_records": 3, "linger": 0}
    )
    with running(channel):
        recorder.wait(lambda: len(recorder.batches) == 3)
        assert done(channel)
    assert recorder.delivered() == [(0, 3, 1), (3, 5, 1), (2, 5, 1)]


def test_every_member_waits_for_the_whole_group(broker: InMemoryBroker) -> None:
    """A member whose own partition is done waits for the others', and then all are done."""
    zookeeper = InMemoryZooKeeper()
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    recorders = [Recorder(), Recorder()]
    for recorder in recorders:
        recorder.answer = recorder.later
    static = {"type": "static", "rebalance_delay": "10ms"}
    metrics = Metrics()
    channels = [
        in_memory_channel(
            recorder,
            broker,
            zookeeper=zookeeper,
            metrics=metrics,
            member=f"member-{number}",
            until=LATEST,
            coordinator={**static, "partitions": {"events": [number]}},
        )
        for number, recorder in enumerate(recorders)
    ]
    with ExitStack() as stack:
        for channel in channels:
            stack.enter_context(running(channel))
        first, second = recorders
        first.wait(lambda: bool(first.futures))
        second.wait(lambda: bool(second.futures))
        assert wait_for(lambda: knows_owners(metrics, "member-0"), Deadline.after(PATIENCE))
        first.futures[0].set_result(BatchResponse.advance())
        mine = first.batches[0].partition
        assert committed(broker, mine, 5)
        assert not channels[0].reached_bounds(Deadline.after(PATIENCE))
        second.futures[0].set_result(BatchResponse.advance())
        assert all(map(done, channels))


def test_partitions_outside_of_static_lists_are_not_waited_for(broker: InMemoryBroker) -> None:
    """With static lists that leave a partition out, the run ends without it."""
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    recorder = Recorder()
    static = {"type": "static", "partitions": {"events": [0]}, "rebalance_delay": "10ms"}
    channel = in_memory_channel(recorder, broker, until=LATEST, coordinator=static)
    with running(channel):
        assert done(channel)
    assert broker.committed("group", P1) is None


def test_while_the_brokers_are_silent_the_run_is_not_over(broker: InMemoryBroker) -> None:
    """Another member's partition counts only once the group's store said so."""
    broker.produce(P1, *values(5))
    static = {"type": "static", "partitions": {"events": [0]}, "rebalance_delay": "10ms"}
    other = {**static, "partitions": {"events": [1]}}
    zookeeper = InMemoryZooKeeper()
    slow = Recorder()
    slow.answer = slow.later
    first = in_memory_channel(
        Recorder(), broker, zookeeper=zookeeper, member="one", until=LATEST, coordinator=static
    )
    second = in_memory_channel(
        slow, broker, zookeeper=zookeeper, member="two", until=LATEST, coordinator=other
    )
    with running(second), running(first):
        slow.wait(lambda: bool(slow.futures))
        assert committed(broker, P0, 0)
        broker.down = True
        assert not first.reached_bounds(Deadline.after(PATIENCE))
        broker.down = False
        slow.futures[0].set_result(BatchResponse.advance())
        assert done(first)


def test_a_partition_added_after_the_bounds_are_fixed_is_bounded_by_its_beginning(
    broker: InMemoryBroker,
) -> None:
    """The bound is the partition's first offset, so that its records are not part of the run."""
    broker.produce(P0, *values(5))
    bounds = Bounds(LATEST, "main", SYSTEM_CLOCK, fail)
    bounds.fix(broker.catalog(), {"events": 2}, Deadline.after(PATIENCE))
    broker.create_topic("events", 8)
    later = TopicPartition("events", 7)
    broker.produce(later, *values(5))
    assert (bounds.of(P0), bounds.of(later)) == (5, 0)


def test_a_channel_without_bounds_is_never_done(broker: InMemoryBroker) -> None:
    """An unbounded run has no end of its own."""
    channel = in_memory_channel(Recorder(), broker)
    with running(channel):
        assert committed(broker, P0, 0)
        assert not channel.reached_bounds(Deadline.after(PATIENCE))


def test_a_record_without_a_time_is_older_than_any_moment(broker: InMemoryBroker) -> None:
    """It is delivered, as Kafka's own search by time passes it over."""
    broker.produce(P0, replace(FakeRecord(), timestamp_=-1), *at(1))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, until=Until(TIMESTAMP))
    with running(channel):
        assert done(channel)
    assert recorder.delivered() == [(0, 1, 1)]


def test_a_channel_after_another_reads_its_output(broker: InMemoryBroker) -> None:
    """Bounds are fixed when they are first evaluated, and hold from then on."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(
        recorder, broker, until=Until(after={P0.topic: "first"}), batch={"linger": "1h"}
    )
    with running(channel):
        broker.produce(P0, *values(10))
        broker.produce(P1, *values(3))
        assert done(channel)
        broker.produce(P0, *values(10))
    assert recorder.delivered()[-1][1] == 15
    assert recorder.delivered(1)[-1][1] == 3
    assert broker.committed("group", P0) == StoredOffset(15, 1)


def test_the_input_of_a_channel_after_another_must_stay() -> None:
    """A run fails when its topic is deleted before its bounds are known."""
    failures: list[BaseException] = []
    bounds = Bounds(Until(after={P0.topic: "first"}), "channel", SYSTEM_CLOCK, failures.append)
    bounds.topic_missing(P0.topic)
    assert [type(error) for error in failures] == [ChannelFailedError]
