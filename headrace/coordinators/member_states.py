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
