"""Which partitions may be fetched: rules of back-pressure, without any I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.records import TopicPartition

#: A paused partition is fetched again when it holds less than this part of its share, so that
#: pausing, which throws prefetched records away, does not alternate with resuming.
RESUME_BELOW = 0.5

#: As long as less than this part of the budget is used nobody is paused: the hungry are fetched
#: with the others. With many partitions one is always hungry and some are always over their share.
ROOMY_BELOW = 0.5


class Reading(NamedTuple):
    """One partition as the rules see it: bytes held, whether it could use more, whether paused."""

    partition: TopicPartition
    held: int
    hungry: bool
    paused: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What the fetcher does next. ``shed`` names partitions that give up unread records."""

    fetch: bool
    pause: frozenset[TopicPartition] = frozenset()
    resume: frozenset[TopicPartition] = frozenset()
    shed: frozenset[TopicPartition] = frozenset()


def decide(readings: Collection[Reading], budget: int) -> Decision:
    """Share ``budget`` bytes among partitions so that a slow one starves no other.

    Each partition has an equal share. As long as there is plenty of room, or no other partition is
    hungry, one may hold more. Else those over their share are paused, and where the budget is used
    up they give unread records back. When the budget is full and nobody is hungry, fetching just
    stops: that throws nothing away.
    """
    if not readings:
        return Decision(fetch=True)
    share = budget // len(readings)
    held = sum(reading.held for reading in readings)
    full, roomy = held >= budget, held < budget * ROOMY_BELOW
    over = frozenset(r.partition for r in readings if r.held >= share)
    hungry = any(r.hungry and r.partition not in over for r in readings)
    resume = frozenset(r.partition for r in readings if r.paused and r.held < share * RESUME_BELOW)
    if roomy or not hungry:
        return Decision(fetch=not full, resume=resume)
    pause = frozenset(r.partition for r in readings if r.partition in over and not r.paused)
    return Decision(fetch=True, pause=pause, resume=resume, shed=over if full else frozenset())


def leeway(readings: Collection[Reading], budget: int) -> int:
    """Return how many bytes may be fetched before the rules can say anything else.

    None where a partition is paused, because it may have room soon. Of what is handed out a
    processor may hold a copy: even then not more than the budget is used.
    """
    if any(reading.paused for reading in readings):
        return 0
    return max(0, int(budget * ROOMY_BELOW) - sum(reading.held for reading in readings))
