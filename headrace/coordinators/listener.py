"""The events that a channel gets from its coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.coordinators.claims import Claim, LossReason
    from headrace.coordinators.member_info import Mode
    from headrace.core.errors import HeadraceError
    from headrace.core.records import TopicPartition


@dataclass(frozen=True, slots=True)
class RebalanceSummary:
    """The group as one member sees it.

    ``mine`` is what this member is to have, ``owners`` who owns what at present (None: somebody
    unreadable). ``unowned`` partitions nobody is to have, ``pending`` ones somebody is to have but
    nobody owns yet. ``contended``, ``missing``, ``foreign`` and ``modes`` are as in ``Allocation``.
    ``problems`` says by member what is wrong with its node.
    """

    members: tuple[str, ...]
    mine: frozenset[TopicPartition]
    owners: Mapping[TopicPartition, str | None]
    unowned: frozenset[TopicPartition]
    pending: frozenset[TopicPartition]
    contended: Mapping[TopicPartition, tuple[str, ...]]
    missing: Mapping[str, tuple[TopicPartition, ...]]
    foreign: Mapping[TopicPartition, str]
    modes: frozenset[Mode]
    problems: Mapping[str, str]


class Listener(Protocol):
    """Implemented by the channel. Every method runs on the coordinator's thread: only enqueue.

    For one claim: ``claimed``, then perhaps ``epoch_raised`` and ``release_requested``, then
    exactly one end, either ``claim_lost`` or the channel's own ``released`` or ``abandon``.
    """

    def claimed(self, claim: Claim) -> None:
        """A partition is ours: fence its previous owner, read its offset, deliver."""
        ...

    def release_requested(self, claim: Claim) -> None:
        """Finish and answer with ``Coordinator.released``. Told once; not taken back."""
        ...

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        """The claim is over. Nothing is to be committed under it, nothing to be answered."""
        ...

    def epoch_raised(self, old: Claim, new: Claim) -> None:
        """Answer to ``Coordinator.raise_epoch``: go on with ``new``, which may equal ``old``."""
        ...

    def suspended(self) -> None:
        """ZooKeeper does not answer: claims hold while their lease does; begin nothing new."""
        ...

    def resumed(self) -> None:
        """ZooKeeper answers again, be it that the session is over.

        Claims that ended meanwhile were told of before this call.
        """
        ...

    def rebalanced(self, summary: RebalanceSummary) -> None:
        """The group looks different from what the last summary said."""
        ...

    def failed(self, error: HeadraceError) -> None:
        """The coordinator ended by itself; all claims were told lost before. Nothing follows."""
        ...
