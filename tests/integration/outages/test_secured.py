"""A ZooKeeper that speaks TLS only to those it knows, and nodes that only their creator may use."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from headrace.core.clock import Deadline
from headrace.devstack.server import LOOPBACK, free_port
from headrace.devstack.zookeeper import ZooKeeperServer
from headrace.kafka.ports import StoredOffset
from headrace.zookeeper.errors import AccessDeniedError, ZooKeeperUnavailableError
from tests.integration.channel.rig import CHANNEL, WAIT, Group, Notes, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

IDENTITY = {"digest": {"username": "headrace", "password": "secret"}, "acl": "creator"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate with its key, apart and in one file, and that of the authority behind it."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", LOOPBACK)
    authority.cert_pem.write_to_path(folder / "authority.pem")
    certificate = issued.cert_chain_pems[0].bytes()
    # the only form of a key that ZooKeeper reads
    key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    (folder / "both.pem").write_bytes(key + certificate)
    return folder


@pytest.fixture(scope="module")
def secure_port(
    tmp_path_factory: pytest.TempPathFactory, certificates: Path
) -> Iterator[tuple[str, int]]:
    """A server and the port on which it wants to see a certificate."""
    port = free_port()
    server = ZooKeeperServer(
        tmp_path_factory.mktemp("zookeeper"),
        settings={
            "secureClientPort": str(port),
            "secureClientPortAddress": LOOPBACK,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(certificates / "both.pem"),
            "ssl.trustStore.location": str(certificates / "authority.pem"),
            "ssl.hostnameVerification": "false",
        },
    )
    server.start()
    yield server.address, port
    server.kill()


def test_members_with_an_identity_share_and_strangers_see_nothing(
    make_group: Callable[..., Group], zookeeper_hosts: str
) -> None:
    """With digest and acl: creator, two members work as ever, and no other session may read."""
    group, numbers = make_group(zookeeper_hosts, 2), (0, 1)
    chroot = f"/{group.name}"
    first, second = Notes(), Notes()
    controllers = []
    for name, notes in (("a", first), ("b", second)):
        document = group.document(name)
        document["zookeeper"] |= {"chroot": chroot, **IDENTITY}
        controllers.append(group.start(document, {CHANNEL: notes}))
    first.wait(lambda: len(first.assigned) == 1)
    second.wait(lambda: len(second.assigned) == 1)
    group.produce(10, *numbers)
    eventually(lambda: group.offsets(*numbers) == [10, 10])
    with group.zookeeper() as stranger:
        for path in (chroot, f"{chroot}{group.paths.ids}"):
            with pytest.raises(AccessDeniedError):
                stranger.children(path)
    for controller in controllers:
        assert controller.stop(Deadline.after(WAIT)).left == ()
    assert set((first.values + second.values).values()) == {1}
    assert len(first.values + second.values) == 20


def test_a_member_with_wrong_credentials_fails_and_the_others_go_on(
    make_group: Callable[..., Group], zookeeper_hosts: str
) -> None:
    """It is denied access while it joins, says which setting to correct, and holds up nobody."""
    group, notes = make_group(zookeeper_hosts), Notes()
    right, wrong = group.document("a"), group.document("b")
    with group.zookeeper() as session:
        session.ensure(f"/{group.name}")
    right["zookeeper"] |= {"chroot": f"/{group.name}", **IDENTITY}
    wrong["zookeeper"] |= {
        **right["zookeeper"],
        "digest": {"username": "headrace", "password": "guess"},
    }
    controller = group.start(right, {CHANNEL: notes})
    notes.wait(lambda: len(notes.assigned) == 1)
    refused = group.start(wrong, {CHANNEL: Notes()})
    failure = refused.wait(WAIT)
    assert isinstance(failure, AccessDeniedError)
    assert group.paths.ids in str(failure)
    assert "zookeeper.digest" in str(failure)
    assert refused.stop(Deadline.after(WAIT)).left == ()
    group.produce(5)
    eventually(lambda: group.stored() == [StoredOffset(5, 1)])
    assert controller.stop(Deadline.after(WAIT)).left == ()


def test_a_chroot_that_is_denied_ends_the_start(
    make_group: Callable[..., Group], zookeeper_hosts: str
) -> None:
    """The error says that access is denied, and not that no server answered."""
    group = make_group(zookeeper_hosts)
    document = group.document("a")
    document["zookeeper"] |= {"chroot": f"/{group.name}", **IDENTITY}
    assert group.start(document, {CHANNEL: Notes()}).stop(Deadline.after(WAIT)).left == ()
    document["zookeeper"]["digest"] = {"username": "headrace", "password": "guess"}
    with pytest.raises(AccessDeniedError, match=r"zookeeper\.digest"):
        group.start(document, {CHANNEL: Notes()})


@pytest.mark.parametrize("node", ["member", "owners"])
def test_access_that_is_taken_from_a_running_member_ends_it(
    make_group: Callable[..., Group], zookeeper_hosts: str, node: str
) -> None:
    """It gives everything up without another commit, and a member that may takes over."""
    group, notes = make_group(zookeeper_hosts), Notes()
    paths = {"member": group.paths.member("a"), "owners": group.paths.owners(group.topic)}
    controller = group.start(group.document("a"), {CHANNEL: notes})
    notes.wait(lambda: len(notes.assigned) == 1)
    with _operator(zookeeper_hosts) as operator:
        operator.set_acls(paths[node], [make_digest_acl("operator", "x", all=True)])
        failure = controller.wait(WAIT)
        assert isinstance(failure, AccessDeniedError)
        assert paths[node] in str(failure)
        notes.wait(lambda: not notes.assigned)
        controller.stop(Deadline.after(WAIT))
        if node == "owners":
            operator.set_acls(paths[node], OPEN_ACL_UNSAFE)
    group.produce(5)
    with group.running(Notes(), "b"):
        eventually(lambda: group.stored() == [StoredOffset(5, 2)])


@contextmanager
def _operator(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts, auth_data=[("digest", "operator:x")])
    client.start(WAIT)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def test_a_member_is_let_in_by_its_certificate(
    secure_port: tuple[str, int], certificates: Path, make_group: Callable[..., Group]
) -> None:
    """With TLS both ways a channel runs; who shows no certificate is told what to look at."""
    hosts, port = secure_port
    group, notes = make_group(hosts), Notes()
    group.produce(5)
    document = group.document("a")
    tls: dict[str, Any] = {"ca_file": str(certificates / "authority.pem")}
    document["zookeeper"] |= {"hosts": f"{LOOPBACK}:{port}", "tls": tls, "connect_timeout": "2s"}
    with pytest.raises(ZooKeeperUnavailableError, match="TLS and credentials"):
        group.start(document, {CHANNEL: Notes()})
    tls["certificate_file"] = str(certificates / "certificate.pem")
    tls["key_file"] = str(certificates / "key.pem")
    document["zookeeper"]["connect_timeout"] = f"{WAIT}s"
    controller = group.start(document, {CHANNEL: notes})
    eventually(lambda: group.stored() == [StoredOffset(5, 1)])
    assert controller.stop(Deadline.after(WAIT)).left == ()
