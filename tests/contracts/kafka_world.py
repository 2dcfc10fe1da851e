"""The broker that the Kafka contract needs, real or in memory, and how it reads from one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition, offset_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.record_runs import Run
    from headrace.core.records import Record
    from headrace.kafka.ports import OffsetStore, RecordSource, TopicCatalog
    from headrace.testing.records import FakeRecord

WAIT = 30.0


class World(Protocol):
    """A broker, the ports on it, and a hand that reaches into it."""

    def create_topic(self, partitions: int = 1, name: str | None = None) -> str:
        """Create a topic, by default one whose name nobody else uses."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records."""
        ...

    def add_partitions(self, topic: str, total: int) -> None:
        """Let a topic have ``total`` partitions."""
        ...

    def produce(self, partition: TopicPartition, *values: bytes | FakeRecord | None) -> None:
        """Append records."""
        ...

    def transact(
        self, partition: TopicPartition, *values: bytes | FakeRecord | None, commit: bool = True
    ) -> None:
        """Append records in one transaction; its marker takes one more offset."""
        ...

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Drop records, as retention does."""
        ...

    def commit(
        self, group: str, partition: TopicPartition, offset: int, metadata: str = ""
    ) -> None:
        """Commit as some other program would."""
        ...

    def source(self) -> RecordSource:
        """Return a record source."""
        ...

    def store(self, group: str) -> OffsetStore:
        """Return a group's offset store."""
        ...

    def catalog(self) -> TopicCatalog:
        """Return a topic catalog."""
        ...


class Reader:
    """Fetches from a source and keeps all that comes."""

    def __init__(self, source: RecordSource) -> None:
        self.source = source
        self.records: dict[TopicPartition, list[Record]] = defaultdict(list)
        self.ends: dict[TopicPartition, int] = {}
        self.out_of_range: list[TopicPartition] = []
        self.errors: list[str] = []

    def until(self, condition: Callable[[], bool]) -> None:
        """Fetch until something is so."""
        deadline = Deadline.after(WAIT)
        while not condition():
            assert not deadline.expired, f"got {self.records}, {self.ends}, {self.errors}"
            self.once()

    def once(self) -> None:
        """Fetch once."""
        fetched = self.source.fetch(0.05)
        for partition, records in fetched.chunks:
            self.take(partition, records)
        self.ends.update(fetched.ends)
        self.out_of_range += fetched.out_of_range
        self.errors += fetched.errors

    def take(self, partition: TopicPartition, records: Run) -> None:
        """Keep what came of one partition."""
        self.records[partition] += records

    def until_end(self, *partitions: TopicPartition) -> None:
        """Fetch until the end of each partition was reported."""
        self.until(lambda: self.ends.keys() >= set(partitions))

    def offsets(self, partition: TopicPartition) -> list[int]:
        """Return the offsets that came of one partition, in order of arrival."""
        return [offset_of(record) for record in self.records[partition]]


def values(count: int) -> list[bytes]:
    """Return so many different values."""
    return [b"%d" % number for number in range(count)]
