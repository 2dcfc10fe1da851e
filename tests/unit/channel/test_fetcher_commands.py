from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.testing import InMemoryBroker
from headrace.testing.broker import InMemorySource
from tests.unit.channel.conftest import fetcher_of, owned_partition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.core.records import TopicPartition
    from headrace.testing.channel import FakeClock

SECONDS = 20.0


class Told(InMemorySource):
    """Writes down what it is told, each with the numbers of its partitions."""

    def __init__(self) -> None:
        broker = InMemoryBroker()
        broker.create_topic("events", 4)
        super().__init__(broker)
        self.told: list[tuple[str, list[int]]] = []

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,  # noqa: ARG002 - of no interest here
    ) -> None:
        """Write it down."""
        self._note("assign", starts)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Write it down."""
        self._note("unassign", partitions)

    def seek(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,  # noqa: ARG002 - of no interest here
    ) -> None:
        """Write it down."""
        self._note("seek", starts)

    def _note(self, command: str, partitions: Collection[TopicPartition]) -> None:
        self.told.append((command, [partition.partition for partition in partitions]))


def test_commands_that_have_come_together_are_one_call_to_the_client(clock: FakeClock) -> None:
    """In their order; what is for one who does not own the partition now, or not yet, is none."""
    source, failures = Told(), list[BaseException]()
    fetcher = fetcher_of(source, clock, failures.append)
    owned = [owned_partition(number) for number in range(4)]
    anew = owned_partition(2, epoch=2)
    for each in owned:
        fetcher.assign(each)
    for each in (owned[0], owned[1], owned[0], owned[2]):
        fetcher.seek(each)
    fetcher.assign(anew)
    for each in (owned[2], owned[3], owned_partition(3, epoch=2)):
        fetcher.unassign(each)
    fetcher.seek(owned[2])
    fetcher.seek(anew)

    fetcher.start()
    told = wait_for(lambda: source.told[-1:] == [("seek", [2])], Deadline.after(SECONDS))
    assert fetcher.stop(Deadline.after(SECONDS))

    assert told, (source.told, failures)
    assert source.told == [
        ("assign", [0, 1, 2, 3]),
        ("seek", [0, 1, 2]),
        ("assign", [2]),
        ("unassign", [3]),
        ("seek", [2]),
    ]
