"""The copies that a member keeps of other members' tasks: of which, and until when."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import structlog

from headrace.extensions.keyed.errors import StateStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.extensions.keyed.runtime.current import CurrentChannel
    from headrace.extensions.keyed.runtime.held import HeldPartitions
    from headrace.extensions.keyed.runtime.restores import PartitionRestores
    from headrace.extensions.keyed.section import StateConfig
    from headrace.extensions.keyed.store import RocksStore
    from headrace.processors.contract import ChannelContext, GroupTasks

log = structlog.get_logger(__name__)

#: Seconds between two times at which the group is told for which tasks the member is warm.
_PUBLISH_INTERVAL = 2.0

#: Seconds between two looks for state that others have now.
_CLEAN_INTERVAL = 5.0


def standbys_of(task: int, members: Iterable[str], owner: str | None, count: int) -> list[str]:
    """Return the ``count`` members other than its owner that keep a copy of a task's state.

    Each task has an order of members of its own, by a hash, so that the copies of a member's tasks
    are spread over the others. One that joins or leaves changes the order of no other two.
    """
    others = (member for member in members if member != owner)
    ranked = sorted(others, key=lambda member: (_rank(task, member), member), reverse=True)
    return ranked[: max(0, count)]


def _rank(task: int, member: str) -> bytes:
    # of a CRC, which is linear, the highest of several is often the same member's for half of all
    # tasks
    return blake2b(f"{task}\0{member}".encode(), digest_size=8).digest()


def copied_tasks(group: GroupTasks, count: int) -> set[int]:
    """Return the tasks of others of which this member is to keep a copy.

    One without an owner counts as that of its next one.
    """
    owners = {**group.goal, **group.owners}
    return {
        task
        for task, owner in owners.items()
        if group.member in standbys_of(task, group.members, owner, count)
    }


def coming_tasks(group: GroupTasks) -> list[int]:
    """Return the tasks of others that are to move to this member, by number."""
    return sorted(
        task
        for task, taker in group.goal.items()
        if taker == group.member and group.owners.get(task, taker) != taker
    )


class Standbys:
    """Decides which changelogs of other members' partitions are followed.

    :meth:`note_group` is for any thread, all else for the processor's own.
    """

    def __init__(
        self,
        current: CurrentChannel,
        held: HeldPartitions,
        restores: PartitionRestores,
        store: RocksStore,
        context: ChannelContext,
    ) -> None:
        self._current = current
        self._held = held
        self._restores = restores
        self._store = store
        self._context = context
        self._group: GroupTasks | None = None
        self._chosen_for: tuple[GroupTasks, StateConfig] | None = None
        self._chosen: frozenset[int] = frozenset()
        self._followed: frozenset[int] = frozenset()
        self._warm: frozenset[int] = frozenset()
        self._publish_at = 0.0
        self._clean_at = 0.0
        self._elsewhere_since: dict[int, float] = {}
        # as it joins: what it says nothing of is moved at once
        context.publish_warm(self._warm)

    def note_group(self, tasks: GroupTasks) -> None:
        """Record how the tasks of the group are shared. Does not block."""
        self._group = tasks

    def settle(self, now: float) -> None:
        """Follow what is to be followed, tell the group what is warm, and delete what is left."""
        group = self._group
        if group is None:
            return
        self._follow(group)
        self._publish(now)
        self._clean(group, now)

    def _follow(self, group: GroupTasks) -> None:
        settings = self._current.settings.state
        if self._chosen_for != (group, settings):
            copied = copied_tasks(group, settings.standbys)
            coming = [task for task in coming_tasks(group) if task not in copied]
            self._chosen = frozenset(copied.union(coming[: settings.max_warmups]))
            self._chosen_for = group, settings
        # what is about to be claimed is followed until it is
        free = {task for task, taker in group.goal.items() if taker == group.member}
        awaited = self._followed.intersection(free.difference(group.owners))
        followed = self._chosen.union(awaited).difference(self._held.numbers())
        self._followed = followed
        # one that was ours for a moment was left meanwhile
        if followed != self._restores.standbys.progress().keys():
            self._restores.restorer.follow(followed)

    def _publish(self, now: float) -> None:
        most = self._current.settings.state.acceptable_lag
        progress = self._restores.standbys.progress()
        warm = frozenset(
            number
            for number, each in progress.items()
            if number in self._followed and each.lag is not None and each.lag <= most
        )
        if warm != self._warm and now >= self._publish_at:
            self._warm, self._publish_at = warm, now + _PUBLISH_INTERVAL
            self._context.publish_warm(warm)

    def _clean(self, group: GroupTasks, now: float) -> None:
        """Delete the state of tasks that others have had for a while, and that is not followed."""
        if now < self._clean_at:
            return
        cleanup = self._current.settings.state.cleanup
        self._clean_at = now + min(_CLEAN_INTERVAL, cleanup)
        try:
            left = self._find_left(group)
        except StateStoreError as error:
            log.warning("local_state_not_cleaned", channel=self._context.channel, error=str(error))
            return
        since = {number: self._elsewhere_since.get(number, now) for number in left}
        due = [number for number, begun in since.items() if now - begun >= cleanup]
        for number in due:
            # one of which something is still to be written is found again
            del since[number]
            self._restores.restorer.clean(number)
        self._elsewhere_since = since

    def _find_left(self, group: GroupTasks) -> list[int]:
        """Return the tasks that others have, and of which the store has something."""
        own = self._followed.union(self._held.numbers())
        return [
            number
            for number, owner in group.owners.items()
            if owner != group.member and number not in own and self._store.has_any(number)
        ]
