"""Brokers that go and come back while the others, and ZooKeeper, go on."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.errors import CommitFailedError
from headrace.devstack import Blueprint, LocalStack
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.ports import StoredOffset
from headrace.processors import BatchResponse
from headrace.testing.records import FakeRecord
from tests.integration.channel.rig import WAIT, Group, Notes, eventually
from tests.integration.outages.cluster import Cluster
from tests.integration.seen import metric

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.controller.controller import KafkaController
    from headrace.core.records import Batch, TopicPartition
    from tests.integration.seen import Log

pytestmark = pytest.mark.slow


#: A segment that is older than this is closed by the next record, and then cleaned.
_CLEANED_AT_ONCE = {
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Three brokers that clean compacted topics often."""
    properties = {"log.cleaner.backoff.ms": "100"}
    blueprint = Blueprint(brokers=3, properties=properties, short_lived=True)
    directory = tmp_path_factory.mktemp("cluster")
    with LocalStack.start(directory, blueprint=blueprint) as stack:
        yield stack


@pytest.fixture(scope="module")
def cluster(stack: LocalStack) -> Cluster:
    """An operator's hand on the brokers."""
    return Cluster(stack)


def group_of(cluster: Cluster, stack: LocalStack, directory: Path, topic: str) -> Group:
    """Return a group that reads the topic."""
    return Group(cluster, stack.zookeeper_hosts, directory, topic)


@pytest.mark.timeout(400)
def test_topics_are_described_whichever_broker_is_away(cluster: Cluster) -> None:
    """A client that asked one broker before asks another, and does not wait for that one."""
    topic = cluster.topic([[1, 2, 3]])
    properties = {"bootstrap.servers": cluster.address, "log_level": 0}
    with closing(KafkaTopicCatalog(properties, "group")) as catalog:
        for broker in cluster.brokers:
            assert topic in catalog.describe([topic], Deadline.after(WAIT))
            broker.kill()
            try:
                assert topic in catalog.describe([topic], Deadline.after(WAIT))
            finally:
                broker.start(Deadline.after(120.0))


def test_a_killed_broker_holds_up_only_unreplicated_partitions(
    cluster: Cluster,
    stack: LocalStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
) -> None:
    """A replicated partition goes on under another leader, one without a leader when it is back.

    No claim is lost, and no record is missing or repeated.
    """
    monkeypatch.setattr("headrace.channel.supervision.LOOK_INTERVAL", 2.0)
    group = group_of(cluster, stack, tmp_path, cluster.topic([[1, 2, 3]]))
    single = replace(group, topic=cluster.topic([[1], [2]]))
    group.produce(10)
    single.produce(10, 0, 1)
    notes = Notes()
    with group.running(notes, topics=[group.topic, single.topic]) as controller:
        eventually(lambda: group.offsets() + single.offsets(0, 1) == [10, 10, 10])
        killed = cluster.broker(1)
        killed.kill()
        try:
            eventually(lambda: cluster.leaders(group.topic)[0] in {2, 3})
            eventually(lambda: cluster.leaders(single.topic) == [-1, 2])
            group.produce(10, start=10)
            single.produce(10, 1, start=10)
            eventually(lambda: group.offsets() + single.offsets(0, 1) == [20, 10, 20])
            alone = str(single.partition(0))
            eventually(
                lambda: any(
                    alone in each["partitions"] for each in log.of("partition_leader_unavailable")
                )
            )
            end = metric(controller, "high_watermark", topic=single.topic, partition=0)
            assert end == 10
        finally:
            # the other tests have the same three brokers
            killed.start()
        eventually(lambda: cluster.leaders(single.topic) == [1, 2])
        single.produce(10, start=10)
        eventually(lambda: group.stored() + single.stored(0, 1) == [StoredOffset(20, 1)] * 3)
    single.close()
    group.close()
    for partition in (group.partition(), single.partition(0), single.partition(1)):
        assert notes.records[partition] == list(range(20))
        assert notes.epochs[partition] == [1]


def test_a_frozen_group_coordinator_delays_commits_and_no_delivery(
    cluster: Cluster, stack: LocalStack, tmp_path: Path, log: Log
) -> None:
    """Records go on coming and commits fail visibly, until another broker takes the group over."""
    probe = cluster.topic([[1]])
    group = group_of(cluster, stack, tmp_path, probe)
    group.broker.commit(group.name, group.partition(), 0)
    frozen = cluster.coordinator(group.name)
    leader = next(broker.node_id for broker in cluster.brokers if broker is not frozen)
    group.topic = cluster.topic([[leader]])
    group.produce(5)
    may_answer = Event()

    def answer(_: Batch) -> BatchResponse:
        assert may_answer.wait(WAIT)
        return BatchResponse.advance()

    notes = Notes(answer)
    with group.running(notes, commit_interval="1s") as controller:
        notes.wait_values(1)
        frozen.pause(Deadline.after(WAIT))
        try:
            may_answer.set()
            group.produce(5, start=5)
            notes.wait_values(10)
            notes.wait(lambda: bool(notes.errors))
        finally:
            frozen.resume()
        eventually(lambda: group.stored() == [StoredOffset(10, 1)])
        where = {"topic": group.topic}
        failed = "commit_failures_total"
        eventually(lambda: metric(controller, failed, **where) == len(log.of("commit_failed")))
        told = metric(controller, "processor_errors_total", error="CommitFailedError", **where)
        assert told == len(notes.errors)
    group.close()
    log.expect("commit_failed", channel="main", partition=0, epoch=1, refusal="none", **where)
    assert {type(error) for error in notes.errors} == {CommitFailedError}
    assert notes.records[group.partition()] == list(range(10))


def test_gaps_of_a_compacted_topic_are_passed(
    cluster: Cluster, stack: LocalStack, tmp_path: Path
) -> None:
    """Records that the broker cleaned away are not waited for or counted, and the lag ends at 0."""
    topic = cluster.topic([[1]], {"cleanup.policy": "compact", **_CLEANED_AT_ONCE})
    group = group_of(cluster, stack, tmp_path, topic)
    written = 0

    def cleaned() -> bool:
        nonlocal written
        value = FakeRecord(key_=b"key", value_=b"%d" % written)
        cluster.produce(group.partition(), value)
        written += 1
        return first_offset(cluster, group.partition()) > 0

    eventually(cleaned)
    notes = Notes()
    with group.running(notes) as controller:
        eventually(lambda: group.stored() == [StoredOffset(written, 1)])
        eventually(lambda: _lag(controller, group.partition()) == 0)
    group.close()
    delivered = notes.records[group.partition()]
    assert delivered == sorted(set(delivered))
    assert delivered[0] > 0
    assert delivered[-1] == written - 1


def first_offset(cluster: Cluster, partition: TopicPartition) -> int:
    """Return the offset of the first record that can still be read."""
    properties = {"bootstrap.servers": cluster.address, "group.id": "operator"}
    with Consumer(properties) as consumer:
        consumer.assign([ClientPartition(partition.topic, partition.partition, 0)])
        message = consumer.poll(WAIT)
        assert message is not None
        offset = message.offset()
        assert offset is not None
        return offset


def _lag(controller: KafkaController, partition: TopicPartition) -> float | None:
    topic, number = partition
    return metric(controller, "lag_records", topic=topic, partition=number)
