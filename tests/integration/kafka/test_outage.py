"""What the adapters make of a broker that stops answering and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.clock import Deadline
from headrace.errors import KafkaUnavailableError
from headrace.kafka.ports import Commit, Failure, OffsetStoreError, StoredOffset
from headrace.local import KafkaBroker
from headrace.records import TopicPartition
from tests.integration.kafka.test_contract import RealWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that the tests may freeze."""
    server = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    server.start(Deadline.after(WAIT))
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
    assert failures == {partition: Failure("no answer from the group coordinator in time")}
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
