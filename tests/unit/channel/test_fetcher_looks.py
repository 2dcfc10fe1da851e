from __future__ import annotations

from collections import Counter
from threading import Event
from typing import TYPE_CHECKING

import pytest

from headrace.channel import fetcher
from headrace.channel.partition import OwnedPartition
from headrace.core.clock import Deadline
from headrace.kafka.ports import Fetched
from headrace.testing import InMemoryBroker
from headrace.testing.broker import InMemorySource
from headrace.testing.records import FakeRecord
from tests.unit.channel.conftest import fetcher_of, owned_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.core.records import TopicPartition
    from headrace.testing.channel import FakeClock

SECONDS = 20.0
FETCHES = 2_000


class OneByOne(InMemorySource):
    """Brings one record of another partition with each fetch, and nothing after so many."""

    def __init__(self, partitions: int, took: Callable[[], None] = lambda: None) -> None:
        broker = InMemoryBroker()
        broker.create_topic("events", partitions)
        super().__init__(broker)
        self._assigned: list[TopicPartition] = []
        self.partitions = partitions
        self._took = took
        self._offsets: Counter[TopicPartition] = Counter()
        self.fetches = 0
        self.is_over = Event()

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,  # noqa: ARG002 - of no interest here
    ) -> None:
        """Record the assigned starts."""
        self._assigned += starts

    def fetch(self, timeout: float) -> Fetched:
        """Return one record, once all partitions are assigned."""
        if len(self._assigned) < self.partitions or self.fetches == FETCHES:
            self.is_over.wait(timeout)
            return Fetched()
        self.fetches += 1
        self._took()
        partition = self._assigned[self.fetches % self.partitions]
        offset = self._offsets[partition]
        self._offsets[partition] += 1
        if self.fetches == FETCHES:
            self.is_over.set()
        return Fetched(chunks=[(partition, [FakeRecord(*partition, offset, value_=b"v")])])


@pytest.mark.parametrize("partitions", [20, 1000])
def test_a_fetch_costs_the_same_part_of_a_look_with_many_partitions(
    partitions: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per fetch the looks at the budget go over a dozen partitions, and not over a hundred."""
    looked_at = looked_at_in(OneByOne(partitions), clock, monkeypatch)

    assert 0 < looked_at / FETCHES < 12


def test_slow_fetches_from_many_partitions_do_not_put_a_look_off(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each half second all partitions are looked at, so that a paused one is soon resumed."""
    source = OneByOne(1000, took=lambda: clock.advance(0.05))

    looked_at = looked_at_in(source, clock, monkeypatch)

    seconds = FETCHES * 0.05
    assert looked_at / 1000 > 0.9 * seconds / 0.5


def looked_at_in(source: OneByOne, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fetch all that the source has; return how many partitions were looked at meanwhile."""
    looked_at = 0

    def held_bytes(_owned: OwnedPartition) -> int:
        nonlocal looked_at
        looked_at += source.fetches > 0 and not source.is_over.is_set()
        return 0

    monkeypatch.setattr(OwnedPartition, "held_bytes", held_bytes)
    monkeypatch.setattr(fetcher, "FETCH_TIMEOUT", 0.01)
    failures: list[BaseException] = []
    thread = fetcher_of(source, clock, failures.append)
    for number in range(source.partitions):
        thread.assign(owned_partition(number))
    thread.start()
    assert source.is_over.wait(SECONDS), failures
    assert thread.stop(Deadline.after(SECONDS))
    return looked_at
