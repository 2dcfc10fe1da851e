"""Looking whether something can be reached before what runs is given up for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import UnknownTopicError
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.clients import client_properties
from headrace.zookeeper.factory import session_settings
from headrace.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from headrace.clock import Deadline
    from headrace.config import ChannelConfig, KafkaConfig, ZooKeeperConfig


def require_topics(
    kafka: KafkaConfig, name: str, channel: ChannelConfig, deadline: Deadline
) -> None:
    """Look for the topics that a channel names. Blocks until the deadline at most.

    Raises:
        KafkaUnavailableError: no broker answers.
        UnknownTopicError: one of them does not exist.
    """
    named = channel.subscription.names
    catalog = KafkaTopicCatalog(client_properties(kafka), channel.group)
    try:
        catalog.cluster_id(deadline)
        missing = sorted(set(named) - catalog.describe(named, deadline).keys())
    finally:
        catalog.close()
    if missing:
        raise UnknownTopicError(
            f"channel {name}: no topic {', '.join(missing)} on the broker; create it, or correct "
            f"channels.{name}.topics"
        )


def require_session(zookeeper: ZooKeeperConfig, deadline: Deadline) -> None:
    """Open a session and end it again. Blocks, for ``connect_timeout`` at most.

    Raises:
        ZooKeeperUnavailableError: no server lets us in.
        ZooKeeperAccessError: the servers deny the chroot to us.
    """
    session = ZooKeeperSession(session_settings(zookeeper))
    try:
        session.start()
    finally:
        session.close(deadline)
