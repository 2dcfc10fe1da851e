"""A ZooKeeper that speaks TLS only to those it knows, and nodes that only their creator may use."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from headrace.clock import Deadline
from headrace.errors import ZooKeeperUnavailableError
from headrace.kafka.ports import StoredOffset
from headrace.local.ports import LOOPBACK, free_port
from headrace.local.zookeeper import ZooKeeperServer
from headrace.zookeeper.errors import AccessDeniedError
from tests.integration.channel.rig import CHANNEL, WAIT, Group, Notes, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

IDENTITY = {"digest": {"username": "headrace", "password": "secret"}, "acl": "creator"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key, which everybody here trusts, apart and in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with the program openssl, which is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{LOOPBACK}"),
            *("-keyout", "key.pem", "-out", "certificate.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=WAIT,
    )
    both = [(folder / name).read_text() for name in ("key.pem", "certificate.pem")]
    (folder / "both.pem").write_text("".join(both))
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
            "ssl.trustStore.location": str(certificates / "certificate.pem"),
            "ssl.hostnameVerification": "false",
        },
    )
    server.start(Deadline.after(WAIT))
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


def test_a_member_is_let_in_by_its_certificate(
    secure_port: tuple[str, int], certificates: Path, make_group: Callable[..., Group]
) -> None:
    """With TLS both ways a channel runs; who shows no certificate is told what to look at."""
    hosts, port = secure_port
    group, notes = make_group(hosts), Notes()
    group.produce(5)
    document = group.document("a")
    tls: dict[str, Any] = {"ca_file": str(certificates / "certificate.pem")}
    document["zookeeper"] |= {"hosts": f"{LOOPBACK}:{port}", "tls": tls, "connect_timeout": "2s"}
    with pytest.raises(ZooKeeperUnavailableError, match="TLS and credentials"):
        group.start(document, {CHANNEL: Notes()})
    tls["certificate_file"] = str(certificates / "certificate.pem")
    tls["key_file"] = str(certificates / "key.pem")
    document["zookeeper"]["connect_timeout"] = f"{WAIT}s"
    controller = group.start(document, {CHANNEL: notes})
    eventually(lambda: group.stored() == [StoredOffset(5, 1)])
    assert controller.stop(Deadline.after(WAIT)).left == ()
