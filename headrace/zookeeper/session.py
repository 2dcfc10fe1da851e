"""The ZooKeeper session of the process, through kazoo."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.errors import FatalError, HeadraceError
from headrace.zookeeper.client import (
    ClientClose,
    Credentials,
    build_client,
    node_stat,
    transaction,
    transaction_results,
    translate,
)
from headrace.zookeeper.errors import (
    AccessDeniedError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    ZooKeeperError,
    ZooKeeperUnavailableError,
)
from headrace.zookeeper.nodes import ANY_VERSION, Node, NodeStat
from headrace.zookeeper.protocol import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.zookeeper.identity import Identity
    from headrace.zookeeper.nodes import Operation
    from headrace.zookeeper.settings import ZooKeeperSettings


log = structlog.get_logger(__name__)

REQUESTS_ON_THE_WAY = 500
"""The most reads sent before the first answer is waited for: about 50 ms of work for kazoo."""


@dataclass(frozen=True, slots=True)
class _Watcher:
    """A watch as kazoo calls it. Equal callbacks make equal watchers, which kazoo keeps once."""

    callback: Callable[[], None]

    def __call__(self, _event: object) -> None:
        self.callback()


class ZooKeeperSession:
    """The process's session; see ``headrace.zookeeper.protocol.Session``.

    When the session is lost, kazoo opens a new one by itself; ``session_id`` tells them apart.
    With a ``store`` the credentials of each new session are kept before the first operation in
    it, so that a crash leaves no node behind that the next start could not remove at once.

    ``start`` and ``close`` are for the owner; everything else may be called on any thread.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        store: Identity | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._client, self._negotiated, self._connected_at = build_client(settings, clock=clock)
        self._ending = ClientClose(self._client)
        self._stored: Credentials | None = None
        self._store_lock = threading.Lock()
        self._listeners: tuple[Callable[[SessionState], None], ...] = ()
        self._listeners_lock = threading.Lock()
        self._client.add_listener(self._on_state)

    # --- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, end what a crashed predecessor left, create the chroot.

        Blocks for at most ``connect_timeout`` seconds, then raises ZooKeeperUnavailableError;
        AccessDeniedError where the chroot is denied to us.
        """
        deadline = Deadline.after(self._settings.connect_timeout, self._clock)
        self._retire_predecessor(deadline)
        try:
            if not self._client.start_async().wait(deadline.remaining):
                raise self._unavailable("no server let us in")
            if not self._settings.read_only:
                self._ensure_chroot(deadline)
        except HeadraceError as error:
            self._ending.wait(0)
            if isinstance(error, (AccessDeniedError, ZooKeeperUnavailableError)):
                raise
            raise self._unavailable(str(error)) from error
        log.info(
            "zookeeper_session_started",
            session=f"{self.session_id or 0:#x}",
            session_timeout=self.session_timeout,
        )

    def close(self, deadline: Deadline) -> bool:
        """End the session, which removes its ephemeral nodes; whether the client ended in time.

        What hangs is left to a daemon thread. Without a connection the session ends by its
        time-out, and its credentials are kept for the next start.
        """
        if self._store is not None and self._stored is None and not self._client.connected:
            # there was no session yet, and there is nothing to wait for
            self._ending.wait(0)
            return True
        if not self._ending.wait(deadline.remaining):
            log.warning("zookeeper_close_timed_out", hosts=self._settings.hosts)
            return False
        with self._store_lock:
            if self._ending.acknowledged and self._store is not None and self._stored is not None:
                self._store.clear()
                self._stored = None
        return True

    @property
    def lingers(self) -> bool:
        """Return whether servers were not told of the end of a session that they may keep.

        Its nodes vanish when it expires, or when the next start ends it. Known after ``close``, of
        a session with a ``store``.
        """
        return self._stored is not None

    def _ensure_chroot(self, deadline: Deadline) -> None:
        """Create the chroot where it is missing, through a client that does not live in it."""
        if self._call("/", lambda: self._client.exists_async("/"), deadline.remaining) is not None:
            return
        settings = replace(self._settings, chroot="", connect_timeout=deadline.remaining)
        outside = ZooKeeperSession(settings, clock=self._clock)
        outside.start()
        try:
            outside.ensure(self._settings.chroot)
        finally:
            outside.close(deadline)

    def _restore_chroot(self) -> None:
        """Create the chroot again where the servers lost it; no answer leaves it to the caller."""
        if not self._settings.chroot:
            return
        try:
            self._ensure_chroot(Deadline.after(self.operation_timeout, self._clock))
        except ZooKeeperUnavailableError as error:
            raise OutcomeUnknownError(self._settings.chroot, str(error)) from error

    def _retire_predecessor(self, deadline: Deadline) -> None:
        """Attach to the session of a crashed process and close it: its nodes vanish at once."""
        credentials = self._store.load() if self._store else None
        if credentials is None:
            return
        client = build_client(self._settings, credentials).client
        connected = client.start_async().wait(deadline.remaining)
        found = connected and client.client_id == tuple(credentials)
        if not ClientClose(client).wait(deadline.remaining):
            raise self._unavailable(
                "the session of the previous process could not be closed"
                if connected
                else "no server let us in"
            )
        log.info(
            "zookeeper_previous_session_closed",
            session=f"{credentials.session_id:#x}",
            was_alive=found,
        )

    def _unavailable(self, reason: str) -> ZooKeeperUnavailableError:
        where = self._settings.hosts + self._settings.chroot
        return ZooKeeperUnavailableError(
            f"ZooKeeper at {where} gave no session within "
            f"{self._settings.connect_timeout:g} s: {reason}. Check that the servers run, that "
            "zookeeper.hosts names them, and that TLS and credentials fit theirs"
        )

    # --- state ------------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        if self._client.client_state in (KeeperState.AUTH_FAILED, KeeperState.CLOSED):
            return SessionState.CLOSED
        return _STATES[self._client.state]

    @property
    def session_id(self) -> int | None:
        credentials = self._client.client_id
        return None if credentials is None else int(credentials[0])

    @property
    def session_timeout(self) -> float:
        return self._negotiated()

    @property
    def connected_at(self) -> float:
        return self._connected_at()

    @property
    def operation_timeout(self) -> float:
        """Return the seconds that one operation may take."""
        return self._settings.operation_timeout or self.session_timeout / 4

    def listen(self, callback: Callable[[SessionState], None]) -> None:
        with self._listeners_lock:
            self._listeners = (*self._listeners, callback)

    def unlisten(self, callback: Callable[[SessionState], None]) -> None:
        with self._listeners_lock:
            self._listeners = tuple(known for known in self._listeners if known != callback)

    def _on_state(self, _state: str) -> None:
        state = self.state
        for listener in self._listeners:
            listener(state)

    def _keep_credentials(self) -> None:
        present = self._client.client_id
        if self._store is None or present is None:
            return
        credentials = Credentials(*present)
        with self._store_lock:
            if credentials != self._stored:
                self._store.store(credentials)
                self._stored = credentials

    # --- operations -------------------------------------------------------------------------

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> NodeStat:
        _, stat = self._call(
            path,
            lambda: self._client.create_async(path, data, ephemeral=ephemeral, include_data=True),
        )
        return node_stat(stat)

    def ensure(self, path: str) -> None:
        if path in {"", "/"}:
            self._restore_chroot()
            return
        if self.exists(path) is not None:
            return
        self.ensure(path.rpartition("/")[0])
        with suppress(NodeExistsError):
            self.create(path)

    def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        return _node(self._call(path, lambda: self._client.get_async(path, _watcher(watch))))

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read nodes, a few hundred requests on the way at a time, each few with one time-out."""
        found: list[Node | None] = []
        for start in range(0, len(paths), REQUESTS_ON_THE_WAY):
            self._check_connected(paths[start])
            deadline = Deadline.after(self.operation_timeout, self._clock)
            some = paths[start : start + REQUESTS_ON_THE_WAY]
            for path, request in [(path, self._client.get_async(path)) for path in some]:
                try:
                    found.append(_node(_await_answer(path, request, deadline.remaining)))
                except NoNodeError:
                    found.append(None)
        return found

    def exists(self, path: str) -> NodeStat | None:
        stat = self._call(path, lambda: self._client.exists_async(path))
        return None if stat is None else node_stat(stat)

    def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        return list(
            self._call(path, lambda: self._client.get_children_async(path, _watcher(watch)))
        )

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        return node_stat(self._call(path, lambda: self._client.set_async(path, data, version)))

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._call(path, lambda: self._client.delete_async(path, version))

    def multi(self, operations: Sequence[Operation]) -> list[NodeStat | None]:
        request = transaction(self._client, operations)
        results = self._call(operations[0].path, request.commit_async)
        return transaction_results(operations, results)

    def multi_each(
        self, transactions: Sequence[Sequence[Operation]]
    ) -> list[ZooKeeperError | None]:
        if not transactions:
            return []
        self._check_connected(transactions[0][0].path)
        self._keep_credentials()
        deadline = Deadline.after(self.operation_timeout, self._clock)
        sent = [(each, transaction(self._client, each).commit_async()) for each in transactions]
        refusals: list[ZooKeeperError | None] = []
        for each, request in sent:
            try:
                transaction_results(each, _await_answer(each[0].path, request, deadline.remaining))
                refusals.append(None)
            except OutcomeUnknownError:
                raise
            except ZooKeeperError as error:
                refusals.append(error)
        return refusals

    def _call(self, path: str, send: Callable[[], Any], timeout: float | None = None) -> Any:
        self._check_connected(path)
        self._keep_credentials()
        return _await_answer(path, send(), self.operation_timeout if timeout is None else timeout)

    def _check_connected(self, path: str) -> None:
        """Refuse what kazoo would queue: it might be executed long after its caller gave up."""
        if self._client.connected:
            return
        if self.state is SessionState.CLOSED:
            raise FatalError(
                f"the ZooKeeper session at {self._settings.hosts} is closed; restart the process"
            )
        raise OutcomeUnknownError(path, f"not connected to {self._settings.hosts}")


_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.LOST,
}


def _watcher(callback: Callable[[], None] | None) -> _Watcher | None:
    return None if callback is None else _Watcher(callback)


def _node(answer: Any) -> Node:
    data, stat = answer
    return Node(data, node_stat(stat))


def _await_answer(path: str, request: Any, timeout: float) -> Any:
    try:
        return request.get(timeout=timeout)
    except KazooTimeoutError as error:
        raise OutcomeUnknownError(path, f"no answer within {timeout:.3g} s") from error
    except KazooException as error:
        raise translate(path, error) from error


#: Seconds in which ZooKeeper has to confirm the end of the session.
_CLOSE_TIMEOUT = 5.0


class NodeReader(Protocol):
    """The part of a ``Session`` that only reads. Any thread; each call blocks for a bounded time.

    Raises:
        NoNodeError: there is no such node.
        HeadraceError: there was no answer.
    """

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read nodes, None for those that do not exist."""

    def children(self, path: str) -> list[str]:
        """Return the names of the node's children; raises NoNodeError."""


@contextmanager
def reading(settings: ZooKeeperSettings) -> Iterator[NodeReader]:
    """Connect, if need be to a server that has lost its ensemble, and end the session afterwards.

    Blocks for at most ``connect_timeout`` seconds.

    Raises:
        ZooKeeperUnavailableError: no server let us in.
    """
    session = ZooKeeperSession(replace(settings, read_only=True))
    session.start()
    try:
        yield session
    finally:
        session.close(Deadline.after(_CLOSE_TIMEOUT))
