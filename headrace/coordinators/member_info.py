"""The facts that members publish for one another, and the states of a membership."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.core.records import TopicPartition


class AssignmentMode(Enum):
    """The way a member's partitions are chosen."""

    DYNAMIC = "dynamic"
    """An even share of each topic and of the whole."""
    FIXED_COUNT = "fixed_count"
    """A given number of partitions of each topic."""
    STATIC = "static"
    """Listed partitions, and no others."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """The facts that one member publishes for allocation.

    ``weight`` is its share relative to the other members' in dynamic mode, a whole number from 1.
    ``partitions_per_topic`` is the number in fixed count mode; ``lists`` names the partitions of
    each topic in static mode. A ``draining`` member is given nothing and gives back what it has.
    ``cooldown`` are partitions that it could not work on just now: others go first. A member that
    works on its topics ``together`` takes tasks: partition i of each of them, or of none. ``warm``
    are the tasks of others, by number, that it could go on with at once; None: it does not say.
    """

    topics: frozenset[str]
    mode: AssignmentMode = AssignmentMode.DYNAMIC
    weight: int = 1
    partitions_per_topic: int = 0
    lists: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    draining: bool = False
    cooldown: frozenset[TopicPartition] = frozenset()
    together: bool = False
    warm: frozenset[int] | None = None

    def __post_init__(self) -> None:
        """Refuse what other members could not read."""
        problems = []
        if self.weight < 1:
            problems.append(f"weight: {self.weight} is less than 1; weights are whole numbers")
        if self.partitions_per_topic < 0:
            problems.append(f"partitions_per_topic: {self.partitions_per_topic} is negative")
        if problems:
            raise ConfigError(problems)


class MemberState(Enum):
    """The state of a member in its group."""

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
    """The progress of a member, since it joined, towards what the group's map gives it."""

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
