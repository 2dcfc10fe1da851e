"""A topic that is deleted and created again while its channel runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, filled_broker, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.core.records import Batch


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let channels look at their topics all the time."""
    monkeypatch.setattr("headrace.channel.topics.REFRESH_INTERVAL", 0.01)


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with a topic of two partitions, ten records in each."""
    return filled_broker()


def replace_topic(broker: InMemoryBroker, count: int) -> None:
    """Create the topic again with so many records in each partition, all in one moment."""
    with broker.at_once():
        broker.delete_topic("events")
        broker.create_topic("events", 2)
        for partition in (P0, P1):
            broker.forget("group", partition)
            broker.produce(partition, *[b"new-%d" % number for number in range(count)])


@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize("count", [3, 25])
def test_a_topic_created_again_is_read_from_its_beginning(
    broker: InMemoryBroker, count: int, policy: str
) -> None:
    """The new log is read from its first record, for any length and any policy."""
    recorder = Recorder()
    channel = in_memory_channel(
        recorder, broker, initial_offset=policy, offset_out_of_range="earliest"
    )
    for partition in (P0, P1):
        broker.store("group").commit({partition: StoredOffset(0, 0)}, Deadline.after(PATIENCE))
    with running(channel):
        for partition in (P0, P1):
            assert committed(broker, partition, 10)
        replace_topic(broker, count)
        recorder.wait(lambda: all(recorder.names(n).count("assigned") == 2 for n in (0, 1)))
        for partition in (P0, P1):
            assert committed(broker, partition, count)
    new = [b"new-%d" % number for number in range(count)]
    for number in (0, 1):
        batches = [b for b in recorder.batches if b.partition.partition == number]
        seen = {record.value() for batch in batches for record in batch.records}
        assert seen == {*values(10), *new}
        assert recorder.names(number).count("lost") == 1
    identities = {batch.assignment.identity for batch in recorder.batches}
    assert len(identities) == 4


def test_batches_of_the_former_log_are_withdrawn(broker: InMemoryBroker) -> None:
    """An answer to a batch of the former log moves nothing in the new one."""
    recorder = Recorder()
    out = {0: False}

    def hold_the_first(batch: Batch) -> object:
        if batch.partition == P0 and not out[0]:
            out[0] = True
            return recorder.later(batch)
        return BatchResponse.advance()

    recorder.answer = hold_the_first
    with running(in_memory_channel(recorder, broker)):
        recorder.wait(lambda: len(recorder.futures) == 1)
        replace_topic(broker, 25)
        recorder.wait(lambda: "lost" in recorder.names(0))
        assert recorder.futures[0].cancelled()
        for partition in (P0, P1):
            assert committed(broker, partition, 25)
