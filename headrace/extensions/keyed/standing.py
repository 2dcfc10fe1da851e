"""The members that keep copies of a task: a pure function of the group, as all see it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def standbys_of(task: int, members: Iterable[str], owner: str | None, count: int) -> list[str]:
    """Return the ``count`` members that keep a copy of a task's state beside its owner.

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
