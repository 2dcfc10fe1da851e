"""A whole channel that finds an offset held in doubt by a transaction that nobody ends."""

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
from headrace.kafka.ports import OffsetTimeoutError
from headrace.testing import InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.core.clock import Deadline as AnyDeadline
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import StoredOffset
    from headrace.testing import InMemoryBroker

PATHS = GroupPaths("group")
OWN = "headrace.group.member.8"
GONE = "headrace.group.a.3"


class Doubt:
    """Has the offset of P0 in doubt until some producer is shut out; notes what is asked.

    ``times`` is how often it has to be.
    """

    def __init__(self, channel: InboundKafkaChannel, until: str, times: int = 1) -> None:
        self._store = channel._runtime.store
        self._find, self._fence = self._store.find, self._store.fence
        self._until = until
        self._left = times
        self.answers = True
        self.tries = 0
        self.fenced: list[list[str]] = []
        self._store.find = self.find  # type: ignore[method-assign]
        self._store.fence = self.fence  # type: ignore[method-assign]
        self._store.answers = lambda *_: self.answers  # type: ignore[method-assign]

    def find(
        self, partitions: Collection[TopicPartition], deadline: AnyDeadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Read offsets."""
        if P0 in partitions and self._left > 0:
            self.tries += 1
            raise OffsetTimeoutError("timed out")
        return self._find(partitions, deadline)

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: AnyDeadline
    ) -> None:
        """Shut out."""
        assert partition == P0
        self.fenced.append(list(transactional_ids))
        self._left -= self._until in transactional_ids
        self._fence(transactional_ids, partition, deadline)


@pytest.mark.parametrize("clean_end", [True, False])
def test_what_stays_in_doubt_is_ended_by_itself(broker: InMemoryBroker, *, clean_end: bool) -> None:
    """The producers of before are shut out, also one that ended cleanly or was shut out before."""
    zookeeper, recorder = InMemoryZooKeeper(), Recorder()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=clean_end)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    channel = in_memory_channel(recorder, broker, zookeeper=zookeeper)
    doubt = Doubt(channel, until=GONE, times=1 if clean_end else 2)
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
    offsets = {"fencing": "transactions"}
    channel = in_memory_channel(Recorder(), broker, zookeeper=zookeeper, offsets=offsets)
    doubt = Doubt(channel, until=OWN)
    broker.produce(P0, *values(1))
    with running(channel):
        assert committed(broker, P0, 1)
    found = EpochDocument.decode("epoch", _data(zookeeper))
    assert doubt.fenced[0] == [OWN]
    assert found.member_epoch > 8
    assert found.clean_end


def test_nobody_is_shut_out_while_no_broker_answers(broker: InMemoryBroker) -> None:
    """Then it is the brokers that are waited for, and not a transaction."""
    zookeeper = InMemoryZooKeeper()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=True)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    channel = in_memory_channel(Recorder(), broker, zookeeper=zookeeper)
    doubt = Doubt(channel, until=GONE)
    doubt.answers = False
    with running(channel):
        assert wait_for(lambda: doubt.tries > 2 * DOUBT_EVERY, Deadline.after(PATIENCE))
        assert doubt.fenced == []
        doubt.answers = True
        assert committed(broker, P0, 0)
    assert doubt.fenced == [[GONE]]


def test_a_claim_that_ends_in_doubt_hands_the_duty_down(broker: InMemoryBroker) -> None:
    """The next owner shuts out first, though the last one ended cleanly."""
    zookeeper = InMemoryZooKeeper()
    former = EpochDocument(7, "a", 3, transactional_id=GONE, clean_end=True)
    zookeeper.put(PATHS.epoch(P0), former.encode())
    channel = in_memory_channel(Recorder(), broker, zookeeper=zookeeper)
    doubt = Doubt(channel, until="nobody")
    asked: list[object] = []

    def refuse(*ids: object) -> None:
        asked.append(ids)
        raise OffsetTimeoutError("never")

    doubt._fence = refuse  # type: ignore[assignment]
    with running(channel):
        assert committed(broker, P1, 0)
        assert wait_for(lambda: bool(asked), Deadline.after(PATIENCE))
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
