"""The chaos benchmark's eyes for commits, against real servers."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.chaos.commits import backwards, read_commits
from benchmarks.chaos.doubts import in_doubt
from benchmarks.chaos.watcher import OffsetWatcher
from headrace.coordinators.znodes import GroupPaths, OffsetDocument
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition as Partition
from headrace.devstack.wait import wait_for
from headrace.kafka.topic_producer import create_topic
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.doubts import leave_in_doubt

_WAIT = 20.0
_TOPIC = "watched"


def _commit(servers: str, group: str, *offsets: int, topic: str = _TOPIC) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    for offset in offsets:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def _commit_in_transactions(servers: str, group: str, ends: dict[int, bool]) -> None:
    """Commit offsets in transactions of which those with False are aborted."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    producer = Producer({"bootstrap.servers": servers, "transactional.id": group})
    producer.init_transactions(_WAIT)
    for offset, stored in ends.items():
        producer.begin_transaction()
        offsets = [TopicPartition(_TOPIC, 0, offset)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _WAIT)
        (producer.commit_transaction if stored else producer.abort_transaction)(_WAIT)
    consumer.close()


def test_a_commit_to_kafka_that_goes_back_is_found(bootstrap_servers: str) -> None:
    """10 and then 5 counts once for its group; a transaction counts unless it was aborted."""
    create_topic({"bootstrap.servers": bootstrap_servers}, _TOPIC, 1, Deadline.after(_WAIT))
    groups = ["watched-back", "watched-on", "watched-transactions"]
    _commit(bootstrap_servers, groups[0], 10, 5)
    _commit(bootstrap_servers, groups[1], 5, 10)
    _commit_in_transactions(bootstrap_servers, groups[2], {10: True, 3: False, 12: True, 7: True})

    commits = read_commits(bootstrap_servers)

    found = {name: [c.offset for c in commits if c.group == name] for name in groups}
    assert found == {groups[0]: [10, 5], groups[1]: [5, 10], groups[2]: [10, 12, 7]}
    assert all(c.topic == _TOPIC and c.at > 0 for c in commits if c.group in groups)
    assert backwards(commits, groups) == {groups[0]: 1, groups[1]: 0, groups[2]: 1}


@pytest.mark.slow
def test_an_offset_that_is_in_doubt_is_found(bootstrap_servers: str) -> None:
    """Only its partition is named, and none where no broker answers."""
    topic, group = "watched-doubt", "watched-doubt"
    create_topic({"bootstrap.servers": bootstrap_servers}, topic, 2, Deadline.after(_WAIT))
    _commit(bootstrap_servers, group, 5, topic=topic)
    assert in_doubt(bootstrap_servers, group, topic, 2) == frozenset()
    leave_in_doubt(bootstrap_servers, "watched-doubt", group, Partition(topic, 1), 7)
    assert in_doubt(bootstrap_servers, group, topic, 2, patience=2.0) == frozenset({1})
    assert in_doubt("127.0.0.1:1", group, topic, 2, patience=0.1) == frozenset()


def test_an_offset_in_zookeeper_that_goes_back_is_found(zookeeper_hosts: str) -> None:
    """The watcher sees a node's offset go from 10 to 5, and is alive until it is stopped."""
    session = ZooKeeperSession(ZooKeeperSettings(zookeeper_hosts))
    watcher = OffsetWatcher(zookeeper_hosts, "watched-nodes", _TOPIC, 2)
    session.start()
    watcher.start()
    try:
        path = GroupPaths("watched-nodes").offset(Partition(_TOPIC, 1))
        session.ensure(path.rpartition("/")[0])
        session.create(path, OffsetDocument(10, 1, "member", 0.0).encode())
        assert wait_for(lambda: watcher.commits, Deadline.after(_WAIT))
        session.set(path, OffsetDocument(5, 1, "member", 0.0).encode())
        assert wait_for(lambda: len(watcher.commits) > 1, Deadline.after(_WAIT))
        assert watcher.alive
    finally:
        watcher.stop()
        session.close(Deadline.after(_WAIT))
    assert not watcher.alive
    assert watcher.looks > 0
    assert [(c.partition, c.offset) for c in watcher.commits] == [(1, 10), (1, 5)]
    assert backwards(watcher.commits, ["watched-nodes"]) == {"watched-nodes": 1}
