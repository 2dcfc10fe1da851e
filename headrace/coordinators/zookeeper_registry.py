"""The registry in ZooKeeper; ``headrace.coordinators.znodes`` says what its nodes are."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.coordinators.claim_nodes import Claimant, ClaimNodes
from headrace.coordinators.member_nodes import MemberNodes
from headrace.coordinators.registry import RegistryUnavailableError
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.core.errors import ZooKeeperAccessError
from headrace.zookeeper.protocol import AccessDeniedError, ZooKeeperError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace.coordinators.claims import Claim, ClaimRefusal, Release
    from headrace.coordinators.lease import Lease
    from headrace.coordinators.member_info import MemberInfo
    from headrace.coordinators.registry import GroupView, Membership, Owner
    from headrace.core.records import TopicPartition
    from headrace.zookeeper.protocol import Session, SessionState


class ZooKeeperRegistry:
    """See ``headrace.coordinators.registry.Registry``.

    With ``transactional_prefix`` this member commits through a transactional producer, whose id is
    the prefix and the member epoch. It is noted in each claim, for whoever has to fence us.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        member: str,
        *,
        transactional_prefix: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        paths = GroupPaths(group)
        host = socket.gethostname()
        self._session = session
        self._member = member
        self._members = MemberNodes(session, paths, member, host, clock)
        claimant = Claimant(member, host, transactional_prefix)
        self._claims = ClaimNodes(session, paths, claimant, clock)
        self._on_change: Callable[[], None] | None = None

    @property
    def member(self) -> str:
        """Our name in the group."""
        return self._member

    @property
    def session_id(self) -> int | None:
        """The present session, None while there is no connection."""
        return self._session.session_id

    @property
    def session_timeout(self) -> float:
        """Seconds agreed on with the servers at the last connect."""
        return self._session.session_timeout

    @property
    def connected_at(self) -> float:
        """Monotonic time of our last request to be let in that a server granted."""
        return self._session.connected_at

    def listen(self, callback: Callable[[SessionState], None]) -> None:
        """Have ``callback`` told how the session fares."""
        self._session.listen(callback)

    def unlisten(self, callback: Callable[[SessionState], None]) -> None:
        """Tell ``callback`` no more."""
        self._session.unlisten(callback)

    def watch(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after changes to what was last read."""
        self._on_change = callback

    def unwatch(self) -> None:
        """Call nobody after changes any more, nor keep who was to be called."""
        self._on_change = None

    def _changed(self) -> None:
        """Pass a fired watch on.

        ZooKeeper's client keeps what it is to call until the watch fires, which in a group that
        nobody joins any more is never. So it is given this, and not a whole channel.
        """
        if (callback := self._on_change) is not None:
            callback()

    def join(self, info: MemberInfo) -> Membership:
        """Enter the group."""
        with _no_answer():
            return self._members.join(info)

    def heartbeat(self) -> None:
        """Write our node: its success proves the session."""
        with _no_answer():
            self._members.heartbeat()

    def publish(self, info: MemberInfo) -> None:
        """Replace what we publish and tell the others."""
        with _no_answer():
            self._members.publish(info)

    def leave(self) -> None:
        """Delete our node, if it is ours."""
        with _no_answer():
            self._members.leave()

    def members(self) -> GroupView:
        """Read who is in the group."""
        with _no_answer():
            return self._members.read(self._changed)

    def owners(self, topic: str) -> Mapping[int, Owner]:
        """Read who owns the topic's partitions."""
        with _no_answer():
            return self._claims.owners(topic, self._changed)

    def former(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        """Read who claimed partitions last."""
        with _no_answer():
            return self._claims.former(partitions)

    def claim(
        self, partitions: Collection[TopicPartition], lease: Lease
    ) -> Mapping[TopicPartition, Claim | ClaimRefusal]:
        """Take partitions that nobody owns, each with an epoch above all before."""
        with _no_answer():
            return self._claims.claim(partitions, self._members.membership, lease)

    def raise_epoch(self, claim: Claim, at_least: int) -> Claim | None:
        """Raise a claim's epoch to ``at_least``."""
        with _no_answer():
            return self._claims.raise_epoch(claim, at_least)

    def release(
        self, claims: Collection[Claim], *, clean: bool
    ) -> Mapping[TopicPartition, Release]:
        """Give claims back and say how they ended."""
        with _no_answer():
            return self._claims.release(claims, clean=clean)

    def verify(self, claims: Collection[Claim]) -> list[Claim]:
        """Return those claims that no longer hold."""
        with _no_answer():
            return self._claims.broken(claims)

    def discard(self, partition: TopicPartition) -> bool:
        """Delete an owner node of our session that no claim of ours stands for."""
        with _no_answer():
            return self._claims.discard(partition)


@contextmanager
def _no_answer() -> Iterator[None]:
    """Say that no useful answer came in the registry's words.

    Answers that have a meaning were taken before; what is left is a lost connection, a time-out,
    a node that changed twice while we looked, or denied access, which no waiting fixes.
    """
    try:
        yield
    except AccessDeniedError as error:
        raise ZooKeeperAccessError(str(error)) from error
    except ZooKeeperError as error:
        raise RegistryUnavailableError(str(error)) from error
