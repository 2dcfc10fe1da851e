"""The registry in ZooKeeper: a group's members, and claims on its partitions.

A claim has an ephemeral owner node, and a persistent epoch node that only rises;
``headrace.coordinators.znodes`` says what stands in them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.coordinators.claims import Claim, ClaimRefusal, PreviousOwner, Release
from headrace.coordinators.errors import BadDocumentError, ForeignVersionError
from headrace.coordinators.group_nodes import read_documents
from headrace.coordinators.registry import MemberNodes, Owner, answered
from headrace.coordinators.znodes import EpochDocument, OwnerDocument, producer_prefix
from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.zookeeper.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    ZooKeeperUnavailableError,
)
from headrace.zookeeper.identity import is_ours
from headrace.zookeeper.nodes import Check, Create, Delete, SetData

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.coordinators.group_nodes import ParsedNode
    from headrace.coordinators.lease import Lease
    from headrace.coordinators.znodes import GroupPaths
    from headrace.core.records import TopicPartition
    from headrace.zookeeper.errors import ZooKeeperError
    from headrace.zookeeper.nodes import Node, Operation
    from headrace.zookeeper.protocol import Session

log = structlog.get_logger(__name__)

K = TypeVar("K")

MOST_UNFENCED = 20
"""Producers that one epoch node names as not shut out. Each is of an owner that ended before it
could shut out those before it, one after the other; the oldest are long dead."""


class ZooKeeperRegistry(MemberNodes):
    """One member's access to its group. Used by one thread, the coordinator's.

    Each call blocks for a bounded time: the session's time-out for one operation, once or twice. It
    raises ``ZooKeeperUnavailableError`` when no answer came, ``AccessDeniedError`` when access is
    denied, and ``FatalError`` when no answer will ever come. Callbacks run on a thread of
    ZooKeeper's client: they only enqueue.

    ``admin_url`` is where other machines reach the process's API, None where they do not.
    With ``transactional_prefix`` this member commits through a transactional producer, whose id is
    the prefix and the member epoch. It is noted in each claim, for the member that has to fence us.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        member: str,
        *,
        transactional_prefix: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        admin_url: str | None = None,
    ) -> None:
        super().__init__(session, group, member, clock, admin_url=admin_url)
        self._transactional_prefix = transactional_prefix

    # --- taking -----------------------------------------------------------------------------

    @answered()
    def claim(
        self, partitions: Collection[TopicPartition], lease: Lease
    ) -> Mapping[TopicPartition, Claim | ClaimRefusal]:
        """Claim partitions without an owner, each by itself, with an epoch above all before.

        Raises each epoch node and creates the owner node, both or neither. Where no answer came,
        some may be ours all the same: their owner nodes say so.
        """
        nodes = self._read_epochs(partitions)
        results: dict[TopicPartition, Claim | ClaimRefusal] = {}
        claims: list[Claim] = []
        for partition, node in nodes.items():
            try:
                claims.append(self._next_claim(partition, lease, node))
            except ForeignVersionError as error:
                log.warning("epoch_node_version_unsupported", path=error.path, reason=str(error))
                results[partition] = ClaimRefusal.FOREIGN
        fresh = {partition for partition, node in nodes.items() if node is None}
        refusals = self.session.multi_each(self._claiming(claims, fresh))
        for claim, refused in zip(claims, refusals, strict=True):
            results[claim.partition] = claim if refused is None else self._refusal(claim, refused)
        if self.session.session_id != self.membership.session_id:
            named = ", ".join(map(str, partitions))
            raise ZooKeeperUnavailableError(f"the session changed while {named} were claimed")
        return results

    def _read_epochs(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Node | None]:
        named = list(partitions)
        nodes = self.session.get_many([self._paths.epoch(partition) for partition in named])
        return dict(zip(named, nodes, strict=True))

    def _refusal(self, claim: Claim, error: ZooKeeperError) -> ClaimRefusal:
        if isinstance(error, NodeExistsError):
            raced = error.path == self._paths.epoch(claim.partition)
            return ClaimRefusal.RACED if raced else ClaimRefusal.OWNED
        if isinstance(error, BadVersionError | NoNodeError):
            return ClaimRefusal.RACED
        raise error

    def _next_claim(self, partition: TopicPartition, lease: Lease, node: Node | None) -> Claim:
        previous = _previous(self._paths, partition, node)
        member_epoch, prefix = self.membership.epoch, self._transactional_prefix
        # another one in each membership
        transactional_id = None if prefix is None else f"{prefix}.{member_epoch}"
        return Claim(
            partition=partition,
            epoch=1 if previous is None else previous.epoch + 1,
            member=self.member,
            member_epoch=member_epoch,
            node_version=0 if node is None else node.stat.version + 1,
            lease=lease,
            previous=previous,
            transactional_id=transactional_id,
            unfenced=_unfenced(partition, previous, transactional_id),
        )

    def _claiming(
        self, claims: Collection[Claim], fresh: Collection[TopicPartition]
    ) -> list[list[Operation]]:
        """Return one transaction for each claim; ``fresh`` have no epoch node yet."""
        for topic in sorted({partition.topic for partition in fresh}):
            self.session.ensure(self._paths.epochs(topic))
            self.session.ensure(self._paths.owners(topic))
        transactions: list[list[Operation]] = []
        for claim in claims:
            path = self._paths.epoch(claim.partition)
            data = self._epoch_data(claim, clean_end=False)
            raising: Operation = (
                Create(path, data)
                if claim.partition in fresh
                else SetData(path, data, claim.node_version - 1)
            )
            owner = self._paths.owner(claim.partition)
            owning = Create(owner, self._owner_data(claim), ephemeral=True)
            transactions.append([raising, owning])
        return transactions

    @answered()
    def raise_epoch(self, claim: Claim, at_least: int) -> Claim | None:
        """Raise a claim's epoch to ``at_least``; None when another member claimed after us.

        May be repeated after an unknown outcome. A claim that is high enough is returned as it is.
        """
        if claim.epoch >= at_least:
            return claim
        raised = replace(claim, epoch=at_least, node_version=claim.node_version + 1)
        path = self._paths.epoch(claim.partition)
        data = self._epoch_data(raised, clean_end=False)
        owner = SetData(self._paths.owner(claim.partition), self._owner_data(raised))
        try:
            self.session.multi([SetData(path, data, claim.node_version), owner])
        except NoNodeError:
            return None
        except BadVersionError:
            # our own earlier try, whose answer was missed, or another member's claim
            return raised if self._node_holds(path, data) else None
        return raised

    # --- giving back ------------------------------------------------------------------------

    @answered()
    def release(
        self, claims: Collection[Claim], *, clean: bool
    ) -> Mapping[TopicPartition, Release]:
        """Release claims, each by itself, and return how they ended.

        Deletes owner nodes and notes how the claims ended, unless another claimed after us. May be
        repeated after an unknown outcome.
        """
        marks = [self._mark(claim, clean=clean) for claim in claims]
        owners = [Delete(self._paths.owner(claim.partition)) for claim in claims]
        refusals = self.session.multi_each(list(zip(marks, owners, strict=True)))
        return {
            claim.partition: self._released(claim, mark, refused)
            for claim, mark, refused in zip(claims, marks, refusals, strict=True)
        }

    def _mark(self, claim: Claim, *, clean: bool) -> SetData | Check:
        """Return what begins a release: it is refused once anybody has claimed after us."""
        path = self._paths.epoch(claim.partition)
        if not clean:
            return Check(path, claim.node_version)
        return SetData(path, self._epoch_data(claim, clean_end=True), claim.node_version)

    def _released(
        self, claim: Claim, mark: SetData | Check, refused: ZooKeeperError | None
    ) -> Release:
        if refused is None:
            return Release.RELEASED
        if isinstance(refused, BadVersionError):
            # our own earlier try, whose answer was missed, or another member's claim
            done = isinstance(mark, SetData) and self._node_holds(mark.path, mark.data)
            return Release.RELEASED if done else Release.REFUSED
        if isinstance(refused, NoNodeError):
            gone = refused.path == self._paths.epoch(claim.partition)
            return Release.REFUSED if gone else self._mark_only(mark)
        raise refused

    def _mark_only(self, mark: Operation) -> Release:
        """Mark the end of a claim whose owner node is already gone."""
        try:
            self.session.multi([mark])
        except (BadVersionError, NoNodeError):
            return Release.REFUSED
        return Release.RELEASED

    @answered()
    def discard(self, partition: TopicPartition) -> bool:
        """Delete an owner node of our session that no claim of ours stands for.

        Requests of which we never heard the outcome leave such nodes. Returns whether it was ours,
        and no member claimed meanwhile.
        """
        epoch_path, owner_path = self._paths.epoch(partition), self._paths.owner(partition)
        # in this order: a claim between the two readings or after them changes the epoch node
        epoch, owner = self._read(epoch_path), self._read(owner_path)
        if owner is None or not is_ours(self.session, owner_path, owner.stat):
            return False
        guard: list[Operation] = [] if epoch is None else [Check(epoch_path, epoch.stat.version)]
        try:
            self.session.multi([*guard, Delete(owner_path, owner.stat.version)])
        except (BadVersionError, NoNodeError):
            return False
        return True

    # --- reading ----------------------------------------------------------------------------

    @answered()
    def owners(self, topic: str) -> Mapping[int, Owner]:
        """Read who owns the topic's partitions; those without an owner are missing."""
        parent = self._paths.owners(topic)
        try:
            names = self.session.children(parent, self._changed)
        except NoNodeError:
            self.session.ensure(parent)
            names = self.session.children(parent, self._changed)
        return self._owners({int(n): f"{parent}/{int(n)}" for n in names if n.isdecimal()})

    def _owners(self, paths: Mapping[K, str]) -> dict[K, Owner]:
        found = read_documents(self.session, paths, OwnerDocument.decode)
        return {key: self._owner(paths[key], node) for key, node in found.items()}

    def _owner(self, path: str, node: ParsedNode[OwnerDocument]) -> Owner:
        ours, document = is_ours(self.session, path, node.stat), node.document
        if document is None:
            log.warning("owner_node_unusable", path=path, reason=node.problem)
            return Owner(None, None, ours)
        return Owner(document.member, document.epoch, ours)

    @answered()
    def former(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        """Read who claimed partitions last; those of which nothing can be told are missing."""
        paths = {partition: self._paths.epoch(partition) for partition in partitions}
        found = read_documents(self.session, paths, EpochDocument.decode)
        return {p: each.document.member for p, each in found.items() if each.document}

    @answered()
    def verify(self, claims: Collection[Claim]) -> list[Claim]:
        """Return those claims that no longer hold: whose nodes are not as we left them."""
        held = list(claims)
        epochs = self.session.get_many([self._paths.epoch(c.partition) for c in held])
        owners = self._owners({c.partition: self._paths.owner(c.partition) for c in held})
        return [
            claim
            for claim, epoch in zip(held, epochs, strict=True)
            if epoch is None
            or epoch.stat.version != claim.node_version
            or (owner := owners.get(claim.partition)) is None
            or not owner.stands_for(claim)
        ]

    def _read(self, path: str) -> Node | None:
        return self.session.get_many([path])[0]

    def _node_holds(self, path: str, data: bytes) -> bool:
        node = self._read(path)
        return node is not None and node.data == data

    # --- documents --------------------------------------------------------------------------

    def _owner_data(self, claim: Claim) -> bytes:
        return OwnerDocument(
            member=claim.member,
            member_epoch=claim.member_epoch,
            epoch=claim.epoch,
            host=self._host,
            since=self._clock.time(),
        ).encode()

    def _epoch_data(self, claim: Claim, *, clean_end: bool) -> bytes:
        return EpochDocument(
            epoch=claim.epoch,
            member=claim.member,
            member_epoch=claim.member_epoch,
            transactional_id=claim.transactional_id,
            clean_end=clean_end,
            unfenced=claim.unfenced,
        ).encode()


def _previous(
    paths: GroupPaths, partition: TopicPartition, node: Node | None
) -> PreviousOwner | None:
    """Return who held the partition before; raises ForeignVersionError."""
    if node is None:
        return None
    path = paths.epoch(partition)
    try:
        found = EpochDocument.decode(path, node.data)
    except ForeignVersionError:
        raise
    except BadDocumentError as error:
        # The first claim creates the node, each later one adds at least one to its version, and
        # so did the edit that broke it: the version is no lower than any epoch before, except
        # for one that was raised on purpose, and that one the committed offset knows as well.
        log.warning("epoch_node_unusable", path=path, reason=str(error))
        return PreviousOwner(node.stat.version, None, None, None, clean_end=False)
    last = () if found.transactional_id is None else (found.transactional_id,)
    prefix = producer_prefix(paths.group)
    refused = [name for name in (*last, *found.unfenced) if not name.startswith(prefix)]
    if refused:
        # to shut them out would end transactions of other programs
        log.warning("transactional_ids_refused", path=path, transactional_ids=refused)
    return PreviousOwner(
        epoch=found.epoch,
        member=found.member,
        member_epoch=found.member_epoch,
        transactional_id=None if last and last[0] in refused else found.transactional_id,
        clean_end=found.clean_end,
        unfenced=tuple(name for name in found.unfenced if name not in refused),
    )


def _unfenced(
    partition: TopicPartition, previous: PreviousOwner | None, own: str | None
) -> tuple[str, ...]:
    """Return the producers that the next owner has to shut out.

    Never our own: what it committed for a claim that we lost is decided before it commits again.
    """
    if previous is None:
        return ()
    last = None if previous.clean_end else previous.transactional_id
    ids = dict.fromkeys([*previous.unfenced, last])
    named = tuple(i for i in ids if i is not None and i != own)
    dropped = named[:-MOST_UNFENCED]
    if dropped:
        log.warning(
            "unfenced_producers_dropped", partition=str(partition), transactional_ids=list(dropped)
        )
    return named[-MOST_UNFENCED:]
