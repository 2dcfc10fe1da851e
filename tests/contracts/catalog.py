"""The contract of every topic catalog, on a real broker or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka.ports import LogLook
from tests.contracts.kafka_world import WAIT, World, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.kafka.ports import TopicCatalog, TopicInfo


class CatalogContract:
    """Subclasses provide the fixture ``world``."""

    @pytest.fixture
    def world(self) -> World:
        """Return a broker."""
        raise NotImplementedError

    @pytest.fixture
    def partition(self, world: World) -> TopicPartition:
        """Return the one partition of an empty topic."""
        return TopicPartition(world.create_topic(), 0)

    def test_a_catalog_describes_existing_topics(self, world: World) -> None:
        """Names with dots, partition counts as they grow; unknown topics are left out."""
        name = world.create_topic(3, f"a.b.{uuid4().hex}")
        catalog = world.catalog()
        found = catalog.describe([name, "no.such.topic"], Deadline.after(WAIT))
        assert set(found) == {name}
        assert (found[name].name, found[name].partitions) == (name, 3)
        world.add_partitions(name, 5)
        grown = described(catalog, name, lambda count: count == 5)
        assert grown.topic_id == found[name].topic_id
        assert catalog.cluster_id(Deadline.after(WAIT)) == catalog.cluster_id(Deadline.after(WAIT))
        catalog.close()

    def test_a_catalog_names_all_topics(self, world: World) -> None:
        """Those that appear and those that go; nothing asked about is nothing described."""
        kept, name = world.create_topic(), world.create_topic(2)
        catalog, deadline = world.catalog(), Deadline.after(WAIT)
        while not {kept, name} <= set(catalog.names(deadline)):
            assert not deadline.expired, "the broker that is asked hears of it soon"
        assert not described(catalog, name, bool).internal
        world.delete_topic(name)
        while name in catalog.names(deadline):
            assert not deadline.expired
        assert kept in catalog.names(deadline)
        assert catalog.describe([], deadline) == {}
        catalog.close()

    def test_a_topic_created_again_has_another_id(self, world: World) -> None:
        """A topic that was deleted and created again is another topic."""
        name = world.create_topic()
        catalog = world.catalog()
        before = described(catalog, name, bool)
        world.delete_topic(name)
        deadline = Deadline.after(WAIT)
        while catalog.describe([name], deadline):
            assert not deadline.expired
        world.create_topic(1, name)
        assert described(catalog, name, bool).topic_id != before.topic_id
        catalog.close()

    def test_a_catalog_looks_for_records(self, world: World, partition: TopicPartition) -> None:
        """From an offset on and before another one; past the last record there are none."""
        world.produce(partition, b"0", b"1", b"2")
        catalog = world.catalog()
        bounds = [(0, 3), (1, 2), (2, 2), (3, 9)]
        found = [catalog.has_records(partition, *each, Deadline.after(WAIT)) for each in bounds]
        assert found == [True, True, False, False]
        catalog.close()

    def test_a_log_leads_where_it_led(self, world: World, partition: TopicPartition) -> None:
        """With the same leader it does: at the end, and before it."""
        world.produce(partition, b"0", b"1", b"2")
        catalog = world.catalog()
        epoch = catalog.look_at_log(partition, 3, 0).result(WAIT).leader_epoch
        assert epoch is not None
        for position in (3, 1):
            assert catalog.look_at_log(partition, position, epoch).result(WAIT) == LogLook(epoch)
            answer = catalog.truncated_at(partition, position, epoch, Deadline.after(WAIT))
            assert answer == (False, None)
        catalog.close()

    def test_watermarks_follow_the_log(self, world: World, partition: TopicPartition) -> None:
        """The first offset and the end are those that the leader has now."""
        catalog = world.catalog()
        assert catalog.watermarks(partition, Deadline.after(WAIT)) == (0, 0)
        world.transact(partition, *values(4))
        late = Deadline.after(WAIT)
        while catalog.watermarks(partition, late) != (0, 5):
            assert not late.expired, "the marker comes a moment after the commit"
        world.delete_before(partition, 2)
        assert catalog.watermarks(partition, Deadline.after(WAIT)) == (2, 5)
        catalog.close()


def described(catalog: TopicCatalog, name: str, fits: Callable[[int], bool]) -> TopicInfo:
    """Wait until the broker that is asked has heard of a change."""
    deadline = Deadline.after(WAIT)
    while True:
        info = catalog.describe([name], deadline).get(name)
        if info is not None and fits(info.partitions):
            return info
        assert not deadline.expired
