"""What a ZooKeeper operation can end in, other than success."""

from __future__ import annotations

from headrace.errors import FatalError, HeadraceError


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


class NotEmptyError(ZooKeeperError):
    """The node to delete has children."""


class AccessDeniedError(ZooKeeperError):
    """The session's credentials do not allow the operation: mend the ACLs or the credentials."""


class OutcomeUnknownError(ZooKeeperError):
    """No answer came: the operation may have been executed, or may still be, or never will."""


class NotConnectedError(OutcomeUnknownError):
    """There is no connection just now; the operation was not sent."""


class SessionClosedError(FatalError):
    """The session is closed for good and will not come back in this process."""
