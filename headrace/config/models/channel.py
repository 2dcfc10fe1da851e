"""The section of one channel: topics, coordinator, batches, offsets, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from headrace.config.errors import FieldConflict, either
from headrace.config.models.base import (
    Hot,
    Reshares,
    Restarts,
    Resubscribes,
    Section,
    derived,
    unset,
)
from headrace.config.models.processor import (
    AdmissionConfig,
    KeyedProcessorConfig,
    MicroBatchConfig,
    ProcessorConfig,
    RekeyProcessorConfig,
    SimpleProcessorConfig,
    SparkProcessorConfig,
)
from headrace.config.models.sink import (
    FITTING,
    CustomSinkConfig,
    KafkaSinkConfig,
    SeveralSinkConfig,
    SinkConfig,
    single_sinks,
    sink_form,
)
from headrace.config.subscription import Subscription
from headrace.config.types.scalars import (
    Count,
    Distinct,
    Flag,
    GroupName,
    OneOrMore,
    TopicName,
    WholeNumber,
)
from headrace.config.types.topics import PartitionSet, TopicEntry
from headrace.config.types.units import (
    MIB,
    NonNegativeSeconds,
    PositiveSeconds,
    Size,
    format_duration,
    format_size,
)
from headrace.core.letter_headers import LetterNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.errors import Steps


class KafkaOffsetsConfig(Section):
    """The group's offsets in Kafka, where lag tools see them."""

    type: Restarts[Literal["kafka"]] = "kafka"
    """This store."""

    fencing: Restarts[Literal["metadata", "transactions"]] = "metadata"
    """What becomes of a former owner's late commit: found and fixed by the epoch in its
    metadata, or refused by the brokers, which takes rights on transactional ids."""


class ZooKeeperOffsetsConfig(Section):
    """Nodes in ZooKeeper, which refuse a former owner's late write."""

    type: Restarts[Literal["zookeeper"]] = "zookeeper"
    """This store."""


OffsetsConfig = Annotated[
    KafkaOffsetsConfig | ZooKeeperOffsetsConfig,
    Field(discriminator="type"),
]


#: Attempts before a batch is skipped or the channel stops: 15 s of back-off with the defaults.
_MAX_ATTEMPTS = 5


def _default_attempts(info: ValidationInfo) -> int | None:
    return None if info.data.get("policy") == "retry" else _MAX_ATTEMPTS


class DeadLetterConfig(Section):
    """Where records go that fail by themselves, and how many may before the channel stops."""

    topic: Hot[TopicName]
    """The dead-letter topic. It has to exist, and must not be one that the channel reads."""

    max_consecutive: Hot[Count] = 10
    """The most records in a row of one partition; the channel stops at the next."""

    max_per_thousand: Hot[Annotated[int, WholeNumber(1, 1000)]] = 100
    """The most records within a thousand successive offsets of one partition; the channel stops at
    the next."""

    headers: Hot[LetterNames] = "headrace"
    """What the headers are called that say where a record comes from and why it is there: as
    Headrace does (headrace.topic), as Kafka Connect does (__connect.errors.topic), or both."""


class OnErrorConfig(Section):
    """How often a failed batch is delivered again, and what comes after that."""

    policy: Hot[Literal["retry", "skip", "stop", "dead_letter"]] = "retry"
    """Deliver the batch again for ever; or, after max_attempts, skip it, stop the channel, or look
    for the records that fail and put those into a topic. Of a batch whose error names a record
    (PoisonRecordError), skip and dead_letter give up that record alone, whatever max_attempts is.
    Where no record is to blame (a sink is away, a time-out) they deliver it again for ever, too."""

    max_attempts: Hot[Annotated[Count | None, derived(_default_attempts, Count | None)]] = Field(
        default_factory=unset, validate_default=True
    )
    """Deliveries of one batch before it is given up; by default 5, and none with policy: retry."""

    backoff: Hot[NonNegativeSeconds] = 0.5
    """The wait before the second delivery. It doubles with each further one."""

    max_backoff: Hot[NonNegativeSeconds] = 30.0
    """The longest wait between two deliveries."""

    dead_letter: Hot[DeadLetterConfig | None] = None
    """The dead-letter topic, for policy: dead_letter and processor.undecodable: dead_letter."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.policy == "retry" and self.max_attempts is not None:
            yield FieldConflict(
                ("max_attempts",),
                "has no effect with policy: retry, which never gives up; "
                "leave it out, or write policy: skip or policy: stop",
            )
        if self.policy == "dead_letter" and self.dead_letter is None:
            yield FieldConflict(
                ("dead_letter",), "is missing; name a topic, as in {topic: events.dead}"
            )
        if self.backoff > self.max_backoff:
            yield FieldConflict(
                ("backoff",),
                f"is {format_duration(self.backoff)}, longer than max_backoff "
                f"({format_duration(self.max_backoff)}); lower it or raise max_backoff",
            )


class CoordinatorBase(Section):
    """What all coordinators have."""

    type: Reshares[str]
    """Which coordinator this is."""

    rebalance_delay: Hot[NonNegativeSeconds] = 0.5
    """How long a change in the group is left to settle before partitions move."""

    resync_interval: Hot[PositiveSeconds] = 15.0
    """How often the group is looked at although no change was reported."""


class DynamicCoordinatorConfig(CoordinatorBase):
    """The members of a group share the partitions of its topics evenly."""

    type: Reshares[Literal["dynamic"]] = "dynamic"
    """This coordinator."""

    weight: Reshares[Count] = 1
    """This member's share against the other members'."""


class FixedCountCoordinatorConfig(CoordinatorBase):
    """The member takes a fixed number of partitions of each topic."""

    type: Reshares[Literal["fixed_count"]] = "fixed_count"
    """This coordinator."""

    partitions_per_topic: Reshares[Count]
    """How many partitions of each topic to own."""


class StaticCoordinatorConfig(CoordinatorBase):
    """The member takes the partitions that are listed."""

    type: Reshares[Literal["static"]] = "static"
    """This coordinator."""

    partitions: Reshares[Annotated[Mapping[TopicName, PartitionSet], Field(min_length=1)]]
    """The partitions of each topic, as numbers and ranges."""


CoordinatorConfig = Annotated[
    DynamicCoordinatorConfig | FixedCountCoordinatorConfig | StaticCoordinatorConfig,
    Field(discriminator="type"),
]


InFlight = Annotated[int, WholeNumber(1, 16)]


def _short_form(default: str, accepts: Any) -> BeforeValidator:
    """Let a bare word name the type, and no type mean ``default``."""

    def full(value: Any) -> Any:
        if isinstance(value, str):
            return {"type": value}
        return {"type": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(full, str | accepts)


def _default_in_flight(info: ValidationInfo) -> int:
    """One micro-batch is prepared while another runs; other processors have one batch out."""
    chosen = info.data.get("processor")
    merges = isinstance(chosen, MicroBatchConfig | KeyedProcessorConfig | RekeyProcessorConfig)
    return 2 if merges else 1


class BatchConfig(Section):
    """When a batch is cut: at whichever limit is reached first."""

    max_records: Hot[Count] = 10_000
    """The most records of a batch."""

    max_bytes: Hot[Annotated[int, Size(1)]] = 16 * MIB
    """The most bytes of a batch. A larger record makes a batch of its own."""

    linger: Hot[NonNegativeSeconds] = 0.1
    """How long a batch waits for more records."""


class BufferConfig(Section):
    """What a channel may hold in memory."""

    max_bytes: Hot[Annotated[int, Size(1)]] = 128 * MIB
    """Records fetched and not yet answered, the objects around them counted. In the quarter of it
    that the Kafka client fetches ahead, keys and values alone are."""


class PauseConfig(Section):
    """How long a pause may last, and whether it outlives the process."""

    max_duration: Hot[PositiveSeconds | None] = None
    """The longest pause: after it delivery goes on by itself. Without one a pause has no limit."""

    persist: Hot[Flag] = False
    """Whether an operator's pauses are kept in state_dir, so that a restart goes on with them."""


class ChannelConfig(Section):
    """A channel: the topics of a group, one coordinator, one processor and its sink."""

    enabled: Restarts[Flag] = True
    """Whether the channel runs."""

    topics: Resubscribes[
        Annotated[tuple[TopicEntry, ...], Field(min_length=1), Distinct, OneOrMore]
    ]
    """The topics to read; one by itself needs no list. An entry that begins with ^ is a pattern, a
    regular expression of Python: it takes every topic whose name begins as it says (end it with $
    to have the whole name match), also one that is created later, but none whose name begins with
    __."""

    group: Restarts[GroupName]
    """The group whose members share the partitions, and under whose name offsets are kept."""

    initial_offset: Hot[Literal["earliest", "latest"]] = "earliest"
    """Where a partition begins for which the group has no offset. One that came after the group
    had begun with the topic is read from its first record, whether a member ran then or not."""

    offset_out_of_range: Hot[Literal["earliest", "latest", "stop"]] = "earliest"
    """Where reading goes on when the broker no longer has the offset, or stop."""

    coordinator: Reshares[
        Annotated[CoordinatorConfig, _short_form("dynamic", CoordinatorConfig)]
    ] = DynamicCoordinatorConfig()
    """Which partitions this member takes. A bare word is a type: coordinator: dynamic."""

    workers: Hot[Annotated[int, WholeNumber(1, 256)]] = 2
    """The threads that deliver batches, each partition in one of them at a time."""

    batch: Hot[BatchConfig] = BatchConfig()
    """When a batch is cut."""

    source: Restarts[Literal["by_value", "by_reference"]] = "by_value"
    """How records reach the processor: fetched here and handed over; or, by the spark processor
    only, as ranges of offsets that Spark's executors read from Kafka themselves."""

    processor: Restarts[ProcessorConfig]
    """What happens to a batch."""

    max_in_flight: Hot[Annotated[InFlight, derived(_default_in_flight, InFlight | None)]] = Field(
        default_factory=unset, validate_default=True
    )
    """The most batches of one partition that are delivered and not answered; by default 2 for
    the spark, arrow, keyed and rekey processors and 1 for the others."""

    sink: Restarts[Annotated[SinkConfig, BeforeValidator(sink_form, str | SinkConfig)] | None] = (
        None
    )
    """Where results go; a custom processor has none, and a keyed one need not have any. Bare
    text is a function (package.module:name) or a type (noop)."""

    buffer: Hot[BufferConfig] = BufferConfig()
    """What the channel may hold in memory."""

    idle_time: Hot[PositiveSeconds] = 60.0
    """How long a partition has no records before the processor is told."""

    batch_timeout: Hot[PositiveSeconds] = 300.0
    """How long a batch may stay unanswered."""

    release_timeout: Hot[PositiveSeconds | None] = None
    """How long a partition that goes to another member waits for its batches, which are withdrawn
    then: nobody reads it meanwhile. null: batch_timeout."""

    commit_interval: Hot[NonNegativeSeconds] = 1.0
    """How often offsets are committed; 0s: after every answer."""

    offsets: Restarts[Annotated[OffsetsConfig, _short_form("kafka", OffsetsConfig)]] = (
        KafkaOffsetsConfig()
    )
    """Where the group's offsets are kept. A bare word is a type: offsets: zookeeper."""

    pause: Hot[PauseConfig] = PauseConfig()
    """What holds for pauses."""

    on_error: Hot[OnErrorConfig] = OnErrorConfig()
    """What happens when a batch fails."""

    @property
    def subscription(self) -> Subscription:
        """The entries of ``topics``, told apart."""
        return Subscription(self.topics)

    @property
    def by_reference(self) -> bool:
        """Whether Spark reads the records from Kafka."""
        return self.source == "by_reference"

    @property
    def on_spark(self) -> bool:
        """Whether Spark runs the batches."""
        match self.processor:
            case KeyedProcessorConfig(engine=engine) | RekeyProcessorConfig(engine=engine):
                return engine == "spark"
            case chosen:
                return isinstance(chosen, SparkProcessorConfig)

    @property
    def admission(self) -> AdmissionConfig:
        """How records are taken: as they come where the processor has nothing to say of it."""
        chosen = self.processor
        if isinstance(chosen, MicroBatchConfig | KeyedProcessorConfig):
            return chosen.admission
        return AdmissionConfig()

    @property
    def seconds_between_commits(self) -> float:
        """The periodic auto-advance is one by a timer, which then is the timer of commits."""
        chosen = self.processor
        if isinstance(chosen, SimpleProcessorConfig) and chosen.auto_advance == "periodic":
            return chosen.auto_advance_interval
        return self.commit_interval

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from self._sink_conflicts()
        yield from self._static_conflicts()
        yield from self._buffer_conflicts()
        yield from self._dead_letter_conflicts()
        yield from self._reload_conflicts()
        yield from self._keyed_conflicts()
        yield from self._admission_conflicts()
        yield from self._rekey_conflicts()

    def _buffer_conflicts(self) -> Iterator[FieldConflict]:
        if self.by_reference:
            yield from self._reference_conflicts()
            return
        needed = 2 * self.batch.max_bytes
        if self.buffer.max_bytes < needed:
            yield FieldConflict(
                ("buffer", "max_bytes"),
                f"is {format_size(self.buffer.max_bytes)}, less than twice batch.max_bytes "
                f"({format_size(self.batch.max_bytes)}); give at least {format_size(needed)}",
            )

    def _reference_conflicts(self) -> Iterator[FieldConflict]:
        if self.processor.type != "spark":
            yield FieldConflict(
                ("source",),
                f"is by_reference, and the {self.processor.type} processor needs the records "
                "themselves; leave it out, or take the spark processor",
            )
        if self.buffer != BufferConfig():
            yield FieldConflict(
                ("buffer",),
                "has no effect with source: by_reference, which fetches nothing; leave it out",
            )

    def _reload_conflicts(self) -> Iterator[FieldConflict]:
        chosen = self.processor
        queries = isinstance(chosen, SparkProcessorConfig) and chosen.sql is not None
        sinks = single_sinks(self.sink).values()
        own = any(isinstance(sink, CustomSinkConfig) for sink in sinks)
        if chosen.reload and queries and not own:
            yield FieldConflict(
                ("processor", "reload"), "is true, which has no effect with sql; leave it out"
            )

    def _sink_conflicts(self) -> Iterator[FieldConflict]:
        processor, fitting = self.processor.type, FITTING[self.processor.type]
        if self.sink is None and fitting and processor != "keyed":
            yield FieldConflict(
                ("sink",), f"is missing; the {processor} processor takes {either(fitting)}"
            )
        if self.sink is not None and self.sink.type not in fitting:
            yield FieldConflict(
                ("sink",),
                f"is of type {self.sink.type}, which does not fit the {processor} processor; "
                + (f"it takes {either(fitting)}" if fitting else "it takes none, so leave it out"),
            )
        for steps, sink in single_sinks(self.sink).items():
            if isinstance(sink, KafkaSinkConfig):
                yield from self._kafka_sink_conflicts(steps, sink)
        chosen = self.processor
        if (
            isinstance(self.sink, SeveralSinkConfig)
            and isinstance(chosen, SparkProcessorConfig)
            and chosen.reducer is None
        ):
            way = "sql" if chosen.sql is not None else "arrow"
            yield FieldConflict(
                ("sink",),
                f"is of type several, and {way} makes one result; take a reducer, which returns "
                "one for each output",
            )

    def _keyed_conflicts(self) -> Iterator[FieldConflict]:
        chosen = self.processor
        if not isinstance(chosen, KeyedProcessorConfig):
            return
        if len(self.topics) > 1 or self.subscription.patterns:
            yield FieldConflict(
                ("topics",),
                f"has {', '.join(self.topics)}, and the keyed processor reads one topic by its "
                "name: its state has that topic's partitions",
            )
        for steps, sink in single_sinks(self.sink).items():
            if not isinstance(sink, KafkaSinkConfig):
                yield FieldConflict(
                    steps,
                    f"is of type {sink.type}, which cannot be in one transaction with the state; "
                    "write to a topic and let another channel take it on, see docs/keyed.md",
                )
            elif sink.topic is None:
                yield FieldConflict(
                    (*steps, "topic"), "is missing; with the keyed processor each output has one"
                )
        if self.on_error.policy == "dead_letter":
            yield FieldConflict(
                ("on_error", "policy"),
                "is dead_letter, which does not go with the keyed processor; write "
                "processor.on_poison: dead_letter, which is in the same transaction",
            )
        fencing = isinstance(self.offsets, KafkaOffsetsConfig) and self.offsets.fencing
        if self.sink is None and fencing == "transactions":
            yield FieldConflict(
                ("offsets", "fencing"),
                "is transactions, and a member has one transactional producer, which is that of "
                "its state; leave it out",
            )
        yield from self._reads_itself(("processor", "dead_letter"), chosen.dead_letter)

    def _admission_conflicts(self) -> Iterator[FieldConflict]:
        chosen, admission, steps = self.processor, self.admission, ("processor", "admission")
        several = isinstance(self.sink, SeveralSinkConfig) and chosen.type != "keyed"
        if admission.sheds and (self.by_reference or several):
            reason = (
                "source: by_reference, which hands over offsets, and not records to choose from"
                if self.by_reference
                else "a sink of type several, whose outputs go on apart when a process was killed"
            )
            yield FieldConflict(
                (*steps, "policy"),
                f"is {admission.policy}, and records cannot be shed with {reason}; write policy: "
                "throttling, without overflow: shed",
            )
        if admission.to is None:
            return
        if chosen.type != "keyed" and not isinstance(self.sink, KafkaSinkConfig):
            there = "no sink" if self.sink is None else f"the {self.sink.type} sink"
            yield FieldConflict(
                (*steps, "to"),
                f"is {admission.to}, which cannot be in one transaction with {there}; leave it "
                "out, so that what is shed is counted only, or take the Kafka sink",
            )
        yield from self._reads_itself((*steps, "to"), admission.to)

    def _reads_itself(self, steps: Steps, topic: str | None) -> Iterator[FieldConflict]:
        if topic is not None and self.subscription.covers(topic):
            yield FieldConflict(
                steps, f"is {topic}, which the channel reads itself; give it another name"
            )

    def _rekey_conflicts(self) -> Iterator[FieldConflict]:
        chosen = self.processor
        if not isinstance(chosen, RekeyProcessorConfig):
            return
        if isinstance(self.sink, KafkaSinkConfig) and self.sink.topic is None:
            yield FieldConflict(
                ("sink", "topic"), "is missing; the rekey processor writes to one topic"
            )
        if self.subscription.patterns and chosen.internal.partitions is None:
            yield FieldConflict(
                ("processor", "internal", "partitions"),
                f"is missing; topics has patterns ({self.subscription}), which do not say how many "
                "partitions the by-key topic has",
            )
        yield from self._reads_itself(("processor", "dead_letter"), chosen.dead_letter)

    def _dead_letter_conflicts(self) -> Iterator[FieldConflict]:
        letters, policy = self.on_error.dead_letter, self.on_error.policy
        chosen = self.processor
        decodes = isinstance(chosen, MicroBatchConfig)
        rejects = isinstance(chosen, MicroBatchConfig) and chosen.undecodable == "dead_letter"
        if letters is None:
            if rejects:
                yield FieldConflict(
                    ("on_error", "dead_letter"),
                    "is missing; processor.undecodable: dead_letter takes a topic from there, as "
                    "in {topic: events.dead}",
                )
            return
        if policy != "dead_letter" and not rejects:
            other = ", or processor.undecodable: dead_letter" if decodes else ""
            yield FieldConflict(
                ("on_error", "dead_letter"),
                f"has no effect with policy: {policy}; leave it out, or write policy: "
                f"dead_letter{other}",
            )
        if self.subscription.covers(letters.topic):
            yield FieldConflict(
                ("on_error", "dead_letter", "topic"),
                f"is {letters.topic}, which the channel reads itself ({self.subscription}); "
                "give it another name, one that no pattern of topics matches",
            )
        if isinstance(self.processor, SimpleProcessorConfig) and self.processor.no_duplication:
            yield FieldConflict(
                ("on_error", "policy"),
                "is dead_letter, which has no effect with no_duplication: what fails then is "
                "committed already; leave one of them out",
            )

    def _kafka_sink_conflicts(self, steps: Steps, sink: KafkaSinkConfig) -> Iterator[FieldConflict]:
        comes_back = sink.topic is not None and self.subscription.covers(sink.topic)
        if comes_back and not sink.loop:
            yield FieldConflict(
                (*steps, "topic"),
                f"is {sink.topic}, which the channel reads, so that each result would come back; "
                "name another topic, or write loop: true if the reducer passes over its own",
            )
        if isinstance(self.offsets, KafkaOffsetsConfig) and self.offsets.fencing != "metadata":
            yield FieldConflict(
                ("offsets", "fencing"),
                f"is {self.offsets.fencing}, and a member has one transactional producer, which is "
                "the Kafka sink's: what it stores counts at a start; leave it out",
            )

    def _static_conflicts(self) -> Iterator[FieldConflict]:
        if not isinstance(self.coordinator, StaticCoordinatorConfig):
            return
        for topic in self.coordinator.partitions:
            if not self.subscription.covers(topic):
                yield FieldConflict(
                    ("coordinator", "partitions", topic),
                    f"is not a topic of the channel, which reads {self.subscription}",
                )
