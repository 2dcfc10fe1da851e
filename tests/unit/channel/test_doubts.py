"""A whole channel that finds an offset held in doubt by an open transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.channel.offset_stores import Fencing
from headrace.channel.start import DOUBT_EVERY
from headrace.coordinators.claims import Claim, PreviousOwner
from headrace.coordinators.lease import Lease
from headrace.coordinators.znodes import EpochDocument, GroupPaths
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for
from headrace.kafka.errors import OffsetStoreError
from headrace.testing import InMemoryZooKeeper, in_memory_channel, running
from headrace.testing.broker import InMemoryOffsets
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import StoredOffset
    from headrace.testing import InMemoryBroker

PATHS = GroupPaths("group")
OWN = "headrace.group.member.8"
GONE = "headrace.group.a.3"


class DoubtfulOffsets(InMemoryOffsets):
    """Has the offset of P0 in doubt until some producer is shut out; notes what is asked.

    ``times`` is how often it has to be. While ``silent`` no broker answers for the offset, and
    while not ``can_fence`` none can be shut out.
    """

    def __init__(self, broker: InMemoryBroker, until: str, times: int = 1) -> None:
        super().__init__(broker, "group")
        self._until = until
        self._left = times
        self.silent = False
        self.can_fence = True
        self.tries = 0
        self.fenced: list[list[str]] = []

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Read offsets."""
        if P0 in partitions and self._left > 0:
            self.tries += 1
            raise OffsetStoreError("timed out", timed_out=True)
        return super().find(partitions, deadline)

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        """Shut out."""
        assert partition == P0
        self.fenced.append(list(transactional_ids))
        if not self.can_fence:
            raise OffsetStoreError("never", timed_out=True)
        self._left -= self._until in transactional_ids
        super().fence(transactional_ids, partition, deadline)

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        """Return whether a broker answers."""
        return not self.silent and super().answers(partition, deadline)


@pytest.mark.parametrize("clean_end", [True, False])
def test_an_offset_that_stays_in_doubt_has_its_producers_shut_out(
    broker: InMemoryBroker, *, clean_end: bool
) -> None:
    """The producers of before are shut out, also one that ended cleanly or was shut out before."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=clean_end)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    doubt = DoubtfulOffsets(broker, until=GONE, times=1 if clean_end else 2)
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper, offset_store=doubt)
    broker.produce(P0, *values(1))
    with capture_logs() as logs, running(channel):
        assert committed(broker, P0, 1)
    assert doubt.fenced == [[GONE]] * (1 if clean_end else 2)
    assert doubt.tries >= DOUBT_EVERY
    (said,) = [entry for entry in logs if entry["event"] == "start_offset_in_doubt"]
    assert (said["partition"], said["transactional_ids"]) == (0, [GONE])
    assert EpochDocument.decode("epoch", _data(zookeeper)).unfenced == ()


def _data(zookeeper: InMemoryZooKeeper) -> bytes:
    node = zookeeper.node(PATHS.epoch(P0))
    assert node is not None
    return node.data


def test_our_own_former_producer_is_shut_out_as_well(broker: InMemoryBroker) -> None:
    """The member joins anew and goes on with another one."""
    zookeeper = InMemoryZooKeeper()
    former = EpochDocument(7, "member", 8, transactional_id=OWN, clean_end=True)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    doubt = DoubtfulOffsets(broker, until=OWN)
    offsets = {"fencing": "transactions"}
    channel = in_memory_channel(
        Recorder(), broker, zookeeper=zookeeper, offset_store=doubt, offsets=offsets
    )
    broker.produce(P0, *values(1))
    with running(channel):
        assert committed(broker, P0, 1)
    found = EpochDocument.decode("epoch", _data(zookeeper))
    assert doubt.fenced[0] == [OWN]
    assert found.member_epoch > 8
    assert found.clean_end


def test_no_producer_is_shut_out_while_no_broker_answers(broker: InMemoryBroker) -> None:
    """Then it is the brokers that are waited for, and not a transaction."""
    zookeeper = InMemoryZooKeeper()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=True)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    doubt = DoubtfulOffsets(broker, until=GONE)
    doubt.silent = True
    with running(in_memory_channel(Recorder(), broker, zookeeper=zookeeper, offset_store=doubt)):
        assert wait_for(lambda: doubt.tries > 2 * DOUBT_EVERY, Deadline.after(PATIENCE))
        assert doubt.fenced == []
        doubt.silent = False
        assert committed(broker, P0, 0)
    assert doubt.fenced == [[GONE]]


def test_a_claim_that_ends_in_doubt_hands_the_duty_down(broker: InMemoryBroker) -> None:
    """The next owner shuts out first, though the last one ended cleanly."""
    zookeeper = InMemoryZooKeeper()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=True)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    doubt = DoubtfulOffsets(broker, until=GONE)
    doubt.can_fence = False
    with running(in_memory_channel(Recorder(), broker, zookeeper=zookeeper, offset_store=doubt)):
        assert committed(broker, P1, 0)
        assert wait_for(lambda: bool(doubt.fenced), Deadline.after(PATIENCE))
    found = EpochDocument.decode("epoch", _data(zookeeper))
    assert (found.unfenced, found.clean_end) == ((GONE,), True)


def test_each_producer_is_doubted_once_for_a_lease(broker: InMemoryBroker) -> None:
    """Also one that was shut out before; a second doubt changes nothing until the lease is new."""
    fencing = Fencing(broker.store("group"))
    before = PreviousOwner(7, "b", 3, "last", clean_end=False, unfenced=("first",))
    for _ in range(2):
        lease = Lease(60, SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic())
        claim = Claim(P0, 8, "me", 7, 1, lease, before, unfenced=("first", "last"))
        known = fencing.fence(claim, Deadline.after(1))
        doubted = fencing.refence(known)
        assert doubted.unfenced == ("first", "last")
        assert not fencing.are_fenced(doubted)
        assert fencing.refence(fencing.fence(doubted, Deadline.after(1))).unfenced == ()
        assert fencing.are_fenced(doubted)
    unknown = Claim(P0, 1, "me", 7, 1, Lease(60, SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic()))
    assert fencing.refence(unknown) == unknown
