"""What a channel's group has stored, asked from the broker by another client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka import KafkaOffsetStore
from headrace.kafka.clients import client_properties
from headrace.kafka.errors import OffsetStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from headrace.config import Config

#: Seconds in which a broker has to answer.
_PATIENCE = 10.0


def committed(config: Config, partitions: Iterable[int]) -> dict[int, int | None]:
    """Return the offset that the group of channel ``bench`` has stored for each partition.

    Raises:
        OffsetStoreError: no answer; one whose coordinator is just being chosen is asked again.
    """
    channel = config.channels["bench"]
    wanted = {TopicPartition(channel.topics[0], number): number for number in partitions}
    store = KafkaOffsetStore(client_properties(config.kafka), channel.group)
    deadline = Deadline.after(_PATIENCE)
    try:
        answered = wait_for(lambda: _answers(store, wanted, deadline), deadline)
        stored = store.read_many(wanted, Deadline.after(_PATIENCE if answered else 0))
    finally:
        store.close()
    offsets = {number: stored.get(partition) for partition, number in wanted.items()}
    return {number: found.offset if found else None for number, found in offsets.items()}


def _answers(
    store: KafkaOffsetStore, partitions: Collection[TopicPartition], deadline: Deadline
) -> bool:
    try:
        store.read_many(partitions, deadline)
    except OffsetStoreError:
        return False
    return True
