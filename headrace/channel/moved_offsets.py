"""Moving a group's offsets from one store to another, each partition as it is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.clock import Deadline
    from headrace.kafka.ports import Commit, Failure, OffsetStore, StoredOffset
    from headrace.records import TopicPartition

    #: Deletes what the former store has; returns the partitions of which it has nothing any more.
    Drop = Callable[[Mapping[TopicPartition, Commit]], Collection[TopicPartition]]

log = structlog.get_logger(__name__)


class MovedOffsets:
    """An ``OffsetStore`` for a group whose offsets may have been kept in another store before.

    Whichever store has the offset of the later claim, by its epoch, says where a partition stands.
    Commits go to the present store; with the first one the former offset is dropped, where
    ``drop`` is given. So members of both settings may run at the same time, and the way back is
    the same way.
    """

    def __init__(self, store: OffsetStore, former: OffsetStore, drop: Drop | None = None) -> None:
        self._store = store
        self._former = former
        self._drop = drop
        self._left: set[TopicPartition] = set()

    def read(self, partition: TopicPartition, deadline: Deadline) -> StoredOffset | None:
        """Return the offset of the later claim."""
        return self.find([partition], deadline).get(partition)

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return the offsets of the later claims."""
        found = dict(self._store.find(partitions, deadline))
        for partition, former in self._former.find(partitions, deadline).items():
            self._left.add(partition)
            present = found.get(partition)
            if present is None or present.epoch < former.epoch:
                found[partition] = former
                self._report(partition, former)
        return found

    def _report(self, partition: TopicPartition, former: StoredOffset) -> None:
        log.info(
            "offset_taken_over",
            topic=partition.topic,
            partition=partition.partition,
            offset=former.offset,
            epoch=former.epoch,
            source=type(self._former).__name__,
        )

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return what the present store has, where an owner's own commits are."""
        return self._store.read_many(partitions, deadline)

    def commit(
        self, offsets: Mapping[TopicPartition, Commit], deadline: Deadline
    ) -> Mapping[TopicPartition, Failure]:
        """Store offsets in the present store, and drop the former ones."""
        failures = self._store.commit(offsets, deadline)
        if self._drop is not None:
            moved = {p: c for p, c in offsets.items() if p in self._left and p not in failures}
            if moved:
                self._left.difference_update(self._drop(moved))
        return failures

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        """Shut out former owners in both stores."""
        self._store.fence(transactional_ids, partition, deadline)
        self._former.fence(transactional_ids, partition, deadline)

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        """Whether both stores answer."""
        return all(store.answers(partition, deadline) for store in (self._store, self._former))

    def serve(self) -> None:
        """Let both clients run their callbacks."""
        self._store.serve()
        self._former.serve()

    def close(self) -> None:
        """Release both clients."""
        self._store.close()
        self._former.close()
