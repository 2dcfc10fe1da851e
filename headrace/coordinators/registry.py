"""Who is in a group and who owns what: the seam between a coordinator and its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.coordinators.claims import Claim, ClaimRefusal, Release
    from headrace.coordinators.lease import Lease
    from headrace.coordinators.member_info import MemberInfo
    from headrace.core.records import TopicPartition
    from headrace.zookeeper.protocol import SessionState


class RegistryUnavailableError(HeadraceError):
    """No answer: what was asked for may have happened, may happen yet, or never will."""


class MembershipLostError(HeadraceError):
    """Our node among the members is gone or belongs to another session: join again."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a member's name now. ``beats`` rises while it is alive."""

    host: str
    pid: int
    beats: int


class MemberExistsError(HeadraceError):
    """Another session has our name: a former session of ours that is not over, or a live holder."""

    def __init__(self, member: str, holder: Holder) -> None:
        super().__init__(
            f"member {member!r} is already in the group, from process {holder.pid} on "
            f"{holder.host}; stop that process or give this one another instance_id"
        )
        self.holder = holder


@dataclass(frozen=True, slots=True)
class Membership:
    """One membership of the group.

    ``epoch`` is the transaction that created our node among the members: higher at each start.
    """

    epoch: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Owner:
    """What a partition's owner node says.

    ``member`` is None where the node cannot be read. ``ours`` says that it belongs to our present
    session, whatever it says; with our name but another session it is not ours.
    """

    member: str | None
    epoch: int | None
    ours: bool

    def stands_for(self, claim: Claim) -> bool:
        """Whether it is what our claim wrote; somebody may have written over it since."""
        return self.ours and (self.member, self.epoch) == (claim.member, claim.epoch)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The members that can be understood, and what was found wrong with the others' nodes."""

    members: Mapping[str, MemberInfo]
    problems: Mapping[str, str]


class Registry(Protocol):
    """One member's access to its group. Used by one thread, the coordinator's.

    Each call blocks for a bounded time: the store's time-out for one operation, once or twice. It
    raises ``RegistryUnavailableError`` when no answer came, ``ZooKeeperAccessError`` when the store
    denies access, and its fatal error when no answer will ever come. Callbacks run on a thread of
    the store: they only enqueue.
    """

    @property
    def member(self) -> str:
        """Our name in the group."""
        ...

    @property
    def session_id(self) -> int | None:
        """The present session, None while there is no connection."""
        ...

    @property
    def session_timeout(self) -> float:
        """Seconds agreed on with the servers at the last connect."""
        ...

    @property
    def connected_at(self) -> float:
        """Monotonic time of our last request to be let in that a server granted."""
        ...

    def listen(self, callback: Callable[[SessionState], None]) -> None:
        """Have ``callback`` told how the session fares."""
        ...

    def unlisten(self, callback: Callable[[SessionState], None]) -> None:
        """Tell ``callback`` no more."""
        ...

    def watch(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after changes to what ``members`` or ``owners`` last read.

        Reading again arms the call again.
        """
        ...

    def unwatch(self) -> None:
        """Call nobody after changes any more, nor keep who was to be called."""
        ...

    def join(self, info: MemberInfo) -> Membership:
        """Enter the group; raises MemberExistsError."""
        ...

    def heartbeat(self) -> None:
        """Write our node: its success proves the session. Raises MembershipLostError."""
        ...

    def publish(self, info: MemberInfo) -> None:
        """Replace what we publish and tell the others. Raises MembershipLostError."""
        ...

    def leave(self) -> None:
        """Delete our node, if it is ours."""
        ...

    def members(self) -> GroupView:
        """Read who is in the group."""
        ...

    def owners(self, topic: str) -> Mapping[int, Owner]:
        """Read who owns the topic's partitions; those without an owner are missing."""
        ...

    def former(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        """Read who claimed partitions last; those of which nothing can be told are missing."""
        ...

    def claim(
        self, partitions: Collection[TopicPartition], lease: Lease
    ) -> Mapping[TopicPartition, Claim | ClaimRefusal]:
        """Take partitions that nobody owns, each by itself, with an epoch above all before.

        Where no answer came, some may be ours all the same: their owner nodes say so.
        """
        ...

    def raise_epoch(self, claim: Claim, at_least: int) -> Claim | None:
        """Raise a claim's epoch to ``at_least``; None when somebody claimed after us.

        May be repeated after an unknown outcome. A claim that is high enough is returned as it is.
        """
        ...

    def release(
        self, claims: Collection[Claim], *, clean: bool
    ) -> Mapping[TopicPartition, Release]:
        """Give claims back, each by itself, and say how they ended.

        May be repeated after an unknown outcome.
        """
        ...

    def verify(self, claims: Collection[Claim]) -> list[Claim]:
        """Return those claims that no longer hold, by their owner and epoch nodes."""
        ...

    def discard(self, partition: TopicPartition) -> bool:
        """Delete an owner node of our session that no claim of ours stands for.

        Requests of which we never heard the outcome leave such nodes. Returns whether it was ours.
        """
        ...
