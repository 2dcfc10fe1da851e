"""A stopped channel on servers in memory, and a sink that keeps offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.config import ChannelConfig
from headrace.coordinators.znodes import EpochDocument, GroupPaths
from headrace.core.errors import SinkConflictError
from headrace.kafka.ports import StoredOffset
from headrace.ops.offsets.plan import GroupOffsets, Plan, change, change_to
from headrace.ops.offsets.reader import PartitionOffsets, Reader
from headrace.sinks import CommitConflictError, OffsetMove, Replacement
from headrace.testing import (
    FakeClock,
    InMemoryBroker,
    InMemorySession,
    InMemoryZooKeeper,
)
from headrace.testing.channel import QUICK
from tests.unit.channel.in_memory import P0, P1, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.positions import Replay
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import OffsetStore


#: Something that happens while offsets are being changed.
Happening = Callable[[], object]

PATHS = GroupPaths("group")
CHANNEL = ChannelConfig.model_validate(QUICK)


@dataclass
class MovableOffsets:
    """A sink that keeps offsets, by the number of the partition."""

    offsets: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    before: Happening = lambda: None
    replaced: list[str] = field(default_factory=list)

    def stored_offset(self, identity: str) -> int | None:
        """Return what is stored."""
        return self.offsets.get(identity[-1])

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move them, all or none."""
        self.before()
        conflicts = [
            SinkConflictError(move.partition, move.start, self.offsets[move.identity[-1]])
            for move in moves
            if self.offsets[move.identity[-1]] != move.start
        ]
        if conflicts:
            raise CommitConflictError(conflicts)
        self.offsets.update({move.identity[-1]: move.next_offset for move in moves})
        self.notes.append(note)

    def plan_replace(self, moves: Sequence[OffsetMove]) -> Replacement:
        """Return what was asked for."""
        return Replacement({move.identity: move.next_offset for move in moves}, 0)

    def replace(self, moves: Sequence[OffsetMove], note: str) -> int:
        """Move them, and remember that output went with it."""
        self.move_offsets(moves, note)
        self.replaced += [str(move.partition) for move in moves]
        return 0


class Stage:
    """A stopped channel with two partitions of ten records, and an operator at work."""

    def __init__(self) -> None:
        self.broker = InMemoryBroker()
        self.broker.create_topic("events", 2)
        for partition in (P0, P1):
            self.broker.produce(partition, *values(10))
        self.clock = FakeClock()
        self.zookeeper = InMemoryZooKeeper(clock=self.clock)
        self.session: InMemorySession = self.zookeeper.session()
        self.store: OffsetStore = self.broker.store("group")
        self.sink_offsets: MovableOffsets | None = None
        self.subscribers: list[str] = []
        self.ask: Callable[[], list[str]] = lambda: self.subscribers
        self.meanwhile: Happening = lambda: None

    def commit(self, partition: TopicPartition, offset: int, epoch: int) -> None:
        """Commit as a member did before."""
        self.broker.commit("group", {partition: StoredOffset(offset, epoch)})

    def committed(self) -> list[tuple[int, int] | None]:
        """Return offset and epoch of both partitions' commits."""
        found = [self.broker.committed("group", partition) for partition in (P0, P1)]
        return [None if each is None else (each.offset, each.epoch) for each in found]

    def move(
        self,
        *targets: int,
        partitions: Sequence[TopicPartition] = (P0, P1),
        replay: Replay | None = None,
    ) -> Plan:
        """Move partitions to the offsets given."""
        reader = Reader(self.broker.catalog(), self.store, self.sink_offsets, self.clock)
        cluster = reader.cluster(["events"])
        group = GroupOffsets(
            CHANNEL,
            self.session,
            self.store,
            self.sink_offsets,
            self.ask,
            self.clock,
        )

        def plan(found: Sequence[PartitionOffsets]) -> Plan:
            self.meanwhile()
            return tuple(change_to(*pair) for pair in zip(found, targets, strict=True))

        def read(partition: TopicPartition) -> PartitionOffsets:
            return reader.of(partition, cluster, "group")

        return change(group, partitions, read, plan, "reset", replay=replay)

    def epoch(self, partition: TopicPartition) -> EpochDocument:
        """Return what the epoch node says."""
        path = PATHS.epoch(partition)
        return EpochDocument.decode(path, self.session.get(path).data)

    def left(self) -> list[str]:
        """Return the member and owner nodes."""
        parents = (f"{PATHS.ids}/", f"{PATHS.owners('events')}/")
        return [path for path in self.zookeeper.paths() if path.startswith(parents)]
