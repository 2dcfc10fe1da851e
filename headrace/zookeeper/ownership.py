"""Whose an ephemeral node is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.zookeeper.errors import NotConnectedError

if TYPE_CHECKING:
    from headrace.zookeeper.nodes import NodeStat
    from headrace.zookeeper.protocol import Session


def is_ours(session: Session, path: str, stat: NodeStat) -> bool:
    """Whether a node that was read lives and dies with the present session.

    Raises NotConnectedError where the connection broke after the reading: which session comes
    next is not known then, and "not ours" would give up what is ours.
    """
    present = session.session_id
    if present is None:
        raise NotConnectedError(path, "the connection broke after the node was read")
    return stat.owner_session == present
