"""The sections of the processors, and of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import Hot, OnlyWith, Rebuilds, Restarts, Section
from headrace.config.types.addresses import Connector
from headrace.config.types.scalars import (
    ColumnDecoder,
    Count,
    FactKey,
    FactTime,
    Flag,
    FreeText,
    ImportPath,
    KeySource,
    PositiveNumber,
    ProcessorFactory,
    ValueDecoder,
    WholeNumber,
)
from headrace.config.types.secrets import Options, Properties, PropertyValue, reveal_all
from headrace.config.types.units import (
    GIB,
    MIB,
    Duration,
    NonNegativeSeconds,
    PositiveSeconds,
    Size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self


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
    """Where Spark runs: local[cores], or the URL of a cluster."""

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
    """How long a session that is not ready yet may be at no work: its JVM uses no processor time,
    and no job of the warm-up ends. On a cluster that counts the wait for executors. A start that
    works all the time, on a busy machine, may take three times as long, and a service manager has
    to wait longer than that."""

    def session_properties(self) -> dict[str, Any]:
        """Return ``properties`` with the secrets in plain text, for Spark only."""
        return reveal_all(self.properties)


_AUTO_ADVANCE_INTERVAL = 30.0


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


def _only_of_decoder(field: str, *ours: str) -> Mapping[str, tuple[OnlyWith, ...]]:
    """Return that ``decoder_options`` exist where a field names a decoder of users' own."""
    own = OnlyWith.none_of(field, *ours, example=f"a decoder of your own as {field}")
    return {"decoder_options": (own,)}


#: Keys of facts for which records need not be written again.
OWN_KEYS = frozenset({"record", "partition", "constant"})

#: How values are read without a decoder of users' own.
_READ = ("json", "string", "bytes")


class MicroBatchConfig(Section):
    """How batches are merged into micro-batches, and how their values are decoded."""

    only: ClassVar = {
        **_only_of_decoder("decode", "none", "json"),
        "schema": (OnlyWith.none_of("decode", "none", example="decode: json"),),
        "timestamps": (OnlyWith.one_of("decode", "json"),),
    }

    decode: Restarts[ColumnDecoder] = "none"
    """How the reducer sees values: as bytes (none), as typed columns decoded from JSON, or as those
    that a decoder of your own makes: its factory, or the name of a plug-in."""

    decoder_options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """What the decoder's factory is called with, as keyword arguments."""

    ddl: Restarts[FreeText | None] = Field(default=None, alias="schema")
    """The columns to decode, in Spark's DDL, such as "carrier STRING, delay DOUBLE"."""

    timestamps: Restarts[Literal["iso", "seconds", "millis", "micros"]] = "iso"
    """How each TIMESTAMP of the schema is spelt in JSON: as text by ISO 8601 (iso), or as a number
    of seconds, milliseconds or microseconds since 1970 in UTC."""

    max_records: Hot[Count] = 100_000
    """The most records that one micro-batch is merged of."""

    target_duration: Hot[PositiveSeconds | None] = None
    """How long a micro-batch is meant to take: fewer are merged where more take longer."""

    max_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    @property
    def decoder(self) -> CustomDecoding | None:
        """The decoder of users' own, None where the decoding is one of ours."""
        return CustomDecoding.of(self.decode, self.decoder_options)

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from super().conflicts()
        if self.decode != "none" and self.ddl is None:
            yield FieldConflict(
                ("schema",), f"is missing; decode: {self.decode} needs the columns to decode"
            )


class SparkReducerConfig(Section):
    """What turns the micro-batches of the spark processor into rows."""

    only: ClassVar = {"result": (OnlyWith.none_of("arrow", None, example="arrow"),)}

    type: Restarts[Literal["spark"]] = "spark"
    """This processor."""

    reducer: Restarts[ImportPath | None] = None
    """The function reduce(df, batch), which returns a DataFrame or None. Either this, sql or
    arrow."""

    sql: Restarts[FreeText | None] = None
    """A query over the view batch, which has a micro-batch's records."""

    arrow: Restarts[ImportPath | None] = None
    """The function reduce(table, batch), which Spark's workers call with the part of a micro-batch
    that each task has, and which returns a pyarrow.Table or None."""

    result: Restarts[FreeText | None] = None
    """The columns that arrow returns, in Spark's DDL, such as "carrier STRING, total BIGINT"."""

    @property
    def code(self) -> str | None:
        """The import path of the reducer, None for a query."""
        return self.reducer or self.arrow

    def conflicts(self) -> Iterator[FieldConflict]:
        ways = [name for name in ("reducer", "sql", "arrow") if getattr(self, name) is not None]
        if not ways:
            yield FieldConflict(
                ("reducer",),
                "is missing; give an import path such as package.module:name, or a query as sql",
            )
        for other in ways[1:]:
            yield FieldConflict((other,), f"is given beside {ways[0]}; give one of them")
        if self.arrow is not None and self.result is None:
            yield FieldConflict(("result",), "is missing; arrow needs the columns that it returns")


# the fields of the last base come first
class SparkProcessorConfig(MicroBatchConfig, SparkReducerConfig):
    """Batches are merged into micro-batches, which a reducer turns into rows for the sink."""

    only: ClassVar = {**MicroBatchConfig.only, **SparkReducerConfig.only}


class ArrowReducerConfig(Section):
    """What turns the micro-batches of the arrow processor into rows."""

    type: Restarts[Literal["arrow"]] = "arrow"
    """This processor. It takes no Spark, and no JVM is started for it."""

    reducer: Restarts[ImportPath]
    """The function reduce(table, batch), which returns a pyarrow.Table or None."""


class ArrowProcessorConfig(MicroBatchConfig, ArrowReducerConfig):
    """Batches are merged into micro-batches, which a reducer in this process turns into rows."""


class SimpleProcessorConfig(Section):
    """Batches or single records go to a function."""

    only: ClassVar = {"auto_advance_interval": (OnlyWith.one_of("auto_advance", "periodic"),)}

    type: Restarts[Literal["simple"]] = "simple"
    """This processor."""

    deliver: Restarts[Literal["batch", "record"]] = "batch"
    """Whether the function gets whole batches or one record at a time."""

    auto_advance: Restarts[Literal["every-batch", "periodic"]] = "every-batch"
    """Whether offsets advance with each batch or by a timer."""

    auto_advance_interval: Hot[PositiveSeconds] = _AUTO_ADVANCE_INTERVAL
    """The timer's interval."""

    no_duplication: Restarts[Flag] = False
    """Whether to commit before processing: a record is then lost rather than delivered again."""

    max_read_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    delay: Hot[NonNegativeSeconds] = 0.0
    """How long after its own timestamp a record is delivered at the earliest."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    def conflicts(self) -> Iterator[FieldConflict]:
        periodic = self.auto_advance == "periodic"
        if periodic and self.no_duplication:
            yield FieldConflict(
                ("no_duplication",),
                "is true, which needs a commit before every batch; write auto_advance: every-batch",
            )


class CustomProcessorConfig(Section):
    """Batches go to a custom processor."""

    type: Restarts[Literal["custom"]] = "custom"
    """This processor."""

    factory: Restarts[ProcessorFactory]
    """The class or function that returns a BatchProcessor, or the name of a plug-in."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """What the factory is called with, as keyword arguments."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)


class StateConfig(Section):
    """The local store of a channel with state."""

    cache: Restarts[Annotated[int, Size(0)]] = 64 * MIB
    """Rows that are kept in memory, in front of the store's files."""

    max_row: Hot[Annotated[int, Size(1)]] = 512 * 1024
    """The most bytes of one key's row: the key, its state, and its timers with their names. The
    changelog's max.message.bytes has to allow for it."""

    checkpoint: Hot[PositiveSeconds] = 10.0
    """How often is noted how far the store follows the changelog. What came since is read again
    after a crash."""


class ByKeyTopicConfig(Section):
    """The topic that re-keyed records go to."""

    create: Restarts[Flag] = True
    """Whether it is created where it does not exist."""

    replication_factor: Restarts[Count | None] = None
    """Its replication factor; null: the brokers' default."""

    partitions: Restarts[Count | None] = None
    """The partitions of the by-key topic; null: as many as the input has."""


class InternalTopicsConfig(ByKeyTopicConfig):
    """The topics that a channel with state keeps for itself: the changelog, and the by-key topic
    where it re-keys.
    """

    purge_input: Restarts[PositiveSeconds | None] = None
    """How often records that are processed are deleted from the topic that is read; null: never.
    For by-key topics, which nobody else reads: they have 30s unless it is said, null too."""


class KeyedProcessorConfig(Section):
    """Facts are reduced by key, with a state for each key that is exactly once."""

    only: ClassVar = {
        **_only_of_decoder("value", *_READ),
        "options": (OnlyWith.none_of("factory", None, example="factory"),),
        "internal.partitions": (
            OnlyWith.none_of(
                "key", *sorted(OWN_KEYS), example="a key that records are written again by"
            ),
        ),
    }

    type: Restarts[Literal["keyed"]] = "keyed"
    """This processor."""

    reducer: Restarts[ImportPath | None] = None
    """The function reduce(key, state, facts, now). Either this or factory."""

    factory: Restarts[ImportPath | None] = None
    """The class or function that returns the reducer."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """What the factory is called with, as keyword arguments."""

    engine: Restarts[Literal["spark", "arrow"]] = "spark"
    """Where the reducer runs: in Spark's workers, or in this process."""

    key: Restarts[FactKey] = "record"
    """What the key of a fact is: the record's own (record), one for each partition (partition,
    constant), or one by which records are written again first: a field of the value
    (value.customer.id), a header (headers.tenant), what a function says of the Event
    (package.module:function), or the record's own where producers partition otherwise (key)."""

    keys: Restarts[Literal["string", "bytes"]] = "string"
    """How the reducer sees keys."""

    value: Restarts[ValueDecoder] = "json"
    """How the reducer sees values: decoded from JSON, as text, as bytes, or by a decoder of your
    own: its factory, or the name of a plug-in."""

    decoder_options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """What the decoder's factory is called with, as keyword arguments."""

    encoding: Restarts[Literal["json", "string", "bytes"]] = "json"
    """How states are stored."""

    time: Restarts[FactTime] = "record"
    """The time of a fact: the record's own (record), a field of its JSON value (value.at), or what
    a function says of the value's bytes (package.module:function); milliseconds since the Unix
    epoch."""

    idle: Hot[PositiveSeconds | None] = None
    """How long a partition has to be quiet before its stream time follows the clock, so late by:
    1s or longer; null: only records move it."""

    grace: Hot[NonNegativeSeconds | None] = None
    """How late a fact may be; rejects.late says what becomes of a later one. null: as late as it
    is."""

    ttl: Restarts[PositiveSeconds | None] = None
    """How long a key without facts is kept, in stream time; null: forever."""

    state: Restarts[StateConfig] = StateConfig()
    """The local store."""

    internal: Restarts[InternalTopicsConfig] = InternalTopicsConfig()
    """The topics that the channel keeps for itself."""

    max_records: Hot[Count] = 100_000
    """The most records that one micro-batch is merged of."""

    target_duration: Hot[PositiveSeconds | None] = None
    """How long a micro-batch is meant to take: fewer are merged where more take longer."""

    max_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    @property
    def code(self) -> str:
        """The import path of the reducer or its factory."""
        found = self.reducer or self.factory
        assert found is not None, "the configuration demands one of them"
        return found

    @property
    def time_function(self) -> str | None:
        """The import path of the function that says a fact's time, None where there is none."""
        return self.time if ":" in self.time else None

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)

    @property
    def decoder(self) -> CustomDecoding | None:
        """The decoder of users' own, None where the decoding is one of ours."""
        return CustomDecoding.of(self.value, self.decoder_options)

    @cached_property
    def facts_key(self) -> str:
        """Where facts have their key from, also where their records come by that key."""
        return self.key

    def by_key(self, internal: InternalTopicsConfig) -> Self:
        """Return the same for records that come by the key."""
        made = self.model_copy(update={"key": "record", "internal": internal})
        # beside the fields, so that it is the same configuration as one that is written so
        made.__dict__["facts_key"] = self.key
        return made

    def conflicts(self) -> Iterator[FieldConflict]:
        if (self.reducer is None) == (self.factory is None):
            what = "is missing" if self.reducer is None else "is given beside factory"
            yield FieldConflict(
                ("reducer",), f"{what}; give the function's import path, or that of a factory"
            )
        if self.idle is not None and self.idle < SHORTEST_IDLE:
            yield FieldConflict(
                ("idle",),
                f"is {self.idle:g}s; take 1s or longer, because where a partition ends is known "
                "half a second later",
            )
        yield from _key_conflicts(self.key, self.value)
        if self.time.startswith("value.") and ":" not in self.time and self.value != "json":
            yield FieldConflict(
                ("time",),
                f"is {self.time}, a field of the value, and value is {self.value}; write value: "
                "json, or name a function",
            )


#: Seconds that a partition has to be quiet at least: less than its end may be known too late.
SHORTEST_IDLE = 1.0

#: Those of them that are one for each partition, so that more partitions split none.
FIXED_KEYS = OWN_KEYS - {"record"}


def _key_conflicts(key: str, value: str) -> Iterator[FieldConflict]:
    if key.startswith("value.") and ":" not in key and value in {"string", "bytes"}:
        yield FieldConflict(
            ("key",),
            f"is {key}, a field of the value, and value is {value}; write value: json, or name a "
            "function",
        )


class RekeyProcessorConfig(Section):
    """Records are written again by another key, to a topic where all of a key are in one
    partition.
    """

    only: ClassVar = {
        **_only_of_decoder("value", *_READ),
        "reload": (
            OnlyWith.none_of("code", None, example="a function as key"),
            OnlyWith.none_of("decoder", None, example="a decoder of your own as value"),
        ),
    }

    type: Restarts[Literal["rekey"]] = "rekey"
    """This processor."""

    key: Restarts[KeySource]
    """What the new key is: a field of the value (value.customer.id), a header (headers.tenant),
    what a function says of the Event (package.module:function), or the record's own (key)."""

    value: Restarts[ValueDecoder] = "json"
    """How values are read to find the key: as in a channel with state. They are written as they
    are."""

    decoder_options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """What the decoder's factory is called with, as keyword arguments."""

    engine: Restarts[Literal["spark", "arrow"]] = "spark"
    """Where the key is found: in Spark's workers, or in this process."""

    internal: Restarts[ByKeyTopicConfig] = ByKeyTopicConfig()
    """The topic that records go to."""

    max_records: Hot[Count] = 100_000
    """The most records that one micro-batch is merged of."""

    target_duration: Hot[PositiveSeconds | None] = None
    """How long a micro-batch is meant to take: fewer are merged where more take longer."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    @property
    def code(self) -> str | None:
        """The import path of the function that says the key, None where there is none."""
        return self.key if ":" in self.key else None

    @property
    def decoder(self) -> CustomDecoding | None:
        """The decoder of users' own, None where the decoding is one of ours."""
        return CustomDecoding.of(self.value, self.decoder_options)

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from _key_conflicts(self.key, self.value)


ProcessorConfig = Annotated[
    SparkProcessorConfig
    | ArrowProcessorConfig
    | KeyedProcessorConfig
    | RekeyProcessorConfig
    | SimpleProcessorConfig
    | CustomProcessorConfig,
    Field(discriminator="type"),
]


def custom_decoding(chosen: ProcessorConfig) -> CustomDecoding | None:
    """Return the decoder of users' own that a processor has, None where it has none."""
    match chosen:
        case (
            SparkProcessorConfig()
            | ArrowProcessorConfig()
            | KeyedProcessorConfig()
            | RekeyProcessorConfig()
        ):
            return chosen.decoder
        case _:
            return None
