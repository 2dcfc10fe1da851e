from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.channel.offset_stores import Fencing
from headrace.channel.start import StartOffsets
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import Commit, StoredOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.channel.partition import OwnedPartition
    from headrace.testing import InMemoryBroker
    from headrace.testing.broker import InMemoryOffsets

WAIT = 10.0


class Bench:
    """Start offsets on a store whose requests are counted."""

    def __init__(self, store: InMemoryOffsets, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.held: list[OwnedPartition] = []
        self.asked: list[list[int]] = []
        self.offsets = StartOffsets(store, Fencing(store), lambda: self.held)
        monkeypatch.setattr(store, "find", self._find)

    def _find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        self.asked.append(sorted(partition.partition for partition in partitions))
        return self.store.read_many(partitions, deadline)

    def read(self, owned: OwnedPartition) -> StoredOffset | None:
        """Read one offset."""
        return self.offsets.read(owned, Deadline.after(WAIT))

    def commit(self, number: int, offset: int) -> None:
        """Store an offset of a partition."""
        commits = {TopicPartition("events", number): Commit(offset, 1)}
        assert self.store.commit(commits, Deadline.after(WAIT)) == {}


@pytest.fixture
def bench(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench without held partitions."""
    return Bench(broker.store("group"), monkeypatch)


def test_one_request_serves_all_that_start(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """A request for one partition's offset reads those of all that were claimed before it."""
    bench.held = [own(number) for number in range(3)]
    bench.commit(1, 7)
    assert [bench.read(owned) for owned in bench.held] == [None, StoredOffset(7, 1), None]
    bench.held.append(own(3))
    assert bench.read(bench.held[3]) is None
    assert bench.asked == [[0, 1, 2], [3]]


def test_partitions_that_have_begun_are_not_asked_for(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """A partition with a known start, or that waits for its former claim, is left out."""
    begun, waiting, owned = own(0), own(1), own(2)
    begun.pending_commits.enqueue(None)
    waiting.life.await_end_of(own(1).life)
    bench.held = [begun, waiting, owned]
    bench.read(owned)
    assert bench.asked == [[2]]


def test_one_that_failed_is_read_by_itself(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """An offset that cannot be read does not delay other partitions."""
    bench.held = [own(number) for number in range(3)]
    bench.held[0].retries.attempts = 2
    bench.commit(0, 7)
    assert bench.read(bench.held[1]) is None
    assert bench.read(bench.held[0]) == StoredOffset(7, 1)
    assert bench.read(bench.held[2]) is None
    assert bench.asked == [[1, 2], [0]]


def test_a_second_question_is_asked_again(bench: Bench, own: Callable[..., OwnedPartition]) -> None:
    """A second read, after an error or a raised epoch, returns the present offset."""
    owned = own(0)
    bench.held = [owned]
    assert bench.read(owned) is None
    bench.commit(0, 7)
    assert bench.read(owned) == StoredOffset(7, 1)


def test_a_claim_that_looks_like_the_former_one_is_read_for_itself(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """After ZooKeeper lost its data, epochs and member epochs begin anew and come again."""
    bench.held = [own(0), own(1)]
    assert [bench.read(owned) for owned in bench.held] == [None, None]
    bench.commit(0, 7)
    bench.commit(1, 7)
    bench.held = [own(1), own(0)]
    assert [bench.read(owned) for owned in bench.held] == [StoredOffset(7, 1)] * 2


def test_a_read_for_others_is_not_kept_for_a_second_question(
    bench: Bench, own: Callable[..., OwnedPartition]
) -> None:
    """A read for a later partition is not kept for one that was answered before."""
    first, second = own(0), own(1)
    bench.held = [first]
    assert bench.read(first) is None
    bench.held.append(second)
    assert bench.read(second) is None
    bench.commit(0, 7)
    assert bench.read(first) == StoredOffset(7, 1)


def test_a_failed_read_is_repeated(
    bench: Bench, broker: InMemoryBroker, own: Callable[..., OwnedPartition]
) -> None:
    """An error reaches each caller and is not kept."""
    bench.held = [own(0), own(1)]
    broker.down = True
    for owned in bench.held:
        with pytest.raises(OffsetStoreError):
            bench.read(owned)
    broker.down = False
    bench.commit(1, 7)
    assert [bench.read(owned) for owned in bench.held] == [None, StoredOffset(7, 1)]
