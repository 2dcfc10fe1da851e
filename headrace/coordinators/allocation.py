"""Who is to have which partition: a pure function of what the members publish.

Every member computes the whole map and acts on its own part of it, so no two members reach for
the same partition, and nobody has to lead. The result depends on the arguments' content only, not
on their order, and a group whose members follow it step by step comes to rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.coordinators.avoidance import place_avoided
from headrace.coordinators.even_spread import spread
from headrace.coordinators.fixed_count import fixed_counts
from headrace.coordinators.members import MemberInfo, Mode
from headrace.coordinators.static_lists import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.records import TopicPartition


@dataclass(frozen=True, slots=True)
class Allocation:
    """The map and what is to be said about it.

    ``owners`` says who is to have a partition. ``unowned`` partitions nobody is to have.
    ``contended`` partitions are listed by several static members, all named. ``missing``
    partitions are listed by a member but do not exist. ``foreign`` partitions are held by somebody
    who is not a member that we understand: they are left alone until that ends. ``modes`` has more
    than one entry when members disagree about the mode.
    """

    owners: Mapping[TopicPartition, str]
    unowned: frozenset[TopicPartition]
    contended: Mapping[TopicPartition, tuple[str, ...]]
    missing: Mapping[str, tuple[TopicPartition, ...]]
    foreign: Mapping[TopicPartition, str]
    modes: frozenset[Mode]

    def of(self, member: str) -> frozenset[TopicPartition]:
        """Return what one member is to have."""
        return frozenset(p for p, owner in self.owners.items() if owner == member)


def allocate(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
    former: Mapping[TopicPartition, str] | None = None,
) -> Allocation:
    """Return the map for ``members``, given who owns what now and who did before.

    A partition without an owner counts as that of its ``former`` one, if that is a member. So a
    group whose nodes all went, with ZooKeeper or with every session, comes back to what it had;
    and a partition on its way to another member is in the same place before, during and after
    its release.

    Draining members are given nothing. When modes are mixed, each member's own mode holds for it:
    listed partitions go first, then the fixed numbers are served, and what is left is spread
    evenly over the dynamic members. What some avoid and others may have goes to these beforehand,
    and is not counted as a part of the even spread.
    """
    existing = set(partitions)
    foreign = {
        p: owner for p, owner in sorted(owners.items()) if p in existing and owner not in members
    }
    returning = {p: member for p, member in (former or {}).items() if member in members}
    held = returning | dict(owners)
    active = {name: info for name, info in members.items() if not info.draining}
    free = existing - foreign.keys()
    lists = listed(_of_mode(active, Mode.STATIC), existing, held)
    given = {p: member for p, member in lists.given.items() if p in free}
    placed = place_avoided(active, free - given.keys(), held)
    left = free - given.keys() - placed.keys()
    given |= placed | fixed_counts(_of_mode(active, Mode.FIXED_COUNT), left, held, placed)
    given |= spread(_of_mode(active, Mode.DYNAMIC), left - given.keys(), held)
    return Allocation(
        owners=dict(sorted(given.items())),
        unowned=frozenset(free - given.keys()),
        contended=lists.contended,
        missing=lists.missing,
        foreign=foreign,
        modes=frozenset(info.mode for info in active.values()),
    )


def _of_mode(members: Mapping[str, MemberInfo], mode: Mode) -> dict[str, MemberInfo]:
    return {name: info for name, info in sorted(members.items()) if info.mode is mode}
