"""The contract of every record source and offset store, on a real broker or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.kafka.errors import KafkaUnavailableError, OffsetStoreError
from headrace.kafka.ports import Commit, StoredOffset
from headrace.testing.records import FakeRecord
from tests.contracts.catalog import CatalogContract, described
from tests.contracts.kafka_world import WAIT, Reader, World, values

if TYPE_CHECKING:
    from collections.abc import Iterator


#: What other programs may leave with an offset.
FOREIGN_METADATA = [
    "",
    "by hand",
    "[]",
    '{"epoch": 9}',
    '{"version": 0, "epoch": 9}',
    '{"version": 1, "epoch": "9"}',
    '{"version": 1, "epoch": true}',
    '{"version": 1, "epoch": -1}',
]


class KafkaContract(CatalogContract):
    """Subclasses provide the fixture ``world``."""

    @pytest.fixture
    def world(self) -> World:
        """Return a broker."""
        raise NotImplementedError

    @pytest.fixture
    def reader(self, world: World) -> Iterator[Reader]:
        """Return a reader without partitions."""
        reader = Reader(world.source())
        yield reader
        reader.source.close()

    # --- sources --------------------------------------------------------------------------------

    def test_a_source_starts_at_the_offsets_it_is_given(self, world: World, reader: Reader) -> None:
        """Each partition of each topic begins where it was told to and comes in order."""
        one, two = world.create_topic(2), world.create_topic()
        starts = {TopicPartition(one, 0): 0, TopicPartition(one, 1): 7, TopicPartition(two, 0): 10}
        for partition in starts:
            world.produce(partition, *values(10))
        reader.source.assign(starts)
        reader.until_end(*starts)
        for partition, start in starts.items():
            assert reader.offsets(partition) == list(range(start, 10))
            assert reader.ends[partition] == 10
        first = reader.records[TopicPartition(one, 1)][0]
        assert (first.topic(), first.partition(), first.value()) == (one, 1, b"7")

    def test_records_come_as_they_were_produced(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """Null keys, tombstones, headers and records of a megabyte arrive unchanged."""
        large = bytes(1_000_000)
        headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("b", b"")]
        world.produce(
            partition, b"no key", FakeRecord(key_=b"k", value_=None), FakeRecord(headers_=headers)
        )
        world.produce(partition, large, FakeRecord(key_=b"", value_=b""))
        reader.source.assign({partition: 0})
        reader.until(lambda: len(reader.records[partition]) == 5)
        got = reader.records[partition]
        assert [r.key() for r in got] == [None, b"k", None, None, b""]
        assert [r.value() for r in got] == [b"no key", None, b"", large, b""]
        assert [len(r) for r in got] == [6, 0, 0, 1_000_000, 0]
        assert [r.headers() or None for r in got] == [None, None, headers, None, None]
        assert all(kind == 1 and at > 0 for kind, at in (r.timestamp() for r in got))

    def test_ends_are_reported_again_after_news(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """The end of a partition is reported when it is reached, and once more after records."""
        reader.source.assign({partition: 0})
        reader.until(lambda: reader.ends.get(partition) == 0)
        world.produce(partition, *values(3))
        reader.until(lambda: reader.ends.get(partition) == 3)
        assert reader.offsets(partition) == [0, 1, 2]

    def test_a_seek_leaves_nothing_stale(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """After a seek, forward or back, the first record is the one that was asked for."""
        world.produce(partition, *values(5000))
        reader.source.assign({partition: 0})
        reader.until(lambda: bool(reader.records[partition]))
        for target in (4000, 10, 4999, 0):
            reader.source.seek({partition: target})
            reader.records.clear()
            reader.until(lambda: bool(reader.records[partition]))
            assert reader.offsets(partition)[0] == target

    def test_several_seek_at_once(self, world: World, reader: Reader) -> None:
        """Each goes on where it was told to, and a partition beside them misses nothing."""
        topic = world.create_topic(3)
        one, two, beside = partitions = [TopicPartition(topic, number) for number in range(3)]
        for partition in partitions:
            world.produce(partition, *values(10))
        reader.source.assign(dict.fromkeys(partitions, 0))
        reader.until_end(one, two)
        reader.source.seek({one: 3, two: 8})
        for partition in (one, two):
            reader.records.pop(partition)
            reader.ends.pop(partition)
        reader.until_end(*partitions)
        assert reader.offsets(one) == list(range(3, 10))
        assert reader.offsets(two) == [8, 9]
        assert reader.offsets(beside) == list(range(10))

    def test_a_pause_ends_where_it_began(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """A paused partition gives nothing, others do, and nothing is missing afterwards."""
        other = TopicPartition(world.create_topic(), 0)
        world.produce(partition, *values(5000))
        reader.source.assign({partition: 0, other: 0})
        reader.until(lambda: bool(reader.records[partition]))
        reader.source.pause([partition])
        got = len(reader.records[partition])
        world.produce(other, *values(3))
        reader.until(lambda: reader.ends.get(other) == 3)
        assert len(reader.records[partition]) == got
        reader.source.resume([partition])
        reader.until_end(partition)
        assert reader.offsets(partition) == list(range(5000))

    def test_a_seek_ends_a_pause(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """A paused partition that is told to go elsewhere goes on there."""
        world.produce(partition, *values(10))
        reader.source.assign({partition: 0})
        for target in (2, 9, 6):
            reader.source.pause([partition])
            reader.source.seek({partition: target})
            reader.records.clear()
            reader.ends.clear()
            reader.until_end(partition)
            assert reader.offsets(partition) == list(range(target, 10))

    def test_a_paused_seek_keeps_its_target(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """Paused straight after a seek, a partition goes on from the seek's target when resumed."""
        other = TopicPartition(world.create_topic(), 0)
        world.produce(partition, *values(10))
        reader.source.assign({partition: 0, other: 0})
        reader.until_end(partition)
        reader.records.clear()
        reader.source.seek({partition: 4})
        reader.source.pause([partition])
        world.produce(other, *values(3))
        reader.until(lambda: reader.ends.get(other) == 3)
        assert reader.offsets(partition) == []
        reader.source.resume([partition])
        reader.until(lambda: len(reader.records[partition]) == 6)
        assert reader.offsets(partition) == [4, 5, 6, 7, 8, 9]

    def test_an_unassigned_partition_is_silent_and_may_come_back(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """A partition that was paused and unassigned starts afresh when it is assigned again."""
        other = TopicPartition(world.create_topic(), 0)
        world.produce(partition, *values(10))
        reader.source.assign({partition: 0, other: 0})
        reader.source.pause([partition])
        reader.source.unassign([partition])
        world.produce(other, *values(3))
        reader.until(lambda: reader.ends.get(other) == 3)
        assert reader.offsets(partition) == []
        reader.source.assign({partition: 8})
        reader.until_end(partition)
        assert reader.offsets(partition) == [8, 9]

    def test_markers_and_aborted_records_are_passed_over(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """Only committed records come, and the end lies behind the markers."""
        world.transact(partition, *values(3))
        world.transact(partition, *values(4), commit=False)
        world.transact(partition, b"last")
        reader.source.assign({partition: 0})
        reader.until(lambda: reader.ends.get(partition) == 11)
        assert reader.offsets(partition) == [0, 1, 2, 9]
        reader.source.seek({partition: 3})
        reader.records.clear()
        reader.ends.clear()
        reader.until(lambda: reader.ends.get(partition) == 11)
        assert reader.offsets(partition) == [9]

    def test_an_offset_that_is_gone_is_reported(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """Before the first offset and behind the end is out of range; a seek mends it."""
        world.produce(partition, *values(10))
        world.delete_before(partition, 5)
        for wrong in (2, 100):
            reader.source.assign({partition: wrong})
            reader.until(lambda: bool(reader.out_of_range))
            assert set(reader.out_of_range) == {partition}
            assert reader.offsets(partition) == []
            reader.source.unassign([partition])
            reader.out_of_range.clear()
        reader.source.assign({partition: 3})
        reader.until(lambda: self._sought(reader, partition, first=5))
        assert reader.offsets(partition) == [5, 6, 7, 8, 9]

    @staticmethod
    def _sought(reader: Reader, partition: TopicPartition, first: int) -> bool:
        """Seek as often as a report comes, the late ones too; tell when the end was reached."""
        if reader.out_of_range:
            reader.out_of_range.clear()
            reader.source.seek({partition: max(reader.offsets(partition), default=first - 1) + 1})
        return partition in reader.ends

    def test_a_partition_added_later_is_found(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """Clients that know a topic find its new partitions without waiting for a refresh."""
        catalog, added = world.catalog(), TopicPartition(partition.topic, 1)
        assert catalog.watermarks(partition, Deadline.after(WAIT)) == (0, 0)
        reader.source.assign({partition: 0})
        reader.until_end(partition)
        world.add_partitions(partition.topic, 2)
        described(catalog, partition.topic, lambda count: count == 2)
        assert catalog.watermarks(added, Deadline.after(WAIT)) == (0, 0)
        reader.source.assign({added: 0})
        reader.until_end(added)
        assert reader.errors == []
        catalog.close()

    def test_an_offset_is_found_by_time(self, world: World, partition: TopicPartition) -> None:
        """The first record that is not older; None where all are, and where there is none."""
        catalog = world.catalog()
        now = int(SYSTEM_CLOCK.time() * 1000)
        assert catalog.offset_at(partition, now, Deadline.after(WAIT)) is None
        times = [now, now + 5000, now + 9000]
        world.produce(partition, *[FakeRecord(timestamp_=time) for time in times])
        wanted = [now - 1, now, now + 1, now + 9000, now + 9001]
        found = [catalog.offset_at(partition, time, Deadline.after(WAIT)) for time in wanted]
        assert found == [0, 0, 1, 2, None]
        catalog.close()

    def test_high_watermarks_are_known_after_a_fetch(
        self, world: World, reader: Reader, partition: TopicPartition
    ) -> None:
        """The end is known once records came, and only then or at once."""
        world.produce(partition, *values(10))
        reader.source.assign({partition: 0})
        assert reader.source.high_watermark(partition) in {None, 10}
        reader.until_end(partition)
        reader.until(lambda: reader.source.high_watermark(partition) == 10)

    # --- offsets --------------------------------------------------------------------------------

    def test_offsets_are_stored_with_their_epoch(
        self, world: World, partition: TopicPartition
    ) -> None:
        """A commit of one store is read by another store of the group, not by other groups."""
        group, second = uuid4().hex, TopicPartition(partition.topic, 1)
        world.add_partitions(partition.topic, 2)
        store, other = world.store(group), world.store(group)
        assert store.read(partition, Deadline.after(WAIT)) is None
        stored = {partition: Commit(7, 3), second: Commit(0, 1)}
        assert store.commit(stored, Deadline.after(WAIT)) == {}
        store.serve()
        for where, what in stored.items():
            assert other.read(where, Deadline.after(WAIT)) == StoredOffset(what.offset, what.epoch)
        assert store.commit({partition: Commit(5, 4)}, Deadline.after(WAIT)) == {}
        assert other.read(partition, Deadline.after(WAIT)) == StoredOffset(5, 4)
        stranger = world.store(uuid4().hex)
        assert stranger.read(partition, Deadline.after(WAIT)) is None
        for each in (store, other, stranger):
            each.close()

    @pytest.mark.parametrize("metadata", FOREIGN_METADATA)
    def test_foreign_metadata_means_no_epoch(
        self, world: World, partition: TopicPartition, metadata: str
    ) -> None:
        """An offset that another program committed counts, without an epoch."""
        group = uuid4().hex
        world.commit(group, partition, 11, metadata)
        store = world.store(group)
        assert store.read(partition, Deadline.after(WAIT)) == StoredOffset(11, 0)
        store.close()

    def test_an_offset_of_a_deleted_topic_is_not_stored(self, world: World) -> None:
        """The commit says why. Others in it may be said to have failed too, but are stored."""
        group = f"group.{uuid4().hex}"
        gone, kept = (TopicPartition(world.create_topic(), 0) for _ in range(2))
        store, deadline = world.store(group), Deadline.after(WAIT)
        commits = {gone: Commit(1, 1), kept: Commit(2, 1)}
        while store.commit(commits, deadline):
            assert not deadline.expired, "the group's coordinator is being chosen"
        world.delete_topic(gone.topic)
        while not (failures := store.commit(commits, deadline)):
            assert not deadline.expired, "the broker that is asked hears of it soon"
        assert failures[gone].topic_missing
        assert store.read(kept, deadline) == StoredOffset(2, 1)
        store.close()


class UnreachableContract:
    """Subclasses provide the fixture ``world``: ports on a broker that does not answer."""

    @pytest.fixture
    def world(self) -> World:
        """Return a broker that does not answer."""
        raise NotImplementedError

    def test_a_catalog_says_so_in_time(self, world: World) -> None:
        """Every question ends with an error that names what to look at."""
        partition, catalog = TopicPartition("events", 0), world.catalog()
        for ask in (
            catalog.cluster_id,
            catalog.names,
            lambda deadline: catalog.describe(["events"], deadline),
            lambda deadline: catalog.watermarks(partition, deadline),
            lambda deadline: catalog.offset_at(partition, 0, deadline),
        ):
            late = Deadline.after(WAIT)
            with pytest.raises(KafkaUnavailableError):
                ask(Deadline.after(0.5))
            assert not late.expired
        catalog.close()

    def test_a_store_gives_reasons_in_time(self, world: World) -> None:
        """Reading raises, committing gives a reason for each partition, and neither hangs."""
        one, two = TopicPartition("events", 0), TopicPartition("events", 1)
        store = world.store("group")
        late = Deadline.after(WAIT)
        with pytest.raises(OffsetStoreError, match="events-0"):
            store.read(one, Deadline.after(0.5))
        offsets = {one: Commit(1, 1), two: Commit(2, 1)}
        failures = store.commit(offsets, Deadline.after(0.5))
        assert set(failures) == {one, two}
        assert all(failures.values())
        store.close()
        assert not late.expired

    def test_a_source_gives_nothing(self, world: World) -> None:
        """Fetching goes on quietly, and closing does not hang."""
        reader = Reader(world.source())
        late = Deadline.after(WAIT)
        reader.source.assign({TopicPartition("events", 0): 0})
        reader.once()
        assert not reader.records
        reader.source.close()
        assert not late.expired
