"""kazoo's client: built, asked, its answers translated, and ended within a time."""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol import connection as kazoo_connection
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import make_acl

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import ConfigError, FatalError
from headrace.zookeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    ZooKeeperError,
)
from headrace.zookeeper.nodes import Check, Create, Delete, NodeStat, SetData

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.config import ZooKeeperDigest, ZooKeeperSasl, ZooKeeperTls
    from headrace.core.clock import Clock
    from headrace.core.errors import HeadraceError
    from headrace.zookeeper.nodes import Operation
    from headrace.zookeeper.settings import ZooKeeperSettings


log = structlog.get_logger(__name__)


class ClientClose:
    """The end of a client, on a thread of its own: kazoo's stop can wait without limit.

    ``acknowledged`` is true once a server has answered that the session is over.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._thread = threading.Thread(target=self._run, name="zookeeper-close", daemon=True)
        self._lock = threading.Lock()
        self.acknowledged = False
        self._disconnected = False

    def wait(self, timeout: float) -> bool:
        """Start the end if needed and wait for it; return whether it has ended."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._client.add_listener(self._on_state)
        self._disconnected = not self._client.connected
        try:
            self._client.stop()
            self._client.close()
        except Exception:
            # the servers end what we cannot, after the session's time-out
            log.exception("zookeeper_close_failed")
        else:
            self.acknowledged = not self._disconnected

    def _on_state(self, state: str) -> None:
        """Record that the connection was lost before the answer. kazoo's thread."""
        if state == KazooState.SUSPENDED:
            self._disconnected = True


LONGEST_RECONNECT_DELAY = 1.0
"""Seconds between rounds of connection attempts, at most: kazoo's own limit, a minute, would
outlive any lease after an outage that was long but over."""

_CONNECT_SHARE = 1 / 4
"""Of a session's length: how long a server may take to answer a connect that goes on with it."""

_OWN = make_acl("auth", "", all=True)
_ACLS = {
    "open": None,
    "creator": [_OWN],
    "creator-read-world": [_OWN, make_acl("world", "anyone", read=True)],
}

_ANSWERS: dict[type[Exception], tuple[type[ZooKeeperError], str]] = {
    kazoo_errors.NodeExistsError: (NodeExistsError, "it exists already"),
    kazoo_errors.NoNodeError: (NoNodeError, "it, or its parent, does not exist"),
    kazoo_errors.BadVersionError: (BadVersionError, "it was changed by another client"),
    kazoo_errors.NotEmptyError: (ZooKeeperError, "it has children"),
    kazoo_errors.NoAuthError: (
        AccessDeniedError,
        "access denied; correct the credentials in zookeeper.digest or .sasl, or the node's ACL",
    ),
    kazoo_errors.InvalidACLError: (
        AccessDeniedError,
        "the servers refuse the ACL; unless zookeeper.acl is open, it needs .digest or .sasl",
    ),
}
"""The errors that the servers may answer with. In a refused transaction all operations but one are
merely rolled back, and their errors stand in no row."""


class Credentials(NamedTuple):
    """The credentials by which a session can be attached to again."""

    session_id: int
    password: bytes


class ClientHandle(NamedTuple):
    """A kazoo client, the time-out its last connect agreed on, and when that connect began."""

    client: Any
    negotiated: Callable[[], float]
    connected_at: Callable[[], float]


def build_client(
    settings: ZooKeeperSettings,
    credentials: Credentials | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ClientHandle:
    """Return a client that is not started yet; with ``credentials`` it asks for that session."""
    client = KazooClient(
        hosts=settings.hosts + settings.chroot,
        timeout=settings.session_timeout,
        client_id=tuple(credentials) if credentials else None,
        default_acl=_ACLS[settings.acl],
        auth_data=[("digest", _login(settings.digest))] if settings.digest else [],
        sasl_options=_sasl_options(settings.sasl) if settings.sasl else None,
        read_only=settings.read_only,
        connection_retry=KazooRetry(
            max_tries=-1, max_delay=min(LONGEST_RECONNECT_DELAY, settings.session_timeout / 4)
        ),
        **(_tls_options(settings.tls) if settings.tls else {}),
    )
    return ClientHandle(client, *_observe_connects(client, settings.session_timeout, clock))


def _observe_connects(
    client: Any, requested: float, clock: Clock
) -> tuple[Callable[[], float], Callable[[], float]]:
    """Remember what each connect agrees on, and let a client drop what no server has.

    kazoo keeps the agreed time-out to itself; its connect returns two thirds of it as the read
    time-out, in milliseconds. Only this lets a lease be as short as the servers made the session.
    When the connect began is a lower bound of when the leader last began to count the session.

    It also asks to be let in by none but servers that have all it ever saw, for as long as it
    lives. Servers that lost their data would never accept it. A session's length after the
    connection was lost every lease is over and nothing that was seen counts: from then on any
    server will do.

    Where there is one server only, kazoo would wait for its answer to a connect as long as the
    session lasts, which is then over. A session that was there before is asked for again sooner:
    one that starts may take a connection and never answer.
    """
    agreed = [requested]
    connected_at = [-inf]
    lost_at: list[float] = []
    connect = client._connection._connect  # noqa: SLF001 - there is no public way to the number

    def observed(*args: Any) -> tuple[float, float]:
        if lost_at and clock.monotonic() - lost_at[0] > agreed[0]:
            client.last_zxid = 0
        began = clock.monotonic()
        read_timeout, connect_timeout = connect(*args)
        # in this order: who finds the new time-out, and looks then, finds its connect as well
        connected_at[0], agreed[0] = began, round(read_timeout * 1.5) / 1000
        return read_timeout, connect_timeout

    def note(state: str) -> None:
        lost_at[:] = [clock.monotonic()] if state == KazooState.SUSPENDED else []

    invoke = client._connection._invoke  # noqa: SLF001 - see above

    def answered_in_time(timeout: float, *args: Any, **named: Any) -> Any:
        # lost_at: there is a session to go on with
        limit = min(timeout, agreed[0] * _CONNECT_SHARE) if lost_at else timeout
        return invoke(limit, *args, **named)

    client._connection._connect = observed  # noqa: SLF001 - see above
    client._connection._invoke = answered_in_time  # noqa: SLF001 - see above
    client.add_listener(note)
    return lambda: agreed[0], lambda: connected_at[0]


def _login(digest: ZooKeeperDigest) -> str:
    return f"{digest.username}:{digest.password.get_secret_value()}"


def _sasl_options(sasl: ZooKeeperSasl) -> dict[str, str]:
    if not kazoo_connection.PURESASL_AVAILABLE:
        raise ConfigError(
            ["zookeeper.sasl is set, but the package pure-sasl is missing: pip install pure-sasl"]
        )
    return {
        "mechanism": sasl.mechanism,
        "username": sasl.username,
        "password": sasl.password.get_secret_value(),
    }


def _tls_options(tls: ZooKeeperTls) -> dict[str, object]:
    files = {"ca": tls.ca_file, "certfile": tls.certificate_file, "keyfile": tls.key_file}
    return {
        "use_ssl": True,
        **{name: file and str(file) for name, file in files.items()},
        "keyfile_password": tls.key_password and tls.key_password.get_secret_value(),
        "verify_certs": tls.verify,
        "check_hostname": tls.verify,
    }


def node_stat(stat: Any) -> NodeStat:
    """Translate kazoo's state of a node."""
    return NodeStat(stat.version, stat.czxid, stat.owner_session_id)


def translate(path: str, error: Exception) -> HeadraceError:
    """Translate what a call on ``path`` raised."""
    for kind, (ours, reason) in _ANSWERS.items():
        if isinstance(error, kind):
            return ours(path, reason)
    if isinstance(error, kazoo_errors.AuthFailedError):
        return FatalError(
            "ZooKeeper refused the credentials in the zookeeper section; correct them and restart"
        )
    return OutcomeUnknownError(path, f"no answer ({type(error).__name__} {error})".rstrip())


def transaction(client: Any, operations: Sequence[Operation]) -> Any:
    """Return kazoo's transaction for ``operations``, not yet sent."""
    request = client.transaction()
    for operation in operations:
        if isinstance(operation, Create):
            request.create(operation.path, operation.data, ephemeral=operation.ephemeral)
        elif isinstance(operation, SetData):
            request.set_data(operation.path, operation.data, operation.version)
        elif isinstance(operation, Delete):
            request.delete(operation.path, operation.version)
        else:
            assert isinstance(operation, Check)
            request.check(operation.path, operation.version)
    return request


def transaction_results(
    operations: Sequence[Operation], results: Sequence[Any]
) -> list[NodeStat | None]:
    """Translate a transaction's results; raises what the refused operation amounts to."""
    answered = list(zip(operations, results, strict=True))
    refused = [(each.path, error) for each, error in answered if isinstance(error, Exception)]
    if refused:
        # the others were merely rolled back
        path, error = next((each for each in refused if type(each[1]) in _ANSWERS), refused[0])
        raise translate(path, error)
    return [
        node_stat(result) if isinstance(operation, SetData) else None
        for operation, result in answered
    ]
