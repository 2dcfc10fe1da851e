"""The whole file."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from headrace.config.derived import expanded
from headrace.config.errors import FieldConflict, origin_of
from headrace.config.models.admin import (
    AdminConfig,
    LogsOtlpConfig,
    MetricsOtlpConfig,
    TracingConfig,
)
from headrace.config.models.base import (
    Fixed,
    Hot,
    Rebuilds,
    Reconnects,
    Restarts,
    Section,
    derived,
    unset,
)
from headrace.config.models.channel import ChannelConfig
from headrace.config.models.kafka import KafkaConfig, unknown_to_java
from headrace.config.models.processor import SparkConfig
from headrace.config.models.registry import RegistryConfig
from headrace.config.models.sink import single_sinks
from headrace.config.models.topology import TOPOLOGY, TopologySection, with_channels
from headrace.config.models.zookeeper import ZooKeeperConfig
from headrace.config.types.scalars import Flag, FreeText, LocalPath, Name, OneOrMore, Port
from headrace.config.types.units import Duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.errors import Steps


class LoggingConfig(Section):
    """The log of the process."""

    level: Hot[Literal["debug", "info", "warning", "error"]] = "info"
    """The least severity that is logged."""

    format: Fixed[Literal["auto", "json", "console"]] = "auto"
    """One JSON object a line, or columns for people; auto: console on a terminal."""

    otlp: Fixed[LogsOtlpConfig | None] = None
    """A collector that the lines go to as well, by OTLP; null: none."""


class MetricsConfig(Section):
    """Metrics on a port of their own, or sent to a collector; the admin API has them too."""

    host: Fixed[FreeText] = "127.0.0.1"
    """The address to listen on; '::': all of IPv6 and IPv4."""

    port: Fixed[Port | None] = None
    """The port to listen on, by custom 9464; 0: any free one; null: none."""

    otlp: Fixed[MetricsOtlpConfig | None] = None
    """A collector that all metrics are sent to, by OTLP; null: none."""


class ReloadConfig(Section):
    """The watch for configuration changes. SIGHUP has the process look for one at any time."""

    watch: Hot[Flag] = True
    """Apply changes of this file, and of those that ${file:...} names, at once."""

    polling: Hot[Flag] = False
    """Poll the files instead of waiting for the system to report changes: for network file systems,
    which report none."""

    debounce: Hot[Annotated[float, Duration(0.05, 60)]] = 0.5
    """Time that a file has to be left alone until it is read: editors write in several steps."""


class Config(Section):
    """The configuration of one Headrace process."""

    instance_id: Fixed[
        Annotated[Name, derived(lambda info: origin_of(info).instance_id, Name | None)]
    ] = Field(default_factory=unset, validate_default=True)
    """This process's name in its groups, the same across restarts; by default the host's name
    and 8 digits that stand for the file's absolute path."""

    state_dir: Fixed[
        Annotated[LocalPath, derived(lambda info: str(origin_of(info).state_dir), str | None)]
    ] = Field(default_factory=unset, validate_default=True)
    """A folder of the process's own for what outlives it; by default $STATE_DIRECTORY (systemd
    sets it), else $XDG_STATE_HOME/headrace, else ~/.local/state/headrace."""

    shutdown_timeout: Hot[Annotated[float, Duration(1)]] = 30.0
    """Longest time that a stop may take; what still runs then is left unfinished."""

    python_path: Fixed[Annotated[tuple[LocalPath, ...], OneOrMore]] = ()
    """Folders to look in first for processors, reducers and functions."""

    kafka: Reconnects[KafkaConfig] = KafkaConfig()
    """The Kafka cluster."""

    zookeeper: Reconnects[ZooKeeperConfig] = ZooKeeperConfig()
    """The ZooKeeper ensemble."""

    registry: Reconnects[RegistryConfig | None] = None
    """The schema registry, for channels with decode or encode: avro, protobuf or json_schema; null:
    none."""

    spark: Rebuilds[SparkConfig] = SparkConfig()
    """The Spark session."""

    logging: Fixed[LoggingConfig] = LoggingConfig()
    """Logs."""

    admin: Fixed[AdminConfig] = AdminConfig()
    """The admin API."""

    metrics: Fixed[MetricsConfig] = MetricsConfig()
    """Metrics on a port of their own."""

    tracing: Fixed[TracingConfig] = TracingConfig()
    """Traces."""

    reload: Hot[ReloadConfig] = ReloadConfig()
    """Changes of the configuration while the process runs."""

    topologies: Restarts[
        Annotated[
            Mapping[Name, Annotated[TopologySection, TOPOLOGY]], AfterValidator(with_channels)
        ]
    ] = Field(default={})
    """The topologies of streams by their names. Each becomes channels, one for each part between
    two changes of key, which are called TOPOLOGY.PART."""

    channels: Restarts[Annotated[Mapping[Name, ChannelConfig], AfterValidator(expanded)]] = Field(
        default={}, validate_default=True
    )
    """The channels by their names. A keyed one that re-keys has another one before it, which is
    made of it. Without topologies there has to be one at least."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if not self.channels:
            given = "channels" in self.model_fields_set
            said = "an empty mapping is not" if given else "is missing; give"
            yield FieldConflict(("channels",), f"{said} a mapping with at least one entry")
        yield from self._twice()
        yield from self._letters_in_circles()
        yield from self._without_registry()
        reading = [name for name, channel in self.channels.items() if channel.by_reference]
        if reading and self.spark.connector is None:
            yield FieldConflict(
                ("channels", reading[0], "source"),
                "is by_reference, for which Spark needs its Kafka connector; give spark.connector",
            )
        if reading:
            yield from (
                FieldConflict(("kafka", "properties", name), sentence)
                for name in self.kafka.properties
                if (sentence := unknown_to_java(name)) is not None
            )

    def _twice(self) -> Iterator[FieldConflict]:
        """Yield ports that are wanted twice, and channels that would be one member of one group."""
        if self.admin.enabled and self.metrics.port and self.metrics.port == self.admin.port:
            yield FieldConflict(
                ("metrics", "port"),
                f"is {self.metrics.port}, as admin.port, which serves metrics too; leave this out",
            )
        first: dict[str, str] = {}
        for name, channel in self.channels.items():
            if channel.group in first:
                yield FieldConflict(
                    ("channels", name, "group"),
                    f"is {channel.group}, as in channel {first[channel.group]}; a process is one "
                    "member of a group, so give one of them another group, or one channel the "
                    "topics of both",
                )
            first.setdefault(channel.group, name)

    def _without_registry(self) -> Iterator[FieldConflict]:
        """Yield channels that need a schema registry where there is none."""
        if self.registry is not None:
            return
        for name, channel in self.channels.items():
            found: list[tuple[Steps, str]] = []
            chosen = channel.processor
            if chosen.framed is not None:
                key, said = chosen.framed
                found.append((("processor", key), said))
            for steps, sink in single_sinks(channel.sink).items():
                if sink.takes_registry is not None:
                    found.append(
                        ((*steps, sink.takes_registry), getattr(sink, sink.takes_registry))
                    )
            for steps, said in found:
                yield FieldConflict(
                    ("channels", name, *steps),
                    f"is {said}, whose values name their schemas by ids of a registry; "
                    "give registry.url",
                )

    def _letters_in_circles(self) -> Iterator[FieldConflict]:
        """Yield dead letters that channels would hand to each other without end."""
        channels = {name: each for name, each in self.channels.items() if each.enabled}
        named: dict[str, list[str]] = {}
        for name, channel in channels.items():
            for topic in channel.subscription.names:
                named.setdefault(topic, []).append(name)
        patterns = {n: c.subscription for n, c in channels.items() if c.subscription.patterns}
        goes_to: dict[str, list[str]] = {}
        for name, channel in channels.items():
            letters = channel.rejects.topic
            if letters is not None:
                matching = [n for n, each in patterns.items() if each.matches(letters)]
                goes_to[name] = named.get(letters, []) + matching
        try:
            TopologicalSorter(goes_to).prepare()
        except CycleError as circle:
            # from a reader to whose dead letters it reads, and round to the first
            first, *others = reversed(circle.args[1][1:])
            letters = channels[first].rejects.topic
            yield FieldConflict(
                ("channels", first, "rejects", "topic"),
                f"is {letters}, and comes back by way of channel {', '.join(others)}, so "
                "that a record that always fails goes round without end; name a topic that none of "
                "them reads",
            )
