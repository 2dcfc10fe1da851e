from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kazoo.client import KazooClient

from headrace.core.clock import Deadline
from headrace.devstack import Blueprint, LocalStack
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

WAIT = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Three servers of each kind, which may be killed."""
    with LocalStack.start(
        tmp_path_factory.mktemp("cluster"),
        blueprint=Blueprint(zookeepers=3, brokers=3, short_lived=True),
    ) as stack:
        yield stack


def test_an_ensemble_serves_without_its_leader_and_takes_it_back(cluster: LocalStack) -> None:
    """One of three leads; when it is killed another does, nodes stay, and it comes back."""
    modes = sorted(str(server.mode()) for server in cluster.zookeepers)
    assert modes == ["follower", "follower", "leader"]
    leader = next(server for server in cluster.zookeepers if server.mode() == "leader")
    client = KazooClient(hosts=cluster.zookeeper_hosts, timeout=10)
    client.start(timeout=30)
    try:
        client.create("/kept", b"value")
        leader.kill()
        others = [server for server in cluster.zookeepers if server is not leader]
        assert wait_for(
            lambda: "leader" in {server.mode() for server in others}, Deadline.after(WAIT)
        )
        assert client.retry(client.get, "/kept")[0] == b"value"
        leader.start()
        assert leader.mode() == "follower"
    finally:
        client.stop()
        client.close()


def test_a_cluster_keeps_topics_without_one_broker(cluster: LocalStack) -> None:
    """A topic on three brokers gets another leader when its leader is killed."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("kept", 1, 3)])["kept"].result(60)

    def state() -> tuple[int, int]:
        """Return the leader and how many copies are in sync; nobody and none while unknown."""
        partitions = admin.list_topics("kept", timeout=30).topics["kept"].partitions
        return (partitions[0].leader, len(partitions[0].isrs)) if partitions else (-1, 0)

    assert wait_for(lambda: state()[1] == 3, Deadline.after(WAIT))
    first, _ = state()
    killed = next(broker for broker in cluster.brokers if broker.node_id == first)
    killed.kill()
    assert wait_for(lambda: state()[0] not in {first, -1}, Deadline.after(WAIT))
    killed.start()
    assert wait_for(lambda: state()[1] == 3, Deadline.after(WAIT))
