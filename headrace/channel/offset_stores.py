"""From a channel's ``offsets`` to its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.channel.moved_offsets import MovedOffsets
from headrace.config import (
    KafkaOffsetsConfig,
    KafkaSinkConfig,
    ZooKeeperOffsetsConfig,
    single_sinks,
)
from headrace.coordinators.layout import producer_prefix
from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.kafka import KafkaOffsetStore, TransactionalOffsetStore
from headrace.kafka.results import sink_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.clock import Clock
    from headrace.config import ChannelConfig
    from headrace.kafka.ports import OffsetStore
    from headrace.zookeeper.protocol import Session


def open_offset_store(
    channel: ChannelConfig, client_properties: Mapping[str, Any], session: Session, clock: Clock
) -> OffsetStore:
    """Open the store that the channel's offsets are in, on a Kafka client of its own.

    Offsets are found wherever they were kept before, and move with the first commit. The session
    is the process's and stays open when the store is closed.
    """
    nodes = ZooKeeperOffsetStore(session, channel.group, clock)
    match channel.offsets:
        case KafkaOffsetsConfig(fencing="transactions"):
            kafka: OffsetStore = TransactionalOffsetStore(client_properties, channel.group)
        case _:
            produced_in = sink_group(channel.group) if sink_is_fenced(channel) else None
            kafka = KafkaOffsetStore(client_properties, channel.group, produced_in=produced_in)
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
    """Whether the next owner has to shut out what a former one still writes to the sink.

    Other sinks refuse it by the offsets they keep, or take it twice.
    """
    sinks = single_sinks(channel.sink).values()
    return any(isinstance(sink, KafkaSinkConfig) for sink in sinks)
