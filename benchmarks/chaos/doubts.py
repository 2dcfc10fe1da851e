"""Offsets that nobody can read, because the broker has a transaction in doubt for ever."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import KafkaOffsetStore
from headrace.kafka.errors import OffsetStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds in which what members left open is over: brokers abort it after 15.
PATIENCE = 25.0

#: Seconds in which a broker that answers others does so.
_ANSWER = 2.0


def in_doubt(
    servers: str, group: str, topic: str, partitions: int, patience: float = PATIENCE
) -> frozenset[int]:
    """Return the partitions whose offsets the group cannot read though the broker answers. Blocks.

    Members have to be gone: what they are about to commit is in doubt for a moment.
    """
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    properties = {"bootstrap.servers": servers}
    with closing(KafkaOffsetStore(properties, group, quiet=True)) as store:
        if _are_read(store, wanted, patience):
            return frozenset()
        return frozenset(
            each.partition
            for each in wanted
            if not _are_read(store, [each], _ANSWER)
            and store.answers(each, Deadline.after(_ANSWER))
        )


def _are_read(
    store: KafkaOffsetStore, partitions: Iterable[TopicPartition], patience: float
) -> bool:
    try:
        store.read_many(list(partitions), Deadline.after(patience))
    except OffsetStoreError:
        return False
    return True
