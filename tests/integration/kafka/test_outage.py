"""The adapters with a broker that stops answering and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack import KafkaBroker
from headrace.devstack.wait import wait_for
from headrace.kafka import TransactionalOffsetStore
from headrace.kafka.errors import KafkaUnavailableError, OffsetStoreError
from headrace.kafka.ports import Commit, CommitFailure, CommitRefusal, StoredOffset
from tests.brokers import stored_offset
from tests.integration.kafka.test_contract import RealWorld

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WAIT = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that the tests may freeze."""
    server = KafkaBroker(tmp_path_factory.mktemp("kafka"), short_lived=True)
    server.start()
    yield server
    server.stop(Deadline.after(WAIT))


def test_a_late_answer_is_not_taken_for_another_commit_s(server: KafkaBroker) -> None:
    """A commit that timed out does not answer for the next one, which is stored and read back."""
    world = RealWorld(server.address)
    partition = TopicPartition(world.create_topic(), 0)
    store = world.store("late")
    assert store.commit({partition: Commit(1, 1)}, Deadline.after(WAIT)) == {}
    server.pause(Deadline.after(WAIT))
    failures = store.commit({partition: Commit(2, 1)}, Deadline.after(0.5))
    assert failures == {partition: CommitFailure("no answer from the group coordinator in time")}
    with pytest.raises(OffsetStoreError, match="cannot be read"):
        store.read(partition, Deadline.after(0.5))
    server.resume()
    assert store.commit({partition: Commit(3, 2)}, Deadline.after(WAIT)) == {}
    assert store.read(partition, Deadline.after(WAIT)) == StoredOffset(3, 2)
    store.close()


def test_a_frozen_broker_is_unavailable_in_time(server: KafkaBroker) -> None:
    """Connected clients give up by their deadline too, and go on when the broker does."""
    world = RealWorld(server.address)
    partition = TopicPartition(world.create_topic(), 0)
    catalog = world.catalog()
    assert catalog.watermarks(partition, Deadline.after(WAIT)) == (0, 0)
    server.pause(Deadline.after(WAIT))
    late = Deadline.after(WAIT)
    with pytest.raises(KafkaUnavailableError, match="bootstrap_servers"):
        catalog.describe([partition.topic], Deadline.after(0.5))
    with pytest.raises(KafkaUnavailableError):
        catalog.watermarks(partition, Deadline.after(0.5))
    assert not late.expired
    server.resume()
    assert partition.topic in catalog.describe([partition.topic], Deadline.after(WAIT))
    catalog.close()


def test_an_offset_is_not_read_before_our_own_commit_of_it_is_decided(server: KafkaBroker) -> None:
    """A commit that came too late is stored before the next claim reads, or never."""
    world = RealWorld(server.address)
    partition = TopicPartition(world.create_topic(), 0)
    store = TransactionalOffsetStore({"bootstrap.servers": server.address}, "decided")

    def commit(offset: int, seconds: float) -> Mapping[TopicPartition, CommitFailure]:
        offsets = {partition: Commit(offset, 1, "a", transactional_id="decided.1")}
        return store.commit(offsets, Deadline.after(seconds))

    def found() -> StoredOffset | None:
        store.serve()
        try:
            return store.find([partition], Deadline.after(1)).get(partition)
        except OffsetStoreError:
            return None

    late = Deadline.after(WAIT)
    while commit(5, 5):
        assert not late.expired
    server.pause(Deadline.after(WAIT))
    assert commit(7, 0.5)
    with pytest.raises(OffsetStoreError, match="not decided yet"):
        store.find([partition], Deadline.after(0.5))
    server.resume()
    decided = wait_for(found, late)
    assert decided in {StoredOffset(5, 1), StoredOffset(7, 1)}
    store.serve()
    assert stored_offset(store, partition) == decided
    store.close()


def test_a_transaction_without_an_answer_is_settled(server: KafkaBroker) -> None:
    """It holds up nobody past the deadline; then the membership commits, or ends and says so."""
    world = RealWorld(server.address)
    partition = TopicPartition(world.create_topic(), 0)
    store = TransactionalOffsetStore({"bootstrap.servers": server.address}, "settled")
    stay = 1

    def commit(offset: int, seconds: float) -> Mapping[TopicPartition, CommitFailure]:
        offsets = {partition: Commit(offset, 1, "a", transactional_id=f"settled.{stay}")}
        return store.commit(offsets, Deadline.after(seconds))

    def commit_in_the_end(offset: int) -> None:
        nonlocal stay
        late = Deadline.after(WAIT)
        while failures := commit(offset, late.at_most(5)):
            assert not late.expired, failures
            if failures[partition].refusal is CommitRefusal.MEMBERSHIP:
                stay += 1

    commit_in_the_end(1)
    server.pause(Deadline.after(WAIT))
    late = Deadline.after(WAIT)
    assert commit(2, 0.5)[partition].refusal is CommitRefusal.NONE
    assert commit(3, 0.5)[partition].refusal is CommitRefusal.NONE
    assert not late.expired
    server.resume()
    commit_in_the_end(4)
    assert stored_offset(store, partition) == StoredOffset(4, 1)
    store.close()
