"""From a channel's ``offsets`` to its store."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import structlog

from headrace.config import (
    KafkaOffsetsConfig,
    ZooKeeperOffsetsConfig,
    single_sinks,
)
from headrace.coordinators.fencing_locks import FencingLocks
from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.coordinators.znodes import producer_prefix
from headrace.kafka import KafkaOffsetStore, TransactionalOffsetStore
from headrace.kafka.ports import OffsetStore
from headrace.kafka.result_transactions import sink_group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from headrace.config import ChannelConfig
    from headrace.coordinators.claims import Claim
    from headrace.coordinators.lease import Lease
    from headrace.core.clock import Clock, Deadline
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import Commit, CommitFailure, StoredOffset
    from headrace.zookeeper.protocol import Session


if TYPE_CHECKING:
    #: Deletes what the former store has; returns the partitions of which it has nothing any more.
    Drop = Callable[[Mapping[TopicPartition, Commit]], Collection[TopicPartition]]

log = structlog.get_logger(__name__)


class MovedOffsets(OffsetStore):
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

    def find(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        found = dict(self._store.find(partitions, deadline))
        for partition, former in self._former.find(partitions, deadline).items():
            self._left.add(partition)
            present = found.get(partition)
            if present is None or present.epoch < former.epoch:
                found[partition] = former
                log.info(
                    "offset_migrated",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=former.offset,
                    epoch=former.epoch,
                    source=type(self._former).__name__,
                )
        return found

    def read_many(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Return what the present store has, where an owner's own commits are."""
        return self._store.read_many(partitions, deadline)

    def commit(
        self, offsets: Mapping[TopicPartition, Commit], deadline: Deadline
    ) -> Mapping[TopicPartition, CommitFailure]:
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
        self._store.fence(transactional_ids, partition, deadline)
        self._former.fence(transactional_ids, partition, deadline)

    def answers(self, partition: TopicPartition, deadline: Deadline) -> bool:
        return all(store.answers(partition, deadline) for store in (self._store, self._former))

    def serve(self) -> None:
        self._store.serve()
        self._former.serve()

    def close(self) -> None:
        self._store.close()
        self._former.close()


class Fencing:
    """Remembers whom it shut out: the partitions of one former owner name the same producer.

    It remembers for as long as a lease lasts. The ids end with member epochs, and those begin
    again when ZooKeeper loses its data: a later producer may then have the id of one that was shut
    out. No lease outlives that, because the member's node is gone with the data.
    """

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self._lock = Lock()
        self._done: tuple[Lease | None, frozenset[str]] = None, frozenset()
        self._doubted: tuple[Lease | None, frozenset[str]] = None, frozenset()

    def are_fenced(self, claim: Claim) -> bool:
        """Return whether no former owner may commit any more. Does not block."""
        return self._shut_out_under(claim.lease).issuperset(claim.unfenced)

    def fence(self, claim: Claim, deadline: Deadline) -> Claim:
        """Fence producers that may still commit, and return the claim without them. Blocks.

        Raises:
            OffsetStoreError: one of them may still commit.
        """
        if not claim.unfenced:
            return claim
        with self._lock:
            done = self._shut_out_under(claim.lease)
            wanted = [i for i in claim.unfenced if i not in done]
            if wanted:
                self._store.fence(wanted, claim.partition, deadline)
                self._done = claim.lease, done.union(wanted)
        return claim.fenced()

    def refence(self, claim: Claim) -> Claim:
        """Return the claim with all producers of before to be shut out, once for each lease.

        To be used where the brokers have an offset in doubt for longer than any transaction lasts:
        shutting out ends that as well. Does not block for long.
        """
        with self._lock:
            doubted = _under(claim.lease, self._doubted)
            fresh = [i for i in claim.former_producers if i not in doubted]
            self._doubted = claim.lease, doubted.union(fresh)
            self._done = claim.lease, self._shut_out_under(claim.lease).difference(fresh)
        return replace(claim, unfenced=tuple(dict.fromkeys([*claim.unfenced, *fresh])))

    def _shut_out_under(self, lease: Lease) -> frozenset[str]:
        return _under(lease, self._done)


def _under(lease: Lease, known: tuple[Lease | None, frozenset[str]]) -> frozenset[str]:
    """Return what is known under one lease; nothing, where it is known under another."""
    remembered, ids = known
    return ids if remembered is lease else frozenset()


def open_offset_store(
    channel: ChannelConfig, client_properties: Mapping[str, Any], session: Session, clock: Clock
) -> OffsetStore:
    """Open the store that the channel's offsets are in, on a Kafka client of its own.

    Offsets are found wherever they were kept before, and move with the first commit. The session
    is the process's and stays open when the store is closed.
    """
    nodes = ZooKeeperOffsetStore(session, channel.group, clock)
    lock = FencingLocks(session, channel.group)
    match channel.offsets:
        case KafkaOffsetsConfig(fencing="transactions"):
            kafka: OffsetStore = TransactionalOffsetStore(
                client_properties, channel.group, lock=lock
            )
        case _:
            produced_in = sink_group(channel.group) if sink_is_fenced(channel) else None
            kafka = KafkaOffsetStore(
                client_properties,
                channel.group,
                produced_in=produced_in,
                lock=lock,
                changelogs=channel.processor.own_topics(channel),
            )
    return arranged(channel, kafka, nodes)


def arranged(
    channel: ChannelConfig, kafka: OffsetStore, nodes: ZooKeeperOffsetStore
) -> OffsetStore:
    """Return the channel's store, with the other one as that of its former offsets."""
    match channel.offsets:
        case ZooKeeperOffsetsConfig():
            return MovedOffsets(nodes, kafka)
        case KafkaOffsetsConfig():
            return MovedOffsets(kafka, nodes, nodes.drop)


def transactional_prefix(channel: ChannelConfig, member: str) -> str | None:
    """Return how the ids of a member's producers begin; None where it has none.

    It has one for its offsets or for its results; the configuration refuses both.
    """
    match channel.offsets:
        case KafkaOffsetsConfig(fencing="transactions"):
            pass
        case _ if not sink_is_fenced(channel):
            return None
    return f"{producer_prefix(channel.group)}{member}"


def sink_is_fenced(channel: ChannelConfig) -> bool:
    """Return whether the next owner has to shut out what a former one still writes to the sink.

    Other sinks refuse it by the offsets they keep, or take it twice.
    """
    if channel.processor.writes_records:
        return True
    sinks = single_sinks(channel.sink).values()
    return any(sink.writes_records for sink in sinks)
