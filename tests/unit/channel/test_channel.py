"""A whole channel on servers in memory: delivery, start positions, stops, members."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.channel.states import ChannelState
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.devstack.wait import wait_for
from headrace.kafka.errors import UnknownTopicError
from headrace.kafka.ports import Commit, StoredOffset
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.records import Batch

from tests.unit.channel.in_memory import P0, P1, committed, values


def test_records_are_delivered_in_order_and_committed(broker: InMemoryBroker) -> None:
    """A backlog comes in batches of max_records, end to start, and its end is committed."""
    broker.produce(P0, *values(25))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 25)
    assert recorder.delivered() == [(0, 10, 1), (10, 20, 1), (20, 25, 1)]
    assert recorder.overlaps == 0


def test_callbacks_come_in_the_contract_s_order(broker: InMemoryBroker) -> None:
    """Assigned first, processed behind its batch, terminated last, close after everything."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        recorder.wait(lambda: "processed" in recorder.names())
    assert recorder.names() == ["assigned", "batch", "processed", "terminated"]
    assert recorder.names(1) == ["assigned", "terminated"]
    assert recorder.names(-1) == ["closed"]


def test_the_start_position_is_committed_before_the_first_delivery(
    broker: InMemoryBroker,
) -> None:
    """A revert then has somewhere to go, and a crash does not decide anew."""
    broker.produce(P0, *values(5))
    seen: list[StoredOffset | None] = []

    def answer(_: Batch) -> BatchResponse:
        seen.append(broker.committed("group", P0))
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with running(in_memory_channel(recorder, broker)):
        recorder.wait(lambda: bool(seen))
    assert seen[0] == StoredOffset(0, 1)


def test_a_group_goes_on_where_it_committed(broker: InMemoryBroker) -> None:
    """A restarted channel delivers nothing twice and claims with a higher epoch."""
    zookeeper = InMemoryZooKeeper()
    broker.produce(P0, *values(5))
    with running(in_memory_channel(Recorder(), broker, zookeeper=zookeeper)):
        assert committed(broker, P0, 5)
    broker.produce(P0, b"new")
    again = Recorder()
    with running(in_memory_channel(again, broker, zookeeper=zookeeper)):
        assert committed(broker, P0, 6)
    assert again.delivered() == [(5, 6, 1)]
    assert broker.committed("group", P0) == StoredOffset(6, 2)


def test_latest_starts_at_the_end(broker: InMemoryBroker) -> None:
    """With initial_offset latest a group without offsets reads only what comes."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, initial_offset="latest")):
        recorder.wait(lambda: "assigned" in recorder.names())
        broker.produce(P0, b"new")
        assert committed(broker, P0, 6)
    assert recorder.delivered() == [(5, 6, 1)]


def test_the_sink_s_offset_has_precedence(broker: InMemoryBroker) -> None:
    """The sink's offset is the start, and the group's commit follows it."""
    broker.produce(P0, *values(9))
    recorder = Recorder()
    recorder.stored[0] = 7
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 9)
    assert recorder.delivered() == [(7, 9, 1)]


def test_an_epoch_behind_the_committed_one_is_raised_above_it(broker: InMemoryBroker) -> None:
    """After ZooKeeper lost its data, commits still carry a higher epoch than before."""
    broker.store("group").commit({P0: Commit(0, 41)}, Deadline.after(PATIENCE))
    broker.produce(P0, *values(3))
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 3)
    assert broker.committed("group", P0) == StoredOffset(3, 42)


def test_idle_is_told_once_until_records_come_again(broker: InMemoryBroker) -> None:
    """One callback an episode, however long it lasts."""
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker, idle_time="10ms")):
        recorder.wait(lambda: recorder.names().count("idle") == 1)
        broker.produce(P0, b"a")
        recorder.wait(lambda: recorder.names().count("idle") == 2)
    names = [name for name in recorder.names() if name != "processed"]
    assert names == ["assigned", "idle", "batch", "idle", "terminated"]


def test_a_gap_at_the_end_is_committed(broker: InMemoryBroker) -> None:
    """Transaction markers behind the last record are passed, so that lag reaches 0."""
    broker.produce(P0, *values(5))
    broker.skip(P0, 2)
    recorder = Recorder()
    with running(in_memory_channel(recorder, broker)):
        assert committed(broker, P0, 7)
        broker.skip(P0, 1)
        assert committed(broker, P0, 8)
        broker.produce(P0, b"next")
        assert committed(broker, P0, 9)
    assert recorder.batches[-1].start in {7, 5}


def test_stop_waits_for_open_answers_and_commits_them(broker: InMemoryBroker) -> None:
    """A batch that is out is answered, committed and told as processed before termination."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker, commit_interval="1h")
    channel.start(Deadline.after(PATIENCE))
    recorder.wait(lambda: bool(recorder.futures))
    recorder.futures[0].set_result(BatchResponse.advance())
    assert channel.stop(Deadline.after(PATIENCE)).clean
    assert broker.committed("group", P0) == StoredOffset(5, 1)
    assert recorder.names() == ["assigned", "batch", "processed", "terminated"]


def test_a_stop_ends_by_its_deadline_and_reports_the_rest(broker: InMemoryBroker) -> None:
    """An answer that never comes costs its batch, not the stop; nothing is committed for it."""
    broker.produce(P0, *values(5))
    recorder = Recorder()
    recorder.answer = recorder.later
    channel = in_memory_channel(recorder, broker)
    channel.start(Deadline.after(PATIENCE))
    recorder.wait(lambda: bool(recorder.futures))
    report = channel.stop(Deadline.after(1))
    assert report.left == ("events-0: 1 unanswered batch from offset 0",)
    assert channel.state is ChannelState.STOPPED
    assert recorder.futures[0].cancelled()
    assert broker.committed("group", P0) == StoredOffset(0, 1)


def test_two_members_share_and_one_takes_over(broker: InMemoryBroker) -> None:
    """Clean join and leave: each record once, over both members together."""
    zookeeper = InMemoryZooKeeper()
    first, second = Recorder(), Recorder()
    one = in_memory_channel(first, broker, zookeeper=zookeeper, member="one")
    with running(one):
        first.wait(lambda: "assigned" in first.names(0) and "assigned" in first.names(1))
        two = in_memory_channel(second, broker, zookeeper=zookeeper, member="two")
        with running(two):
            second.wait(lambda: any("assigned" in second.names(n) for n in (0, 1)))
            for partition in (P0, P1):
                broker.produce(partition, *values(20))
            assert committed(broker, P0, 20)
            assert committed(broker, P1, 20)
        for partition in (P0, P1):
            broker.produce(partition, *values(5))
        assert committed(broker, P0, 25)
        assert committed(broker, P1, 25)
    for number in (0, 1):
        offsets = [span for recorder in (first, second) for span in recorder.delivered(number)]
        assert sum(end - begin for begin, end, _ in offsets) == 25  # type: ignore[operator]


def test_a_release_does_not_wait_for_the_end_of_the_commit_interval(
    broker: InMemoryBroker,
) -> None:
    """An answer that comes while its partition is being released is committed at once."""
    zookeeper = InMemoryZooKeeper()
    for each in (P0, P1):
        broker.produce(each, *values(5))
    old = Recorder()
    old.answer = old.later
    slow = in_memory_channel(old, broker, zookeeper=zookeeper, member="a", commit_interval="1h")
    new = Recorder()
    with running(slow):
        old.wait(lambda: len(old.futures) == 2)
        with running(in_memory_channel(new, broker, zookeeper=zookeeper, member="b")):
            assert wait_for(lambda: _states(slow) >= {"releasing"}, Deadline.after(PATIENCE))
            for future in old.futures:
                future.set_result(BatchResponse.advance())
            new.wait(lambda: "assigned" in new.names(1))
    assert new.delivered(1) == []


def test_a_start_position_on_its_way_is_waited_for_when_its_partition_goes(
    broker: InMemoryBroker,
) -> None:
    """A partition that has to go before it began still ends cleanly."""
    zookeeper, store = InMemoryZooKeeper(), broker.store("group")
    store.refuse = "no"
    slow = in_memory_channel(
        Recorder(),
        broker,
        zookeeper=zookeeper,
        offset_store=store,
        member="a",
        commit_interval="20ms",
    )
    new = Recorder()
    with capture_logs() as logs, running(slow):
        assert wait_for(lambda: len(slow.partitions()) == 2, Deadline.after(PATIENCE))
        with running(in_memory_channel(new, broker, zookeeper=zookeeper, member="b")):
            assert wait_for(
                lambda: [e["partition"] for e in logs if e["event"] == "release_requested"],
                Deadline.after(PATIENCE),
            ) == ["events-1"]
            store.refuse = None
            new.wait(lambda: "assigned" in new.names(1))
    claims = [e for e in logs if e["event"] == "partition_claimed" and e["partition"] == 1]
    assert [claim["clean_end"] for claim in claims] == [None, True]


def test_a_lost_session_ends_every_partition_and_begins_again(broker: InMemoryBroker) -> None:
    """Expiry: on_partition_lost, then a new claim that goes on from the committed offset."""
    zookeeper = InMemoryZooKeeper()
    session = zookeeper.session()
    broker.produce(P0, *values(5))
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, session=session)
    with running(channel):
        assert committed(broker, P0, 5)
        session.expire()
        recorder.wait(lambda: "lost" in recorder.names(0))
        broker.produce(P0, *values(5))
        assert committed(broker, P0, 10)
    assert recorder.delivered() == [(0, 5, 1), (5, 10, 1)]
    stored = broker.committed("group", P0)
    assert stored is not None
    assert stored.epoch == 2


def test_while_zookeeper_is_silent_nothing_is_delivered(broker: InMemoryBroker) -> None:
    """Suspended within the lease: batches are kept, and delivery goes on without a re-read."""
    zookeeper = InMemoryZooKeeper()
    session = zookeeper.session()
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, session=session)
    with running(channel):
        recorder.wait(lambda: "assigned" in recorder.names(0) and "assigned" in recorder.names(1))
        session.suspend()
        deadline = Deadline.after(PATIENCE)
        while {r.state for r in channel.partitions()} != {"suspended"} and not deadline.expired:
            Event().wait(0.005)
        broker.produce(P0, *values(5))
        assert recorder.delivered() == []
        session.resume()
        assert committed(broker, P0, 5)
    assert recorder.delivered() == [(0, 5, 1)]
    assert recorder.names()[:2] == ["assigned", "exception"]
    assert "lost" not in recorder.names()


def test_an_unknown_topic_is_named_and_nothing_is_claimed(broker: InMemoryBroker) -> None:
    """The start fails with the topic's name; processor and clients are closed again."""
    recorder = Recorder()
    channel = in_memory_channel(recorder, broker, topics=["evnets"])
    with pytest.raises(
        UnknownTopicError, match="no topic evnets on the broker; did you mean events\\?"
    ):
        channel.start(Deadline.after(PATIENCE))
    assert channel.state is ChannelState.STOPPED
    assert recorder.names(-1) == ["closed"]


def test_an_unreachable_broker_is_a_start_error(broker: InMemoryBroker) -> None:
    """The start does not hang and leaves nothing behind."""
    broker.down = True
    channel = in_memory_channel(Recorder(), broker)
    with pytest.raises(StartError):
        channel.start(Deadline.after(PATIENCE))
    assert channel.stop(Deadline.after(PATIENCE)).clean


def test_a_prepared_channel_has_claimed_nothing_and_can_be_closed(broker: InMemoryBroker) -> None:
    """The processor is open and the topics are known; a stop closes both."""
    recorder, zookeeper = Recorder(), InMemoryZooKeeper()
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper)
    channel.prepare(Deadline.after(PATIENCE))
    prepared = channel.state
    assert prepared is ChannelState.STARTING
    assert channel.topics == {"events": 2}
    assert [path for path in zookeeper.paths() if "epochs" in path] == []
    assert channel.stop(Deadline.after(PATIENCE)).clean
    assert channel.state is ChannelState.STOPPED
    assert recorder.names(-1) == ["closed"]


def _states(channel: InboundKafkaChannel) -> set[str]:
    return {reading.state for reading in channel.partitions()}
