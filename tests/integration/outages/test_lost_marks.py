"""Brokers that lose marks of decided transactions, and what a takeover does then."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.clock import Deadline
from headrace.core.errors import RetryableError, SinkFailedError
from headrace.core.records import FINISHED_KEY, ResultRecord, TopicPartition, identity_of
from headrace.devstack import Blueprint, LocalStack
from headrace.devstack.jars import VERSION_VARIABLE
from headrace.kafka import KafkaOffsetStore, KafkaTopicCatalog, ResultTransactions
from headrace.kafka.broker_lines import warn_of_lost_marks
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.fencing import Finishing, GroupPartition, fence_producers
from headrace.kafka.result_transactions import sink_group
from headrace.kafka.transaction_log import Decision, TransactionLog
from headrace.sinks.contract import PartitionCommit
from tests.integration.channel.rig import eventually
from tests.integration.outages.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from tests.integration.seen import Log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WAIT = 60.0

#: Seconds for an answer that must not come.
_SOON = 2.0

#: The last version of which it is known, which the local stack has beside its own.
_LOSES_MARKS = "4.3.0"


@pytest.fixture
def cluster(three_brokers: Cluster) -> Iterator[Cluster]:
    """Return the cluster; a broker that a failing test leaves killed is started again."""
    yield three_brokers
    for broker in three_brokers.brokers:
        if not broker.running:
            broker.start(Deadline.after(WAIT))


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return brokers that lose marks; each partition of groups' offsets is on one of them only."""
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
        at = _group_at if elsewhere else _group_elsewhere
        self.group = at(cluster, self.source, broker)
        self.id = f"headrace.{self.group}.m.1"
        self.properties = {"bootstrap.servers": cluster.address, "log_level": 0}
        self.store = KafkaOffsetStore(self.properties, self.group)
        self.producer = Producer({**self.properties, "transactional.id": self.id})
        self.producer.init_transactions(WAIT)
        self.begin()

    def begin(self) -> None:
        """Open a transaction with a state, and the offset 6."""
        with Consumer({"group.id": self.group, "log_level": 0}) as consumer:
            metadata = consumer.consumer_group_metadata()
        self.producer.begin_transaction()
        self.producer.produce(self.state.topic, b"state", b"k", partition=0)
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

    def fence_with_changelog(self) -> None:
        """Take over as the next owner of a channel with state does."""
        place = GroupPartition(self.group, self.source, frozenset({self.state.topic}))
        fence_producers(self.properties, [self.id], Deadline.after(WAIT), place)

    def held_back(self) -> bool:
        """Return whether readers of the state wait for ever."""
        holds = TransactionLog(self.properties).holds([self.state])
        return any(hold.is_for_good for hold in holds.values())

    def states(self) -> list[bytes | None]:
        """Return what a reader of committed records gets until the end."""
        return _states(self.properties, self.state)


def _group_at(cluster: Cluster, source: TopicPartition, broker: int) -> str:
    """Return a group whose offsets are on a broker."""
    while True:
        name = f"group.{uuid4().hex[:12]}"
        if _place(cluster, source, name) == broker:
            return name


def _group_elsewhere(cluster: Cluster, source: TopicPartition, broker: int) -> str:
    """Return a group whose offsets are not on a broker, nor those of its sink."""
    while True:
        name = f"group.{uuid4().hex[:12]}"
        if broker not in {_place(cluster, source, each) for each in (name, sink_group(name))}:
            return name


def _place(cluster: Cluster, source: TopicPartition, group: str) -> int:
    # there is no group without an offset
    cluster.commit(group, source, 5)
    return cluster.coordinator(group).node_id


def _states(properties: Mapping[str, Any], partition: TopicPartition) -> list[bytes | None]:
    settings = {**properties, "group.id": f"r.{uuid4().hex}", "enable.partition.eof": True}
    found: list[bytes | None] = []
    with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
        consumer.assign([ClientPartition(*partition, 0)])
        deadline = Deadline.after(WAIT)
        while not deadline.expired:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                return found
            found.append(message.value())
    raise AssertionError(f"no end of {partition} after {found}")


def test_decided_transaction_is_finished_as_it_was_decided(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four owners lost a mark: one of its offset, three of a state, one of these of an abort.

    The offset that was committed is read, so that its event is not taken again; so is the state
    that was committed, up to the end, and the one that was aborted is not. The rows of a changelog
    are read also where the first one to finish them is killed while its transaction is open.
    """
    killed = cluster.brokers[2]
    number = killed.node_id
    offset = Owner(cluster, number, elsewhere=True)
    state = Owner(cluster, number, elsewhere=False)
    aborted = Owner(cluster, number, elsewhere=False)
    changelog = Owner(cluster, number, elsewhere=False)
    killed.kill()
    eventually(lambda: cluster.leaders(changelog.state.topic) == [-1])
    eventually(lambda: cluster.leaders(state.state.topic) == [-1])
    eventually(lambda: cluster.leaders(aborted.state.topic) == [-1])
    offset.producer.commit_transaction(WAIT)
    state.producer.commit_transaction(WAIT)
    changelog.producer.commit_transaction(WAIT)
    aborted.producer.abort_transaction(WAIT)
    killed.start(Deadline.after(WAIT))
    cluster.wait_leaders(state.state.topic, [number])
    cluster.wait_leaders(aborted.state.topic, [number])
    cluster.wait_leaders(changelog.state.topic, [number])

    eventually(lambda: offset.store.answers(offset.source, Deadline.after(WAIT)))
    with pytest.raises(OffsetStoreError, check=lambda error: error.timed_out):
        offset.offset(_SOON)
    assert state.held_back()
    assert aborted.held_back()
    assert (state.offset(), aborted.offset()) == (6, 5)
    log = TransactionLog(offset.properties).decided([offset.id, aborted.id])
    assert log[offset.id].of_group is Decision.COMMIT
    assert log[aborted.id].partitions[aborted.state] is Decision.ABORT

    with monkeypatch.context() as patch:
        patch.setattr(Finishing, "_end_topics", _be_killed)
        with pytest.raises(_KilledError):
            changelog.fence_with_changelog()
    assert changelog.held_back() is False
    assert changelog.states() == []
    for _ in range(2):
        changelog.fence_with_changelog()
    assert changelog.states() == [b"state"]
    assert changelog.offset() == 6
    for owner in (offset, state, aborted):
        for _ in range(2):
            owner.fence()
    assert (offset.offset(), state.offset(), aborted.offset()) == (6, 6, 5)
    assert not state.held_back()
    assert not aborted.held_back()
    assert offset.states() == [b"state"]
    assert state.states() == [b"state", None]
    assert aborted.states() == []
    for owner in (offset, state, aborted, changelog):
        owner.store.close()


class _KilledError(Exception):
    """Stands for a SIGKILL: nothing of what was begun is ended."""


def _be_killed(finishing: Finishing, partitions: Collection[TopicPartition], _: Decision) -> None:
    """End as a process does that has sent a part of its transaction."""
    client = finishing._producer._producer
    client.begin_transaction()
    for topic, number in partitions:
        client.produce(topic, None, FINISHED_KEY, partition=number)
    client.flush(WAIT)
    raise _KilledError


def test_aborted_record_stays_aborted_after_the_producer_s_next_commit(
    cluster: Cluster,
) -> None:
    """The mark of the abort is lost; the next transaction of the producer has the same partition.

    A reader gets what that has, and not what was aborted.
    """
    killed = cluster.brokers[2]
    owner = Owner(cluster, killed.node_id, elsewhere=False)
    owner.producer.abort_transaction(WAIT)
    properties = {"bootstrap.servers": cluster.address, "log_level": 0}
    group = _group_elsewhere(cluster, owner.source, killed.node_id)
    state = TopicPartition(cluster.topic([[killed.node_id]]), 0)
    with closing(KafkaTopicCatalog(properties, group)) as catalog:
        found = catalog.describe([owner.source.topic], Deadline.after(WAIT))
    identity = identity_of("cluster", group, found[owner.source.topic].topic_id, 0)

    def failing() -> Iterator[ResultRecord]:
        yield ResultRecord(state.topic, b"aborted", partition=0)
        eventually(lambda: bool(TransactionLog(properties).held_back([state])))
        killed.kill()
        eventually(lambda: cluster.leaders(state.topic) == [-1])
        raise RetryableError("no more")

    results = ResultTransactions(properties, group, "m", own_id=f"headrace.{group}.m.1")
    with closing(results):
        with pytest.raises(SinkFailedError):
            results.commit([PartitionCommit(identity, owner.source, 5, 6, None)], failing())
        killed.start(Deadline.after(WAIT))
        cluster.wait_leaders(state.topic, [killed.node_id])
        stored = [ResultRecord(state.topic, b"stored", partition=0)]
        eventually(lambda: _is_committed(results, identity, owner.source, stored))
    assert _states(properties, state) == [b"stored"]
    owner.store.close()


def _is_committed(
    results: ResultTransactions,
    identity: str,
    source: TopicPartition,
    records: list[ResultRecord],
) -> bool:
    """Commit as a sink does, which tries again after what may pass."""
    try:
        return results.commit([PartitionCommit(identity, source, 5, 6, None)], records) == []
    except (SinkFailedError, OffsetStoreError):
        return False


class Foreign:
    """A channel's configuration, and another program whose commit to its input lost the mark."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.killed = cluster.brokers[2]
        self.input = TopicPartition(cluster.topic([[self.killed.node_id]]), 0)
        self.properties = {"bootstrap.servers": cluster.address, "log_level": 0}
        self.id = f"billing-{uuid4().hex[:8]}"
        self.file = directory / "headrace.yaml"
        document = {
            "instance_id": "one",
            "state_dir": str(directory / "state"),
            "kafka": {"bootstrap_servers": cluster.address.split(",")},
            "zookeeper": {"hosts": cluster.zookeeper_hosts},
            "channels": {
                "main": {
                    "group": f"group.{uuid4().hex[:12]}",
                    "topics": [self.input.topic],
                    "processor": {"type": "arrow", "reducer": "json:dumps"},
                    "sink": {"type": "console"},
                }
            },
        }
        self.file.write_text(json.dumps(document), encoding="utf-8")

    def lose_mark(self) -> None:
        """Let the other program commit while the broker is away."""
        producer = Producer({**self.properties, "transactional.id": self.id})
        producer.init_transactions(WAIT)
        producer.begin_transaction()
        producer.produce(self.input.topic, b"committed", partition=0)
        producer.flush(WAIT)
        self.killed.kill()
        eventually(lambda: self.cluster.leaders(self.input.topic) == [-1])
        producer.commit_transaction(WAIT)
        self.killed.start(Deadline.after(WAIT))
        self.cluster.wait_leaders(self.input.topic, [self.killed.node_id])

    def run(self, *arguments: str, expect: int) -> str:
        """Run a command on transactions; return all that it says."""
        command = ["transactions", *arguments, self.id, "--yes", "--force", "-c", str(self.file)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == expect, result.output
        return result.output


def test_an_abort_that_leaves_a_partition_held_back_ends_with_1(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It names the partition and what finishes it; settle does, and readers get what it has."""
    foreign = Foreign(cluster, tmp_path)
    foreign.lose_mark()
    said = foreign.run("abort", expect=1)
    assert f"{foreign.input} can be read up to 0 of 1" in said
    assert f"{foreign.id}, decided as commit; headrace transactions settle" in said
    assert "nothing is held back by it any more" in foreign.run("settle", expect=0)
    assert _states(foreign.properties, foreign.input) == [b"committed", None]


def test_brokers_that_lose_marks_are_warned_of(cluster: Cluster, log: Log) -> None:
    """The warning follows from what a real broker of 4.3 tells clients."""
    assert warn_of_lost_marks({"bootstrap.servers": cluster.address}, Deadline.after(WAIT))
    log.expect("brokers_may_lose_marks", line="4.3")
