"""A controller whose servers are in memory, and the file that it is to follow."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from headrace.channel.channel import InboundKafkaChannel
from headrace.config import load
from headrace.controller.controller import KafkaController
from headrace.controller.reload import Reloader
from headrace.core.clock import Deadline
from headrace.processors import BatchResponse
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker, InMemoryZooKeeper, in_memory_ports
from headrace.zookeeper.protocol import SessionState
from tests.unit.channel.in_memory import P0, values
from tests.unit.channel.recorder import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from headrace.channel.bounds import Until
    from headrace.config import ChannelConfig, Config, KafkaConfig, ZooKeeperConfig
    from headrace.controller.reports import ReloadReport
    from headrace.core.records import Batch, TopicPartition
    from headrace.extensions.spark.settings import SparkSettings
    from headrace.processors import BatchProcessor

#: One channel, as a file has it, that loses no time.
CHANNEL: dict[str, Any] = {
    "topics": ["events"],
    "group": "main",
    "processor": {"type": "custom", "factory": "memory:processor"},
    "coordinator": {"type": "dynamic", "rebalance_delay": "10ms", "resync_interval": "100ms"},
    "batch": {"max_records": 10, "linger": "0s"},
    "commit_interval": "0s",
}


def soon() -> Deadline:
    """Return when a test gives up."""
    return Deadline.after(PATIENCE)


class World:
    """The servers and the file, and what went wrong with them."""

    def __init__(self, folder: Path, until: Until | None = None, **values: Any) -> None:
        self.file = folder / "headrace.yaml"
        self.broker = InMemoryBroker()
        self.zookeeper = InMemoryZooKeeper()
        self.recorders: dict[str, list[Recorder]] = {}
        #: The section that each channel's processor was built with last.
        self.connected: dict[str, KafkaConfig] = {}
        self.broken: dict[str, Exception] = {}
        self.session_state = SessionState.CONNECTED
        self.answer: Callable[[Batch], object] = lambda _: BatchResponse.advance()
        self.values: dict[str, Any] = {
            "instance_id": "member",
            "state_dir": str(folder / "state"),
            "reload": {"watch": False},
            "channels": {"main": dict(CHANNEL)},
            **values,
        }
        for topic in ("events", "others"):
            self.broker.create_topic(topic, 2)
        self.write()
        self.controller = _Controller(self, load(self.file), until)
        self.reloader = Reloader(self.file, self.controller)

    def write(self, **values: Any) -> None:
        """Write the file, with ``values`` over those it had."""
        self.values.update(values)
        self.file.write_text(yaml.safe_dump(self.values), encoding="utf-8")

    def channel(self, name: str = "main", **fields: Any) -> None:
        """Write the file with ``fields`` over those of a channel, which is added where missing."""
        channels = dict(self.values["channels"])
        channels[name] = {**channels.get(name, {**CHANNEL, "group": name}), **fields}
        self.write(channels=channels)

    def without(self, name: str) -> None:
        """Write the file without a channel."""
        self.write(channels={n: c for n, c in self.values["channels"].items() if n != name})

    def reload(self) -> ReloadReport:
        """Read the file and apply it."""
        return self.reloader.reload("test", soon())

    def pending(self) -> dict[str, str]:
        """Return what is pending, with the reasons."""
        return {p.change.path: p.reason for p in self.reloader.config_status().pending}

    def recorder(self, name: str = "main") -> Recorder:
        """Return the newest processor of a channel."""
        return self.recorders[name][-1]


def delivers(world: World, group: str = "main", partition: TopicPartition = P0) -> None:
    """Assert that the group gets what is produced now."""
    end = world.broker.produce(partition, *values(3))
    assert world.broker.wait_committed(group, partition, end, soon())


class _Session:
    """Stand for a session, with the calls that the controller makes."""

    def __init__(self, world: World, hosts: tuple[str, ...]) -> None:
        self._world = world
        self.hosts = hosts
        self.closed = False
        self.lingers = False

    @property
    def state(self) -> SessionState:
        return self._world.session_state

    def start(self) -> None:
        _break(self._world, "zookeeper")

    def close(self, deadline: Deadline) -> bool:
        self.closed = not deadline.expired
        return True


class _Controller(KafkaController):
    """Builds channels and processors in memory."""

    def __init__(self, world: World, config: Config, until: Until | None) -> None:
        super().__init__(config, metrics=Metrics(), until=until)
        self._world = world
        self.session = _Session(world, config.zookeeper.hosts)  # type: ignore[assignment]  # a double
        self.spark_settings: list[SparkSettings] = []

    def processor(
        self, name: str, channel: ChannelConfig, desired: Config | None = None
    ) -> BatchProcessor:
        del channel
        _break(self._world, f"processor {name}")
        self._world.connected[name] = (desired or self.config).kafka
        return Recorder(self._world.answer)

    def replace_session(self, zookeeper: ZooKeeperConfig, deadline: Deadline) -> None:
        self.session.close(deadline)
        self.session = _Session(self._world, zookeeper.hosts)  # type: ignore[assignment]  # a double
        self.session.start()

    def replace_spark(self, settings: SparkSettings, deadline: Deadline) -> bool:
        del deadline
        _break(self._world, "spark")
        self.spark_settings.append(settings)
        return "spark is busy" not in self._world.broken

    def _build(
        self, name: str, channel: ChannelConfig, processor: BatchProcessor
    ) -> InboundKafkaChannel:
        _break(self._world, f"channel {name} {channel.group}")
        assert isinstance(processor, Recorder)
        self._world.recorders.setdefault(name, []).append(processor)
        ports = in_memory_ports(channel, self._world.broker, self._world.zookeeper, "member")
        return InboundKafkaChannel(
            name, channel, processor, ports, metrics=self.metrics, skips=self.skips(name)
        )


def _break(world: World, what: str) -> None:
    if what in world.broken:
        raise world.broken[what]


@contextmanager
def running_world(
    folder: Path,
    patch: pytest.MonkeyPatch,
    before_reloads: Callable[[World], None] = lambda _: None,
    **values: Any,
) -> Iterator[World]:
    """Run the controller and its reloader on a file with ``values``; stop both at the end."""
    world = World(folder, **values)
    patch.setattr(
        "headrace.controller.reload.require_topics",
        lambda _kafka, name, _channel, _deadline: _break(world, f"topics {name}"),
    )
    patch.setattr(
        "headrace.controller.reload.require_session",
        lambda _zookeeper, _deadline: _break(world, "new zookeeper"),
    )
    world.controller.start(soon())
    before_reloads(world)
    world.reloader.start()
    try:
        yield world
    finally:
        assert world.reloader.stop(soon())
        assert world.controller.stop(soon()).clean
