"""A broker in memory: topics, group offsets, and what a channel needs of both."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Condition
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka.errors import KafkaUnavailableError, OffsetStoreError
from headrace.kafka.ports import (
    Commit,
    CommitFailure,
    CommitRefusal,
    Fetched,
    LogLook,
    OffsetStore,
    StoredOffset,
    TopicInfo,
)
from headrace.testing.records import FakeRecord, in_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace.core.records import Record

#: Records that one fetch of the double brings at most.
MAX_RECORDS = 1000

#: Seconds that one fetch of the double waits at most. A reader sees a command, or a stop,
#: between two fetches only: tests with hundreds of those cannot wait as long as a service can.
MAX_WAIT = 0.005


@dataclass(slots=True)
class PartitionLog:
    """The records of one partition in order of offset; offsets may have gaps."""

    records: list[FakeRecord] = field(default_factory=list)
    low: int = 0
    end: int = 0
    # where each leader's part of the log begins
    epochs: list[int] = field(default_factory=lambda: [0])

    def end_of(self, epoch: int) -> int:
        """Return where the part of a leader and of those before it ends."""
        return self.epochs[epoch + 1] if epoch + 1 < len(self.epochs) else self.end

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at an offset."""
        return bisect_right(self.epochs, offset) - 1

    def read(self, offset: int, most: int) -> list[Record]:
        first = bisect_left(self.records, offset, key=FakeRecord.offset)
        return list(self.records[first : first + most])


class InMemoryBroker:
    """Topics and group offsets without a server. Safe on any thread.

    ``down`` makes every request fail, as when no broker can be reached. ``in_columns`` has records
    come in columns, as processors may want them.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._topic_ids = count(1)
        self._deleted: set[str] = set()
        self._offsets: dict[tuple[str, TopicPartition], StoredOffset] = {}
        self._shut_out: set[str] = set()
        self.commits: list[tuple[TopicPartition, StoredOffset]] = []
        self.down = self.in_columns = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Keep sources from fetching until all changes of the block are made."""
        with self._changed:
            yield

    def await_change(self, timeout: float) -> None:
        """Wait for a record or a commit. Within a block of ``at_once``."""
        self._changed.wait(timeout)

    # --- topics and records ---------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """Return the topics by name."""
        return dict(self._topics)

    def log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the log of a partition, None if there is none."""
        return self._logs.get(partition)

    def create_topic(self, name: str, partitions: int = 1, *, internal: bool = False) -> None:
        """Create a topic, or add partitions to it."""
        with self._changed:
            known = self._topics.get(name)
            topic_id = f"id-{next(self._topic_ids)}" if known is None else known.topic_id
            self._topics[name] = TopicInfo(name, topic_id, partitions, internal)
            self._deleted.discard(name)
            for number in range(partitions):
                self._logs.setdefault(TopicPartition(name, number), PartitionLog())

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records; created again, it has another id.

        Offsets of groups stay, as if they were stored again just before.
        """
        with self._changed:
            self._deleted.add(name)
            for number in range(self._topics.pop(name).partitions):
                del self._logs[TopicPartition(name, number)]

    def produce(self, partition: TopicPartition, *values: bytes | FakeRecord | None) -> int:
        """Append records and return the offset after them.

        A FakeRecord among the values brings its key, value, headers and timestamp.
        """
        with self._changed:
            log = self._logs[partition]
            for value in values:
                record = value if isinstance(value, FakeRecord) else FakeRecord(value_=value)
                topic, number = partition
                log.records.append(
                    replace(record, topic_=topic, partition_=number, offset_=log.end)
                )
                log.end += 1
            self._changed.notify_all()
            return log.end

    def skip(self, partition: TopicPartition, count: int) -> int:
        """Use up offsets that no reader sees, as transaction markers do; return the end."""
        with self._changed:
            self._logs[partition].end += count
            self._changed.notify_all()
            return self._logs[partition].end

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """Drop the records from ``end`` on; another leader goes on from there."""
        with self._changed:
            log = self._logs[partition]
            log.records = [record for record in log.records if record.offset_ < end]
            log.epochs = [*(min(start, end) for start in log.epochs), end]
            log.end = end
            self._changed.notify_all()

    def expire(self, partition: TopicPartition, low: int) -> None:
        """Drop records before ``low``, as retention does."""
        with self._changed:
            log = self._logs[partition]
            log.low = low
            log.records = [record for record in log.records if record.offset_ >= low]

    # --- offsets --------------------------------------------------------------------------------

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, StoredOffset]
    ) -> Mapping[TopicPartition, CommitFailure]:
        """Store offsets of a group; return why for each partition that failed."""
        with self._changed:
            if any(_producer(each) in self._shut_out for each in offsets.values()):
                return dict.fromkeys(offsets, CommitFailure("shut out", CommitRefusal.MEMBERSHIP))
            gone = {p for p in offsets if p.topic in self._deleted}
            for partition, each in offsets.items():
                if partition in gone:
                    continue
                stored = StoredOffset(
                    each.offset, each.epoch, each.by, each.topic_id, each.leader_epoch
                )
                self._offsets[group, partition] = stored
                self.commits.append((partition, stored))
            self._changed.notify_all()
        return dict.fromkeys(gone, CommitFailure("unknown topic or partition", topic_missing=True))

    def shut_out(self, transactional_ids: Collection[str]) -> None:
        """Refuse commits through these producers from now on."""
        with self._changed:
            self._shut_out.update(transactional_ids)

    def committed(self, group: str, partition: TopicPartition) -> StoredOffset | None:
        """Return a group's offset."""
        return self._offsets.get((group, partition))

    def forget(self, group: str, partition: TopicPartition) -> None:
        """Drop a group's offset, as its retention does."""
        with self._changed:
            self._offsets.pop((group, partition), None)

    def wait_committed(
        self, group: str, partition: TopicPartition, offset: int, deadline: Deadline
    ) -> bool:
        """Wait until a group's offset is ``offset``; False when the deadline passes first."""
        return self._wait(lambda: self._stored(group, partition).offset == offset, deadline)

    def wait_commit(
        self, group: str, partition: TopicPartition, epoch: int, deadline: Deadline
    ) -> bool:
        """Wait until a group's offset is of ``epoch``; False when the deadline passes first."""
        return self._wait(lambda: self._stored(group, partition).epoch == epoch, deadline)

    def _stored(self, group: str, partition: TopicPartition) -> StoredOffset:
        return self._offsets.get((group, partition), StoredOffset(-1, 0))

    def _wait(self, condition: Callable[[], bool], deadline: Deadline) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, deadline.remaining)

    def source(self) -> InMemorySource:
        """Return a record source."""
        return InMemorySource(self)

    def store(self, group: str) -> InMemoryOffsets:
        """Return an offset store."""
        return InMemoryOffsets(self, group)

    def catalog(self) -> InMemoryCatalog:
        """Return a topic catalog."""
        return InMemoryCatalog(self)


class InMemorySource:
    """A ``RecordSource`` on an :class:`InMemoryBroker`."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self._broker = broker
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._at_end: set[TopicPartition] = set()
        self._out: set[TopicPartition] = set()
        self._epochs: dict[TopicPartition, int] = {}
        self._led: dict[TopicPartition, int] = {}
        self.closed = False

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.seek(starts, epochs)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._positions.pop(partition, None)
            self._paused.discard(partition)

    def seek(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self._positions.update(starts)
        for partition in starts:
            self._epochs.pop(partition, None)
        self._epochs.update(epochs or {})
        for marked in (self._paused, self._at_end, self._out):
            marked.difference_update(starts)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def fetch(self, timeout: float) -> Fetched:
        """Return what there is, waiting for it, though never longer than ``MAX_WAIT``."""
        with self._broker.at_once():
            fetched = self._collect()
            if fetched == Fetched():
                self._broker.await_change(min(timeout, MAX_WAIT))
                fetched = self._collect()
            return fetched

    def _collect(self) -> Fetched:
        fetched = Fetched()
        if self._broker.down:
            return fetched
        for partition, position in self._positions.items():
            if partition not in self._paused and partition not in self._out:
                self._read(partition, position, fetched)
        return fetched

    def _read(self, partition: TopicPartition, position: int, into: Fetched) -> None:
        log = self._broker.log(partition)
        if log is None:
            return
        if self._led.get(partition) != len(log.epochs):
            # there is another leader than when it was asked last
            self._led[partition] = len(log.epochs)
            epoch = self._epochs.get(partition)
            if epoch is not None and log.end_of(epoch) < position:
                into.truncated.append((partition, log.end_of(epoch)))
                self._out.add(partition)
                return
        if not log.low <= position <= log.end:
            into.out_of_range.append(partition)
            self._out.add(partition)
            return
        records = log.read(position, MAX_RECORDS)
        if records:
            last = records[-1].offset()
            assert last is not None
            self._positions[partition] = last + 1
            into.leader_epochs[partition] = self._epochs[partition] = log.epoch_at(last)
            self._at_end.discard(partition)
            run = in_columns(records, partition) if self._broker.in_columns else records
            into.chunks.append((partition, run))
        elif partition not in self._at_end or position < log.end:
            self._positions[partition] = log.end
            self._at_end.add(partition)
            into.ends.append((partition, log.end))

    def high_watermark(self, partition: TopicPartition) -> int | None:
        log = self._broker.log(partition)
        return None if log is None else log.end

    def close(self) -> None:
        self.closed = True


class InMemoryOffsets(OffsetStore):
    """An ``OffsetStore`` on an :class:`InMemoryBroker`.

    Commits of claims that name a transactional producer count as sent through it, and are refused
    once it was fenced. ``refuse`` makes commits fail. ``late`` makes them time out and keeps them
    for ``deliver_late``, as when an answer is lost and the request is executed all the same.
    """

    def __init__(self, broker: InMemoryBroker, group: str) -> None:
        self._broker = broker
        self._group = group
        self.refuse: str | None = None
        self.late = False
        self._kept: list[Mapping[TopicPartition, StoredOffset]] = []
        self.closed = False

    def deliver_late(self) -> None:
        """Execute what timed out, in its order."""
        while self._kept:
            self._broker.commit(self._group, self._kept.pop(0))

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        if self._broker.down or deadline.expired:
            first = next(iter(partitions), None)
            raise OffsetStoreError(f"the offset of {first} cannot be read: broker is down")
        found = {p: self._broker.committed(self._group, p) for p in partitions}
        return {p: stored for p, stored in found.items() if stored is not None}

    def commit(
        self, offsets: Mapping[TopicPartition, StoredOffset], deadline: Deadline
    ) -> Mapping[TopicPartition, CommitFailure]:
        reason = "broker is down" if self._broker.down or deadline.expired else self.refuse
        if reason is not None:
            return dict.fromkeys(offsets, CommitFailure(reason))
        if self.late:
            self._kept.append(offsets)
            return dict.fromkeys(offsets, CommitFailure("no answer, as the test wants it"))
        return self._broker.commit(self._group, offsets)

    def fence(
        self,
        transactional_ids: Collection[str],
        partition: TopicPartition,  # noqa: ARG002 - none is in doubt here
        deadline: Deadline,
    ) -> None:
        if self._broker.down or deadline.expired:
            raise OffsetStoreError("producers cannot be fenced: broker is down")
        self._broker.shut_out(transactional_ids)

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:  # noqa: ARG002 - all or none
        return not (self._broker.down or deadline.expired)

    def serve(self) -> None:
        """Return at once: there are no callbacks."""

    def close(self) -> None:
        self.closed = True


def _producer(stored: StoredOffset) -> str | None:
    return stored.transactional_id if isinstance(stored, Commit) else None


class InMemoryCatalog:
    """A ``TopicCatalog`` on an :class:`InMemoryBroker`."""

    def __init__(self, broker: InMemoryBroker) -> None:
        self._broker = broker
        self.closed = False

    def cluster_id(self, deadline: Deadline) -> str:
        self._reach(deadline)
        return "in-memory"

    def names(self, deadline: Deadline) -> Collection[str]:
        self._reach(deadline)
        return set(self._broker.topics())

    def describe(self, topics: Collection[str], deadline: Deadline) -> Mapping[str, TopicInfo]:
        self._reach(deadline)
        known = self._broker.topics()
        return {name: known[name] for name in topics if name in known}

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        log = self._log(partition, deadline)
        return log.low, log.end

    def leader_epoch(self, partition: TopicPartition, deadline: Deadline) -> int | None:
        return len(self._log(partition, deadline).epochs) - 1

    def look_at_log(self, partition: TopicPartition, position: int, epoch: int) -> Future[LogLook]:
        """Answer at once, with the number of the leader."""
        answer: Future[LogLook] = Future()
        try:
            log = self._log(partition, Deadline.after(MAX_WAIT))
        except KafkaUnavailableError as error:
            answer.set_exception(error)
            return answer
        end = log.end_of(epoch)
        is_truncated = end < position and epoch + 1 < len(log.epochs)
        answer.set_result(LogLook(len(log.epochs) - 1, is_truncated, end if is_truncated else None))
        return answer

    def truncated_at(
        self, partition: TopicPartition, position: int, epoch: int, deadline: Deadline
    ) -> tuple[bool, int | None]:
        end = self._log(partition, deadline).end_of(epoch)
        return (True, end) if end < position else (False, None)

    def has_records(
        self, partition: TopicPartition, start: int, end: int, deadline: Deadline
    ) -> bool:
        log = self._log(partition, deadline)
        return any(start <= record.offset_ < end for record in log.records)

    def offset_at(
        self, partition: TopicPartition, timestamp: int, deadline: Deadline
    ) -> int | None:
        log = self._log(partition, deadline)
        return next((r.offset_ for r in log.records if r.timestamp_ >= timestamp), None)

    def _log(self, partition: TopicPartition, deadline: Deadline) -> PartitionLog:
        self._reach(deadline)
        log = self._broker.log(partition)
        if log is None:
            raise KafkaUnavailableError(f"{partition} has no leader, as it does not exist")
        return log

    def _reach(self, deadline: Deadline) -> None:
        if self._broker.down or deadline.expired:
            raise KafkaUnavailableError("the broker in memory is down")

    def close(self) -> None:
        self.closed = True
