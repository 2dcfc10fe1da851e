"""Channels on real servers: a group of its own for each test, and a processor that keeps notes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition, offset_of
from headrace.devstack.wait import wait_for
from headrace.kafka import KafkaOffsetStore
from headrace.processors import BatchProcessor, BatchResponse
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings
from tests.brokers import stored_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from headrace.channel.channel import InboundKafkaChannel
    from headrace.config import Config
    from headrace.core.records import Assignment, Batch
    from headrace.kafka.ports import StoredOffset
    from tests.brokers import Broker

#: Seconds after which a test gives up.
WAIT = 30.0

#: The one channel of each controller.
CHANNEL = "main"

#: What a test wants where a service wants patience.
QUICK: dict[str, Any] = {
    "processor": {"type": "custom", "factory": "memory:processor"},
    "coordinator": {"type": "dynamic", "rebalance_delay": "50ms", "resync_interval": "1s"},
    "batch": {"max_records": 100, "linger": 0},
    "commit_interval": "50ms",
    "idle_time": "1h",
    "retry": {"backoff": "10ms", "max_backoff": "100ms"},
}


class Notes(BatchProcessor):
    """Notes what it is told; ``answer`` and ``on_error`` decide what it says.

    ``under`` has, by partition and offset, the epoch under which a record came last.
    """

    def __init__(
        self,
        answer: Callable[[Batch], BatchResponse | Future[BatchResponse]] = lambda _: (
            BatchResponse.advance()
        ),
        on_error: Callable[[BaseException], BatchResponse | None] = lambda _: None,
    ) -> None:
        self._answer = answer
        self._on_error = on_error
        self.records: dict[TopicPartition, list[int]] = defaultdict(list)
        self.values: Counter[bytes | None] = Counter()
        self.callbacks: dict[TopicPartition, list[str]] = defaultdict(list)
        self.epochs: dict[TopicPartition, list[int]] = defaultdict(list)
        self.under: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        self.errors: list[BaseException] = []
        self._changed = Condition()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so that a callback makes so."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT), f"in vain; saw {dict(self.callbacks)}"

    def wait_values(self, count: int) -> None:
        """Wait until so many records were delivered."""
        self.wait(lambda: self.values.total() >= count)

    @property
    def assigned(self) -> set[TopicPartition]:
        """Return the partitions that are assigned and have not ended."""
        ends = {"terminated", "lost"}
        return {p for p, calls in self.callbacks.items() if calls and calls[-1] not in ends}

    def _note(self, partition: TopicPartition, name: str) -> None:
        with self._changed:
            self.callbacks[partition].append(name)
            self._changed.notify_all()

    def on_assigned(self, assignment: Assignment) -> None:
        """Note it with the claim's epoch."""
        self.epochs[assignment.partition].append(assignment.epoch)
        self._note(assignment.partition, "assigned")

    def on_next_batch(self, batch: Batch) -> BatchResponse | Future[BatchResponse]:
        """Note the records, then answer."""
        with self._changed:
            offsets = [offset_of(record) for record in batch.records]
            self.records[batch.partition] += offsets
            self.under[batch.partition] |= dict.fromkeys(offsets, batch.assignment.epoch)
            self.values.update(record.value() for record in batch.records)
            self._changed.notify_all()
        self._note(batch.partition, "batch")
        return self._answer(batch)

    def on_batch_processed(self, batch: Batch) -> None:
        """Note it."""
        self._note(batch.partition, "processed")

    def on_exception(
        self, assignment: Assignment, error: BaseException, batch: Batch | None
    ) -> BatchResponse | None:
        """Note the error, then answer."""
        del batch
        self.errors.append(error)
        self._note(assignment.partition, type(error).__name__)
        return self._on_error(error)

    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        """Note it."""
        self._note(assignment.partition, "terminated")
        return None

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Note it."""
        self._note(assignment.partition, "lost")


@dataclass
class Group:
    """A group with a topic of its own on servers that others use as well."""

    broker: Broker
    zookeeper_hosts: str
    directory: Path
    topic: str
    name: str = field(default_factory=lambda: f"group.{uuid4().hex[:12]}")
    session_timeout: float = 10.0

    def __post_init__(self) -> None:
        self.store = KafkaOffsetStore({"bootstrap.servers": self.broker.address}, self.name)

    def close(self) -> None:
        """Release the client that reads the group's offsets."""
        self.store.close()

    def partition(self, number: int = 0) -> TopicPartition:
        """Return a partition of the topic."""
        return TopicPartition(self.topic, number)

    def produce(self, count: int, *numbers: int, start: int = 0) -> None:
        """Append ``count`` records to each partition; all values are different."""
        for number in numbers or (0,):
            values = [b"%d-%d" % (number, n) for n in range(start, start + count)]
            self.broker.produce(self.partition(number), *values)

    def document(self, member: str, **settings: Any) -> dict[str, Any]:
        """Return the configuration of a member; ``settings`` are its channel's."""
        channel = {**QUICK, "topics": [self.topic], "group": self.name, **settings}
        return {
            "instance_id": member,
            "state_dir": str(self.directory / "state"),
            "shutdown_timeout": f"{WAIT}s",
            "kafka": {"bootstrap_servers": self.broker.address},
            "zookeeper": {
                "hosts": self.zookeeper_hosts,
                "session_timeout": f"{self.session_timeout}s",
            },
            "metrics": {"port": None},
            "channels": {CHANNEL: channel},
        }

    def file(self, member: str, document: dict[str, Any]) -> Path:
        """Write a configuration."""
        path = self.directory / f"{member}.yaml"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def config(self, member: str, **settings: Any) -> Config:
        """Return the configuration of a member."""
        return load(self.file(member, self.document(member, **settings)))

    def controller(
        self, processor: BatchProcessor, member: str = "a", **settings: Any
    ) -> KafkaController:
        """Return a controller that was not started."""
        config = self.config(member, **settings)
        return KafkaController(config, processors={CHANNEL: processor})

    def start(
        self, document: dict[str, Any], processors: dict[str, BatchProcessor]
    ) -> KafkaController:
        """Start a controller of any configuration."""
        config = load(self.file("any", document))
        controller = KafkaController(config, processors=processors)
        controller.start(Deadline.after(WAIT))
        return controller

    @contextmanager
    def running(
        self, processor: BatchProcessor, member: str = "a", **settings: Any
    ) -> Iterator[KafkaController]:
        """Run a controller; at the end it has to stop in order."""
        controller = self.controller(processor, member, **settings)
        controller.start(Deadline.after(WAIT))
        try:
            yield controller
        except BaseException:
            controller.stop(Deadline.after(5))
            raise
        assert controller.stop(Deadline.after(WAIT)).left == ()

    def stored(self, *numbers: int) -> list[StoredOffset | None]:
        """Return the group's offsets with their epochs."""
        return [stored_offset(self.store, self.partition(n)) for n in numbers or (0,)]

    def offsets(self, *numbers: int) -> list[int | None]:
        """Return the group's offsets."""
        return [None if s is None else s.offset for s in self.stored(*numbers)]

    @contextmanager
    def zookeeper(self) -> Iterator[ZooKeeperSession]:
        """Open a session beside the members'."""
        session = ZooKeeperSession(ZooKeeperSettings(self.zookeeper_hosts))
        session.start()
        try:
            yield session
        finally:
            assert session.close(Deadline.after(WAIT))

    @property
    def paths(self) -> GroupPaths:
        """Return the paths of the group's nodes."""
        return GroupPaths(self.name)

    def nodes(self) -> dict[str, list[str]]:
        """Return who is in the group and what is owned."""
        with self.zookeeper() as session:
            return {
                path: session.children(path)
                for path in (self.paths.ids, self.paths.owners(self.topic))
                if session.exists(path) is not None
            }


def channel_of(controller: KafkaController) -> InboundKafkaChannel:
    """Return the controller's one channel."""
    return controller.channels[CHANNEL]


def eventually(condition: Callable[[], bool]) -> None:
    """Ask until the answer is yes; for what only the outside can see and nobody announces."""
    assert wait_for(condition, Deadline.after(WAIT))
