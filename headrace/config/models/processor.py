"""The ``processor`` of a channel: the section that each kind of processor derives its own from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from headrace.config.delivery import DeliveryGuarantee
from headrace.config.errors import FieldConflict
from headrace.config.kind_table import KindTable
from headrace.config.models.base import Hot, OnlyWith, Rebuilds, Restarts, Section
from headrace.config.models.registry import ReaderSchemaConfig
from headrace.config.models.rejects import DeliveredRejects, MicroBatchRejects, RejectsModel
from headrace.config.types.addresses import Connector
from headrace.config.types.scalars import (
    ColumnDecoder,
    Count,
    Flag,
    FreeText,
    PositiveNumber,
    WholeNumber,
)
from headrace.config.types.secrets import Options, Properties, PropertyValue, reveal_all
from headrace.config.types.units import GIB, MIB, Duration, PositiveSeconds, Size
from headrace.core.errors import StartError
from headrace.core.extras import Extra
from headrace.core.imports import load_own
from headrace.core.plugins import PluginKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.config.errors import ConfigProblem, Steps
    from headrace.config.models.channel import ChannelConfig
    from headrace.config.models.kafka import KafkaConfig
    from headrace.config.models.registry import RegistryConfig


_FIELDS = {
    "spark.master": "master",
    "spark.app.name": "app_name",
    "spark.driver.memory": "driver_memory",
}

#: Spark refuses to start below 450 MiB of usable heap, and the collector keeps a part for itself.
_MIN_DRIVER_MEMORY = 512 * MIB


def _refusal(name: str) -> str | None:
    if name in _FIELDS:
        return f"is said by spark.{_FIELDS[name]}; use that field"
    return None if name.startswith("spark.") else "does not begin with 'spark.'"


class SparkConfig(Section):
    """The Spark session that all channels of the process share."""

    master: Rebuilds[FreeText] = "local[*]"
    """The master of Spark: local[cores], or the URL of a cluster."""

    app_name: Rebuilds[FreeText] = "headrace"
    """The application's name in Spark's own pages and logs."""

    driver_memory: Rebuilds[Annotated[int, Size(_MIN_DRIVER_MEMORY)]] = GIB
    """The heap of the driver's Java process; with a local master all work runs in it."""

    connector: Rebuilds[Connector | None] = None
    """Spark's Kafka connector, for channels with source: by_reference. maven: the one that fits
    the installed pyspark, from Maven Central; or a Maven coordinate; or a folder that
    headrace connector fetch has filled. null: none."""

    properties: Rebuilds[Annotated[Mapping[str, PropertyValue], Properties(_refusal)]] = Field(
        default={}
    )
    """Any property of Spark, by its full name."""

    warm_up: Rebuilds[Annotated[int, WholeNumber(0, 1000)]] = 20
    """Small jobs to run before the process is ready: the first ones are several times slower."""

    start_timeout: Rebuilds[Annotated[float, Duration(10, 3600)]] = 120.0
    """Longest time without progress in a session that is not ready yet: its JVM uses no processor
    time, and no job of the warm-up ends. On a cluster that includes the wait for executors. A start
    that works all the time, on a busy machine, may take three times as long, and a service manager
    has to wait longer than that."""

    def session_properties(self) -> dict[str, Any]:
        """Return ``properties`` with the secrets in plain text, for Spark only."""
        return reveal_all(self.properties)


class CustomDecoding(NamedTuple):
    """A decoder of users' own: the import path of its factory, and what that is called with."""

    factory: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> CustomDecoding | None:
        """Return the one that a field names, None where it names a decoding of ours."""
        return cls(name, options) if ":" in name else None

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)


def only_of_decoder(field: str, *ours: str) -> Mapping[str, tuple[OnlyWith, ...]]:
    """Return that ``decoder_options`` exist where a field names a decoder of users' own."""
    own = OnlyWith.none_of(field, *ours, example=f"a decoder of your own as {field}")
    return {"decoder_options": (own,)}


#: Formats whose values name their schemas by ids of a registry, and those with a reader's schema.
FRAMED = ("avro", "protobuf", "json_schema")
READER = FRAMED[:2]


def reader_conflicts(
    field: str, chosen: str, schema: ReaderSchemaConfig | None
) -> Iterator[FieldConflict]:
    """Yield why values of a format cannot be read by a schema; ``field`` names the format."""
    if chosen in READER and schema is None:
        yield FieldConflict(
            ("reader_schema",),
            f"is missing; {field}: {chosen} needs the schema to read by, as in "
            "reader_schema: {subject: orders-value}",
        )
    named = None if schema is None else schema.message
    if chosen == "avro" and named is not None:
        yield FieldConflict(
            ("reader_schema", "message"),
            f"is {named}, and exists only with {field}: protobuf; leave it out",
        )


@dataclass(frozen=True, slots=True)
class ProcessorSite:
    """The channel that a processor is built for, and what the process has for it.

    ``member`` is the name of this member, ``kafka`` the cluster that the channel reads, ``state``
    the folder of the channel's own, None where it may leave nothing. ``spark`` returns the Spark
    session that all channels share, started with the first call. ``registry`` has the schemas of
    values, None where there is none.
    """

    channel: ChannelConfig
    member: str
    kafka: KafkaConfig
    state: Path | None
    spark: Callable[[], Any]
    registry: RegistryConfig | None = None


@dataclass(frozen=True, slots=True)
class TopicByKey:
    """A topic that a processor writes records of other topics to, by another key.

    ``sources`` are those topics, as far as they are named. It has ``partitions``, None: as many as
    the largest of them. ``create``: whether the start of the channel creates it;
    ``replication_factor`` None: the brokers' default. ``settings`` are those that it has to have.
    """

    name: str
    sources: tuple[str, ...]
    create: bool
    replication_factor: int | None
    partitions: int | None
    settings: Mapping[str, str]


class ProcessorConfig(Section):
    """A kind of processor: its fields, and the answers that Headrace needs about it.

    A class derives from it, gives ``type`` a default, which is the name of the kind, overrides
    ``build`` or names a ``builder``, and overrides those answers that are not right for it. Reading
    the configuration imports the class; a heavy library is imported in ``build``.
    """

    rejects_section: ClassVar[RejectsModel] = DeliveredRejects
    """The model of ``rejects`` in a channel with such a processor."""

    fitting_sinks: ClassVar[tuple[str, ...] | None] = ()
    """The types of sinks that fit; None: each that takes results."""

    needs_sink: ClassVar[bool] = True
    """True if there has to be a sink, where some fit."""

    reads_by_reference: ClassVar[bool] = False
    """True if it can be handed ranges of offsets in place of records."""

    writes_records: ClassVar[bool] = False
    """True if it writes by itself to the cluster that is read, in the member's transactions."""

    together: ClassVar[bool] = False
    """True if its channel works in tasks: partition i of each of its topics goes to one member, as
    they belong together."""

    builder: ClassVar[str] = ""
    """The import path of a function ``build(section, site)``, which ``build`` calls."""

    type: Restarts[str]
    """The kind of processor."""

    reload: Hot[Flag] = False
    """Start the channel again with changed code when files of its package change."""

    def build(self, site: ProcessorSite) -> object:
        """Return a new ``headrace.BatchProcessor``.

        Called once for each start of the channel, in the thread that starts it.

        Raises:
            ConfigError: a value cannot be used.
            StartError: a library is missing, or what the section names cannot be imported.
        """
        try:
            build = load_own(self.builder)
        except ImportError as error:
            lacking = next((extra for _, extra in self.extras if not extra.installed), None)
            if lacking is None:
                raise
            user = f"the {self.type} processor of group {site.channel.group}"
            raise StartError(f"{user} {lacking.advice} ({error})") from error
        built: object = build(self, site)
        return built

    @property
    def on_spark(self) -> bool:
        """Return whether it runs in the Spark session that all channels share."""
        return False

    @property
    def rate_limit(self) -> float | None:
        """Return the most records a second that this member takes; None: no limit."""
        return None

    @property
    def decoder(self) -> CustomDecoding | None:
        """Return the decoder of users' own, None where the decoding is one of ours."""
        return None

    @property
    def framed(self) -> tuple[str, str] | None:
        """Return the key that says how values are read, and the format, one of :data:`FRAMED`.

        None: values do not name their schemas.
        """
        return None

    @property
    def reads_by(self) -> ReaderSchemaConfig | None:
        """Return the reader's schema, None where there is none."""
        return None

    @property
    def code_paths(self) -> tuple[str, ...]:
        """Return the import paths of users' code other than the decoder's, for reloads."""
        return ()

    def called(self, channel: ChannelConfig) -> tuple[str, tuple[str, ...]] | None:
        """Return the import path that is called, and the names of its arguments where known."""
        del channel
        return None

    @property
    def makes_one_result(self) -> str | None:
        """Return the key by which it cannot make several results; None: it can."""
        return None

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        """Return the extras of Headrace that it needs, each with the key that asks for it."""
        return ()

    def promise(self, channel: ChannelConfig) -> tuple[DeliveryGuarantee, str]:
        """Return how often the effect of a record takes place, and why, in one sentence."""
        if channel.sink is None:
            return DeliveryGuarantee.AT_LEAST_ONCE, (
                "batches are delivered until answered; whether effects repeat is up to the "
                "processor"
            )
        once = channel.sink.exactly_once
        if once is not None:
            return DeliveryGuarantee.EXACTLY_ONCE, once
        return DeliveryGuarantee.AT_LEAST_ONCE, channel.sink.at_least_once

    def left_out(self, channel: ChannelConfig) -> Iterator[str]:
        """Yield which records the promise is not for, by the rejects of this kind alone."""
        del channel
        yield from ()

    def notes(self, channel: ChannelConfig) -> Iterator[str]:
        """Yield what else ``headrace check`` tells of a channel with it."""
        del channel
        yield from ()

    def own_topics(self, channel: ChannelConfig) -> frozenset[str]:
        """Return the topics that only owners of the channel's partitions write to."""
        del channel
        return frozenset()

    def topics_by_key(self, channel: ChannelConfig) -> tuple[TopicByKey, ...]:
        """Return the topics that it writes records of the channel's topics to by another key.

        Raises:
            ConfigError: users' code says which, and cannot be used.
        """
        del channel
        return ()

    def made_topics(self, channel: ChannelConfig) -> tuple[TopicByKey, ...]:
        """Return the topics by key that its start needs, and may create.

        Those that it writes, unless others write what it needs and begin after it.

        Raises:
            ConfigError: users' code says which, and cannot be used.
        """
        return self.topics_by_key(channel)

    def shared_topics(self, channel: ChannelConfig) -> tuple[str, ...]:
        """Return the topics that each member reads whole, besides those of the channel.

        Raises:
            ConfigError: users' code says which, and cannot be used.
        """
        del channel
        return ()

    def outputs(self, channel: ChannelConfig) -> tuple[str, ...]:
        """Return the topics that its code writes results to, which are not those of a sink.

        Raises:
            ConfigError: users' code says which, and cannot be used.
        """
        del channel
        return ()

    def seconds_between_commits(self, configured: float) -> float:
        """Return how often offsets are committed; ``configured`` is the channel's own interval."""
        return configured

    def conflicts_in(self, channel: ChannelConfig) -> Iterator[FieldConflict]:
        """Yield what does not fit the channel around it."""
        del channel
        yield from ()

    def refused(self) -> Iterator[ConfigProblem]:
        """Yield what the first batch would fail for, by its place in this section. May import."""
        yield from ()

    def expanded(
        self, name: str, channel: ChannelConfig, channels: Mapping[str, ChannelConfig]
    ) -> Mapping[str, ChannelConfig]:
        """Return the channels that the channel of this name becomes, which need not be one.

        Raises:
            PydanticCustomError: one of them cannot be made given the other ``channels``.
        """
        del channels
        return {name: channel}


class MergingConfig(ProcessorConfig):
    """A processor of micro-batches, which are merged of the batches of several partitions."""

    max_records: Hot[Count] = 100_000
    """The most records that one micro-batch is merged of."""

    target_duration: Hot[PositiveSeconds | None] = None
    """Target duration of a micro-batch: fewer batches are merged where more take longer."""


class MicroBatchConfig(MergingConfig):
    """A processor that merges batches into micro-batches and decodes their values."""

    only: ClassVar = {
        **only_of_decoder("decode", "none", "json", *FRAMED),
        "schema": (OnlyWith.none_of("decode", "none", "avro", "protobuf", example="decode: json"),),
        "reader_schema": (OnlyWith.one_of("decode", *READER),),
        "timestamps": (OnlyWith.one_of("decode", "json", "json_schema"),),
    }

    rejects_section: ClassVar[RejectsModel] = MicroBatchRejects
    fitting_sinks: ClassVar[tuple[str, ...] | None] = None

    decode: Restarts[ColumnDecoder] = "none"
    """The form in which the reducer gets values. They are bytes (none), or columns decoded from
    JSON (json), Avro (avro), Protobuf (protobuf) or JSON with ids of a schema registry
    (json_schema). The factory of your own decoder, or the name of a plug-in, may stand here."""

    decoder_options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the decoder's factory."""

    ddl: Restarts[FreeText | None] = Field(default=None, alias="schema")
    """The columns to decode, in Spark's DDL, such as "carrier STRING, delay DOUBLE"."""

    reader_schema: Restarts[ReaderSchemaConfig | None] = None
    """The schema that gives the columns of decode: avro and decode: protobuf."""

    timestamps: Restarts[Literal["iso", "seconds", "millis", "micros"]] = "iso"
    """The form of each TIMESTAMP of the schema in JSON: text by ISO 8601 (iso), or a number of
    seconds, milliseconds or microseconds since 1970 in UTC."""

    max_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    @property
    def rate_limit(self) -> float | None:
        return self.max_rate

    @property
    def decoder(self) -> CustomDecoding | None:
        return CustomDecoding.of(self.decode, self.decoder_options)

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        return ((("decode",), Extra.PROTOBUF),) if self.decode == "protobuf" else ()

    @property
    def has_reader(self) -> bool:
        """Return whether a schema of Avro or of Protobuf gives the columns."""
        return self.decode in READER

    @property
    def framed(self) -> tuple[str, str] | None:
        return ("decode", self.decode) if self.decode in FRAMED else None

    @property
    def reads_by(self) -> ReaderSchemaConfig | None:
        return self.reader_schema

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from super().conflicts()
        yield from reader_conflicts("decode", self.decode, self.reader_schema)
        if self.decode != "none" and not self.has_reader and self.ddl is None:
            yield FieldConflict(
                ("schema",), f"is missing; decode: {self.decode} needs the columns to decode"
            )


#: The built-in processors: the import path of each kind's section, by its type.
PROCESSORS = KindTable(
    ProcessorConfig,
    PluginKind.PROCESSOR,
    {
        "spark": "headrace.extensions.spark.section:SparkProcessorConfig",
        "arrow": "headrace.extensions.arrow.section:ArrowProcessorConfig",
        "keyed": "headrace.extensions.keyed.section:KeyedProcessorConfig",
        "rekey": "headrace.extensions.keyed.section:RekeyProcessorConfig",
        "streams": "headrace.extensions.streams.section:StreamsProcessorConfig",
        "simple": "headrace.processors.sections:SimpleProcessorConfig",
        "custom": "headrace.processors.sections:CustomProcessorConfig",
    },
)
