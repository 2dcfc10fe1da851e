"""The ``offsets`` of a channel: where they are kept, and what keeps former owners from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.model.base import Cold, Section


class KafkaOffsetsConfig(Section):
    """The group's offsets in Kafka, where lag tools see them."""

    type: Cold[Literal["kafka"]] = "kafka"
    """This store."""

    fencing: Cold[Literal["metadata", "transactions"]] = "metadata"
    """What becomes of a former owner's late commit: found and mended by the epoch in its
    metadata, or refused by the brokers, which takes rights on transactional ids."""


class ZooKeeperOffsetsConfig(Section):
    """Nodes in ZooKeeper, which refuse a former owner's late write."""

    type: Cold[Literal["zookeeper"]] = "zookeeper"
    """This store."""


OffsetsConfig = Annotated[
    KafkaOffsetsConfig | ZooKeeperOffsetsConfig,
    Field(discriminator="type"),
]
