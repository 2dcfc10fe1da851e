"""Where a member stands with its group, and what may follow what."""

from __future__ import annotations

from enum import Enum


class MemberState(Enum):
    """Where a member stands with its group."""

    JOINING = "joining"
    """Not in the group: at the start, and after the session or the member node was lost."""
    ACTIVE = "active"
    """In the group, and ZooKeeper answers."""
    SUSPENDED = "suspended"
    """In the group as far as is known, but ZooKeeper does not answer."""
    AWAY = "away"
    """Left on purpose, to come back: nothing is owned, and the group does not know us."""
    LEFT = "left"
    """Left for good; nothing comes after it."""
    FAILED = "failed"
    """Gave up; ``failure`` says why. Nothing comes after it."""


class AssignmentState(Enum):
    """How far a member has come to what the group's map gives it, since it joined."""

    PENDING = "pending"
    """The group has not been the same for long enough yet, or partitions are still to be taken."""
    COMPLETE = "complete"
    """It has taken all that the map gave it. What moves later does not change that."""
    NONE = "none"
    """The map gives it nothing: there are more members than partitions, or none is wanted."""
    OVERDUE = "overdue"
    """As pending, for longer than anybody should wait for it."""


#: From each state, the states that may follow. LEFT and FAILED are final.
TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    MemberState.JOINING: frozenset(
        {MemberState.ACTIVE, MemberState.AWAY, MemberState.LEFT, MemberState.FAILED}
    ),
    MemberState.ACTIVE: frozenset(
        {
            MemberState.SUSPENDED,
            MemberState.JOINING,
            MemberState.AWAY,
            MemberState.LEFT,
            MemberState.FAILED,
        }
    ),
    MemberState.SUSPENDED: frozenset(
        {MemberState.ACTIVE, MemberState.JOINING, MemberState.LEFT, MemberState.FAILED}
    ),
    MemberState.AWAY: frozenset({MemberState.JOINING, MemberState.LEFT, MemberState.FAILED}),
    MemberState.LEFT: frozenset(),
    MemberState.FAILED: frozenset(),
}

ENDED = frozenset({MemberState.LEFT, MemberState.FAILED})
