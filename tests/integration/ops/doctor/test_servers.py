"""The doctor's look at real servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from kazoo.security import make_acl

from headrace.config import Config, ZooKeeperDigest
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.core.findings import Finding, Level
from headrace.devstack.server import LOOPBACK, free_port
from headrace.extensions.keyed.codecs import partition_of
from headrace.ops.doctor import kafka
from headrace.ops.doctor.kafka import check_kafka
from headrace.ops.doctor.zookeeper import check_zookeeper
from headrace.zookeeper.client import build_client
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings, session_settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.brokers import Broker


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is Level.ERROR]


def _examined(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "doctor", "-c", str(file), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.slow
def test_a_fit_place_has_no_errors(document: dict[str, Any], tmp_path: Path) -> None:
    """With Spark, Kafka and ZooKeeper as they should be the exit code is 0, and Spark has run."""
    channel = document["channels"]["main"]
    channel |= {"processor": {"type": "spark", "reducer": "functions:reduce"}, "sink": "noop"}
    code = "def reduce(df, batch):\n    return df\n"
    (tmp_path / "functions.py").write_text(code, encoding="utf-8")
    document["spark"] = {"master": "local[1]", "driver_memory": "512MiB"}
    (tmp_path / "headrace.yaml").write_text(json.dumps(document), encoding="utf-8")
    done = _examined(tmp_path / "headrace.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    seen = {finding["check"]: finding["seen"] for finding in told["findings"]}
    assert told["ok"]
    assert "a session and a job in" in seen["spark"]
    assert f"{channel['topics'][0]} (2)" in seen["topics of channel main"]
    assert seen["group of channel main"].endswith("offsets of 0 of 2 partitions")
    assert seen["clock"].endswith("differ by 0.0 s")
    assert not (tmp_path / "state").exists()


def test_a_topic_whose_producers_partition_otherwise_is_told(
    document: dict[str, Any], broker: Broker
) -> None:
    """Records where the client's own partitioner puts them are counted, and Java's are not."""
    channel = document["channels"]["main"]
    channel["processor"] = {"type": "keyed", "reducer": "functions:keep", "engine": "arrow"}
    channel["sink"] = None
    (topic,) = channel["topics"]
    servers = {"bootstrap.servers": broker.address}
    producer = Producer({**servers, "partitioner": "murmur2_random"})
    for number in range(600):
        producer.produce(topic, b"v", f"key-{number}")
    assert producer.flush(60) == 0
    config = Config.model_validate(document)
    told = {each.check: each for each in check_kafka(config)}["keys of channel main"]
    assert (told.level, told.seen) == (
        Level.OK,
        f"{topic}: 600 of 600 records are where their keys belong",
    )
    other = Producer(servers)
    for number in range(2000):
        other.produce(topic, b"v", f"other-{number}")
    assert other.flush(60) == 0
    told = {each.check: each for each in check_kafka(config)}["keys of channel main"]
    elsewhere = sum(
        zlib.crc32(b"other-%d" % number) % 2 != partition_of(b"other-%d" % number, 2)
        for number in range(2000)
    )
    assert 700 < elsewhere < 1300
    assert told.level is Level.WARNING
    assert re.match(rf"{topic}: \d\d\d of 1000 records are in another partition", told.seen)
    assert "set processor.key: key" in told.advice


def test_looking_leaves_nothing_in_zookeeper(
    document: dict[str, Any], zookeeper_hosts: str
) -> None:
    """A chroot that is missing is not made, and the node that tells the time is gone."""
    chroot = f"/{uuid4().hex}"
    settings = Config.model_validate(document)
    missing = {**document, "zookeeper": {**document["zookeeper"], "chroot": chroot}}
    assert not _errors(check_zookeeper(settings))
    found = list(check_zookeeper(Config.model_validate(missing)))
    assert any(f"{chroot} is made at the first start" in f.seen for f in found)
    with _session(ZooKeeperSettings(zookeeper_hosts)) as session:
        names = session.children("/")
    assert chroot[1:] not in names
    assert not [name for name in names if name.startswith("headrace-doctor")]


class _session:  # noqa: N801 - used like a function
    """A session for the time of a block."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._session = ZooKeeperSession(settings)

    def __enter__(self) -> ZooKeeperSession:
        self._session.start()
        return self._session

    def __exit__(self, *_: object) -> None:
        assert self._session.close(Deadline.after(20))


def test_nodes_of_another_identity_are_told(document: dict[str, Any], zookeeper_hosts: str) -> None:
    """A node that a member could not join for is an error that names it."""
    chroot = f"/{uuid4().hex}"
    user = ZooKeeperDigest(username="headrace", password="right")
    owner = ZooKeeperSettings(zookeeper_hosts, digest=user, acl="creator")
    with _session(owner) as session:
        session.create(chroot)
    document["zookeeper"] |= {
        "chroot": chroot,
        "digest": {"username": "headrace", "password": "wrong"},
    }
    (denied,) = _errors(check_zookeeper(Config.model_validate(document)))
    assert (denied.check, denied.seen) == (
        "zookeeper access",
        f"{chroot} is denied to this identity",
    )


def test_nodes_that_stand_open_are_told_until_they_are_closed(
    document: dict[str, Any], zookeeper_hosts: str
) -> None:
    """With credentials new nodes are closed; those of before are named, the upper ones first."""
    chroot = f"/{uuid4().hex}"
    group = GroupPaths(document["channels"]["main"]["group"])
    user = {"username": "headrace", "password": "right"}
    document["zookeeper"] |= {"chroot": chroot, "digest": user}
    settings = Config.model_validate(document)
    with _session(ZooKeeperSettings(zookeeper_hosts, chroot)) as session:
        session.ensure(group.epochs("before"))
    with _session(session_settings(settings.zookeeper)) as session:
        session.ensure(group.epochs("after"))
    (found,) = _about_acls(settings)
    assert found.level is Level.WARNING
    assert found.seen.startswith(f"3 nodes are open, such as {group.root}:")
    owner = build_client(
        ZooKeeperSettings(zookeeper_hosts, digest=settings.zookeeper.digest)
    ).client
    owner.start(timeout=10)
    try:
        for path in (group.root, f"{group.root}/epochs", group.epochs("before")):
            owner.set_acls(chroot + path, [make_acl("auth", "", all=True)])
    finally:
        owner.stop()
        owner.close()
    (found,) = _about_acls(settings)
    assert found.level is Level.OK


def _about_acls(settings: Config) -> list[Finding]:
    return [found for found in check_zookeeper(settings) if found.check == "zookeeper acl"]


def test_missing_servers_are_errors(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check ends with an error within its time limit."""
    monkeypatch.setattr(kafka, "TIMEOUT", 2.0)
    document["kafka"]["bootstrap_servers"] = f"{LOOPBACK}:{free_port()}"
    document["zookeeper"] |= {"hosts": f"{LOOPBACK}:{free_port()}", "connect_timeout": "1s"}
    settings = Config.model_validate(document)
    assert [f.check for f in check_kafka(settings)] == ["kafka"]
    assert [f.check for f in check_zookeeper(settings)] == ["zookeeper"]


def test_a_topic_that_is_missing_is_an_error(document: dict[str, Any]) -> None:
    """It is named, and the group is looked at all the same."""
    document["channels"]["main"]["topics"] = ["no.such.topic", "^no.such.topics"]
    found = list(check_kafka(Config.model_validate(document)))
    assert [f.seen for f in _errors(found)] == ["no.such.topic does not exist"]
    assert "no topic matches ^no.such.topics" in [f.seen for f in found]
    assert "group of channel main" in [f.check for f in found]


@pytest.mark.parametrize("fencing", ["metadata", "transactions"])
def test_a_good_group_has_no_errors(document: dict[str, Any], fencing: str) -> None:
    """With transactions a producer is let in as well."""
    document["channels"]["main"]["offsets"] = {"fencing": fencing}
    found = list(check_kafka(Config.model_validate(document)))
    assert not _errors(found)
    assert ("transactions of channel main" in [f.check for f in found]) == (
        fencing == "transactions"
    )
