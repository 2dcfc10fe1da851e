"""A group as seen from outside: pure values, made of nodes and offsets."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from headrace.coordinators.allocation import Allocation, allocate
from headrace.coordinators.group_nodes import GroupNodes, read_nodes
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.records import TopicPartition, all_partitions
from headrace.kafka import KafkaOffsetStore, KafkaTopicCatalog
from headrace.kafka.clients import client_properties
from headrace.ops.offsets.reader import Reader
from headrace.ops.offsets.sink_offsets import StartPrecedence, start_precedence
from headrace.zookeeper.session import reading
from headrace.zookeeper.settings import session_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace.config import Config
    from headrace.coordinators.group_nodes import MemberNode
    from headrace.coordinators.member_info import AssignmentMode
    from headrace.coordinators.znodes import (
        EpochDocument,
        OffsetDocument,
        OwnerDocument,
    )
    from headrace.core.clock import Clock
    from headrace.kafka.ports import OffsetStore, TopicCatalog
    from headrace.ops.offsets.reader import PartitionOffsets
    from headrace.zookeeper.session import NodeReader


#: Seconds for all partitions together: those without a leader must not add up.
WHOLE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Positions:
    """Partitions that exist, and their offsets. ``problems`` says of which there are none."""

    counts: Mapping[str, int] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, PartitionOffsets] = field(default_factory=dict)
    problems: Mapping[TopicPartition, str] = field(default_factory=dict)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return all partitions of all topics that exist."""
        return all_partitions(self.counts)


def read_positions(reader: Reader, group: str, topics: Collection[str], clock: Clock) -> Positions:
    """Return where all partitions of the topics that exist stand. Blocks.

    A partition whose leader does not answer holds up no other for long, and is no error.

    Raises:
        KafkaUnavailableError, OffsetStoreError: no broker answered, or the group's did not.
    """
    deadline = Deadline.after(WHOLE_TIMEOUT, clock)
    cluster = reader.cluster(topics)
    stored = reader.of_group(cluster.partitions) if cluster.partitions else {}
    offsets: dict[TopicPartition, PartitionOffsets] = {}
    problems: dict[TopicPartition, str] = {}
    for partition in cluster.partitions:
        if deadline.expired:
            problems[partition] = f"{partition}: not asked, the others took {WHOLE_TIMEOUT:g} s"
            continue
        try:
            offsets[partition] = reader.around(stored.get(partition), partition, cluster, group)
        except HeadraceError as error:
            problems[partition] = str(error)
    counts = {name: info.partitions for name, info in cluster.topics.items()}
    return Positions(counts, offsets, problems)


class GroupActivity(Enum):
    """The activity of a channel's group."""

    RUNNING = "running"
    """The group has members."""
    STOPPED = "stopped"
    """It has none, but had some."""
    NEVER_RUN = "never_run"
    """There is neither a claim nor an offset of it."""
    UNKNOWN = "unknown"
    """ZooKeeper did not answer."""


class OwnershipState(Enum):
    """The owner of a partition, compared with the member that is to have it."""

    OWNED = "owned"
    """Its owner is who is to have it."""
    MOVING = "moving"
    """Its owner is to give it back."""
    PENDING = "pending"
    """It is assigned to a member that does not own it yet."""
    UNOWNED = "unowned"
    """It has no owner and is assigned to no member."""
    FOREIGN = "foreign"
    """Its owner is not a member that we understand."""
    UNKNOWN = "unknown"
    """ZooKeeper or Kafka did not tell enough."""


class OffsetPlace(Enum):
    """The place of the offset that counts."""

    KAFKA = "kafka"
    """The group's offset in Kafka."""
    ZOOKEEPER = "zookeeper"
    """The partition's node in ZooKeeper."""
    SINK = "sink"
    """With the sink's data."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition: its claim, and where it stands.

    ``owner`` is the name in the owner node, "" where that cannot be read, None where there is
    none. ``meant_for`` is who is to have it. ``claim`` is the owner node and ``latest`` the epoch
    node. ``offsets`` is None where Kafka did not tell; ``kept_in`` says where the committed offset
    among them comes from.
    """

    partition: TopicPartition
    ownership: OwnershipState
    owner: str | None = None
    meant_for: str | None = None
    claim: OwnerDocument | None = None
    latest: EpochDocument | None = None
    offsets: PartitionOffsets | None = None
    kept_in: OffsetPlace | None = None
    notes: tuple[str, ...] = ()

    @property
    def epoch(self) -> int | None:
        """Return the epoch of the latest claim, None where there was none."""
        if self.latest is not None:
            return self.latest.epoch
        return None if self.claim is None else self.claim.epoch


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A snapshot of one channel's group.

    ``taken_at`` is in seconds since the epoch. ``errors`` says what did not answer, ``notes``
    what else is to be known. ``contended``, ``missing``, ``modes``, ``without_tasks`` and
    ``without_warm`` are as in ``Allocation``; ``foreign`` has partitions that do not exist as well.
    ``unknown_topics`` do not exist.
    """

    channel: str
    group: str
    taken_at: float
    activity: GroupActivity
    members: tuple[MemberNode, ...] = ()
    partitions: tuple[PartitionReport, ...] = ()
    contended: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    foreign: Mapping[TopicPartition, str] = field(default_factory=dict)
    modes: frozenset[AssignmentMode] = frozenset()
    without_tasks: tuple[str, ...] = ()
    without_warm: tuple[str, ...] = ()
    unknown_topics: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def lag(self) -> int | None:
        """Return the lag of all partitions, None where that of any is not known."""
        lags = [None if each.offsets is None else each.offsets.lag for each in self.partitions]
        return None if None in lags else sum(each or 0 for each in lags)

    def ownership(self, ownership: OwnershipState) -> list[PartitionReport]:
        """Return the partitions that stand so."""
        return [each for each in self.partitions if each.ownership is ownership]


@dataclass(frozen=True, slots=True)
class Seen:
    """The findings of one look; None for what did not answer, and ``errors`` says why.

    ``notes`` says what else a reader of the report should know.
    """

    nodes: GroupNodes | None
    positions: Positions | None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compare(
    channel: str, group: str, topics: Collection[str], seen: Seen, taken_at: float
) -> GroupSnapshot:
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
        self._owners = self._nodes.owner_names
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
    ) -> GroupSnapshot:
        known, map_ = self._positions, self._allocation
        unknown = {*topics, *self._nodes.topics} - known.counts.keys()
        return GroupSnapshot(
            channel=channel,
            group=group,
            taken_at=taken_at,
            activity=self._activity(),
            members=self._nodes.group_members,
            partitions=tuple(self._partition(p) for p in self._shown_partitions()),
            contended={} if map_ is None else map_.contended,
            missing={} if map_ is None else map_.missing,
            foreign={p: name for p, name in self._owners.items() if name not in self._infos},
            modes=frozenset(i.mode for i in self._infos.values() if not i.draining),
            without_tasks=() if map_ is None else map_.without_tasks,
            without_warm=() if map_ is None else map_.without_warm,
            unknown_topics=() if self._seen.positions is None else tuple(sorted(unknown)),
            errors=self._seen.errors,
            notes=self._seen.notes,
        )

    def _activity(self) -> GroupActivity:
        if self._seen.nodes is None:
            return GroupActivity.UNKNOWN
        if self._nodes.members:
            return GroupActivity.RUNNING
        stored = any(offsets.next is not None for offsets in self._positions.offsets.values())
        return (
            GroupActivity.STOPPED if stored or self._nodes.partitions else GroupActivity.NEVER_RUN
        )

    def _shown_partitions(self) -> list[TopicPartition]:
        """Return what exists or is owned; what ever was claimed where Kafka does not tell."""
        if self._seen.positions is None:
            return sorted(self._nodes.partitions)
        return sorted({*self._positions.partitions, *self._owners})

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
            ownership=self._ownership(partition),
            owner=self._owners.get(partition),
            meant_for=None if self._allocation is None else self._allocation.owners.get(partition),
            claim=None if owner is None else owner.document,
            latest=None if epoch is None else epoch.document,
            offsets=offsets,
            kept_in=kept_in,
            notes=tuple(self._notes(partition, offsets)),
        )

    def _ownership(self, partition: TopicPartition) -> OwnershipState:
        owner = self._owners.get(partition)
        if owner is not None and owner not in self._infos:
            return OwnershipState.FOREIGN
        if self._allocation is None:
            return OwnershipState.UNKNOWN if owner is None else OwnershipState.OWNED
        meant_for = self._allocation.owners.get(partition)
        if owner is None:
            return OwnershipState.UNOWNED if meant_for is None else OwnershipState.PENDING
        return OwnershipState.OWNED if owner == meant_for else OwnershipState.MOVING

    def _notes(self, partition: TopicPartition, offsets: PartitionOffsets | None) -> Iterator[str]:
        nodes = self._nodes
        for kind in (nodes.owners, nodes.epochs, nodes.offsets):
            found = kind.get(partition)
            if found is not None and found.problem is not None:
                yield found.problem
        yield from self._of_claim(partition)
        yield from self._of_task(partition)
        if partition in self._positions.problems:
            yield self._positions.problems[partition]
        elif self._seen.positions is not None and offsets is None:
            yield "it does not exist on the brokers"
        if offsets is not None:
            # while members are at work the sink is ahead of the group by what is being committed
            yield from () if nodes.members else offsets.disagreement
            yield from offsets.remarks

    def _of_task(self, partition: TopicPartition) -> Iterator[str]:
        """Yield what the owner lacks of the partition's task, which rests until then."""
        owner = self._owners.get(partition)
        info = None if owner is None else self._infos.get(owner)
        if info is not None and info.together:
            task = (TopicPartition(topic, partition.partition) for topic in sorted(info.topics))
            if missing := [str(part) for part in task if self._owners.get(part) != owner]:
                yield f"waits for {', '.join(missing)}"

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
) -> tuple[PartitionOffsets | None, OffsetPlace | None]:
    """Return the offset of the later claim, be it stored in Kafka or in ZooKeeper."""
    if offsets is None:
        return None, None
    place = None if offsets.group is None else OffsetPlace.KAFKA
    if node is not None and (offsets.group is None or node.epoch > offsets.group.epoch):
        offsets, place = replace(offsets, group=node.stored()), OffsetPlace.ZOOKEEPER
    return offsets, place if offsets.sink is None else OffsetPlace.SINK


T = TypeVar("T")


@contextmanager
def group_reader(config: Config) -> Iterator[GroupReader]:
    """Yield a reader of a configuration's groups; close its clients at the end."""
    with ExitStack() as stack:
        yield GroupReader(config, stack)


class GroupReader:
    """The clients for looking. Used by one thread.

    They are opened when they are first needed, tried again at the next look where they were
    refused, and closed with ``stack``.
    """

    def __init__(self, config: Config, stack: ExitStack) -> None:
        self._config = config
        self._stack = stack
        self._nodes: NodeReader | None = None
        self._kafka: dict[str, tuple[TopicCatalog, OffsetStore]] = {}
        self._precedences: dict[str, StartPrecedence] = {}

    def read_group(self, name: str) -> GroupSnapshot:
        """Return what there is to see of one channel. Blocks; every question has a deadline.

        What does not answer is named in the report, which has the rest.

        Raises:
            ConfigError: something named in the configuration cannot be used.
        """
        channel = self._config.channels[name]
        errors: list[str] = []
        precedence = _tried(lambda: self._precedence(name), errors) or StartPrecedence()
        reader = self._reader(name, precedence)
        found = _tried(lambda: reader.topics(channel.subscription), errors)
        own = channel.subscription.names if found is None else found
        nodes = _tried(lambda: read_nodes(self._zookeeper(), channel.group, own), errors)
        topics = {*own, *(() if nodes is None else nodes.topics)}
        positions = None
        if found is not None:
            positions = _tried(
                lambda: read_positions(reader, channel.group, topics, SYSTEM_CLOCK), errors
            )
        fruitless = () if found is None else channel.subscription.fruitless(found)
        notes = [f"no topic on the brokers matches {pattern}" for pattern in fruitless]
        if precedence.out_of_reach is not None:
            notes.append(_out_of_reach(precedence.out_of_reach))
        seen = Seen(nodes, positions, tuple(errors), tuple(notes))
        return compare(name, channel.group, own, seen, SYSTEM_CLOCK.time())

    def _zookeeper(self) -> NodeReader:
        if self._nodes is None:
            settings = session_settings(self._config.zookeeper)
            self._nodes = self._stack.enter_context(reading(settings))
        return self._nodes

    def _precedence(self, name: str) -> StartPrecedence:
        if name not in self._precedences:
            channel = self._config.channels[name]
            self._precedences[name] = start_precedence(
                channel, self._config.python_path, self._config.kafka
            )
        return self._precedences[name]

    def _reader(self, name: str, precedence: StartPrecedence) -> Reader:
        group = self._config.channels[name].group
        if name not in self._kafka:
            properties = client_properties(self._config.kafka)
            catalog = KafkaTopicCatalog(properties, group)
            self._stack.callback(catalog.close)
            store = KafkaOffsetStore(properties, group)
            self._stack.callback(store.close)
            self._kafka[name] = catalog, store
        return Reader(*self._kafka[name], precedence.sink_offsets, SYSTEM_CLOCK)


def _out_of_reach(code: str) -> str:
    return (
        f"the {code} keeps offsets of its own, which win at the start and cannot be seen from here"
    )


def _tried(read: Callable[[], T], errors: list[str]) -> T | None:
    """Return what was read, or None and the reason among ``errors``."""
    try:
        return read()
    except ConfigError:
        raise
    except HeadraceError as error:
        errors.append(str(error))
        return None
