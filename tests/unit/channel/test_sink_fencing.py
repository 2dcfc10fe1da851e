"""A whole channel whose sink's producer is shut out by the next owner."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from headrace.coordinators.znodes import EpochDocument, GroupPaths
from headrace.core.errors import FencedError, Refusal, RefusedError
from headrace.processors import BatchResponse
from headrace.testing import InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.core.records import Assignment, Batch, TopicPartition
    from headrace.testing import InMemoryBroker

PATHS = GroupPaths("group")
SINK: dict[str, Any] = {
    "processor": {"type": "spark", "reducer": "some.module:reduce"},
    "sink": {"type": "kafka", "topic": "out"},
}


def epoch_node(zookeeper: InMemoryZooKeeper, partition: TopicPartition = P0) -> EpochDocument:
    """Return what a partition's epoch node says."""
    node = zookeeper.node(PATHS.epoch(partition))
    assert node is not None
    return EpochDocument.decode("epoch", node.data)


def test_the_claims_name_the_producer_of_the_sink(broker: InMemoryBroker) -> None:
    """The processor finds it with every batch, and a next owner in the epoch node."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    broker.produce(P0, *values(1))
    with running(in_memory_channel(recorder, broker, zookeeper=zookeeper, **SINK)):
        assert committed(broker, P0, 1)
        named = epoch_node(zookeeper).transactional_id
        assert named == f"headrace.group.member.{epoch_node(zookeeper).member_epoch}"
        assert recorder.batches[0].assignment.transactional_id == named
    assert epoch_node(zookeeper).clean_end


def test_a_member_whose_sink_is_shut_out_joins_again(broker: InMemoryBroker) -> None:
    """The batch that heard of it comes again in another stay, and has not failed."""
    zookeeper, heard = InMemoryZooKeeper(), Event()

    def answer(_: Batch) -> BatchResponse:
        if not heard.is_set():
            heard.set()
            raise FencedError("shut out")
        return BatchResponse.advance()

    recorder = Recorder(answer)
    with running(in_memory_channel(recorder, broker, zookeeper=zookeeper, **SINK)):
        assert committed(broker, P1, 0)
        before = epoch_node(zookeeper)
        broker.produce(P0, *values(5))
        assert heard.wait(PATIENCE)
        assert committed(broker, P0, 5)
        assert epoch_node(zookeeper).member_epoch > before.member_epoch
    names = recorder.names()
    assert names.index("lost") < names.index("assigned", 1)
    assert "exception" not in names
    assert {attempt for _, _, attempt in recorder.delivered()} == {1}
    assert recorder.names(1).count("lost") == 1


def test_a_skip_that_the_sink_refuses_for_good_has_the_member_join_again(
    broker: InMemoryBroker,
) -> None:
    """Otherwise the batch would fail, and its skip would, again and again."""

    def refuse(_: Batch) -> BatchResponse:
        raise RefusedError(Refusal.SINK_OFFSETS, "wrong", value="", next_step="")

    class Skipping(Recorder):
        """One that is shut out when it is to pass over a batch for the first time."""

        refused = False

        def pass_over(self, batch: Batch) -> None:
            """Fail once."""
            super().pass_over(batch)
            if not self.refused:
                self.refused = True
                raise FencedError("shut out")

    recorder = Skipping(refuse)
    settings = {**SINK, "retry": {"attempts": 1}, "rejects": {"failing": "skip"}}
    broker.produce(P0, *values(5))
    with running(in_memory_channel(recorder, broker, **settings)):
        assert committed(broker, P0, 5)
    assert recorder.names().count("assigned") == 2
    assert recorder.names().count("passed over") == 2


@pytest.mark.parametrize(("sink", "clean"), [(SINK, False), ({}, True)])
def test_an_end_is_not_clean_while_a_batch_may_still_be_stored(
    broker: InMemoryBroker, sink: dict[str, Any], *, clean: bool
) -> None:
    """The next owner shuts this one out of a sink for which that is the way, and of no other."""

    class Storing(Recorder):
        """One whose lane does not come back in time."""

        def may_still_store(self, assignment: Assignment) -> bool:
            """Say so."""
            return assignment.partition == P0

    zookeeper = InMemoryZooKeeper()
    for partition in (P0, P1):
        broker.produce(partition, *values(1))
    with running(in_memory_channel(Storing(), broker, zookeeper=zookeeper, **sink)):
        assert committed(broker, P0, 1)
        assert committed(broker, P1, 1)
    assert epoch_node(zookeeper).clean_end is clean
    assert epoch_node(zookeeper, P1).clean_end
