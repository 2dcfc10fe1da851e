"""Claims: ownership of one partition, how it begins and ends, and the table of those held."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from headrace.kafka.ports import Commit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.coordinators.lease import Lease
    from headrace.core.records import TopicPartition


@dataclass(frozen=True, slots=True)
class PreviousOwner:
    """The owner that held a partition before.

    ``clean_end`` says that it committed everything and let go by itself: nothing of it needs to
    be fenced. ``member`` and ``member_epoch`` are None where the epoch node could not be read.
    ``transactional_id`` names the producer through which it committed, if it used one;
    ``unfenced`` those of owners before it that are not fenced yet.
    """

    epoch: int
    member: str | None
    member_epoch: int | None
    transactional_id: str | None
    clean_end: bool
    unfenced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """Ownership of one partition under one epoch.

    ``node_version`` is the epoch node's version since the claim: a write that checks it is
    refused once anybody has claimed after us. The claim may be acted on while ``lease.valid()``.
    ``previous`` is None when the partition had no owner before. ``transactional_id`` names the
    producer through which this member commits, if it uses one. ``unfenced`` names producers of
    former owners that may still commit: they have to be shut out before offsets are read.
    """

    partition: TopicPartition
    epoch: int
    member: str
    member_epoch: int
    node_version: int
    lease: Lease = field(repr=False)
    previous: PreviousOwner | None = None
    transactional_id: str | None = None
    unfenced: tuple[str, ...] = ()

    def commit(
        self, offset: int, topic_id: str | None = None, leader_epoch: int | None = None
    ) -> Commit:
        """Return what an offset store has to know to store ``offset`` for this claim.

        ``topic_id`` is that of the topic whose records the offset counts, ``leader_epoch`` one
        under which its log was seen to lead to the offset.
        """
        return Commit(
            offset,
            self.epoch,
            self.member,
            topic_id,
            leader_epoch,
            node_version=self.node_version,
            transactional_id=self.transactional_id,
        )

    @property
    def follows_own_doubt(self) -> bool:
        """Return whether the claim before was of the same membership and did not end cleanly.

        A producer of its own is not fenced: what it committed then is to be decided first.
        """
        former = self.previous
        if former is None or former.clean_end or former.transactional_id is None:
            return False
        return former.transactional_id == self.transactional_id

    @property
    def former_producers(self) -> tuple[str, ...]:
        """Return the producers that stored this partition's offsets before, as far as is known.

        Also those that ended cleanly or are shut out, and our own of the same membership.
        """
        former = self.previous
        if former is None:
            return ()
        named = dict.fromkeys([*former.unfenced, former.transactional_id])
        return tuple(each for each in named if each is not None)

    def fenced(self) -> Claim:
        """Return the claim as it is once all former owners are shut out."""
        return replace(self, unfenced=())


class ClaimRefusal(Enum):
    """The reason why a partition could not be claimed."""

    OWNED = "owned"
    """It has an owner: a member, or a late request of our own."""
    RACED = "raced"
    """Its epoch node changed between our reading and our writing."""
    FOREIGN = "foreign"
    """Its epoch node is of a later format, which we would destroy."""


class Release(Enum):
    """The outcome of giving back a claim."""

    RELEASED = "released"
    """The owner node is gone, and the epoch node says how the claim ended."""
    REFUSED = "refused"
    """Another member claimed after us: there was nothing left to give back."""


class LossReason(Enum):
    """The reason why a claim ended without being given back."""

    LEASE_OVER = "lease_over"
    """ZooKeeper confirmed the session too late; another member may have claimed."""
    SESSION_LOST = "session_lost"
    """The session ended, and all its nodes with it."""
    MEMBERSHIP_LOST = "membership_lost"
    """Our node among the members is gone or another member's."""
    NODE_CHANGED = "node_changed"
    """The owner node is gone or the epoch node moved on, though the session lives."""
    FENCED = "fenced"
    """The producer through which this member commits was fenced; it joins again."""
    STOPPED = "stopped"
    """The coordinator ended before the claim was given back."""
    FAILED = "failed"
    """The coordinator itself failed."""


class ClaimState(Enum):
    """The state of a claim between the channel and the registry."""

    HELD = "held"
    """The channel works on it."""
    RELEASING = "releasing"
    """The channel was asked to finish and has not answered."""
    ENDED_CLEANLY = "ended_cleanly"
    """The channel has finished; the registry is still to be told."""
    ABANDONED = "abandoned"
    """The channel gave up without a clean end; the registry is still to be told."""


WITH_CHANNEL = frozenset({ClaimState.HELD, ClaimState.RELEASING})
"""States in which the channel is still to hear of a loss."""


@dataclass(slots=True)
class HeldClaim:
    """One claim. ``first_epoch`` is its epoch before any raise; ``raise_to`` a raise to be made."""

    claim: Claim
    first_epoch: int
    state: ClaimState = ClaimState.HELD
    raise_to: int | None = None

    def release(self) -> None:
        """Mark the claim as being released by the channel."""
        self.state = ClaimState.RELEASING

    def end(self, claim: Claim, state: ClaimState) -> None:
        """Record that the channel has ended ``claim``: this one, or what it was before a raise."""
        self.state = state
        # the end of a claim says whether it has fenced the former owners
        self.claim = replace(self.claim, unfenced=claim.unfenced)

    def want_epoch(self, at_least: int) -> None:
        """Request a higher epoch; an earlier request is not lowered."""
        self.raise_to = max(at_least, self.raise_to or 0)

    def raised(self, claim: Claim) -> None:
        """Record the claim with its raised epoch."""
        self.claim, self.raise_to = claim, None


class ClaimTable:
    """All claims of one member. Used by the coordinator's thread only.

    ``unreleased`` are partitions that are held no more, of which an owner node of ours may still
    be there: a claim that is lost is not given back.
    """

    def __init__(self) -> None:
        self.unreleased: set[TopicPartition] = set()
        self._by_partition: dict[TopicPartition, HeldClaim] = {}

    def __len__(self) -> int:
        return len(self._by_partition)

    def __iter__(self) -> Iterator[HeldClaim]:
        return iter([self._by_partition[p] for p in sorted(self._by_partition)])

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._by_partition

    def add(self, claim: Claim) -> None:
        """Add a claim that is now held."""
        self.unreleased.discard(claim.partition)
        self._by_partition[claim.partition] = HeldClaim(claim, claim.epoch)

    def find(self, claim: Claim) -> HeldClaim | None:
        """Return the holding that ``claim``, or what it was raised to, stands for."""
        holding = self._by_partition.get(claim.partition)
        if holding is None or holding.claim.member_epoch != claim.member_epoch:
            return None
        return holding if holding.first_epoch <= claim.epoch <= holding.claim.epoch else None

    def of(self, partitions: Iterable[TopicPartition]) -> list[HeldClaim]:
        """Return what there is of these partitions, in their order."""
        found = (self._by_partition.get(partition) for partition in sorted(partitions))
        return [holding for holding in found if holding is not None]

    def remove(self, holding: HeldClaim) -> None:
        """Remove the claim."""
        del self._by_partition[holding.claim.partition]

    def claims(self) -> list[Claim]:
        """Return all claims, in order of their partitions."""
        return [holding.claim for holding in self]

    def in_state(self, *states: ClaimState) -> list[HeldClaim]:
        """Return the holdings in any of ``states``."""
        return [holding for holding in self if holding.state in states]
