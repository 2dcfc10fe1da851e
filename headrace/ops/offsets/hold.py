"""Holding a group's partitions while their offsets are changed, as a member would hold them."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace.coordinators.claims import Claim
from headrace.coordinators.coordinator import member_info
from headrace.coordinators.errors import MembershipLostError
from headrace.coordinators.group_nodes import read_members
from headrace.coordinators.lease import HEARTBEAT_SHARE, Lease
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.core.errors import HeadraceError
from headrace.ops.offsets.errors import ChannelRunningError
from headrace.zookeeper.errors import AccessDeniedError, ZooKeeperUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.config import ChannelConfig
    from headrace.coordinators.group_nodes import ParsedNode
    from headrace.coordinators.znodes import MemberDocument
    from headrace.core.clock import Clock, Deadline
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import Commit, OffsetStore
    from headrace.ops.offsets.reader import PartitionOffsets
    from headrace.zookeeper.protocol import Session

log = structlog.get_logger(__name__)


def own_name() -> str:
    """Return what this process is called in the group, and in what it writes elsewhere."""
    return f"offsets.{socket.gethostname()}.{os.getpid()}"


class Hold:
    """Claims on the partitions of a group that has no other member.

    While it lasts, a member that starts finds them owned and waits. It ends like any member's
    claims when the ZooKeeper session does, so :meth:`confirm` has to come right before a change.
    """

    def __init__(self, registry: ZooKeeperRegistry, lease: Lease, clock: Clock) -> None:
        self._registry = registry
        self._lease = lease
        self._clock = clock
        self._next_heartbeat = (
            clock.monotonic() + registry.session.session_timeout * HEARTBEAT_SHARE
        )
        self._claims: dict[TopicPartition, Claim] = {}
        #: Whether nothing is under way under the claims, which is how they end then.
        self.clean = True

    def claim(self, partitions: Iterable[TopicPartition]) -> None:
        """Claim all of the partitions.

        Raises:
            ChannelRunningError: a member has one of them or just claimed it.
        """
        wanted = sorted(partitions)
        owners = {topic: self._registry.owners(topic) for topic in {p.topic for p in wanted}}
        for partition in wanted:
            self.keep()
            owner = owners[partition.topic].get(partition.partition)
            found = None if owner else self._registry.claim([partition], self._lease)[partition]
            if not isinstance(found, Claim):
                by = "another process" if owner is None else owner.member or "an unreadable owner"
                reason = "" if found is None else f" ({found.value})"
                raise ChannelRunningError(
                    f"{partition} is held by {by}{reason}; stop that member first. Where none of "
                    "that name runs, see what stands in the partition's nodes in ZooKeeper"
                )
            self._claims[partition] = found

    def raise_above(self, offsets: Iterable[PartitionOffsets]) -> None:
        """Raise the epochs above those of commits, which are higher after a wiped ZooKeeper.

        Raises:
            HeadraceError: another member claimed after us.
        """
        for found in offsets:
            claim = self._claims[found.partition]
            if found.group is None or found.group.epoch < claim.epoch:
                continue
            self.keep()
            raised = self._registry.raise_epoch(claim, found.group.epoch + 1)
            if raised is None:
                raise _lost()
            self._claims[found.partition] = raised

    def keep(self) -> None:
        """Prolong the hold when a heartbeat is due: to be called on the way of long work.

        Raises:
            HeadraceError: it ended.
        """
        if self._clock.monotonic() >= self._next_heartbeat:
            self._prolong()

    def confirm(self) -> None:
        """Prove that every claim holds, which it then does for what :meth:`remaining` says.

        Raises:
            HeadraceError: one of them ended.
        """
        self._prolong()
        try:
            broken = self._registry.verify(self._claims.values())
        except ZooKeeperUnavailableError as error:
            raise _lost() from error
        if broken:
            raise _lost()

    def _prolong(self) -> None:
        sent_at = self._clock.monotonic()
        try:
            self._registry.heartbeat()
        except (ZooKeeperUnavailableError, MembershipLostError) as error:
            raise _lost() from error
        registry = self._registry
        self._next_heartbeat = sent_at + registry.session.session_timeout * HEARTBEAT_SHARE
        if not self._lease.confirm(
            sent_at, registry.session.session_timeout, registry.session.connected_at
        ):
            raise _lost()

    def remaining(self) -> float:
        """Return the seconds for which the claims hold for certain."""
        return self._lease.remaining()

    def fence(self, store: OffsetStore, deadline: Deadline) -> None:
        """Fence former owners that may still commit, as a member does before it reads.

        Raises:
            OffsetStoreError: one of them could not be; the next owner has to.
        """
        ids = {unfenced for claim in self._claims.values() for unfenced in claim.unfenced}
        if ids:
            store.fence(ids, next(iter(self._claims)), deadline)
            self._claims = {p: claim.fenced() for p, claim in self._claims.items()}

    def commit(self, partition: TopicPartition, offset: int, topic_id: str | None) -> Commit:
        """Return an offset of the topic ``topic_id`` as it is to be stored under the claim."""
        return self._claims[partition].commit(offset, topic_id)

    def release(self) -> None:
        """Release everything; what cannot be released ends with the session."""
        self._registry.release(list(self._claims.values()), clean=self.clean)


def _lost() -> HeadraceError:
    return HeadraceError(
        "the hold on the group was lost: ZooKeeper did not answer in time, or another member "
        "claimed; look who is in the group, then try again"
    )


@contextmanager
def holding(
    session: Session, channel: ChannelConfig, partitions: Iterable[TopicPartition], clock: Clock
) -> Iterator[Hold]:
    """Join the group as a member that takes nothing by itself, and claim the partitions.

    Raises:
        ChannelRunningError: the group has a member, or one of the partitions has an owner.
        HeadraceError: ZooKeeper did not answer; the hold is over.
    """
    registry = ZooKeeperRegistry(session, channel.group, own_name(), clock=clock)
    refuse_members(session, channel.group)
    try:
        sent_at = clock.monotonic()
        registry.join(replace(member_info(channel, channel.subscription.names), draining=True))
        lease = Lease.begin(
            registry.session.session_timeout, clock, sent_at, registry.session.connected_at
        )
        hold = Hold(registry, lease, clock)
        try:
            refuse_members(session, channel.group)
            hold.claim(partitions)
            yield hold
        finally:
            _end_hold(registry, hold)
    except (ZooKeeperUnavailableError, MembershipLostError) as error:
        raise HeadraceError(f"ZooKeeper did not answer as it should: {error}; try again") from error


def _end_hold(registry: ZooKeeperRegistry, hold: Hold) -> None:
    try:
        hold.release()
        registry.leave()
    except (ZooKeeperUnavailableError, MembershipLostError, AccessDeniedError) as error:
        log.warning("claims_not_released", error=str(error))


def refuse_members(session: Session, group: str) -> None:
    """Refuse to go on while the group has a member other than this process.

    Raises:
        ChannelRunningError: it has; the message says which, and how to stop it.
    """
    others = [
        f"{name} ({_process(found)})"
        for name, found in read_members(session, group).items()
        if name != own_name()
    ]
    if others:
        named = ", ".join(others)
        raise ChannelRunningError(
            f"group {group} has members: {named}; stop them first, with SIGTERM to the process or "
            "with systemctl stop. One that crashed is gone when its ZooKeeper session ends"
        )


def _process(member: ParsedNode[MemberDocument]) -> str:
    found = member.document
    return str(member.problem) if found is None else f"process {found.pid} on {found.host}"
