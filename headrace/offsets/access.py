"""The clients that a command needs for one channel, opened together and closed together."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.channel.offset_stores import open_offset_store
from headrace.clock import SYSTEM_CLOCK, Deadline
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.clients import client_properties
from headrace.kafka.groups import subscribers
from headrace.offsets.changing import Group
from headrace.offsets.keepers import Keeping, keeping_of
from headrace.offsets.reading import ANSWER_TIMEOUT, Reader
from headrace.zookeeper.factory import session_settings
from headrace.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import ChannelConfig, Config

#: Seconds in which ZooKeeper has to confirm the end of the session.
_CLOSE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Access:
    """What there is to read and change of one channel."""

    channel: ChannelConfig
    keeping: Keeping
    reader: Reader
    group: Group


@contextmanager
def access(config: Config, channel: ChannelConfig) -> Iterator[Access]:
    """Open the clients of one channel. Blocks until ZooKeeper answered, or for its time-out.

    Raises:
        ConfigError: something named in the configuration cannot be used.
        StartError: the processor cannot be imported, or ZooKeeper does not answer.
    """
    keeping = keeping_of(channel, config.python_path, config.kafka)
    properties = client_properties(config.kafka)
    catalog = KafkaTopicCatalog(properties, channel.group)
    with ExitStack() as stack:
        stack.callback(catalog.close)
        session = stack.enter_context(_session(config))
        store = open_offset_store(channel, properties, session, SYSTEM_CLOCK)
        stack.callback(store.close)
        group = Group(
            channel=channel,
            session=session,
            store=store,
            keeper=keeping.keeper,
            subscribers=lambda: subscribers(
                properties, channel.group, Deadline.after(ANSWER_TIMEOUT)
            ),
            clock=SYSTEM_CLOCK,
        )
        reader = Reader(catalog, store, keeping.keeper, SYSTEM_CLOCK)
        yield Access(channel, keeping, reader, group)


@contextmanager
def _session(config: Config) -> Iterator[ZooKeeperSession]:
    """Connect without the daemon's stored credentials: they belong to its own session."""
    session = ZooKeeperSession(session_settings(config.zookeeper))
    session.start()
    try:
        yield session
    finally:
        session.close(Deadline.after(_CLOSE_TIMEOUT))
