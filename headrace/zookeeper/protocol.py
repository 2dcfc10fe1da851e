"""The seam between coordination and ZooKeeper: what a session can do."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.zookeeper.errors import ZooKeeperError
    from headrace.zookeeper.nodes import Node, NodeStat, Operation


class SessionState(Enum):
    """The state of a session as the client knows it, which may lag behind the servers' view.

    ``CONNECTED`` proves nothing about the present moment: only an acknowledged write does.
    """

    CONNECTED = "connected"
    """Connected, perhaps with another session than before: compare ``session_id``."""
    SUSPENDED = "suspended"
    """The connection is gone; the session may live on."""
    LOST = "lost"
    """The session is known to be over; the client goes on to open a new one."""
    CLOSED = "closed"
    """Closed by us or refused for good by the servers: nothing comes after it."""


class SessionView(Protocol):
    """The view of a session, for reading only. Any thread; nothing blocks."""

    @property
    def state(self) -> SessionState:
        """Return the state as last known."""

    @property
    def session_id(self) -> int | None:
        """Return the present session, None while there is no connection."""

    @property
    def session_timeout(self) -> float:
        """Return the seconds agreed on with the servers at the last connect."""

    @property
    def connected_at(self) -> float:
        """Return the monotonic time of our last connection request that a server granted.

        The servers count the session's time-out from no earlier; -inf before the first.
        """


class Session(SessionView, Protocol):
    """One ZooKeeper session and its successors in the same process.

    Every operation blocks for at most the operation time-out, on any thread but the client's own.
    It raises the errors of ``headrace.zookeeper.errors``: those that say what the servers answered;
    ``OutcomeUnknownError`` when they did not; a ``FatalError`` when nothing will ever be answered
    again. Paths are absolute, below the chroot.

    Callbacks, of listeners and of watches, run on the client's thread: they only enqueue. A watch
    is called once, after the next change or when the connection ends; asking again with an equal
    callback does not add a second call.
    """

    def listen(self, callback: Callable[[SessionState], None]) -> None:
        """Call ``callback`` on every change of state from now on."""

    def unlisten(self, callback: Callable[[SessionState], None]) -> None:
        """Remove ``callback``."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> NodeStat:
        """Create a node whose parent exists."""

    def ensure(self, path: str) -> None:
        """Create a persistent node and its parents where they are missing."""

    def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        """Read a node; the watch answers to a change of its data and to its end."""

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read nodes in one go, None for those that do not exist; not one consistent snapshot."""

    def exists(self, path: str) -> NodeStat | None:
        """Return the node's state, None when it does not exist."""

    def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the names of the node's children; the watch answers to coming and going."""

    def set(self, path: str, data: bytes, version: int = ...) -> NodeStat:
        """Replace a node's data, if it still has the version."""

    def delete(self, path: str, version: int = ...) -> None:
        """Delete a node without children, if it still has the version."""

    def multi(self, operations: Sequence[Operation]) -> list[NodeStat | None]:
        """Execute all operations or none; the state of the node where one set data, else None.

        Raises what the first refused operation would have raised alone.
        """

    def multi_each(
        self, transactions: Sequence[Sequence[Operation]]
    ) -> list[ZooKeeperError | None]:
        """Send transactions, each executed as a whole or not, and wait for all answers.

        Returns why each was refused, None for one that was executed. Raises OutcomeUnknownError
        where any of them has no answer within one operation's time-out.
        """
