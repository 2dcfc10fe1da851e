from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kazoo.client import KazooClient

from headrace.core.clock import Deadline
from headrace.devstack import Blueprint, LocalStack, LocalStackError
from headrace.devstack.kafka import live_brokers
from headrace.devstack.server import ProcessState
from headrace.devstack.zookeeper import four_letter_word

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A stack whose servers may be stopped and killed."""
    properties = {"message.max.bytes": "2000000"}
    with LocalStack.start(
        tmp_path_factory.mktemp("own"),
        blueprint=Blueprint(properties=properties, short_lived=True),
    ) as stack:
        yield stack


def _topics(stack: LocalStack) -> set[str]:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})
    return set(admin.list_topics(timeout=30).topics)


def _create_topic(stack: LocalStack) -> str:
    name = f"topic-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    return name


def test_a_started_broker_creates_a_topic_at_once(own: LocalStack) -> None:
    """A stack that has started takes a new topic without any further wait."""
    assert _create_topic(own) in _topics(own)


def test_a_started_zookeeper_keeps_nodes(own: LocalStack) -> None:
    """A stack that has started serves a real ZooKeeper client."""
    client = KazooClient(hosts=own.zookeeper_hosts, timeout=5)
    client.start(timeout=30)
    try:
        client.create("/a/b", b"value", makepath=True)
        assert client.get("/a/b")[0] == b"value"
    finally:
        client.stop()
        client.close()


def test_extra_broker_properties_reach_the_broker(own: LocalStack) -> None:
    """Properties given to the stack stand in the broker's settings file."""
    settings = (own.kafka.directory / "server.properties").read_text(encoding="utf-8")
    assert "message.max.bytes=2000000\n" in settings


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_comes_back_on_its_port_with_its_data(own: LocalStack, how: str) -> None:
    """After a stop and after a kill the broker serves its old topics on its old address."""
    topic, address = _create_topic(own), own.kafka.address
    if how == "stop":
        own.kafka.stop(Deadline.after(30))
    else:
        own.kafka.kill()
    assert not own.kafka.running
    assert live_brokers(own.kafka.address) == []
    own.kafka.start()
    assert own.kafka.address == address
    assert topic in _topics(own)


def test_zookeeper_comes_back_with_its_data_after_a_kill(own: LocalStack) -> None:
    """A node written before a kill of the server is there after the restart."""
    path = f"/kept-{uuid.uuid4().hex}"
    client = KazooClient(hosts=own.zookeeper_hosts, timeout=20)
    client.start(timeout=30)
    try:
        client.create(path, b"kept")
        own.zookeeper.kill()
        own.zookeeper.start()
        assert client.retry(client.get, path)[0] == b"kept"
    finally:
        client.stop()
        client.close()


def test_a_paused_server_answers_nothing_until_it_is_resumed(own: LocalStack) -> None:
    """Between pause and resume the process stands still; afterwards it answers again."""
    server = own.zookeeper
    assert server.identity is not None
    server.pause(Deadline.after(10))
    assert server.identity.state is ProcessState.PAUSED
    server.resume()
    assert b"Mode:" in four_letter_word(server.port, b"srvr")


def test_a_second_start_of_a_running_server_is_refused(own: LocalStack) -> None:
    """A server that runs is not started twice."""
    with pytest.raises(LocalStackError, match="runs already"):
        own.kafka.start(Deadline.after(5))


def test_a_folder_in_use_is_refused(own: LocalStack) -> None:
    """A second stack in the same folder is refused before it touches anything."""
    with pytest.raises(LocalStackError, match=r"runs in .* already"):
        LocalStack.start(own.directory)


def test_leaving_the_context_ends_every_process(tmp_path: Path) -> None:
    """After the with block no server process is left, and the folder can be used again."""
    with LocalStack.start(tmp_path) as stack:
        identities = [server.identity for server in stack.servers]
    assert [identity.state for identity in identities if identity] == [ProcessState.GONE] * 2
    with LocalStack.start(tmp_path) as again:
        assert all(server.running for server in again.servers)
