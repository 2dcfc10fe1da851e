"""Brokers that lose marks of decided transactions, and what a takeover does then."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack import Blueprint, LocalStack
from headrace.devstack.jars import VERSION_VARIABLE
from headrace.kafka import KafkaOffsetStore
from headrace.kafka.broker_lines import warn_of_lost_marks
from headrace.kafka.ports import OffsetTimeoutError
from headrace.kafka.transaction_log import Decision, TransactionLog
from tests.integration.channel.rig import eventually
from tests.integration.outages.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.seen import Log

pytestmark = pytest.mark.slow

WAIT = 60.0

#: Seconds for an answer that must not come.
_SOON = 2.0

#: The last version of which it is known, which the local stack has beside its own.
_LOSES_MARKS = "4.3.0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers that lose marks; each partition of groups' offsets is on one of them only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VERSION_VARIABLE, _LOSES_MARKS)
        properties = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "3"}
        blueprint = Blueprint(brokers=3, properties=properties, short_lived=True)
        directory = tmp_path_factory.mktemp("cluster")
        with LocalStack.start(directory, Deadline.after(300), blueprint=blueprint) as stack:
            yield Cluster(stack)


class Owner:
    """A former owner of a partition, which is killed once its last transaction was decided."""

    def __init__(self, cluster: Cluster, broker: int, *, elsewhere: bool) -> None:
        self.cluster = cluster
        safe = [each.node_id for each in cluster.brokers if each.node_id != broker]
        self.source = TopicPartition(cluster.topic([safe]), 0)
        self.state = TopicPartition(cluster.topic([safe if elsewhere else [broker]]), 0)
        self.group = self._group_at(broker, elsewhere=not elsewhere)
        self.id = f"headrace.{self.group}.m.1"
        self.properties = {"bootstrap.servers": cluster.address, "log_level": 0}
        self.store = KafkaOffsetStore(self.properties, self.group)
        self.producer = Producer({**self.properties, "transactional.id": self.id})
        self.producer.init_transactions(WAIT)
        self.begin()

    def _group_at(self, broker: int, *, elsewhere: bool) -> str:
        """Return a group whose offsets are on a broker, or on another one."""
        while True:
            name = f"group.{uuid4().hex[:12]}"
            # there is no group without an offset
            self.cluster.commit(name, self.source, 5)
            if (self.cluster.coordinator(name).node_id == broker) is not elsewhere:
                return name

    def begin(self) -> None:
        """Open a transaction with a state, and the offset 6."""
        with Consumer({"group.id": self.group, "log_level": 0}) as consumer:
            metadata = consumer.consumer_group_metadata()
        self.producer.begin_transaction()
        self.producer.produce(self.state.topic, b"state", partition=0)
        self.producer.flush(WAIT)
        entries = [ClientPartition(*self.source, 6)]
        self.producer.send_offsets_to_transaction(entries, metadata, WAIT)

    def offset(self, wait: float = WAIT) -> int | None:
        """Return the group's offset."""
        found = self.store.read(self.source, Deadline.after(wait))
        return None if found is None else found.offset

    def fence(self) -> None:
        """Take over: shut the owner out."""
        self.store.fence([self.id], self.source, Deadline.after(WAIT))

    def held_back(self) -> bool:
        """Return whether readers of the state wait for ever."""
        return bool(TransactionLog(self.properties).held_for_good([self.state]))

    def states(self) -> list[bytes | None]:
        """Return what a reader of committed records gets until the end."""
        settings = {**self.properties, "group.id": f"r.{uuid4().hex}", "enable.partition.eof": True}
        found: list[bytes | None] = []
        with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
            consumer.assign([ClientPartition(*self.state, 0)])
            deadline = Deadline.after(WAIT)
            while not deadline.expired:
                message = consumer.poll(0.5)
                if message is None:
                    continue
                if message.error() is not None:
                    return found
                found.append(message.value())
        raise AssertionError(f"no end of {self.state} after {found}")


def test_what_was_decided_is_finished_as_it_was_decided(cluster: Cluster) -> None:
    """Of three owners one lost the mark of its offset, and two, a commit and an abort, of a state.

    The offset that was committed is read, so that its event is not taken again; so is the state
    that was committed, up to the end, and the one that was aborted is not.
    """
    killed = cluster.brokers[2]
    number = killed.node_id
    offset = Owner(cluster, number, elsewhere=True)
    state = Owner(cluster, number, elsewhere=False)
    aborted = Owner(cluster, number, elsewhere=False)
    killed.kill()
    eventually(lambda: cluster.leaders(state.state.topic) == [-1])
    eventually(lambda: cluster.leaders(aborted.state.topic) == [-1])
    offset.producer.commit_transaction(WAIT)
    state.producer.commit_transaction(WAIT)
    aborted.producer.abort_transaction(WAIT)
    killed.start(Deadline.after(WAIT))
    cluster.wait_leaders(state.state.topic, [number])
    cluster.wait_leaders(aborted.state.topic, [number])

    with pytest.raises(OffsetTimeoutError):
        offset.offset(_SOON)
    assert state.held_back()
    assert aborted.held_back()
    assert (state.offset(), aborted.offset()) == (6, 5)
    log = TransactionLog(offset.properties).decided([offset.id, aborted.id])
    assert log[offset.id].of_group is Decision.COMMIT
    assert log[aborted.id].partitions[aborted.state] is Decision.ABORT

    for owner in (offset, state, aborted):
        for _ in range(2):
            owner.fence()
    assert (offset.offset(), state.offset(), aborted.offset()) == (6, 6, 5)
    assert not state.held_back()
    assert not aborted.held_back()
    assert offset.states() == [b"state"]
    assert state.states() == [b"state", None]
    assert aborted.states() == []
    for owner in (offset, state, aborted):
        owner.store.close()


def test_brokers_that_lose_marks_are_warned_of(cluster: Cluster, log: Log) -> None:
    """By what a real one of 4.3 tells clients."""
    assert warn_of_lost_marks({"bootstrap.servers": cluster.address}, Deadline.after(WAIT))
    log.expect("brokers_may_lose_marks", line="4.3")
