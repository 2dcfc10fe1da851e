"""Looking at a channel's group: the clients, and what becomes of their errors."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from headrace.clock import SYSTEM_CLOCK
from headrace.coordinators.group_nodes import read_nodes
from headrace.errors import ConfigError, HeadraceError
from headrace.groups.comparing import Seen, compare
from headrace.groups.positions import PositionReader
from headrace.kafka import KafkaOffsetStore, KafkaTopicCatalog
from headrace.kafka.clients import client_properties
from headrace.offsets.keepers import Keeping, keeping_of
from headrace.offsets.reading import Reader
from headrace.zookeeper.factory import session_settings
from headrace.zookeeper.reading import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.config import Config
    from headrace.groups.report import GroupReport
    from headrace.kafka.ports import OffsetStore, TopicCatalog
    from headrace.zookeeper.reading import NodeReader

T = TypeVar("T")


@contextmanager
def lookout(config: Config) -> Iterator[Lookout]:
    """Look at the groups of a configuration, as often as wanted, and close all clients then."""
    with ExitStack() as stack:
        yield Lookout(config, stack)


class Lookout:
    """The clients for looking. Used by one thread.

    They are opened when they are first needed, tried again at the next look where they were
    refused, and closed with ``stack``.
    """

    def __init__(self, config: Config, stack: ExitStack) -> None:
        self._config = config
        self._stack = stack
        self._nodes: NodeReader | None = None
        self._kafka: dict[str, tuple[TopicCatalog, OffsetStore]] = {}
        self._keepings: dict[str, Keeping] = {}

    def look(self, name: str) -> GroupReport:
        """Return what there is to see of one channel. Blocks; every question has a deadline.

        What does not answer is named in the report, which has the rest.

        Raises:
            ConfigError: something named in the configuration cannot be used.
        """
        channel = self._config.channels[name]
        errors: list[str] = []
        keeping = _tried(lambda: self._keeping(name), errors) or Keeping()
        reader = self._reader(name, keeping)
        found = _tried(lambda: reader.topics(channel.subscription), errors)
        own = channel.subscription.names if found is None else found
        nodes = _tried(lambda: read_nodes(self._zookeeper(), channel.group, own), errors)
        topics = {*own, *(() if nodes is None else nodes.topics)}
        positions = None
        if found is not None:
            asked = PositionReader(reader, channel.group, SYSTEM_CLOCK)
            positions = _tried(lambda: asked.read(topics), errors)
        fruitless = () if found is None else channel.subscription.fruitless(found)
        notes = [f"no topic on the brokers matches {pattern}" for pattern in fruitless]
        if keeping.out_of_reach is not None:
            notes.append(_out_of_reach(keeping.out_of_reach))
        seen = Seen(nodes, positions, tuple(errors), tuple(notes))
        return compare(name, channel.group, own, seen, SYSTEM_CLOCK.time())

    def _zookeeper(self) -> NodeReader:
        if self._nodes is None:
            settings = session_settings(self._config.zookeeper)
            self._nodes = self._stack.enter_context(reading(settings))
        return self._nodes

    def _keeping(self, name: str) -> Keeping:
        if name not in self._keepings:
            channel = self._config.channels[name]
            self._keepings[name] = keeping_of(channel, self._config.python_path, self._config.kafka)
        return self._keepings[name]

    def _reader(self, name: str, keeping: Keeping) -> Reader:
        group = self._config.channels[name].group
        if name not in self._kafka:
            properties = client_properties(self._config.kafka)
            catalog = KafkaTopicCatalog(properties, group)
            self._stack.callback(catalog.close)
            store = KafkaOffsetStore(properties, group)
            self._stack.callback(store.close)
            self._kafka[name] = catalog, store
        return Reader(*self._kafka[name], keeping.keeper, SYSTEM_CLOCK)


def _out_of_reach(code: str) -> str:
    return (
        f"the {code} keeps offsets of its own, which win at the start and cannot be seen from here"
    )


def _tried(read: Callable[[], T], errors: list[str]) -> T | None:
    """Return what was read, or None and the reason among ``errors``."""
    try:
        return read()
    except ConfigError:
        raise
    except HeadraceError as error:
        errors.append(str(error))
        return None
