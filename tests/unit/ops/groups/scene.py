"""A group in memory with real members, and an observer from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordinators.group_nodes import read_nodes
from headrace.core.errors import HeadraceError
from headrace.kafka.ports import StoredOffset
from headrace.ops.groups.report import Seen, compare, read_positions
from headrace.ops.offsets.reader import Reader
from headrace.testing import InMemoryBroker
from tests.unit.coordinators.group import TOPIC, Group, partition

if TYPE_CHECKING:
    from headrace.kafka.ports import TopicCatalog
    from headrace.ops.groups.report import GroupSnapshot, OwnershipState, PartitionReport
    from headrace.sinks import TransactionalOffsets


class Scene:
    """Hold four partitions without members. ``sink_offsets`` is a sink that keeps offsets."""

    def __init__(self) -> None:
        self.group = Group(partitions=4)
        self.broker = InMemoryBroker()
        self.broker.create_topic(TOPIC, 4)
        self.catalog: TopicCatalog = self.broker.catalog()
        self.sink_offsets: TransactionalOffsets | None = None
        self.zookeeper_down = False

    def commit(self, number: int, offset: int, epoch: int = 1) -> None:
        """Commit to Kafka as a member would."""
        self.broker.commit("group", {partition(number): StoredOffset(offset, epoch)})

    def look(self) -> GroupSnapshot:
        """Look at it; what does not answer is among the errors."""
        errors: list[str] = []
        nodes = positions = None
        session = self.group.zookeeper.session()
        if self.zookeeper_down:
            session.suspend()
        try:
            nodes = read_nodes(session, "group", [TOPIC])
        except HeadraceError as error:
            errors.append(str(error))
        reader = Reader(
            self.catalog, self.broker.store("group"), self.sink_offsets, self.group.clock
        )
        topics = {TOPIC, *(nodes.topics if nodes else ())}
        try:
            positions = read_positions(reader, "group", topics, self.group.clock)
        except HeadraceError as error:
            errors.append(str(error))
        seen = Seen(nodes, positions, tuple(errors))
        return compare("main", "group", [TOPIC], seen, self.group.clock.time())

    def partition(self, number: int) -> PartitionReport:
        """Look at one partition."""
        return next(each for each in self.look().partitions if each.partition == partition(number))

    def standings(self) -> list[OwnershipState]:
        """Return how the partitions stand, in order."""
        return [each.ownership for each in self.look().partitions]
