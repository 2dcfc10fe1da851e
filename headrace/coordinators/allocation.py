"""The allocation of partitions to members: a pure function of what the members publish.

Every member computes the whole map and acts on its own part of it, so no two members reach for
the same partition, and there is no leader. The result depends on the arguments' content only, not
on their order, and a group whose members follow it step by step comes to rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.coordinators.tasks import Tasks, holder_of, without_tasks
from headrace.coordinators.warm import settle_warm, without_warm
from headrace.core.records import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from collections.abc import Set as AbstractSet


_OUT_OF_BOUNDS = 1_000_000
"""Cost of one partition beyond a member's fair total: more than all moves of a path together."""


class _Table:
    """The extras of each topic (row) as given to members (columns), both in sorted order.

    ``shares`` are the members' weights, ``counts`` the topics' partitions, and ``owned`` says how
    many partitions of a topic a member owns now. ``_loads`` counts a member's extras, which are to
    lie between ``_least`` and ``_most``.
    """

    def __init__(
        self,
        shares: Mapping[str, int],
        counts: Mapping[str, int],
        owned: Mapping[tuple[str, str], int],
    ) -> None:
        self._members = tuple(shares)
        self._topics = tuple(counts)
        weights = tuple(shares.values())
        whole = sum(weights)
        parts = [[count * weight for weight in weights] for count in counts.values()]
        self._floors = [[part // whole for part in row] for row in parts]
        self._open = [{m for m, part in enumerate(row) if part % whole} for row in parts]
        self._kept = [
            [
                int(owned.get((topic, member), 0) > self._floors[t][m])
                for m, member in enumerate(self._members)
            ]
            for t, topic in enumerate(self._topics)
        ]
        total = sum(counts.values())
        floors = [sum(row[m] for row in self._floors) for m in range(len(weights))]
        self._least = [total * w // whole - f for w, f in zip(weights, floors, strict=True)]
        self._most = [-(-total * w // whole) - f for w, f in zip(weights, floors, strict=True)]
        self._loads = [0] * len(weights)
        self._given = [self._give_out(t, count) for t, count in enumerate(counts.values())]
        self._distance: list[float] = []
        self._topic_distance: list[float] = []

    def targets(self) -> dict[tuple[str, str], int]:
        """Return for each (topic, member) how many partitions the member is to have."""
        return {
            (topic, member): self._floors[t][m] + (m in self._given[t])
            for t, topic in enumerate(self._topics)
            for m, member in enumerate(self._members)
        }

    def _give_out(self, t: int, count: int) -> set[int]:
        """Return the members that get an extra partition: the best for this topic alone, then those
        with few extras yet; among equals by a hash, so that no member is always first.
        """
        kept, loads, topic = self._kept[t], self._loads, self._topics[t]

        def rank(m: int) -> tuple[int, bool, bool, int, int]:
            full = loads[m] >= self._most[m]
            served = loads[m] >= self._least[m]
            salt = crc32(f"{topic}\0{self._members[m]}".encode())
            return -kept[m], full, served, loads[m], salt

        extras = count - sum(self._floors[t])
        given = set(sorted(self._open[t], key=rank)[:extras])
        for m in given:
            loads[m] += 1
        return given

    def settle(self) -> None:
        """Pass extras on from member to member until all totals are fair.

        Each phase passes extras along cheapest ways only, so that at no time an exchange within
        the totals reached could save a move, and the costs of the phases only rise; it ends when
        the next would no longer be a gain.
        """
        if self._fair():
            return
        while True:
            self._measure()
            cheapest = min(d + self._cost_of_more(m) for m, d in enumerate(self._distance))
            if cheapest >= 0:
                return
            for m, distance in enumerate(self._distance):
                while distance + self._cost_of_more(m) == cheapest and self._pass_to(m):
                    self._loads[m] += 1

    def _fair(self) -> bool:
        bounds = zip(self._least, self._loads, self._most, strict=True)
        return all(least <= load <= most for least, load, most in bounds)

    def _cost_of_more(self, m: int) -> int:
        if self._loads[m] < self._least[m]:
            return -_OUT_OF_BOUNDS
        return _OUT_OF_BOUNDS if self._loads[m] >= self._most[m] else 0

    def _cost_of_less(self, m: int) -> float:
        if self._loads[m] == 0:
            return inf
        if self._loads[m] > self._most[m]:
            return -_OUT_OF_BOUNDS
        return _OUT_OF_BOUNDS if self._loads[m] <= self._least[m] else 0

    def _measure(self) -> None:
        """Compute the cost of getting an extra to each member and topic (Bellman and Ford)."""
        self._distance = [self._cost_of_less(m) for m in range(len(self._members))]
        self._topic_distance = [inf] * len(self._topics)
        changed = True
        while changed:
            changed = False
            for t, given in enumerate(self._given):
                kept = self._kept[t]
                cost = min((self._distance[m] + kept[m] for m in given), default=inf)
                if cost < self._topic_distance[t]:
                    self._topic_distance[t] = cost
                    changed = True
                    for m in self._open[t]:
                        if m not in given and cost - kept[m] < self._distance[m]:
                            self._distance[m] = cost - kept[m]

    def _pass_to(self, m: int) -> bool:
        """Pass an extra to ``m`` along the cheapest path; return whether there was one."""
        came_from: dict[int, tuple[int, int]] = {m: (-1, m)}
        unseen = set(range(len(self._topics)))
        queue = deque([m])
        while queue:
            taker = queue.popleft()
            for t in sorted(t for t in unseen if self._may_take(taker, t)):
                unseen.discard(t)
                for giver in self._cheapest_givers(t):
                    if giver in came_from:
                        continue
                    came_from[giver] = (t, taker)
                    if self._distance[giver] == self._cost_of_less(giver):
                        self._loads[giver] -= 1
                        self._exchange(giver, came_from)
                        return True
                    queue.append(giver)
        return False

    def _may_take(self, taker: int, t: int) -> bool:
        """Return whether an extra of topic ``t`` would come to ``taker`` at its distance."""
        return (
            taker in self._open[t]
            and taker not in self._given[t]
            and self._topic_distance[t] == self._distance[taker] + self._kept[t][taker]
        )

    def _cheapest_givers(self, t: int) -> list[int]:
        kept, cost = self._kept[t], self._topic_distance[t]
        return sorted(m for m in self._given[t] if self._distance[m] + kept[m] == cost)

    def _exchange(self, giver: int, came_from: Mapping[int, tuple[int, int]]) -> None:
        t, taker = came_from[giver]
        while t >= 0:
            self._given[t].remove(giver)
            self._given[t].add(taker)
            giver = taker
            t, taker = came_from[giver]


def spread(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have each partition: as even as can be, in total and by topic, by few moves.

    Topics with the same subscribers are balanced together; those without one are missing. Each
    member knows the partitions of all topics in such a set that concerns it, so all members come to
    the same result, also when they subscribe to different topics.
    """
    of_topics = by_topic(partitions)
    by_subscribers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic in of_topics:
        subscribers = tuple(sorted(m for m, info in members.items() if topic in info.topics))
        if subscribers:
            by_subscribers[subscribers].append(topic)
    spread: dict[TopicPartition, str] = {}
    for subscribers, topics in by_subscribers.items():
        weights = {member: members[member].weight for member in subscribers}
        spread.update(_spread_set(weights, {topic: of_topics[topic] for topic in topics}, owners))
    return spread


def _spread_set(
    weights: Mapping[str, int],
    topics: Mapping[str, list[TopicPartition]],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    owned = Counter(
        (topic, owners[p]) for topic, all_of in topics.items() for p in all_of if p in owners
    )
    counts = {topic: len(all_of) for topic, all_of in topics.items()}
    table = _Table(weights, counts, owned)
    table.settle()
    targets = table.targets()
    spread: dict[TopicPartition, str] = {}
    for topic, all_of in topics.items():
        spread.update(hand_out(topic, all_of, owners, {m: targets[topic, m] for m in weights}))
    return spread


def hand_out(
    topic: str,
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
    targets: Mapping[str, int],
) -> dict[TopicPartition, str]:
    """Assign each member its number of one topic's partitions, first those it owns.

    A member keeps its lowest partitions, and the others go, in order, to members in order of a
    hash. While members give back and claim, what is still to be done comes out the same again.
    """
    left = dict(targets)
    kept: dict[TopicPartition, str] = {}
    free: list[TopicPartition] = []
    for partition in sorted(partitions):
        owner = owners.get(partition)
        if owner is not None and left.get(owner, 0) > 0:
            left[owner] -= 1
            kept[partition] = owner
        else:
            free.append(partition)
    return kept | dict(zip(free, _takers(topic, left), strict=False))


def _takers(topic: str, left: Mapping[str, int]) -> Iterator[str]:
    for member in sorted(left, key=lambda m: (crc32(f"{topic}\0{m}".encode()), m)):
        for _ in range(left[member]):
            yield member


def place_avoided(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have those of ``partitions`` that some avoid and others may have.

    Its owner keeps one; otherwise it goes to the one that has the fewest.
    """
    avoided = {partition for info in members.values() for partition in info.cooldown}
    if not avoided:
        return {}
    placed: dict[TopicPartition, str] = {}
    loads = Counter(owners.values())
    of_topics = Counter((p.topic, owner) for p, owner in owners.items())
    for partition in sorted(avoided.intersection(partitions)):
        topic, owner = partition.topic, owners.get(partition)
        takers = [
            name
            for name, info in members.items()
            if _may_have(info, partition, beside=of_topics[topic, name] - (name == owner))
        ]
        if owner in takers:
            placed[partition] = owners[partition]
        elif takers:
            taker = min(takers, key=lambda m: (loads[m], crc32(f"{partition}\0{m}".encode()), m))
            placed[partition] = taker
            loads[taker] += 1
            of_topics[topic, taker] += 1
            of_topics[topic, owner or ""] -= 1
    return placed


def _may_have(info: MemberInfo, partition: TopicPartition, *, beside: int) -> bool:
    """Return whether a member may have it ``beside`` so many of the topic by its mode, and wants
    it.
    """
    if partition.topic not in info.topics or partition in info.cooldown:
        return False
    if info.mode is AssignmentMode.FIXED_COUNT:
        return beside < info.partitions_per_topic
    return info.mode is AssignmentMode.DYNAMIC


def fixed_counts(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
    placed: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have which partition; those beyond the numbers asked for are missing.

    A member keeps what it has up to its number, of which ``placed`` partitions are a part. Where
    too few are left for all others, those with the fewest get the next.
    """
    has = Counter((partition.topic, member) for partition, member in placed.items())
    given: dict[TopicPartition, str] = {}
    for topic, all_of in by_topic(partitions).items():
        wanted = {
            member: max(0, info.partitions_per_topic - has[topic, member])
            for member, info in members.items()
            if topic in info.topics
        }
        owned = Counter(owners[p] for p in all_of if p in owners)
        given.update(hand_out(topic, all_of, owners, _affordable(len(all_of), wanted, owned)))
    return given


def _affordable(count: int, wanted: Mapping[str, int], owned: Mapping[str, int]) -> dict[str, int]:
    """Return how many each member gets of ``count``."""
    targets = {member: min(number, owned.get(member, 0)) for member, number in wanted.items()}
    for _ in range(count - sum(targets.values())):
        short = [member for member, number in wanted.items() if targets[member] < number]
        if not short:
            break
        targets[min(short, key=lambda member: (targets[member], member))] += 1
    return targets


def listed(
    members: Mapping[str, MemberInfo],
    partitions: Collection[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> tuple[
    dict[TopicPartition, str],
    Mapping[TopicPartition, tuple[str, ...]],
    Mapping[str, tuple[TopicPartition, ...]],
]:
    """Return who is to have which partition, and what is contended and missing.

    Of several members that list a partition its present owner keeps it, otherwise the first by
    name has it. Lists of topics of which no partition is known are not judged.
    """
    existing = set(partitions)
    known = {partition.topic for partition in existing}
    listed_by: dict[TopicPartition, list[str]] = defaultdict(list)
    missing: dict[str, tuple[TopicPartition, ...]] = {}
    for member, info in sorted(members.items()):
        wanted = {
            TopicPartition(topic, number)
            for topic, numbers in info.lists.items()
            if topic in known
            for number in numbers
        }
        for partition in wanted & existing:
            listed_by[partition].append(member)
        if wanted - existing:
            missing[member] = tuple(sorted(wanted - existing))
    given = {
        partition: owner if (owner := owners.get(partition, "")) in wishing else wishing[0]
        for partition, wishing in listed_by.items()
    }
    contended = {p: tuple(wishing) for p, wishing in sorted(listed_by.items()) if len(wishing) > 1}
    return given, contended, missing


@dataclass(frozen=True, slots=True)
class Allocation:
    """The map and what is to be said about it.

    ``owners`` says who is to have a partition. ``unowned`` partitions have no owner.
    ``contended`` partitions are listed by several static members, all named. ``missing``
    partitions are listed by a member but do not exist. ``foreign`` partitions are held by
    an owner that is not a member that we understand: they are left alone until that ends.
    ``modes`` has more than one entry when members disagree about the mode. ``by_task`` says
    whether tasks were allocated, or partitions, each by itself; ``without_tasks`` names the members
    for which it was partitions though others work in tasks. ``goal`` says who is to have what once
    those are warm for it that it is to move to; ``without_warm`` names the members for which that
    is not waited for.
    """

    owners: Mapping[TopicPartition, str]
    unowned: frozenset[TopicPartition]
    contended: Mapping[TopicPartition, tuple[str, ...]]
    missing: Mapping[str, tuple[TopicPartition, ...]]
    foreign: Mapping[TopicPartition, str]
    modes: frozenset[AssignmentMode]
    by_task: bool = False
    without_tasks: tuple[str, ...] = ()
    goal: Mapping[TopicPartition, str] = field(default_factory=dict)
    without_warm: tuple[str, ...] = ()

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

    Where all active members work in tasks, all this holds of tasks in place of partitions: each
    task goes to one member as a whole, by the mode's rule for its anchor.
    """
    existing = set(partitions)
    foreign = {
        p: owner for p, owner in sorted(owners.items()) if p in existing and owner not in members
    }
    returning = {p: member for p, member in (former or {}).items() if member in members}
    held = returning | dict(owners)
    active = {name: info for name, info in members.items() if not info.draining}
    _, contended, missing = listed(_of_mode(active, AssignmentMode.STATIC), existing, held)
    free = existing - foreign.keys()
    tasks = Tasks.of(active)
    if tasks is None:
        goal = _share(active, free, held)
        # of members that work in tasks of one topic each partition is one
        given = settle_warm(goal, active, owners, returning) if _are_tasks(active) else goal
    else:
        goal, given = _share_tasks(tasks, active, existing, foreign, (owners, returning))
    return Allocation(
        owners=dict(sorted(given.items())),
        unowned=frozenset(free - given.keys()),
        contended=contended,
        missing=missing,
        foreign=foreign,
        modes=frozenset(info.mode for info in active.values()),
        by_task=tasks is not None,
        without_tasks=without_tasks(active),
        goal=dict(sorted(goal.items())),
        without_warm=without_warm(active),
    )


def _are_tasks(members: Mapping[str, MemberInfo]) -> bool:
    """Return whether each partition is a task by itself."""
    return all(info.together and len(info.topics) <= 1 for info in members.values())


def _share(
    members: Mapping[str, MemberInfo],
    free: AbstractSet[TopicPartition],
    held: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have which of ``free`` partitions."""
    given, _, _ = listed(_of_mode(members, AssignmentMode.STATIC), free, held)
    placed = place_avoided(members, free - given.keys(), held)
    left = free - given.keys() - placed.keys()
    fixed = _of_mode(members, AssignmentMode.FIXED_COUNT)
    given |= placed | fixed_counts(fixed, left, held, placed)
    given |= spread(_of_mode(members, AssignmentMode.DYNAMIC), left - given.keys(), held)
    return given


def _share_tasks(
    tasks: Tasks,
    members: Mapping[str, MemberInfo],
    existing: Collection[TopicPartition],
    foreign: Collection[TopicPartition],
    owners: tuple[Mapping[TopicPartition, str], Mapping[TopicPartition, str]],
) -> tuple[dict[TopicPartition, str], dict[TopicPartition, str]]:
    """Return who is to have which partition in the end, and who now: of each task all, or none
    where one is foreign.
    """
    free = {
        anchor: parts
        for anchor, parts in tasks.by_anchor(existing).items()
        if not any(part in foreign for part in parts)
    }
    found = {anchor: holder_of(parts, *owners) for anchor, parts in free.items()}
    held = {anchor: holder for anchor, holder in found.items() if holder is not None}
    taking = tasks.with_task_cooldown(members)
    goal = _share(taking, free.keys(), held)
    # one that is being given back is no longer whole, and is not kept
    whole = {
        anchor: owners[0][anchor]
        for anchor, parts in free.items()
        if len({owners[0].get(part) for part in parts}) == 1 and anchor in owners[0]
    }

    def of_parts(given: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        return {
            partition: taker
            for partition in existing
            if partition not in foreign
            and (taker := given.get(tasks.anchor(partition))) is not None
            and partition.topic in members[taker].topics
        }

    return of_parts(goal), of_parts(settle_warm(goal, taking, whole, owners[1]))


def _of_mode(members: Mapping[str, MemberInfo], mode: AssignmentMode) -> dict[str, MemberInfo]:
    return {name: info for name, info in sorted(members.items()) if info.mode is mode}
