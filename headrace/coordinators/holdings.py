"""The claims of one member and how far each is on its way back to the group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.coordinators.claims import Claim
    from headrace.records import TopicPartition


class HoldingState(Enum):
    """Where a claim stands between the channel and the registry."""

    HELD = "held"
    """The channel works on it."""
    RELEASING = "releasing"
    """The channel was asked to finish and has not answered."""
    ENDED_CLEANLY = "ended_cleanly"
    """The channel has finished; the registry is still to be told."""
    ABANDONED = "abandoned"
    """The channel gave up without a clean end; the registry is still to be told."""


WITH_CHANNEL = frozenset({HoldingState.HELD, HoldingState.RELEASING})
"""States in which the channel is still to hear of a loss."""


@dataclass(slots=True)
class Holding:
    """One claim. ``first_epoch`` is its epoch before any raise; ``raise_to`` a raise to be made."""

    claim: Claim
    first_epoch: int
    state: HoldingState = HoldingState.HELD
    raise_to: int | None = None


class Holdings:
    """All claims of one member. Used by the coordinator's thread only.

    ``left_behind`` are partitions that are held no more, of which an owner node of ours may still
    be there: a claim that is lost is not given back.
    """

    def __init__(self) -> None:
        self.left_behind: set[TopicPartition] = set()
        self._by_partition: dict[TopicPartition, Holding] = {}

    def __len__(self) -> int:
        return len(self._by_partition)

    def __iter__(self) -> Iterator[Holding]:
        return iter([self._by_partition[p] for p in sorted(self._by_partition)])

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._by_partition

    def add(self, claim: Claim) -> None:
        """Begin to hold a claim."""
        self.left_behind.discard(claim.partition)
        self._by_partition[claim.partition] = Holding(claim, claim.epoch)

    def find(self, claim: Claim) -> Holding | None:
        """Return the holding that ``claim``, or what it was raised to, stands for."""
        holding = self._by_partition.get(claim.partition)
        if holding is None or holding.claim.member_epoch != claim.member_epoch:
            return None
        return holding if holding.first_epoch <= claim.epoch <= holding.claim.epoch else None

    def remove(self, holding: Holding) -> None:
        """Hold the claim no more."""
        del self._by_partition[holding.claim.partition]

    def claims(self) -> list[Claim]:
        """Return all claims, in order of their partitions."""
        return [holding.claim for holding in self]

    def in_state(self, *states: HoldingState) -> list[Holding]:
        """Return the holdings in any of ``states``."""
        return [holding for holding in self if holding.state in states]
