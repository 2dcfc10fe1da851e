"""Reading nodes for a look from outside: a session that writes nothing, not even a chroot."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from headrace.clock import Deadline
from headrace.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.zookeeper.nodes import Node
    from headrace.zookeeper.settings import ZooKeeperSettings

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
        ...

    def children(self, path: str) -> list[str]:
        """Return the names of the node's children; raises NoNodeError."""
        ...


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
