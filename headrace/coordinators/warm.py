"""Tasks with state move to members that are warm for them: ready to go on without a long restore.

A pure function of what the members publish, as the allocation is that it comes after.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from headrace.coordinators.member_info import AssignmentMode, MemberInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.core.records import TopicPartition


def settle_warm(
    goal: Mapping[TopicPartition, str],
    members: Mapping[str, MemberInfo],
    owners: Mapping[TopicPartition, str],
    former: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return who is to have each task now, on the way to ``goal``.

    A task whose owner is one of ``members`` stays there until the goal's member is warm for it.
    Tasks without one go to members that are warm for them: as many as can within the numbers that
    the goal gives each, the others beyond these for a while. One that comes back to its ``former``
    owner is there already, whose store has it. Static lists, fixed counts and cooldown have
    precedence. Where one of the members publishes nothing of it, the goal holds at once.
    """
    if any(info.warm is None for info in members.values()):
        return dict(goal)
    settled = dict(goal)
    free: dict[str, list[TopicPartition]] = defaultdict(list)
    avoided = {task for info in members.values() for task in info.cooldown}
    for task, taker in sorted(goal.items()):
        owner = owners.get(task)
        if owner is not None and owner in members:
            if not _is_warm(members[taker], task) and _can_keep(members[owner], task):
                settled[task] = owner
        elif former.get(task) != taker and _is_open(members[taker]) and task not in avoided:
            free[task.topic].append(task)
    for tasks in free.values():
        settled |= _WarmPlaces(tasks, goal, members).fill()
    for task in sorted(task for tasks in free.values() for task in tasks):
        if not _is_warm(members[settled[task]], task):
            settled[task] = _warm_beyond(task, members, settled) or settled[task]
    return settled


def _warm_beyond(
    task: TopicPartition, members: Mapping[str, MemberInfo], given: Mapping[TopicPartition, str]
) -> str | None:
    """Return the member with the least of those that are warm for a task; None: there is none.

    It has more than its share then, until the one that is to have it is warm.
    """
    takers = [
        name
        for name, info in members.items()
        if info.mode is AssignmentMode.DYNAMIC and _is_warm(info, task) and _can_keep(info, task)
    ]
    loads = Counter(given.values())
    return min(takers, key=lambda name: (loads[name] / members[name].weight, name), default=None)


def without_warm(members: Mapping[str, MemberInfo]) -> tuple[str, ...]:
    """Return the members that do not publish for what they are warm, where others do."""
    if all(info.warm is None for info in members.values()):
        return ()
    return tuple(sorted(name for name, info in members.items() if info.warm is None))


def _is_open(info: MemberInfo) -> bool:
    """Return whether a member takes any tasks, and not those of a list."""
    return info.mode is not AssignmentMode.STATIC


def _is_warm(info: MemberInfo, task: TopicPartition) -> bool:
    return info.warm is not None and task.partition in info.warm


def _can_keep(info: MemberInfo, task: TopicPartition) -> bool:
    """Return whether an owner may keep a task that it is not to have in the end."""
    wants = task.topic in info.topics and task not in info.cooldown
    return wants and _is_open(info)


class _WarmPlaces:
    """Free tasks of one topic, and as many places of members as the goal gives them of these."""

    def __init__(
        self,
        tasks: Sequence[TopicPartition],
        goal: Mapping[TopicPartition, str],
        members: Mapping[str, MemberInfo],
    ) -> None:
        self._tasks = tasks
        self._goal = goal
        self._places = Counter(goal[task] for task in tasks)
        self._warm = {
            task: [name for name in sorted(self._places) if _is_warm(members[name], task)]
            for task in tasks
        }
        self._given: dict[TopicPartition, str] = {}
        self._of: dict[str, list[TopicPartition]] = defaultdict(list)

    def fill(self) -> dict[TopicPartition, str]:
        """Return who gets which task: the most that can be are with warm members."""
        for task in self._tasks:
            # who is warm and is to have it anyway comes first: nothing is to move again
            if self._goal[task] in self._warm[task]:
                self._give(task, self._goal[task])
        for task in self._tasks:
            if task not in self._given:
                self._make_room(task, set())
        left = self._places - Counter(self._given.values())
        cold = [task for task in self._tasks if task not in self._given]
        for task in cold:
            if left[self._goal[task]] > 0:
                left[self._goal[task]] -= 1
                self._given[task] = self._goal[task]
        rest = (task for task in cold if task not in self._given)
        self._given |= dict(zip(rest, left.elements(), strict=True))
        return self._given

    def _give(self, task: TopicPartition, member: str) -> None:
        if (former := self._given.get(task)) is not None:
            self._of[former].remove(task)
        self._given[task] = member
        self._of[member].append(task)

    def _make_room(self, task: TopicPartition, asked: set[str]) -> bool:
        """Assign a task to a warm member, for which another task may go to another warm one."""
        for member in self._warm[task]:
            if len(self._of[member]) < self._places[member]:
                self._give(task, member)
                return True
        for member in self._warm[task]:
            if member in asked:
                continue
            asked.add(member)
            for other in self._others(member):
                if self._make_room(other, asked):
                    self._give(task, member)
                    return True
        return False

    def _others(self, member: str) -> Iterable[TopicPartition]:
        return list(self._of[member])
