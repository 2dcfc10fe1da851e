"""The nodes of a ZooKeeper in memory, and what one operation does to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.zookeeper.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
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

if TYPE_CHECKING:
    from collections.abc import Callable

Watch = tuple[int, "Callable[[], None]"]


def parent_of(path: str) -> str:
    """Return the path of a node's parent."""
    return path.rpartition("/")[0]


@dataclass
class NodeTree:
    """All nodes, and who waits for their changes. Callers hold a lock."""

    nodes: dict[str, Node] = field(default_factory=dict)
    data_watches: dict[str, list[Watch]] = field(default_factory=dict)
    child_watches: dict[str, list[Watch]] = field(default_factory=dict)

    def apply(self, session: int | None, transaction: int, operation: Operation) -> NodeStat | None:
        """Execute one operation; the state of a node whose data was set or that was created."""
        if isinstance(operation, Create):
            return self._create(session, transaction, operation)
        node = self.nodes.get(operation.path)
        if node is None:
            raise NoNodeError(operation.path, "it does not exist")
        if operation.version not in {ANY_VERSION, node.stat.version}:
            raise BadVersionError(operation.path, "it was changed by somebody else")
        if isinstance(operation, SetData):
            stat = NodeStat(node.stat.version + 1, node.stat.czxid, node.stat.owner_session)
            self.nodes[operation.path] = Node(operation.data, stat)
            return stat
        if isinstance(operation, Delete):
            if any(parent_of(path) == operation.path for path in self.nodes):
                raise NotEmptyError(operation.path, "it has children")
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
        """Forget and return who waits for what an operation changed."""
        if isinstance(operation, Check):
            return []
        watches = self.data_watches.pop(operation.path, [])
        if isinstance(operation, (Create, Delete)):
            watches += self.child_watches.pop(parent_of(operation.path), [])
        if isinstance(operation, Delete):
            watches += self.child_watches.pop(operation.path, [])
        return [callback for _, callback in watches]

    def watches(self, kind: str) -> dict[str, list[Watch]]:
        """Return who waits for ``data`` or for ``child`` nodes."""
        return self.data_watches if kind == "data" else self.child_watches
