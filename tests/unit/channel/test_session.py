"""A ZooKeeper session that ends and is replaced while its channel runs."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import CoordinationSuspendedError
from headrace.core.records import TopicPartition
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
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


@pytest.mark.parametrize(
    ("outputs", "may_store"),
    [
        ({"table": {"type": "delta", "path": "/t"}}, True),
        (
            {"table": {"type": "delta", "path": "/t"}, "lines": {"type": "jsonl", "path": "/l"}},
            False,
        ),
    ],
)
def test_while_zookeeper_is_silent_outputs_store_only_if_each_refuses_the_late(
    outputs: dict[str, Any], *, may_store: bool
) -> None:
    """An output that keeps no offsets would be written before another could refuse."""
    broker, zookeeper = InMemoryBroker(), InMemoryZooKeeper(session_timeout=60.0)
    broker.create_topic("events")
    answer: Future[BatchResponse] = Future()
    recorder, session = Recorder(lambda _: answer), zookeeper.session()
    channel = in_memory_channel(
        recorder,
        broker,
        zookeeper=zookeeper,
        session=session,
        processor={"type": "spark", "reducer": "some.module:reduce"},
        sink={"type": "several", "outputs": outputs},
    )
    with running(channel):
        broker.produce(P0, b"out")
        recorder.wait(lambda: len(recorder.batches) == 1)
        assert recorder.batches[0].assignment.is_current()
        session.suspend()
        recorder.wait(lambda: recorder.errors() == [CoordinationSuspendedError])
        assert recorder.batches[0].assignment.is_current() is may_store
        session.resume()
        answer.set_result(BatchResponse.advance())
        assert broker.wait_committed("group", P0, 1, Deadline.after(PATIENCE))
