"""Offsets in ZooKeeper, one node for each partition, written only while the claim holds."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import structlog

from headrace.coordinators.znodes import GroupPaths, OffsetDocument
from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.core.errors import HeadraceError
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import CommitFailure, CommitRefusal, OffsetStore, StoredOffset
from headrace.zookeeper.errors import BadVersionError, NodeExistsError, NoNodeError
from headrace.zookeeper.nodes import Check, Create, Delete, SetData

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from headrace.core.clock import Deadline
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import Commit
    from headrace.zookeeper.nodes import Operation
    from headrace.zookeeper.protocol import Session

log = structlog.get_logger(__name__)

#: Partitions in one transaction: some 20 kB of a request's usual limit of 1 MB.
PER_TRANSACTION = 50

#: How often one partition's write is made again because its node came or went meanwhile.
_ATTEMPTS = 3


class ZooKeeperOffsetStore(OffsetStore):
    """An ``OffsetStore`` in the group's nodes.

    Each write is a transaction that begins by checking the version of the partition's epoch node
    as it was claimed. Once anybody has claimed after us, the whole is refused, also when it was
    sent before and is executed late. Requests of one session are executed in their order, so a
    write that timed out cannot undo a later one.
    """

    def __init__(self, session: Session, group: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._session = session
        self._group = group
        self._paths = GroupPaths(group)
        self._clock = clock
        self._existing: set[TopicPartition] = set()

    # --- reading ----------------------------------------------------------------------------

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return what the partitions' nodes say. The session's own time-out bounds the wait."""
        if deadline.expired:
            raise OffsetStoreError(f"group {self._group}: no time was left to read offsets")
        wanted = list(partitions)
        try:
            nodes = self._session.get_many([self._paths.offset(p) for p in wanted])
            return {
                partition: OffsetDocument.decode(self._paths.offset(partition), node.data).stored()
                for partition, node in zip(wanted, nodes, strict=True)
                if node is not None
            }
        except HeadraceError as error:
            raise OffsetStoreError(
                f"group {self._group}: offsets cannot be read from ZooKeeper: {error}"
            ) from error

    # --- writing ----------------------------------------------------------------------------

    def commit(
        self, offsets: Mapping[TopicPartition, Commit], deadline: Deadline
    ) -> Mapping[TopicPartition, CommitFailure]:
        failures: dict[TopicPartition, CommitFailure] = {}
        for some in _portions(offsets):
            if deadline.expired:
                failures |= dict.fromkeys(some, CommitFailure("not sent, no time was left"))
            else:
                failures |= self._commit_some(some)
        return failures

    def _commit_some(
        self, offsets: Mapping[TopicPartition, Commit]
    ) -> dict[TopicPartition, CommitFailure]:
        """Store some together; where one is refused, each by itself."""
        try:
            self._write(offsets)
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            self._existing.difference_update(offsets)
            log.debug("offsets_written_singly", group=self._group, reason=str(error))
        except HeadraceError as error:
            return dict.fromkeys(offsets, CommitFailure(str(error)))
        else:
            return {}
        outcomes = {p: self._commit_one(p, commit) for p, commit in offsets.items()}
        return {p: failure for p, failure in outcomes.items() if failure is not None}

    def _commit_one(self, partition: TopicPartition, commit: Commit) -> CommitFailure | None:
        epoch_path = self._paths.epoch(partition)
        for _ in range(_ATTEMPTS):
            try:
                self._write({partition: commit})
            except (BadVersionError, NoNodeError, NodeExistsError) as error:
                if error.path == epoch_path:
                    why = f"another member claimed the partition after us ({error})"
                    return CommitFailure(why, CommitRefusal.CLAIM)
                self._existing.discard(partition)
            except HeadraceError as error:
                return CommitFailure(str(error))
            else:
                return None
        return CommitFailure(f"ZooKeeper node {self._paths.offset(partition)} comes and goes")

    def _write(self, offsets: Mapping[TopicPartition, Commit]) -> None:
        self._find_nodes(offsets)
        operations: list[Operation] = []
        for partition, commit in offsets.items():
            path, data = self._paths.offset(partition), self._data(commit)
            operations.append(Check(self._paths.epoch(partition), commit.node_version))
            exists = partition in self._existing
            operations.append(SetData(path, data) if exists else Create(path, data))
        self._session.multi(operations)
        self._existing.update(offsets)

    def _find_nodes(self, partitions: Collection[TopicPartition]) -> None:
        """Find which nodes exist, and create the parents of those that do not."""
        unknown = [p for p in partitions if p not in self._existing]
        if not unknown:
            return
        paths = [self._paths.offset(partition) for partition in unknown]
        nodes = self._session.get_many(paths)
        found = {p for p, node in zip(unknown, nodes, strict=True) if node is not None}
        self._existing |= found
        missing = [p for p in unknown if p not in found]
        for parent in {self._paths.offset(p).rpartition("/")[0] for p in missing}:
            self._session.ensure(parent)

    def _data(self, commit: Commit) -> bytes:
        return OffsetDocument(
            offset=commit.offset,
            epoch=commit.epoch,
            member=commit.by,
            since=self._clock.time(),
            topic_id=commit.topic_id,
            leader_epoch=commit.leader_epoch,
        ).encode()

    def drop(self, offsets: Mapping[TopicPartition, Commit]) -> Collection[TopicPartition]:
        """Delete nodes whose offsets are kept elsewhere now, while the claims hold.

        Returns those that are gone; of the others the log says why. Blocks.
        """
        gone = []
        for partition, commit in offsets.items():
            path = self._paths.offset(partition)
            check = Check(self._paths.epoch(partition), commit.node_version)
            try:
                self._session.multi([check, Delete(path)])
            except NoNodeError as error:
                if error.path == path:
                    gone.append(partition)
            except HeadraceError as error:
                log.warning("offset_node_not_deleted", path=path, reason=str(error))
            else:
                gone.append(partition)
        self._existing.difference_update(gone)
        return gone

    def fence(
        self, transactional_ids: Collection[str], partition: TopicPartition, deadline: Deadline
    ) -> None:
        """Return at once: the epoch nodes refuse former owners."""

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:  # noqa: ARG002 - nothing is ever in doubt here
        return True

    def serve(self) -> None:
        """Return at once: the session has its own threads."""

    def close(self) -> None:
        """Return at once: the session belongs to the process."""


def _portions(
    offsets: Mapping[TopicPartition, Commit],
) -> Iterator[dict[TopicPartition, Commit]]:
    items = iter(offsets.items())
    while portion := dict(islice(items, PER_TRANSACTION)):
        yield portion
