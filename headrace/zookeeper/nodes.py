"""Nodes, their versions, and the operations that one transaction is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

ANY_VERSION = -1
"""Stands for: whatever version the node has."""


@dataclass(frozen=True, slots=True)
class NodeStat:
    """The stat of a node: what ZooKeeper knows about it beside its data.

    ``version`` counts the changes of its data; ``czxid`` is the transaction that created it and
    is never used again; ``owner_session`` is the session an ephemeral node lives and dies with,
    None for a persistent one.
    """

    version: int
    czxid: int
    owner_session: int | None


class Node(NamedTuple):
    """A node's data and state, read at once."""

    data: bytes
    stat: NodeStat


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; its parent must exist."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data, if it still has the version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children, if it still has the version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Refuse the whole transaction unless the node has the version."""

    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | Check
