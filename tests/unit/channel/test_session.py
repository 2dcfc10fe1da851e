"""What a channel does when its ZooKeeper session ends and another one begins."""

from __future__ import annotations

from headrace.clock import Deadline
from headrace.errors import CoordinationSuspendedError
from headrace.kafka.ports import StoredOffset
from headrace.records import TopicPartition
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.recorder import PATIENCE, Recorder

P0 = TopicPartition("events", 0)


def test_a_channel_goes_on_after_an_interruption_that_cost_the_session() -> None:
    """Suspended, then lost: the partition is claimed anew and delivery goes on."""
    broker, zookeeper = InMemoryBroker(), InMemoryZooKeeper()
    broker.create_topic("events")
    broker.produce(P0, b"before")
    recorder, session = Recorder(), zookeeper.session()
    with running(in_memory_channel(recorder, broker, zookeeper=zookeeper, session=session)):
        assert broker.wait_committed("group", P0, 1, Deadline.after(PATIENCE))
        session.suspend()
        recorder.wait(lambda: recorder.errors() == [CoordinationSuspendedError])
        session.expire()
        session.resume()
        recorder.wait(lambda: recorder.names().count("assigned") == 2)
        broker.produce(P0, b"after")
        assert broker.wait_committed("group", P0, 2, Deadline.after(PATIENCE))
        assert broker.committed("group", P0) == StoredOffset(2, 2)
    assert recorder.delivered() == [(0, 1, 1), (1, 2, 1)]
    assert recorder.names()[-1] == "terminated"
