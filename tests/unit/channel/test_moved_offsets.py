"""Moving a group between Kafka and ZooKeeper, without servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.channel.offset_stores import MovedOffsets
from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.core.records import offset_of
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import Commit, StoredOffset
from headrace.testing import InMemoryZooKeeper, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from headrace.core.records import TopicPartition
    from headrace.testing import InMemoryBroker

PATHS = GroupPaths("group")


class Bench:
    """Both stores of one group."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self.broker = broker
        self.zookeeper = InMemoryZooKeeper()
        self.session = self.zookeeper.session()
        self.kafka = broker.store("group")
        self.nodes = ZooKeeperOffsetStore(self.session, "group")
        self.zookeeper.put(PATHS.epoch(P0), b"{}")

    def store_in_kafka(self, offset: int, epoch: int) -> None:
        """Store an offset of P0 in Kafka."""
        self.kafka.commit({P0: Commit(offset, epoch)}, Deadline.after(PATIENCE))

    def store_in_zookeeper(self, offset: int, epoch: int) -> None:
        """Store an offset of P0 in ZooKeeper."""
        assert self.nodes.commit({P0: self.commit(offset, epoch)}, Deadline.after(1)) == {}

    def commit(self, offset: int, epoch: int) -> Commit:
        """Return a commit under the present claim."""
        version = self.session.get(PATHS.epoch(P0)).stat.version
        return Commit(offset, epoch, node_version=version)

    @property
    def in_zookeeper(self) -> StoredOffset | None:
        """Return the offset of P0 that ZooKeeper has."""
        return self.nodes.read(P0, Deadline.after(1))


@pytest.fixture
def bench(broker: InMemoryBroker) -> Bench:
    """Two empty stores."""
    return Bench(broker)


@pytest.mark.parametrize(
    ("in_kafka", "in_zookeeper", "expected"),
    [
        (None, None, None),
        ((7, 1), None, StoredOffset(7, 1)),
        (None, (9, 2), StoredOffset(9, 2)),
        ((7, 1), (9, 2), StoredOffset(9, 2)),
        ((7, 3), (9, 2), StoredOffset(7, 3)),
        ((7, 0), (9, 2), StoredOffset(9, 2)),
    ],
)
def test_the_later_claim_s_offset_counts(
    bench: Bench,
    in_kafka: tuple[int, int] | None,
    in_zookeeper: tuple[int, int] | None,
    expected: StoredOffset | None,
) -> None:
    """Whichever store is the present one, the offset with the higher epoch is where to go on."""
    if in_kafka is not None:
        bench.store_in_kafka(*in_kafka)
    if in_zookeeper is not None:
        bench.store_in_zookeeper(*in_zookeeper)
    stores = [
        MovedOffsets(bench.kafka, bench.nodes, bench.nodes.drop),
        MovedOffsets(bench.nodes, bench.kafka),
    ]
    assert [store.read(P0, Deadline.after(1)) for store in stores] == [expected] * 2


def test_the_present_store_s_own_offset_counts_among_equals(bench: Bench) -> None:
    """With one epoch in both, the setting decides."""
    bench.store_in_kafka(7, 2)
    bench.store_in_zookeeper(9, 2)
    store = MovedOffsets(bench.kafka, bench.nodes, bench.nodes.drop)
    assert store.read(P0, Deadline.after(1)) == StoredOffset(7, 2)


def test_the_way_back_leaves_no_node(bench: Bench) -> None:
    """With the first commit to Kafka the node goes; a reset there without an epoch then counts."""
    bench.store_in_zookeeper(9, 2)
    store = MovedOffsets(bench.kafka, bench.nodes, bench.nodes.drop)
    store.read(P0, Deadline.after(1))
    assert store.commit({P0: bench.commit(9, 3)}, Deadline.after(1)) == {}
    assert bench.in_zookeeper is None
    bench.store_in_kafka(4, 0)
    assert store.read(P0, Deadline.after(1)) == StoredOffset(4, 0)


def test_a_former_owner_drops_nothing(bench: Bench) -> None:
    """A node is not deleted on behalf of a claim that is over, and what is left goes later."""
    bench.store_in_zookeeper(9, 2)
    store = MovedOffsets(bench.kafka, bench.nodes, bench.nodes.drop)
    store.read(P0, Deadline.after(1))
    stale = bench.commit(8, 3)
    bench.zookeeper.put(PATHS.epoch(P0), b"{}")
    store.commit({P0: stale}, Deadline.after(1))
    assert bench.in_zookeeper == StoredOffset(9, 2)
    store.commit({P0: bench.commit(9, 4)}, Deadline.after(1))
    assert bench.in_zookeeper is None


def test_a_store_that_does_not_answer_decides_nothing(bench: Bench) -> None:
    """While one of the stores cannot be read, there is no offset, rather than an old one."""
    bench.store_in_kafka(7, 1)
    bench.session.suspend()
    for store in (MovedOffsets(bench.kafka, bench.nodes), MovedOffsets(bench.nodes, bench.kafka)):
        with pytest.raises(OffsetStoreError, match="ZooKeeper"):
            store.read(P0, Deadline.after(1))


def test_a_node_that_cannot_be_read_is_named(bench: Bench) -> None:
    """A scribbled node is an error with its path, not an absent offset."""
    bench.zookeeper.put(PATHS.offset(P0), b"17")
    with pytest.raises(OffsetStoreError, match="offsets/events/0"):
        bench.nodes.read(P0, Deadline.after(1))


def test_a_late_write_is_refused(bench: Bench) -> None:
    """A write that timed out and is executed after the next claim changes nothing."""
    bench.store_in_zookeeper(9, 1)
    bench.session.lose_answers(1, delay=True)
    failures = bench.nodes.commit({P0: bench.commit(5, 1)}, Deadline.after(1))
    assert failures.keys() == {P0}
    bench.zookeeper.put(PATHS.epoch(P0), b"{}")
    other = ZooKeeperOffsetStore(bench.zookeeper.session(), "group")
    assert other.commit({P0: bench.commit(20, 2)}, Deadline.after(1)) == {}
    bench.session.deliver_late()
    assert bench.in_zookeeper == StoredOffset(20, 2)


def test_a_node_deleted_by_hand_is_written_again(bench: Bench) -> None:
    """A store that knows a node does not rely on it."""
    bench.store_in_zookeeper(9, 1)
    bench.zookeeper.remove(PATHS.offset(P0))
    bench.store_in_zookeeper(10, 1)
    assert bench.in_zookeeper == StoredOffset(10, 1)


def offsets_of(recorder: Recorder, partition: TopicPartition) -> list[int]:
    """Return the offsets of a partition's records, in the order of their delivery."""
    batches = [batch for batch in recorder.batches if batch.partition == partition]
    return [offset_of(record) for batch in batches for record in batch.records]


def test_a_channel_moves_there_and_back(broker: InMemoryBroker) -> None:
    """Kafka to ZooKeeper and back by the setting alone: no record is missed or repeated."""
    zookeeper = InMemoryZooKeeper()
    seen: list[int] = []
    broker.produce(P0, *values(3))
    for offsets in ("kafka", "zookeeper", "zookeeper", {"fencing": "transactions"}, "kafka"):
        end = broker.produce(P0, *values(2))
        recorder = Recorder()
        settings: dict[str, Any] = {"offsets": offsets}
        with running(in_memory_channel(recorder, broker, zookeeper=zookeeper, **settings)):
            recorder.wait(lambda r=recorder, e=end: ("processed", e) in r.calls[0])  # type: ignore[misc]
        seen += offsets_of(recorder, P0)
        assert (PATHS.offset(P0) in zookeeper.paths()) == (offsets == "zookeeper")
        stored = broker.committed("group", P0)
        assert stored is not None
        assert (stored.offset == end) == (offsets != "zookeeper")
    assert seen == list(range(13))


def test_two_settings_may_run_at_the_same_time(broker: InMemoryBroker) -> None:
    """In a rolling change, what moves to the other member goes on there, and comes back."""
    zookeeper = InMemoryZooKeeper()
    broker.produce(P0, *values(5))
    broker.produce(P1, *values(5))
    first, second = Recorder(), Recorder()
    with running(in_memory_channel(first, broker, zookeeper=zookeeper, member="a")):
        assert committed(broker, P0, 5)
        assert committed(broker, P1, 5)
        with running(
            in_memory_channel(second, broker, zookeeper=zookeeper, member="b", offsets="zookeeper")
        ):
            second.wait(lambda: bool(second.calls))
            moved = next(p for p in (P0, P1) if second.calls[p.partition])
            broker.produce(moved, *values(5))
            second.wait(lambda: ("processed", 10) in second.calls[moved.partition])
        broker.produce(moved, *values(1))
        first.wait(lambda: ("processed", 11) in first.calls[moved.partition])
    assert offsets_of(second, moved) == [5, 6, 7, 8, 9]
    assert offsets_of(first, moved) == [0, 1, 2, 3, 4, 10]
