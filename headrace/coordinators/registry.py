"""Who is in a group and who owns what, as a registry says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.coordinators.claims import Claim
    from headrace.coordinators.member_info import MemberInfo


class RegistryUnavailableError(HeadraceError):
    """No answer: what was asked for may have happened, may happen yet, or never will."""


class MembershipLostError(HeadraceError):
    """Our node among the members is gone or belongs to another session: join again."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a member's name now. ``beats`` rises while it is alive."""

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


@dataclass(frozen=True, slots=True)
class Membership:
    """One membership of the group.

    ``epoch`` is the transaction that created our node among the members: higher at each start.
    """

    epoch: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Owner:
    """What a partition's owner node says.

    ``member`` is None where the node cannot be read. ``ours`` says that it belongs to our present
    session, whatever it says; with our name but another session it is not ours.
    """

    member: str | None
    epoch: int | None
    ours: bool

    def stands_for(self, claim: Claim) -> bool:
        """Whether it is what our claim wrote; somebody may have written over it since."""
        return self.ours and (self.member, self.epoch) == (claim.member, claim.epoch)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The members that can be understood, and what was found wrong with the others' nodes."""

    members: Mapping[str, MemberInfo]
    problems: Mapping[str, str]
