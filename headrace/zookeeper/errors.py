"""The errors between this process and ZooKeeper."""

from __future__ import annotations

from headrace.core.errors import HeadraceError, StartError


class ZooKeeperUnavailableError(StartError):
    """No server answered within the time allowed, or none gave us a session.

    What was asked for may have happened, may happen yet, or never will.
    """


class ZooKeeperError(HeadraceError):
    """An operation on one node failed. ``path`` is the node's path below the chroot."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"ZooKeeper node {path}: {reason}")
        self.path = path


class NodeExistsError(ZooKeeperError):
    """The node to create is already there."""


class NoNodeError(ZooKeeperError):
    """The node, or the parent of the node to create, is not there."""


class BadVersionError(ZooKeeperError):
    """The node changed since the version that the operation was to apply to."""


class AccessDeniedError(ZooKeeperError, StartError):
    """The session's credentials do not allow the operation: fix the ACLs or the credentials.

    No waiting helps: a member that meets it ends its process.
    """


class OutcomeUnknownError(ZooKeeperError):
    """No answer came: the operation may have been executed, or may still be, or never will."""
