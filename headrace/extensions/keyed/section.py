"""The sections of channels with state, and of those that re-key."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from headrace.config.delivery import DeliveryGuarantee
from headrace.config.errors import FieldConflict
from headrace.config.models.base import Hot, OnlyWith, Restarts, Section
from headrace.config.models.channel import KafkaOffsetsConfig
from headrace.config.models.processor import (
    FRAMED,
    READER,
    CustomDecoding,
    MergingConfig,
    TopicByKey,
    only_of_decoder,
    reader_conflicts,
)
from headrace.config.models.registry import ReaderSchemaConfig
from headrace.config.models.rejects import KeyedRejects, RejectsModel, RekeyRejects
from headrace.config.models.sink import single_sinks
from headrace.config.types.scalars import (
    Count,
    FactKey,
    FactTime,
    Flag,
    ImportPath,
    KeySource,
    PositiveNumber,
    ValueDecoder,
    WholeNumber,
)
from headrace.config.types.secrets import Options, reveal_all
from headrace.config.types.units import MIB, NonNegativeSeconds, PositiveSeconds, Size
from headrace.core.extras import Extra
from headrace.extensions.keyed.names import BY_KEY_SETTINGS, REPARTITION, changelog_name, is_by_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from headrace.config import ChannelConfig
    from headrace.config.errors import Steps

#: Keys of facts for which records need not be written again.
OWN_KEYS = frozenset({"record", "partition", "constant"})

#: Those of them that are one for each partition, so that more partitions split none.
FIXED_KEYS = OWN_KEYS - {"record"}

#: How values are read without a decoder of users' own.
_READ = ("json", "string", "bytes", *FRAMED)

#: The condition of a reader's schema.
_WITH_READER = {"reader_schema": (OnlyWith.one_of("value", *READER),)}

#: Seconds that a partition has to be quiet at least: less than its end may be known too late.
SHORTEST_IDLE = 1.0

#: What ``max_task_idle`` is without a word of the user's.
TASK_IDLE = 1.0


class StateConfig(Section):
    """The local store of a channel with state."""

    cache: Restarts[Annotated[int, Size(0)]] = 64 * MIB
    """Rows that are kept in memory, in front of the store's files."""

    max_row: Hot[Annotated[int, Size(1)]] = 512 * 1024
    """The most bytes of one key's row: the key, its state, and its timers with their names. The
    changelog's max.message.bytes has to allow for it."""

    checkpoint: Hot[PositiveSeconds] = 10.0
    """Time between two checkpoints, which write what was committed to the store's files and note
    how far these follow the changelog. What came since is read again after a crash."""

    standbys: Hot[Annotated[int, WholeNumber(0, 100)]] = 0
    """The members beside its owner that keep a copy of a task's state near to its end, in their own
    store. One of them takes over from a lost owner without reading the whole changelog."""

    acceptable_lag: Hot[Annotated[int, WholeNumber(0, 1_000_000_000)]] = 10_000
    """The offsets of the changelog that a copy may be behind, and the member still be warm: ready
    to be given the task."""

    max_warmups: Hot[Count] = 2
    """The most tasks at a time that a member begins to copy because they are to move to it."""

    cleanup: Hot[PositiveSeconds] = 600.0
    """Time after which a member deletes the local state of a task that another member has, where it
    keeps no copy of it."""


class ByKeyTopicConfig(Section):
    """The topic that re-keyed records go to."""

    create: Restarts[Flag] = True
    """True if it is created where it does not exist."""

    replication_factor: Restarts[Count | None] = None
    """Its replication factor; null: the brokers' default."""

    partitions: Restarts[Count | None] = None
    """The partitions of the by-key topic; null: as many as the input has."""

    def topic_by_key(
        self, name: str, sources: Iterable[str], settings: Mapping[str, str] = BY_KEY_SETTINGS
    ) -> TopicByKey:
        """Return a by-key topic of this name that is made as the section says."""
        return TopicByKey(
            name, tuple(sources), self.create, self.replication_factor, self.partitions, settings
        )


class InternalTopicsConfig(ByKeyTopicConfig):
    """The topics that a channel with state keeps for itself: the changelog, and the by-key topic
    where it re-keys.
    """

    purge_input: Restarts[PositiveSeconds | None] = None
    """Time between two deletions of processed records from the topic that is read; null: never. For
    by-key topics, which only Headrace reads: they have 30s unless it is set, null too."""


class StateProcessorConfig(MergingConfig):
    """A processor whose rows by key, outputs and offsets are in one transaction.

    The rows lie in a local store, and in the changelog that the first topic names.
    """

    together: ClassVar[bool] = True
    needs_sink: ClassVar[bool] = False
    writes_records: ClassVar[bool] = True

    if TYPE_CHECKING:
        state: StateConfig
        internal: InternalTopicsConfig
        max_task_idle: float | None

    @property
    def row_keys(self) -> str:
        """Return what rows are by: record, for keys that a number of partitions places; partition
        or constant, for one of each partition; store, where a key is not that of a record.
        """
        return "record"

    @property
    def has_fixed_keys(self) -> bool:
        """Return whether there is one key for each partition, so that more of them split none."""
        return self.row_keys in FIXED_KEYS

    def split_step(self, channel: ChannelConfig) -> str:
        """Return what to do where an input has more partitions than its rows are for."""
        if len(channel.topics) > 1:
            return (
                f"give all of {', '.join(channel.topics)} as many partitions (kafka-topics.sh "
                "--alter), and headrace state forget begins again with them: rows of several "
                "topics cannot be moved"
            )
        return REPARTITION

    @property
    def shows_keys_as_text(self) -> bool:
        """Return whether people see keys as text, where they are any."""
        return True

    @property
    def row_encoding(self) -> Literal["json", "string", "bytes"]:
        """Return how rows are encoded."""
        return "json"

    @property
    def quiet_after(self) -> float | None:
        """Return how long (s) a partition is quiet until its stream time follows the clock."""
        return None

    @property
    def task_idle(self) -> float:
        """Return how long a topic of a task that is at its end is waited for, in seconds."""
        return TASK_IDLE if self.max_task_idle is None else self.max_task_idle

    @property
    def has_rows(self) -> bool:
        """Return whether there is any row to keep: parts of topologies may have none."""
        return True

    def purged_topics(self, channel: ChannelConfig) -> tuple[str, ...]:
        """Return the topics from which records that are processed are deleted."""
        return () if self.internal.purge_input is None else channel.topics

    def state_key(self, channel: ChannelConfig) -> str | None:
        """Return what the offsets say that rows depend on; None: they do not say it."""
        del channel
        return None

    def refuse_state(self, former: str, channel: ChannelConfig) -> str | None:
        """Return why rows cannot be gone on with that depend on something else; None: they can."""
        del former, channel
        return None

    @override
    def promise(self, channel: ChannelConfig) -> tuple[DeliveryGuarantee, str]:
        return DeliveryGuarantee.EXACTLY_ONCE, (
            "the brokers take outputs, state and offsets in one transaction, as readers with "
            "isolation.level=read_committed see"
        )

    def own_topics(self, channel: ChannelConfig) -> frozenset[str]:
        return frozenset({changelog_name(channel.group, channel.topics[0])})


class KeyedProcessorConfig(StateProcessorConfig):
    """Facts are reduced by key, with a state for each key that is exactly once."""

    only: ClassVar = {
        **only_of_decoder("value", *_READ),
        **_WITH_READER,
        "options": (OnlyWith.none_of("factory", None, example="factory"),),
        "internal.partitions": (
            OnlyWith.none_of(
                "key", *sorted(OWN_KEYS), example="a key that records are written again by"
            ),
        ),
    }

    rejects_section: ClassVar[RejectsModel] = KeyedRejects
    fitting_sinks: ClassVar[tuple[str, ...] | None] = ("kafka", "several")
    builder: ClassVar[str] = "headrace.extensions.keyed.runtime.build:build_keyed"

    type: Restarts[Literal["keyed"]] = "keyed"
    """This processor."""

    reducer: Restarts[ImportPath | None] = None
    """The function reduce(key, state, facts, now). Either this or factory."""

    factory: Restarts[ImportPath | None] = None
    """The class or function that returns the reducer."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the factory."""

    engine: Restarts[Literal["spark", "arrow"]] = "spark"
    """The engine that runs the reducer: Spark's workers, or this process."""

    key: Restarts[FactKey] = "record"
    """The key of a fact: the record's own (record), or one for each partition (partition,
    constant). By any other key records are written again first: a field of the value
    (value.customer.id), a header (headers.tenant), what a function says of the Event
    (package.module:function), or the record's own where producers partition otherwise (key)."""

    keys: Restarts[Literal["string", "bytes"]] = "string"
    """The form in which the reducer gets keys."""

    value: Restarts[ValueDecoder] = "json"
    """The form in which the reducer gets values: decoded from JSON, as text, as bytes, or decoded
    from Avro (avro), Protobuf (protobuf) or JSON with ids of a schema registry (json_schema). The
    factory of your own decoder, or the name of a plug-in, may stand here."""

    decoder_options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the decoder's factory."""

    reader_schema: Restarts[ReaderSchemaConfig | None] = None
    """The schema that gives the fields of value: avro and value: protobuf."""

    encoding: Restarts[Literal["json", "string", "bytes"]] = "json"
    """The form in which states are stored."""

    time: Restarts[FactTime] = "record"
    """The time of a fact: the record's own (record), a field of its JSON value (value.at), or what
    a function says of the value's bytes (package.module:function); milliseconds since the Unix
    epoch."""

    idle: Hot[PositiveSeconds | None] = None
    """Time that a partition has to be quiet before its stream time follows the clock, with that
    delay: 1s or longer; null: only records move it."""

    max_task_idle: Hot[PositiveSeconds | None] = None
    """Longest wait for a topic at its end, where topics has several. Their records are reduced in
    the order of their times; one that comes later than that may be out of order. 1s or longer;
    null: 1s."""

    grace: Hot[NonNegativeSeconds | None] = None
    """Longest lateness of a fact; rejects.late says what becomes of a later one. null: any."""

    ttl: Restarts[PositiveSeconds | None] = None
    """Time for which a key without facts is kept, in stream time; null: forever."""

    state: Restarts[StateConfig] = StateConfig()
    """The local store."""

    internal: Restarts[InternalTopicsConfig] = InternalTopicsConfig()
    """The topics that the channel keeps for itself."""

    max_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    @property
    def code(self) -> str:
        """Return the import path of the reducer or its factory."""
        found = self.reducer or self.factory
        assert found is not None, "the configuration demands one of them"
        return found

    @property
    def time_function(self) -> str | None:
        """Return the import path of the function that returns a fact's time, or None."""
        return self.time if ":" in self.time else None

    @property
    def row_keys(self) -> str:
        return self.key

    @property
    def shows_keys_as_text(self) -> bool:
        return self.keys != "bytes"

    @property
    def row_encoding(self) -> Literal["json", "string", "bytes"]:
        return self.encoding

    @property
    def quiet_after(self) -> float | None:
        return self.idle

    @override
    def state_key(self, channel: ChannelConfig) -> str | None:
        is_second = is_by_key(channel.group, channel.topics[0]) and self.facts_key == "record"
        # of a channel that is written as the second of two only the first says it
        return None if is_second else self.facts_key

    @override
    def refuse_state(self, former: str, channel: ChannelConfig) -> str | None:
        key = self.state_key(channel)
        changelog = changelog_name(channel.group, channel.topics[0])
        return None if key is None else refuse_key(former, key, changelog)

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)

    @property
    def decoder(self) -> CustomDecoding | None:
        return CustomDecoding.of(self.value, self.decoder_options)

    @property
    def framed(self) -> tuple[str, str] | None:
        return ("value", self.value) if self.value in FRAMED else None

    @property
    def reads_by(self) -> ReaderSchemaConfig | None:
        return self.reader_schema

    @cached_property
    def facts_key(self) -> str:
        """Return where facts have their key from, also where their records come by that key."""
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
        yield from reader_conflicts("value", self.value, self.reader_schema)
        if self.time.startswith("value.") and ":" not in self.time and self.value != "json":
            yield FieldConflict(
                ("time",),
                f"is {self.time}, a field of the value, and value is {self.value}; write value: "
                "json, or name a function",
            )

    def conflicts_in(self, channel: ChannelConfig) -> Iterator[FieldConflict]:
        if len(channel.topics) > 1:
            yield from self._conflicts_of_tasks(channel)
        elif self.max_task_idle is not None:
            yield FieldConflict(
                ("processor", "max_task_idle"),
                f"exists only where topics has several, and it has {channel.topics[0]}; leave the "
                "key out",
            )
        for steps, sink in single_sinks(channel.sink).items():
            if not sink.writes_records:
                yield FieldConflict(
                    steps,
                    f"is of type {sink.type}, which cannot be in one transaction with the state; "
                    "write to a topic and let another channel take it on, see docs/keyed.md",
                )
            elif sink.topic_written is None:
                yield FieldConflict(
                    (*steps, "topic"), "is missing; with the keyed processor each output has one"
                )
        fencing = isinstance(channel.offsets, KafkaOffsetsConfig) and channel.offsets.fencing
        if channel.sink is None and fencing == "transactions":
            yield FieldConflict(
                ("offsets", "fencing"),
                "is transactions, and a member has one transactional producer, which is that of "
                "its state; leave it out",
            )
        rejects = channel.rejects
        if self.grace is not None and isinstance(rejects, KeyedRejects) and rejects.late is None:
            yield FieldConflict(
                ("rejects", "late"),
                "is missing; processor.grace needs what becomes of a later fact: late: skip, or "
                "late: dead_letter",
            )

    def _conflicts_of_tasks(self, channel: ChannelConfig) -> Iterator[FieldConflict]:
        """Yield what a channel with several topics does not have."""
        several = f"topics has {', '.join(channel.topics)}"
        if self.key not in OWN_KEYS:
            yield FieldConflict(
                ("processor", "key"),
                f"is {self.key}, by which records are written again, and {several}; re-key each in "
                "a channel of its own (type: rekey), and read what these write",
            )
        if self.time_function is not None:
            yield FieldConflict(
                ("processor", "time"),
                f"is {self.time}, a function, and {several}, whose records are merged before any "
                "code of yours runs; take record, or a field of the value (value.at)",
            )
        rejects = channel.rejects
        if isinstance(rejects, KeyedRejects) and rejects.overflow != "wait":
            yield FieldConflict(
                ("rejects", "overflow"),
                f"is {rejects.overflow}, and {several}: what is left out of one would have "
                "the others wait for it; leave it out, so that the channel falls behind instead",
            )
        if self.max_task_idle is not None and self.max_task_idle < SHORTEST_IDLE:
            yield FieldConflict(
                ("processor", "max_task_idle"),
                f"is {self.max_task_idle:g}s; take 1s or longer, because where a partition ends is "
                "known half a second later",
            )

    @property
    def on_spark(self) -> bool:
        return self.engine == "spark"

    @property
    def rate_limit(self) -> float | None:
        return self.max_rate

    @property
    def code_paths(self) -> tuple[str, ...]:
        return (self.code,) if self.time_function is None else (self.code, self.time_function)

    @override
    def called(self, channel: ChannelConfig) -> tuple[str, tuple[str, ...]]:
        known = () if self.reducer is None else ("key", "state", "facts", "now")
        return self.code, known

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        spark = ((("engine",), Extra.SPARK),) if self.on_spark else ()
        return ((("type",), Extra.KEYED), *spark, *_extras_of(self.value))

    def left_out(self, channel: ChannelConfig) -> Iterator[str]:
        rejects = channel.rejects
        assert isinstance(rejects, KeyedRejects), "the configuration has the processor's"
        reasons = {
            "facts that cannot be read": rejects.unreadable,
            "facts that cannot be reduced": rejects.failing,
        }
        if rejects.unreadable == rejects.failing:
            reasons = {"facts that cannot be reduced": rejects.failing}
        if self.grace is not None:
            reasons[f"facts that are more than {self.grace:g} s late"] = rejects.late or "skip"
        for facts, policy in reasons.items():
            if policy == "skip":
                yield f"{facts} are left out"
            elif policy in {"dead_letter", "quarantine"}:
                yield f"{facts} go to {rejects.topic}, once"

    def notes(self, channel: ChannelConfig) -> Iterator[str]:
        topic = changelog_name(channel.group, channel.topics[0])
        yield (
            f"its state in {topic} is of key: {self.facts_key}, and another key takes another "
            "group: with this one a start is refused where that topic would have both, and else "
            "all is counted again from initial_offset, its outputs come beside those that there "
            "are, and the former state stays unused"
        )

    def expanded(
        self, name: str, channel: ChannelConfig, channels: Mapping[str, ChannelConfig]
    ) -> Mapping[str, ChannelConfig]:
        from headrace.extensions.keyed.rekeyed import with_rekeyed  # noqa: PLC0415 - needs this

        return with_rekeyed(name, channel, channels)


def refuse_key(former: str, key: str, changelog: str) -> str | None:
    """Return why a state of facts by a former key cannot be gone on with; None: it is the same."""
    if former == key:
        return None
    return (
        f"the state in {changelog} is of key: {former}, and the channel has key: {key} now: "
        "states and outputs of both would be mixed. Take another group, which begins from "
        f"nothing, or set key back to {former}; headrace state forget deletes what there is"
    )


def _extras_of(value: str) -> tuple[tuple[Steps, Extra], ...]:
    """Return what a form of values takes."""
    return ((("value",), Extra.PROTOBUF),) if value == "protobuf" else ()


def _key_conflicts(key: str, value: str) -> Iterator[FieldConflict]:
    if key.startswith("value.") and ":" not in key and value in {"string", "bytes"}:
        yield FieldConflict(
            ("key",),
            f"is {key}, a field of the value, and value is {value}; write value: json, or name a "
            "function",
        )


class RekeyProcessorConfig(MergingConfig):
    """Records are written again by another key, to a topic where all of a key are in one
    partition.
    """

    only: ClassVar = {
        **only_of_decoder("value", *_READ),
        **_WITH_READER,
        "reload": (
            OnlyWith.none_of("code", None, example="a function as key"),
            OnlyWith.none_of("decoder", None, example="a decoder of your own as value"),
        ),
        "options": (OnlyWith.none_of("code", None, example="a factory of functions as key"),),
    }

    rejects_section: ClassVar[RejectsModel] = RekeyRejects
    fitting_sinks: ClassVar[tuple[str, ...] | None] = ("kafka",)
    builder: ClassVar[str] = "headrace.extensions.keyed.runtime.rekey:build_rekey"

    type: Restarts[Literal["rekey"]] = "rekey"
    """This processor."""

    key: Restarts[KeySource]
    """The new key: a field of the value (value.customer.id), a header (headers.tenant), what a
    function says of the Event (package.module:function), or the record's own (key)."""

    options: Restarts[Annotated[Mapping[str, Any], Options()] | None] = None
    """The keyword arguments of a factory, which key names then: it returns the function that says
    the key. null: key names that function itself."""

    value: Restarts[ValueDecoder] = "json"
    """The form in which values are read to find the key: as in a channel with state. They are
    written as they are."""

    decoder_options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the decoder's factory."""

    reader_schema: Restarts[ReaderSchemaConfig | None] = None
    """The schema that gives the fields of value: avro and value: protobuf."""

    engine: Restarts[Literal["spark", "arrow"]] = "spark"
    """The engine that finds the key: Spark's workers, or this process."""

    internal: Restarts[ByKeyTopicConfig] = ByKeyTopicConfig()
    """The topic that records go to."""

    @override
    def topics_by_key(self, channel: ChannelConfig) -> tuple[TopicByKey, ...]:
        assert channel.sink is not None, "the configuration demands a sink"
        assert channel.sink.topic_written is not None, "the configuration demands a topic"
        return (self.internal.topic_by_key(channel.sink.topic_written, channel.subscription.names),)

    @property
    def code(self) -> str | None:
        """Return the import path of the function that says the key, None where there is none."""
        return self.key if ":" in self.key else None

    @property
    def decoder(self) -> CustomDecoding | None:
        return CustomDecoding.of(self.value, self.decoder_options)

    @property
    def framed(self) -> tuple[str, str] | None:
        return ("value", self.value) if self.value in FRAMED else None

    @property
    def reads_by(self) -> ReaderSchemaConfig | None:
        return self.reader_schema

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from _key_conflicts(self.key, self.value)
        yield from reader_conflicts("value", self.value, self.reader_schema)

    def conflicts_in(self, channel: ChannelConfig) -> Iterator[FieldConflict]:
        sink = channel.sink
        if sink is not None and sink.writes_records and sink.topic_written is None:
            yield FieldConflict(
                ("sink", "topic"), "is missing; the rekey processor writes to one topic"
            )
        if channel.subscription.patterns and self.internal.partitions is None:
            yield FieldConflict(
                ("processor", "internal", "partitions"),
                f"is missing; topics has patterns ({channel.subscription}), which do not say how "
                "many partitions the by-key topic has",
            )

    @property
    def on_spark(self) -> bool:
        return self.engine == "spark"

    @property
    def code_paths(self) -> tuple[str, ...]:
        return () if self.code is None else (self.code,)

    @override
    def called(self, channel: ChannelConfig) -> tuple[str, tuple[str, ...]] | None:
        if self.code is None:
            return None
        return self.code, ("event",) if self.options is None else ()

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        spark = ((("engine",), Extra.SPARK),) if self.on_spark else ()
        return (*spark, *_extras_of(self.value))
