"""The section of one channel: topics, coordinator, batches, offsets, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo
from typing_extensions import override

from headrace.config.errors import FieldConflict, either
from headrace.config.models.base import (
    Hot,
    OnlyWith,
    ReloadEffect,
    Reshares,
    Restarts,
    Resubscribes,
    Section,
    derived,
    unset,
)
from headrace.config.models.processor import PROCESSORS, MergingConfig, ProcessorConfig
from headrace.config.models.rejects import (
    DEFAULT_ATTEMPTS,
    KeyedRejects,
    Rejects,
    RetryConfig,
    StreamsRejects,
    no_rejects,
)
from headrace.config.models.sink import (
    OUTPUTS,
    SINKS,
    SinkConfig,
    single_sinks,
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
from headrace.config.types.topics import PartitionNumbers, PartitionSet, TopicEntry
from headrace.config.types.units import (
    MIB,
    NonNegativeSeconds,
    PositiveSeconds,
    Size,
    format_size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.errors import Steps


class KafkaOffsetsConfig(Section):
    """The group's offsets in Kafka, where lag tools see them."""

    type: Restarts[Literal["kafka"]] = "kafka"
    """This store."""

    fencing: Restarts[Literal["metadata", "transactions"]] = "metadata"
    """The protection against a former owner's late commit. metadata: it is found and fixed by the
    epoch in its metadata. transactions: the brokers refuse it, which takes rights on transactional
    ids."""


class ZooKeeperOffsetsConfig(Section):
    """Nodes in ZooKeeper, which refuse a former owner's late write."""

    type: Restarts[Literal["zookeeper"]] = "zookeeper"
    """This store."""


OffsetsConfig = Annotated[
    KafkaOffsetsConfig | ZooKeeperOffsetsConfig,
    Field(discriminator="type"),
]


class CoordinatorBase(Section):
    """The fields that all coordinators have."""

    type: Reshares[str]
    """The type of coordinator."""

    rebalance_delay: Hot[NonNegativeSeconds] = 0.5
    """Time that a change in the group has to settle before partitions move."""

    resync_interval: Hot[PositiveSeconds] = 15.0
    """Interval at which the group is checked even if no change is reported."""


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
    """The number of partitions of each topic to own."""


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
    """Expand a bare word to a section of that type, and no type to ``default``."""

    def full(value: Any) -> Any:
        if isinstance(value, str):
            return {"type": value}
        return {"type": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(full, str | accepts)


def _default_in_flight(info: ValidationInfo) -> int:
    """Return 2 where a micro-batch is prepared while another runs, and 1 otherwise."""
    chosen = info.data.get("processor")
    return 2 if isinstance(chosen, MergingConfig) else 1


class BatchConfig(Section):
    """The limits of a batch, which is cut at whichever is reached first."""

    max_records: Hot[Count] = 10_000
    """The most records of a batch."""

    max_bytes: Hot[Annotated[int, Size(1)]] = 16 * MIB
    """The most bytes of a batch. A larger record makes a batch of its own."""

    linger: Hot[NonNegativeSeconds] = 0.1
    """Longest time that a batch waits for more records."""


class BufferConfig(Section):
    """The records that a channel may hold in memory."""

    max_bytes: Hot[Annotated[int, Size(1)]] = 128 * MIB
    """Records fetched and not yet answered, the objects around them counted. In the quarter of it
    that the Kafka client fetches ahead, keys and values alone are."""


class PauseConfig(Section):
    """The longest duration of pauses, and whether they outlive the process."""

    max_duration: Hot[PositiveSeconds | None] = None
    """The longest pause: after it delivery goes on by itself. Without one a pause has no limit."""

    persist: Hot[Flag] = False
    """Keep an operator's pauses in state_dir, so that a restart goes on with them."""


class ChannelConfig(Section):
    """A channel: the topics of a group, one coordinator, one processor and its sink."""

    only: ClassVar = {
        "buffer": (OnlyWith.one_of("source", "by_value", by_default=True),),
        "rejects": (
            OnlyWith.one_of("processor.no_duplication", False, by_default=True),
            OnlyWith.none_of("processor.type", "simple", example=""),
        ),
        "rejects.undecodable": (
            OnlyWith.none_of("processor.decode", "none", example="processor.decode: json"),
            OnlyWith.none_of("processor.type", "spark", "arrow", example=""),
        ),
        "rejects.late": (
            OnlyWith.none_of("processor.grace", None, example="processor.grace"),
            OnlyWith(("processor", "type"), ("streams",)),
        ),
    }

    enabled: Restarts[Flag] = True
    """Run the channel."""

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
    """The position to read from in a partition for which the group has no offset. A partition that
    came after the group had begun with the topic is read from its first record, whether a member
    ran then or not."""

    offset_out_of_range: Hot[Literal["earliest", "latest", "stop"]] = "earliest"
    """The position to go on from when the broker no longer has the offset; stop: the channel
    stops."""

    coordinator: Reshares[
        Annotated[CoordinatorConfig, _short_form("dynamic", CoordinatorConfig)]
    ] = DynamicCoordinatorConfig()
    """The coordinator, which chooses the partitions that this member takes. A bare word is a type:
    coordinator: dynamic."""

    workers: Hot[Annotated[int, WholeNumber(1, 256)]] = 2
    """The threads that deliver batches, each partition in one of them at a time."""

    batch: Hot[BatchConfig] = BatchConfig()
    """The limits at which a batch is cut."""

    source: Restarts[Literal["by_value", "by_reference"]] = "by_value"
    """The way records reach the processor: fetched here and handed over; or, by the spark processor
    only, as ranges of offsets that Spark's executors read from Kafka themselves."""

    processor: Restarts[Annotated[ProcessorConfig, PROCESSORS]]
    """The processor that gets the batches."""

    max_in_flight: Hot[Annotated[InFlight, derived(_default_in_flight, InFlight | None)]] = Field(
        default_factory=unset, validate_default=True
    )
    """The most batches of one partition that are delivered and not answered; by default 2 for
    the spark, arrow, keyed and rekey processors and 1 for the others."""

    sink: Restarts[Annotated[SinkConfig, SINKS] | None] = None
    """The destination of results; a custom processor has none, and a keyed one need not have any.
    Bare text is a function (package.module:name) or a type (noop)."""

    buffer: Hot[BufferConfig] = BufferConfig()
    """The records that the channel may hold in memory."""

    idle_time: Hot[PositiveSeconds] = 60.0
    """Time without records in a partition after which the processor is told that it is idle."""

    batch_timeout: Hot[PositiveSeconds] = 300.0
    """Longest time that a batch may stay unanswered."""

    release_timeout: Hot[PositiveSeconds | None] = None
    """Longest time that a partition which goes to another member waits for its batches, which are
    withdrawn then: no member reads it meanwhile. null: batch_timeout."""

    commit_interval: Hot[NonNegativeSeconds] = 1.0
    """Time between commits of offsets; 0s: commit after every answer."""

    offsets: Restarts[Annotated[OffsetsConfig, _short_form("kafka", OffsetsConfig)]] = (
        KafkaOffsetsConfig()
    )
    """The store of the group's offsets. A bare word is a type: offsets: zookeeper."""

    pause: Hot[PauseConfig] = PauseConfig()
    """The longest duration of pauses, and whether they outlive the process."""

    retry: Hot[RetryConfig] = RetryConfig()
    """Attempts to deliver a failed batch again, and the waits between them."""

    rejects: Restarts[Rejects] = Field(default_factory=no_rejects, validate_default=True)
    """The policies for records that do not go on; which reasons there are depends on the
    processor."""

    @property
    def subscription(self) -> Subscription:
        """Return the entries of ``topics``, told apart."""
        return Subscription(self.topics)

    @property
    def by_reference(self) -> bool:
        """Return whether Spark reads the records from Kafka."""
        return self.source == "by_reference"

    @override
    def effect_of(self, attribute: str) -> ReloadEffect:
        effect = super().effect_of(attribute)
        # the topics of a task are held, restored and committed together
        return ReloadEffect.CHANNEL if attribute == "topics" and self.together else effect

    @property
    def together(self) -> bool:
        """Return whether the channel works in tasks: partition i of each of its topics."""
        return self.processor.together

    @property
    def on_spark(self) -> bool:
        """Return whether Spark runs the batches."""
        return self.processor.on_spark

    @property
    def failing_batches(self) -> Literal["fail", "skip", "dead_letter"]:
        """Return the policy for failing batches; ``fail`` where the processor parts with records.

        Processors with state part with records themselves. What else a batch fails for is no
        record's.
        """
        rejects = self.rejects
        return "fail" if isinstance(rejects, KeyedRejects | StreamsRejects) else rejects.failing

    @property
    def attempts(self) -> int | None:
        """Return the deliveries of a batch before it is given up; None: without end."""
        if self.retry.attempts is None and self.failing_batches != "fail":
            return DEFAULT_ATTEMPTS
        return self.retry.attempts

    @property
    def max_rate(self) -> float | None:
        """Return the most records a second that this member takes; None: no limit."""
        return self.processor.rate_limit

    @property
    def seconds_between_commits(self) -> float:
        """Return how often offsets are committed; 0: after every answer."""
        return self.processor.seconds_between_commits(self.commit_interval)

    def conflicts(self) -> Iterator[FieldConflict]:
        yield from self._sink_conflicts()
        yield from self._static_conflicts()
        yield from self._task_conflicts()
        yield from self._buffer_conflicts()
        yield from self._rejects_conflicts()
        yield from self._overflow_conflicts()
        yield from self.processor.conflicts_in(self)

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
        if not self.processor.reads_by_reference:
            yield FieldConflict(
                ("source",),
                f"is by_reference, and the {self.processor.type} processor needs the records "
                "themselves; leave it out, or take the spark processor",
            )

    def absent(self) -> Iterator[tuple[Steps, str]]:
        yield from super().absent()
        chosen, sinks = self.processor, single_sinks(self.sink).values()
        of_own = bool(chosen.code_paths) or chosen.decoder is not None
        if chosen.fitting_sinks is None and not of_own and all(s.code is None for s in sinks):
            yield ("processor", "reload"), "code of your own, as a reducer"

    def _sink_conflicts(self) -> Iterator[FieldConflict]:
        chosen, fitting = self.processor, self.processor.fitting_sinks
        if fitting is None:
            own = self.sink is not None and self.sink.takes_results and self.sink.type
            fitting = (*OUTPUTS.types, "several", *([own] if own else []))
        if self.sink is None and fitting and chosen.needs_sink:
            yield FieldConflict(
                ("sink",), f"is missing; the {chosen.type} processor takes {either(fitting)}"
            )
        if self.sink is not None and self.sink.type not in fitting:
            yield FieldConflict(
                ("sink",),
                f"is of type {self.sink.type}, which does not fit the {chosen.type} processor; "
                + (f"it takes {either(fitting)}" if fitting else "it takes none, so leave it out"),
            )
        for steps, sink in single_sinks(self.sink).items():
            yield from sink.conflicts_in(self, steps)
        if self._has_several and chosen.makes_one_result is not None:
            yield FieldConflict(
                ("sink",),
                f"is of type several, and {chosen.makes_one_result} makes one result; take a "
                "reducer, which returns one for each output",
            )

    @property
    def _has_several(self) -> bool:
        return self.sink is not None and self.sink.type == "several"

    def _overflow_conflicts(self) -> Iterator[FieldConflict]:
        overflow = getattr(self.rejects, "overflow", "wait")
        apart = self._has_several and not self.processor.writes_records
        if overflow != "wait" and (self.by_reference or apart):
            reason = (
                "source: by_reference, which hands over offsets, and not records to choose from"
                if self.by_reference
                else "a sink of type several, whose outputs go on apart when a process was killed"
            )
            yield FieldConflict(
                ("rejects", "overflow"),
                f"is {overflow}, and records cannot be left out with {reason}; leave it out, so "
                "that they wait",
            )
        in_transaction = self.sink is not None and self.sink.writes_records
        in_transaction = in_transaction or self.processor.writes_records
        if overflow == "dead_letter" and not in_transaction:
            there = "no sink" if self.sink is None else f"the {self.sink.type} sink"
            yield FieldConflict(
                ("rejects", "overflow"),
                f"is dead_letter, and letters cannot be in one transaction with {there}; write "
                "overflow: skip, so that they are counted only, or take the Kafka sink",
            )

    def _rejects_conflicts(self) -> Iterator[FieldConflict]:
        topic = self.rejects.topic
        if topic is not None and self.subscription.covers(topic):
            yield FieldConflict(
                ("rejects", "topic"),
                f"is {topic}, which the channel reads itself ({self.subscription}); give it "
                "another name, one that no pattern of topics matches",
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

    def _task_conflicts(self) -> Iterator[FieldConflict]:
        """Yield what does not name the same partitions of all topics."""
        if not self.together:
            return
        kind = f"the {self.processor.type} processor works on the same partitions of all its topics"
        if self.subscription.patterns:
            yield FieldConflict(
                ("topics",), f"has patterns ({self.subscription}), and {kind}; name each topic"
            )
        elif isinstance(self.coordinator, StaticCoordinatorConfig):
            yield from _uneven_lists(self.coordinator.partitions, min(self.topics), kind)


def _uneven_lists(
    lists: Mapping[str, frozenset[int]], anchor: str, kind: str
) -> Iterator[FieldConflict]:
    """Yield what is not the list of the anchor, the first topic by name."""
    if anchor not in lists:
        yield FieldConflict(
            ("coordinator", "partitions"),
            f"has no list of {anchor}, and {kind}; list those of {anchor}, the first one by name",
        )
        return
    for topic, numbers in lists.items():
        if numbers != lists[anchor]:
            yield FieldConflict(
                ("coordinator", "partitions", topic),
                f"is {_ranges(numbers)}, {anchor} has {_ranges(lists[anchor])}, and {kind}; leave "
                "it out, or list the same",
            )


def _ranges(numbers: frozenset[int]) -> str:
    return ", ".join(map(str, PartitionNumbers().write(numbers)))
