"""A group as somebody outside of it sees it: pure values, made of nodes and offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.coordinators.layout import (
        EpochDocument,
        MemberDocument,
        OwnerDocument,
    )
    from headrace.coordinators.members import Mode
    from headrace.offsets.reading import PartitionOffsets
    from headrace.records import TopicPartition


class Activity(Enum):
    """Whether the channel runs anywhere."""

    RUNNING = "running"
    """The group has members."""
    STOPPED = "stopped"
    """It has none, but had some."""
    NEVER_RUN = "never_run"
    """There is neither a claim nor an offset of it."""
    UNKNOWN = "unknown"
    """ZooKeeper did not answer."""


class Standing(Enum):
    """Who has a partition, compared with who is to have it."""

    OWNED = "owned"
    """Its owner is who is to have it."""
    MOVING = "moving"
    """Its owner is to give it back."""
    PENDING = "pending"
    """Somebody is to have it but does not own it yet."""
    UNOWNED = "unowned"
    """Nobody has it and nobody is to have it."""
    FOREIGN = "foreign"
    """Its owner is not a member that we understand."""
    UNKNOWN = "unknown"
    """ZooKeeper or Kafka did not tell enough."""


class Place(Enum):
    """Where the offset is kept that counts."""

    KAFKA = "kafka"
    """The group's offset in Kafka."""
    ZOOKEEPER = "zookeeper"
    """The partition's node in ZooKeeper."""
    SINK = "sink"
    """With the sink's data."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """One member; ``document`` is None where ``problem`` says why its node cannot be read.

    ``owned`` counts the partitions that it owns.
    """

    name: str
    document: MemberDocument | None
    problem: str | None
    owned: int


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition: its claim, and where it stands.

    ``owner`` is the name in the owner node, "" where that cannot be read, None where there is
    none. ``meant_for`` is who is to have it. ``claim`` is the owner node and ``latest`` the epoch
    node. ``offsets`` is None where Kafka did not tell; ``kept_in`` says where the committed offset
    among them comes from.
    """

    partition: TopicPartition
    standing: Standing
    owner: str | None = None
    meant_for: str | None = None
    claim: OwnerDocument | None = None
    latest: EpochDocument | None = None
    offsets: PartitionOffsets | None = None
    kept_in: Place | None = None
    notes: tuple[str, ...] = ()

    @property
    def epoch(self) -> int | None:
        """The epoch of the latest claim, None where nobody ever claimed."""
        if self.latest is not None:
            return self.latest.epoch
        return None if self.claim is None else self.claim.epoch


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What is known of one channel's group.

    ``taken_at`` is in seconds since the epoch. ``errors`` says what did not answer, ``notes``
    what else is to be known. ``contended``, ``missing`` and ``modes`` are as in ``Allocation``;
    ``foreign`` has partitions that do not exist as well. ``unknown_topics`` do not exist.
    """

    channel: str
    group: str
    taken_at: float
    activity: Activity
    members: tuple[MemberReport, ...] = ()
    partitions: tuple[PartitionReport, ...] = ()
    contended: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    foreign: Mapping[TopicPartition, str] = field(default_factory=dict)
    modes: frozenset[Mode] = frozenset()
    unknown_topics: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def standing(self, standing: Standing) -> list[PartitionReport]:
        """Return the partitions that stand so."""
        return [each for each in self.partitions if each.standing is standing]
