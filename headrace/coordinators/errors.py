"""The errors in the ownership of partitions: of memberships, and of what stands in nodes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.errors import HeadraceError


class MembershipLostError(HeadraceError):
    """Our node among the members is gone or belongs to another session: join again."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has a member's name now. ``beats`` rises while it is alive."""

    host: str
    pid: int
    beats: int


class MemberExistsError(HeadraceError):
    """Another session has our name: a former session of ours that is not over, or a live holder."""

    def __init__(self, member: str, holder: Holder) -> None:
        super().__init__(
            f"member {member!r} is already in the group, from process {holder.pid} on "
            f"{holder.host}; stop that process or give this one another instance_id"
        )
        self.holder = holder


class BadDocumentError(HeadraceError):
    """A node's content is not what its place promises."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"ZooKeeper node {path} cannot be used: {reason}")
        self.path = path


class ForeignVersionError(BadDocumentError):
    """A node was written by a later version of Headrace, in a format above ``known``."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            path,
            f"it has format version {found}, this Headrace knows up to {known}; upgrade this "
            "member",
        )
