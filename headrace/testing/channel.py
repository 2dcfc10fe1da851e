"""A whole channel in memory: real threads and rules, no server."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any

from headrace.channel.channel import InboundKafkaChannel
from headrace.channel.offset_stores import arranged, transactional_prefix
from headrace.channel.runtime import ChannelPorts
from headrace.config import ChannelConfig
from headrace.coordinators.begun_topics import BegunTopics
from headrace.coordinators.coordinator import build_coordinator
from headrace.coordinators.offset_nodes import ZooKeeperOffsetStore
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.letter_headers import read_letter
from headrace.core.spans import NO_TRACER
from headrace.kafka.errors import ProduceError
from headrace.kafka.ports import DeadLetter, NoDeadLetters
from headrace.telemetry.metrics import Metrics
from headrace.testing.zookeeper import InMemoryRegistry, InMemoryZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.channel.bounds import Until
    from headrace.channel.pauses import PauseFile
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.rebalance import Listener
    from headrace.core.records import TopicPartition
    from headrace.core.result_columns import ResultColumns
    from headrace.core.spans import Tracer
    from headrace.kafka.ports import DeadLetterStore, OffsetStore, RecordSource, TopicCatalog
    from headrace.processors import BatchProcessor
    from headrace.testing.broker import InMemoryBroker
    from headrace.testing.zookeeper import InMemorySession


#: What a test wants where a service wants patience; any setting may be given instead.
QUICK: dict[str, Any] = {
    "topics": ["events"],
    "group": "group",
    "processor": {"type": "custom", "factory": "memory:processor"},
    "coordinator": {"type": "dynamic", "rebalance_delay": "10ms", "resync_interval": "100ms"},
    "batch": {"max_records": 10, "linger": 0},
    "commit_interval": 0,
    "idle_time": "1h",
    "retry": {"backoff": "1ms", "max_backoff": "10ms"},
}

#: Seconds that a start and a stop may take.
PATIENCE = 10.0


def in_memory_channel(
    processor: BatchProcessor,
    broker: InMemoryBroker,
    /,
    *,
    zookeeper: InMemoryZooKeeper | None = None,
    session: InMemorySession | None = None,
    member: str = "member",
    metrics: Metrics | None = None,
    on_failure: Callable[[InboundKafkaChannel, BaseException], None] | None = None,
    until: Until | None = None,
    pauses: PauseFile | None = None,
    tracer: Tracer = NO_TRACER,
    dead_letters: DeadLetterStore | None = None,
    record_source: RecordSource | None = None,
    offset_store: OffsetStore | None = None,
    topic_catalog: TopicCatalog | None = None,
    holder: Callable[[TopicPartition], str] = str,
    **settings: Any,
) -> InboundKafkaChannel:
    """Build a channel on a broker in memory; ``settings`` are fields of a ChannelConfig.

    Members of one group share ``zookeeper``. A test that cuts a member off keeps its ``session``;
    one that has a broker answer in another way hands in a double of its own.
    """
    config = ChannelConfig.model_validate({**QUICK, **settings})
    ports = in_memory_ports(
        config,
        broker,
        zookeeper or InMemoryZooKeeper(),
        member,
        session=session,
        pauses=pauses,
        tracer=tracer,
        dead_letters=dead_letters,
        record_source=record_source,
        offset_store=offset_store,
        topic_catalog=topic_catalog,
        holder=holder,
    )
    return InboundKafkaChannel(
        member,
        config,
        processor,
        ports,
        metrics=metrics or Metrics(),
        on_failure=on_failure,
        until=until,
    )


def in_memory_ports(
    config: ChannelConfig,
    broker: InMemoryBroker,
    zookeeper: InMemoryZooKeeper,
    member: str,
    *,
    session: InMemorySession | None = None,
    pauses: PauseFile | None = None,
    tracer: Tracer = NO_TRACER,
    dead_letters: DeadLetterStore | None = None,
    record_source: RecordSource | None = None,
    offset_store: OffsetStore | None = None,
    topic_catalog: TopicCatalog | None = None,
    holder: Callable[[TopicPartition], str] = str,
) -> ChannelPorts:
    """Build what connects a channel to a broker and a ZooKeeper in memory.

    ``record_source``, ``offset_store`` and ``topic_catalog`` take the place of the broker's own.
    """
    registry = InMemoryRegistry(
        zookeeper,
        config.group,
        member,
        session=session,
        transactional_prefix=transactional_prefix(config, member),
    )
    nodes = ZooKeeperOffsetStore(registry.session, config.group)

    def coordinator(listener: Listener) -> Coordinator:
        return build_coordinator(config, registry, listener, SYSTEM_CLOCK)

    return ChannelPorts(
        source=record_source or broker.source(),
        store=arranged(config, offset_store or broker.store(config.group), nodes),
        catalog=topic_catalog or broker.catalog(),
        coordinator=coordinator,
        begun=BegunTopics(registry.session, config.group),
        holder=holder,
        pauses=pauses,
        tracer=tracer,
        dead_letters=dead_letters or NoDeadLetters(),
    )


@contextmanager
def running(channel: InboundKafkaChannel) -> Iterator[InboundKafkaChannel]:
    """Start a channel and stop it at the end, whatever happens in between."""
    channel.start(Deadline.after(PATIENCE))
    try:
        yield channel
    finally:
        channel.stop(Deadline.after(PATIENCE))


class FakeClock:
    """A ``Clock`` that stands still until it is told to advance. Safe on any thread."""

    def __init__(self, start: float = 1000.0) -> None:
        self._lock = Lock()
        self._now = start

    def monotonic(self) -> float:
        with self._lock:
            return self._now

    def time(self) -> float:
        """Return the seconds as told: both clocks are one."""
        return self.monotonic()

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        with self._lock:
            self._now += seconds


class InMemoryDeadLetters:
    """Keeps what is put into dead-letter topics, in order. Any thread.

    ``refuse`` makes it fail, as when no broker can be reached.
    """

    def __init__(self) -> None:
        self.letters: list[tuple[str, DeadLetter]] = []
        self.refuse: str | None = None
        self.closed = False
        self._changed = Condition()

    def store(self, topic: str, letter: DeadLetter, patience: float) -> None:
        del patience
        self._keep(topic, [letter])

    def store_all(self, letters: ResultColumns, patience: float) -> None:
        del patience
        found = [DeadLetter(each.key, each.value, each.headers or []) for each in letters]
        self._keep(letters.topic, found)

    def _keep(self, topic: str, letters: Sequence[DeadLetter]) -> None:
        with self._changed:
            if self.refuse is not None:
                raise ProduceError(self.refuse)
            self.letters.extend((topic, letter) for letter in letters)
            self._changed.notify_all()

    def said(self, name: str) -> list[str]:
        """Return what the records kept say, by the name that our header has without its prefix."""
        return [read_letter(letter.headers).get(name, "") for _, letter in self.letters]

    def close(self) -> None:
        self.closed = True
