"""What a channel's group has stored, asked from the broker by another client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.clock import Deadline
from headrace.kafka import KafkaOffsetStore
from headrace.kafka.clients import client_properties
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.config import Config


def committed(config: Config, partitions: Iterable[int]) -> dict[int, int | None]:
    """Return the offset that the group of channel ``bench`` has stored for each partition."""
    channel = config.channels["bench"]
    store = KafkaOffsetStore(client_properties(config.kafka), channel.group)
    try:
        stored = {
            number: store.read(TopicPartition(channel.topics[0], number), Deadline.after(10))
            for number in partitions
        }
    finally:
        store.close()
    return {number: found.offset if found else None for number, found in stored.items()}
