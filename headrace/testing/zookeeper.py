"""A ZooKeeper in memory, whose sessions a test can suspend, expire and make lose answers."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.core.errors import FatalError
from headrace.zookeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    ZooKeeperError,
)
from headrace.zookeeper.nodes import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Node,
    NodeStat,
    Operation,
    SetData,
)
from headrace.zookeeper.protocol import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Watch = tuple[int, "Callable[[], None]"]


def parent_of(path: str) -> str:
    """Return the path of a node's parent."""
    return path.rpartition("/")[0]


@dataclass
class NodeTree:
    """All nodes, and who waits for their changes. Callers hold a lock."""

    nodes: dict[str, Node] = field(default_factory=dict)
    # by what they wait for, ``data`` or ``child``, and of which node
    watches: dict[tuple[str, str], list[Watch]] = field(default_factory=dict)

    def apply(self, session: int | None, transaction: int, operation: Operation) -> NodeStat | None:
        """Execute one operation; the state of a node whose data was set or that was created."""
        if isinstance(operation, Create):
            return self._create(session, transaction, operation)
        node = self.nodes.get(operation.path)
        if node is None:
            raise NoNodeError(operation.path, "it does not exist")
        if operation.version not in {ANY_VERSION, node.stat.version}:
            raise BadVersionError(operation.path, "it was changed by another client")
        if isinstance(operation, SetData):
            stat = NodeStat(node.stat.version + 1, node.stat.czxid, node.stat.owner_session)
            self.nodes[operation.path] = Node(operation.data, stat)
            return stat
        if isinstance(operation, Delete):
            if any(parent_of(path) == operation.path for path in self.nodes):
                raise ZooKeeperError(operation.path, "it has children")
            del self.nodes[operation.path]
        return None

    def _create(self, session: int | None, transaction: int, operation: Create) -> NodeStat:
        if operation.path in self.nodes:
            raise NodeExistsError(operation.path, "it exists already")
        if parent_of(operation.path) not in {*self.nodes, ""}:
            raise NoNodeError(operation.path, "its parent does not exist")
        stat = NodeStat(0, transaction, session if operation.ephemeral else None)
        self.nodes[operation.path] = Node(operation.data, stat)
        return stat

    def take_watches(self, operation: Operation) -> list[Callable[[], None]]:
        """Remove and return the watches of what an operation changed."""
        if isinstance(operation, Check):
            return []
        changed = [("data", operation.path)]
        if isinstance(operation, (Create, Delete)):
            changed.append(("child", parent_of(operation.path)))
        if isinstance(operation, Delete):
            changed.append(("child", operation.path))
        return [callback for each in changed for _, callback in self.watches.pop(each, [])]


class InMemoryZooKeeper:
    """The servers' side: one tree of nodes, shared by the sessions opened on it.

    Watches are called on the thread that made the change, after it and without a lock held.
    """

    def __init__(self, session_timeout: float = 6.0, clock: Clock = SYSTEM_CLOCK) -> None:
        self.session_timeout = session_timeout
        self.clock = clock
        self._lock = threading.RLock()
        self._tree = NodeTree()
        self._transactions = count(1)
        self._session_ids = count(1)
        self._alive: set[int] = set()

    def session(self) -> InMemorySession:
        """Open a session."""
        return InMemorySession(self)

    def put(self, path: str, data: bytes) -> None:
        """Write a node as an operator would by hand, with its parents."""
        with suppress(NodeExistsError):
            self.make_path(path)
        self.execute(None, [SetData(path, data)])

    def remove(self, path: str) -> None:
        """Delete a node as an operator would by hand."""
        self.execute(None, [Delete(path)])

    def wipe(self) -> None:
        """Lose all data and sessions; clients learn of it when they connect again."""
        with self._lock:
            self._tree = NodeTree()
            self._transactions = count(1)
            self._alive.clear()

    def paths(self) -> list[str]:
        """Return the paths of all nodes."""
        with self._lock:
            return sorted(self._tree.nodes)

    # --- for sessions -----------------------------------------------------------------------

    def open(self) -> int:
        """Open a session; returns its id."""
        with self._lock:
            session = next(self._session_ids)
            self._alive.add(session)
            return session

    def end(self, session: int) -> None:
        """End a session and delete its ephemeral nodes."""
        with self._lock:
            if session not in self._alive:
                return
            self._alive.remove(session)
            self.drop_watches(session)
            mine = [p for p, n in self._tree.nodes.items() if n.stat.owner_session == session]
        self.execute(None, [Delete(path) for path in mine])

    def is_alive(self, session: int) -> bool:
        """Return whether the session has not ended."""
        with self._lock:
            return session in self._alive

    def node(self, path: str) -> Node | None:
        """Read a node."""
        with self._lock:
            return self._tree.nodes.get(path)

    def children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        with self._lock:
            if path not in self._tree.nodes:
                raise NoNodeError(path, "it does not exist")
            return [p.rpartition("/")[2] for p in self._tree.nodes if parent_of(p) == path]

    def make_path(self, path: str) -> None:
        """Create a persistent node and its parents."""
        with self._lock:
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                step = "/" + "/".join(parts[:depth])
                if step not in self._tree.nodes:
                    self.execute(None, [Create(step)])

    def watch(self, kind: str, path: str, session: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the next change of the ``data`` or the ``child`` nodes."""
        with self._lock:
            watches = self._tree.watches.setdefault((kind, path), [])
            if (session, callback) not in watches:
                watches.append((session, callback))

    def drop_watches(self, session: int) -> list[Callable[[], None]]:
        """Remove and return a session's watches."""
        with self._lock:
            dropped = []
            for key, waiting in self._tree.watches.items():
                dropped += [callback for owner, callback in waiting if owner == session]
                self._tree.watches[key] = [entry for entry in waiting if entry[0] != session]
            return dropped

    def execute(
        self, session: int | None, operations: Sequence[Operation]
    ) -> list[NodeStat | None]:
        """Execute all operations or none, on behalf of ``session``."""
        called: list[Callable[[], None]] = []
        with self._lock:
            if session is not None and session not in self._alive:
                raise OutcomeUnknownError(operations[0].path, "the session is over")
            before = dict(self._tree.nodes)
            transaction = next(self._transactions)
            try:
                results = [self._tree.apply(session, transaction, o) for o in operations]
            except ZooKeeperError:
                self._tree.nodes = before
                raise
            for operation in operations:
                called += self._tree.take_watches(operation)
        for callback in called:
            callback()
        return results


class InMemorySession:
    """A ``Session`` on an ``InMemoryZooKeeper``; the methods up to ``close`` are for the test."""

    def __init__(self, zookeeper: InMemoryZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._id = zookeeper.open()
        self.connected_at = zookeeper.clock.monotonic()
        self.state = SessionState.CONNECTED
        self._listeners: list[Callable[[SessionState], None]] = []
        self._answers_to_lose = 0
        self._late: deque[Callable[[], object]] = deque()
        self._delay = False
        self._reads_to_answer: int | None = None
        self._denied: tuple[str, ...] = ()

    # --- what a test does to it -------------------------------------------------------------

    def suspend(self) -> None:
        """Cut the connection: operations fail at once, the session lives on."""
        self._enter(SessionState.SUSPENDED)

    def suspend_after_reading(self, times: int) -> None:
        """Cut the connection as soon as the next ``times`` readings of nodes are answered."""
        self._reads_to_answer = times

    def deny(self, *prefixes: str) -> None:
        """Refuse access to all nodes whose paths begin so, from now on."""
        self._denied = prefixes

    def resume(self) -> None:
        """Connect again, with the same session where it has not ended meanwhile."""
        if not self._zookeeper.is_alive(self._id):
            self._enter(SessionState.LOST)
            self._id = self._zookeeper.open()
        if self.state is not SessionState.CONNECTED:
            self.connected_at = self._zookeeper.clock.monotonic()
        self._enter(SessionState.CONNECTED)

    def expire(self) -> None:
        """End the session on the servers; a connected client learns of it and opens a new one."""
        self._zookeeper.end(self._id)
        if self.state is SessionState.CONNECTED:
            self.resume()

    def lose_answers(self, number: int, *, delay: bool = False) -> None:
        """Apply the next ``number`` changes without an answer: at once, or at ``deliver_late``."""
        self._answers_to_lose = number
        self._delay = delay

    def deliver_late(self) -> None:
        """Execute what was delayed, as far as the session it was sent in lives."""
        while self._late:
            with suppress(ZooKeeperError):
                self._late.popleft()()

    def close(self) -> None:
        """End the session for good."""
        self._zookeeper.end(self._id)
        self._enter(SessionState.CLOSED)

    def _enter(self, state: SessionState) -> None:
        if self.state is state:
            return
        self.state = state
        if state is not SessionState.CONNECTED:
            for callback in self._zookeeper.drop_watches(self._id):
                callback()
        for listener in list(self._listeners):
            listener(state)

    # --- Session ----------------------------------------------------------------------------

    @property
    def session_id(self) -> int | None:
        """Return the present session, None while there is no connection."""
        return self._id if self.state is SessionState.CONNECTED else None

    @property
    def session_timeout(self) -> float:
        """Return the seconds, as the test asked for."""
        return self._zookeeper.session_timeout

    def listen(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners.append(callback)

    def unlisten(self, callback: Callable[[SessionState], None]) -> None:
        self._listeners = [known for known in self._listeners if known != callback]

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> NodeStat:
        return self._stat([Create(path, data, ephemeral=ephemeral)])

    def ensure(self, path: str) -> None:
        self._check(path)
        self._zookeeper.make_path(path)

    def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        self._check(path)
        node = self._zookeeper.node(path)
        if node is None:
            raise NoNodeError(path, "it does not exist")
        self._watch("data", path, watch)
        return node

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            self._check(path)
        nodes = [self._zookeeper.node(path) for path in paths]
        if self._reads_to_answer is not None:
            self._reads_to_answer -= 1
            if self._reads_to_answer == 0:
                self._reads_to_answer = None
                self.suspend()
        return nodes

    def exists(self, path: str) -> NodeStat | None:
        self._check(path)
        node = self._zookeeper.node(path)
        return None if node is None else node.stat

    def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        self._check(path)
        names = self._zookeeper.children(path)
        self._watch("child", path, watch)
        return names

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> NodeStat:
        return self._stat([SetData(path, data, version)])

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._change([Delete(path, version)])

    def multi(self, operations: Sequence[Operation]) -> list[NodeStat | None]:
        results = self._change(operations)
        return [
            stat if isinstance(operation, SetData) else None
            for operation, stat in zip(operations, results, strict=True)
        ]

    def multi_each(
        self, transactions: Sequence[Sequence[Operation]]
    ) -> list[ZooKeeperError | None]:
        return [self._refusal(operations) for operations in transactions]

    def _refusal(self, operations: Sequence[Operation]) -> ZooKeeperError | None:
        try:
            self._change(operations)
        except OutcomeUnknownError:
            raise
        except ZooKeeperError as error:
            return error
        return None

    def _stat(self, operations: Sequence[Operation]) -> NodeStat:
        stat = self._change(operations)[0]
        assert stat is not None, "creating and setting answer with the node's state"
        return stat

    def _watch(self, kind: str, path: str, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._zookeeper.watch(kind, path, self._id, callback)

    def _change(self, operations: Sequence[Operation]) -> list[NodeStat | None]:
        path = operations[0].path
        self._check(path)
        change = partial(self._zookeeper.execute, self._id, list(operations))
        if self._answers_to_lose == 0:
            return change()
        self._answers_to_lose -= 1
        if self._delay:
            self._late.append(change)
        else:
            with suppress(ZooKeeperError):
                change()
        raise OutcomeUnknownError(path, "no answer, as the test wants it")

    def _check(self, path: str) -> None:
        if self.state is SessionState.CLOSED:
            raise FatalError("the session is closed")
        if self.state is not SessionState.CONNECTED:
            raise OutcomeUnknownError(path, "not connected")
        if path.startswith(self._denied):
            raise AccessDeniedError(path, "access denied, as the test wants it")


class InMemoryRegistry(ZooKeeperRegistry):
    """The real registry on a session in memory, which a test suspends or expires at will.

    Members of one group share the ``InMemoryZooKeeper``; by default each has its own session.
    """

    session: InMemorySession

    def __init__(
        self,
        zookeeper: InMemoryZooKeeper,
        group: str = "group",
        member: str = "member",
        *,
        session: InMemorySession | None = None,
        transactional_prefix: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(
            session or zookeeper.session(),
            group,
            member,
            transactional_prefix=transactional_prefix,
            clock=clock,
        )
