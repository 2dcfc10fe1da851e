from __future__ import annotations

from math import inf

import pytest
from kazoo import exceptions as kazoo_errors
from kazoo.security import ACL, Id

from headrace.config import ZooKeeperDigest, ZooKeeperSasl, ZooKeeperTls
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import ConfigError, FatalError, HeadraceError
from headrace.devstack.server import free_port
from headrace.zookeeper.client import build_client, transaction_results, translate
from headrace.zookeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    ZooKeeperUnavailableError,
)
from headrace.zookeeper.nodes import Check, Create, SetData
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings


def test_settings_reach_the_client() -> None:
    """Hosts, chroot, credentials, ACLs and TLS are what kazoo is built with."""
    client, negotiated, connected_at = build_client(
        ZooKeeperSettings(
            "h1:2181,h2:2182",
            chroot="/a/b",
            session_timeout=7,
            tls=ZooKeeperTls(ca_file="/ca", certificate_file="/cert", key_file="/key"),
            digest=ZooKeeperDigest(username="user", password="secret"),
            acl="creator-read-world",
        )
    )
    assert client.hosts == [("h1", 2181), ("h2", 2182)]
    assert client.chroot == "/a/b"
    assert client.auth_data == {("digest", "user:secret")}
    assert client.default_acl == [ACL(31, Id("auth", "")), ACL(1, Id("world", "anyone"))]
    assert (client.use_ssl, client.ca, client.certfile) == (True, "/ca", "/cert")
    assert (client.verify_certs, client.check_hostname) == (True, True)
    assert negotiated() == 7
    assert connected_at() == -inf
    assert not client.read_only
    assert build_client(ZooKeeperSettings("h:1", read_only=True)).client.read_only


def test_secrets_do_not_show() -> None:
    """Printing settings shows no password."""
    settings = ZooKeeperSettings(
        "h:1",
        digest=ZooKeeperDigest(username="user", password="hidden"),
        sasl=ZooKeeperSasl(username="user", password="hidden"),
        tls=ZooKeeperTls(certificate_file="/cert", key_file="/key", key_password="hidden"),
    )
    assert "hidden" not in repr(settings)


def test_sasl_without_its_package_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message says what to install."""
    monkeypatch.setattr("kazoo.protocol.connection.PURESASL_AVAILABLE", False)
    with pytest.raises(ConfigError, match="pip install pure-sasl"):
        build_client(ZooKeeperSettings("h:1", sasl=ZooKeeperSasl(username="u", password="p")))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (kazoo_errors.NodeExistsError(), NodeExistsError),
        (kazoo_errors.NoNodeError(), NoNodeError),
        (kazoo_errors.BadVersionError(), BadVersionError),
        (kazoo_errors.NoAuthError(), AccessDeniedError),
        (kazoo_errors.InvalidACLError(), AccessDeniedError),
        (kazoo_errors.ConnectionLoss(), OutcomeUnknownError),
        (kazoo_errors.SessionExpiredError(), OutcomeUnknownError),
        (kazoo_errors.ConnectionClosedError(), OutcomeUnknownError),
        (kazoo_errors.OperationTimeoutError(), OutcomeUnknownError),
        (kazoo_errors.AuthFailedError(), FatalError),
    ],
)
def test_errors_are_translated(theirs: Exception, ours: type[HeadraceError]) -> None:
    """Answers keep their meaning; everything else is an unknown outcome."""
    assert type(translate("/n", theirs)) is ours


def test_a_refused_transaction_raises_for_the_operation_that_was_refused() -> None:
    """The operations that were only rolled back are not to blame."""
    operations = (Check("/a", 1), SetData("/b", b""), Create("/c"))
    results = (
        kazoo_errors.RolledBackError(),
        kazoo_errors.BadVersionError(),
        kazoo_errors.RuntimeInconsistency(),
    )
    with pytest.raises(BadVersionError, match="/b"):
        transaction_results(operations, results)


def test_without_a_server_the_start_ends_within_its_time_and_says_what_to_do() -> None:
    """No server: an error within connect_timeout that names the hosts and the next step."""
    hosts = f"127.0.0.1:{free_port()}"
    session = ZooKeeperSession(ZooKeeperSettings(hosts, connect_timeout=0.3))
    before = SYSTEM_CLOCK.monotonic()
    with pytest.raises(ZooKeeperUnavailableError, match=rf"{hosts} gave no session .* Check that"):
        session.start()
    assert SYSTEM_CLOCK.monotonic() - before < 3
    assert session.session_id is None
    with pytest.raises((OutcomeUnknownError, FatalError)):
        session.get("/")
    assert session.close(Deadline.after(10))
