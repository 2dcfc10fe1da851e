"""From nodes and positions to a report: who has what, and who is to have it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.coordinators.allocation import Allocation, allocate
from headrace.coordinators.group_nodes import GroupNodes
from headrace.groups.positions import Positions
from headrace.groups.report import (
    Activity,
    GroupReport,
    MemberReport,
    PartitionReport,
    Place,
    Standing,
)
from headrace.offsets.views import disagreement, remarks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headrace.coordinators.layout import OffsetDocument
    from headrace.offsets.reading import PartitionOffsets
    from headrace.records import TopicPartition


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found; None for what did not answer, and ``errors`` says why.

    ``notes`` says what else a reader of the report should know.
    """

    nodes: GroupNodes | None
    positions: Positions | None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compare(
    channel: str, group: str, topics: Collection[str], seen: Seen, taken_at: float
) -> GroupReport:
    """Return the report. The map is computed as the members compute it."""
    return _Comparison(seen).report(channel, group, topics, taken_at)


class _Comparison:
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._nodes = seen.nodes or GroupNodes()
        self._positions = seen.positions or Positions()
        self._infos = {
            name: found.document.info
            for name, found in self._nodes.members.items()
            if found.document is not None
        }
        self._owners = {
            partition: "" if found.document is None else found.document.member
            for partition, found in self._nodes.owners.items()
        }
        self._allocation = self._map()

    def _map(self) -> Allocation | None:
        if self._seen.nodes is None or self._seen.positions is None:
            return None
        former = {
            partition: found.document.member
            for partition, found in self._nodes.epochs.items()
            if found.document is not None
        }
        return allocate(self._infos, self._positions.partitions, self._owners, former)

    def report(
        self, channel: str, group: str, topics: Collection[str], taken_at: float
    ) -> GroupReport:
        known, map_ = self._positions, self._allocation
        unknown = {*topics, *self._nodes.topics} - known.counts.keys()
        return GroupReport(
            channel=channel,
            group=group,
            taken_at=taken_at,
            activity=self._activity(),
            members=tuple(self._members()),
            partitions=tuple(self._partition(p) for p in self._shown()),
            contended={} if map_ is None else map_.contended,
            missing={} if map_ is None else map_.missing,
            foreign=self._foreign(),
            modes=frozenset(i.mode for i in self._infos.values() if not i.draining),
            unknown_topics=() if self._seen.positions is None else tuple(sorted(unknown)),
            errors=self._seen.errors,
            notes=self._seen.notes,
        )

    def _activity(self) -> Activity:
        if self._seen.nodes is None:
            return Activity.UNKNOWN
        if self._nodes.members:
            return Activity.RUNNING
        stored = any(offsets.next is not None for offsets in self._positions.offsets.values())
        return Activity.STOPPED if stored or self._nodes.partitions else Activity.NEVER_RUN

    def _members(self) -> Iterator[MemberReport]:
        owned = Counter(self._owners.values())
        for name, found in sorted(self._nodes.members.items()):
            yield MemberReport(name, found.document, found.problem, owned[name])

    def _shown(self) -> list[TopicPartition]:
        """Return what exists or is owned; what ever was claimed where Kafka does not tell."""
        if self._seen.positions is None:
            return sorted(self._nodes.partitions)
        return sorted({*self._positions.partitions, *self._owners})

    def _foreign(self) -> dict[TopicPartition, str]:
        return {p: name for p, name in sorted(self._owners.items()) if name not in self._infos}

    # --- one partition ----------------------------------------------------------------------

    def _partition(self, partition: TopicPartition) -> PartitionReport:
        owner = self._nodes.owners.get(partition)
        epoch = self._nodes.epochs.get(partition)
        node = self._nodes.offsets.get(partition)
        offsets, kept_in = _settled(
            self._positions.offsets.get(partition), None if node is None else node.document
        )
        return PartitionReport(
            partition=partition,
            standing=self._standing(partition),
            owner=self._owners.get(partition),
            meant_for=None if self._allocation is None else self._allocation.owners.get(partition),
            claim=None if owner is None else owner.document,
            latest=None if epoch is None else epoch.document,
            offsets=offsets,
            kept_in=kept_in,
            notes=tuple(self._notes(partition, offsets)),
        )

    def _standing(self, partition: TopicPartition) -> Standing:
        owner = self._owners.get(partition)
        if owner is not None and owner not in self._infos:
            return Standing.FOREIGN
        if self._allocation is None:
            return Standing.UNKNOWN if owner is None else Standing.OWNED
        meant_for = self._allocation.owners.get(partition)
        if owner is None:
            return Standing.UNOWNED if meant_for is None else Standing.PENDING
        return Standing.OWNED if owner == meant_for else Standing.MOVING

    def _notes(self, partition: TopicPartition, offsets: PartitionOffsets | None) -> Iterator[str]:
        nodes = self._nodes
        for kind in (nodes.owners, nodes.epochs, nodes.offsets):
            found = kind.get(partition)
            if found is not None and found.problem is not None:
                yield found.problem
        yield from self._of_claim(partition)
        if partition in self._positions.problems:
            yield self._positions.problems[partition]
        elif self._seen.positions is not None and offsets is None:
            yield "it does not exist on the brokers"
        if offsets is not None:
            # while members are at work the sink is ahead of the group by what is being committed
            expected = disagreement(offsets) if nodes.members else []
            yield from (note for note in remarks(offsets) if note not in expected)

    def _of_claim(self, partition: TopicPartition) -> Iterator[str]:
        owner, epoch = self._nodes.owners.get(partition), self._nodes.epochs.get(partition)
        if owner is None or owner.document is None:
            return
        claim = owner.document
        member = self._nodes.members.get(claim.member)
        if member is None:
            yield f"{claim.member} is no member"
        elif member.stat.czxid != claim.member_epoch:
            yield f"the claim is of another start of {claim.member}"
        if epoch is None:
            yield "its epoch node is gone"
        elif epoch.document is not None and epoch.document.epoch != claim.epoch:
            yield f"the owner claimed with epoch {claim.epoch}, so its writes are refused"


def _settled(
    offsets: PartitionOffsets | None, node: OffsetDocument | None
) -> tuple[PartitionOffsets | None, Place | None]:
    """Let the offset of the later claim count, be it kept in Kafka or in ZooKeeper."""
    if offsets is None:
        return None, None
    place = None if offsets.group is None else Place.KAFKA
    if node is not None and (offsets.group is None or node.epoch > offsets.group.epoch):
        offsets, place = replace(offsets, group=node.stored()), Place.ZOOKEEPER
    return offsets, place if offsets.sink is None else Place.SINK
