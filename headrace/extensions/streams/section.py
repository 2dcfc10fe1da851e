"""The sections of topologies, and of the channels that they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field
from typing_extensions import override

from headrace.config.errors import FieldConflict
from headrace.config.models.base import Hot, Restarts
from headrace.config.models.registry import ReaderSchemaConfig
from headrace.config.models.rejects import RejectsModel, StreamsRejects
from headrace.config.models.sink import SINKS, SinkConfig
from headrace.config.models.topology import TopologySection
from headrace.config.types.scalars import (
    FreeText,
    GroupName,
    ImportPath,
    Name,
    PositiveNumber,
    TopicName,
)
from headrace.config.types.secrets import FreeMapping, Options, reveal_all
from headrace.config.types.units import PositiveSeconds
from headrace.core.extras import Extra
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import (
    SHORTEST_IDLE,
    InternalTopicsConfig,
    StateConfig,
    StateProcessorConfig,
)
from headrace.extensions.streams.names import TABLE_SETTINGS, table_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationInfo

    from headrace.config.errors import Steps
    from headrace.config.models.channel import ChannelConfig
    from headrace.config.models.processor import TopicByKey
    from headrace.extensions.streams.engines import Engine
    from headrace.extensions.streams.plan import Channel, Plan

#: What may be said of an engine.
EngineChoice: TypeAlias = Literal["arrow", "spark", "auto"]

#: Keys of a channel that its topology decides.
_OF_TOPOLOGY = ("topics", "group", "sink", "source")


class StreamsProcessorConfig(StateProcessorConfig):
    """Operators of a topology, on the topics that one of its parts reads. Made by topologies."""

    rejects_section: ClassVar[RejectsModel] = StreamsRejects
    fitting_sinks: ClassVar[tuple[str, ...] | None] = ()
    builder: ClassVar[str] = "headrace.extensions.streams.runtime.build:build_streams"

    type: Restarts[Literal["streams"]] = "streams"
    """This processor."""

    code: Restarts[ImportPath]
    """The function that returns the topology."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the function."""

    topology: Restarts[Name]
    """The name of the topology."""

    topology_group: Restarts[GroupName]
    """The group of the topology, with which names of its topics begin."""

    part: Restarts[FreeText]
    """The part of the topology that the channel is."""

    engine: Restarts[EngineChoice] = "arrow"
    """The engine of operators without state: this process (arrow), Spark's workers, or auto: Spark
    where they call Python functions. All others run in this process."""

    tables: Restarts[Mapping[Name, Literal["updates", "final"]]] = Field(default={})
    """The aggregates of the topology whose rows go to tables, and which of their rows."""

    stores: Restarts[FreeText | None] = None
    """The stores of the part, each with what its rows depend on; null: there is none."""

    reader_schemas: Restarts[Mapping[TopicName, ReaderSchemaConfig]] = Field(default={})
    """The schemas that streams with codec avro or protobuf read values by, by their topics; others
    take the latest of the subject that the topic's name and -value make."""

    max_task_idle: Hot[PositiveSeconds | None] = None
    """Longest wait for a topic at its end, where the part reads several. Their records are
    processed in the order of their times. 1s or longer; null: 1s."""

    state: Restarts[StateConfig] = StateConfig()
    """The local store."""

    internal: Restarts[InternalTopicsConfig] = InternalTopicsConfig()
    """The topics that the channel keeps for itself."""

    max_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    def plan(self) -> Plan:
        """Return the plan of the whole topology. Imports its code.

        Raises:
            ConfigError: it cannot be made.
        """
        from headrace.extensions.streams.load import load_plan  # noqa: PLC0415 - needs Arrow

        options = reveal_all(self.options)
        return load_plan(self.code, options, self.topology, self.topology_group, self.tables)

    @property
    def code_paths(self) -> tuple[str, ...]:
        return (self.code,)

    @property
    def rate_limit(self) -> float | None:
        return self.max_rate

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        spark = ((("engine",), Extra.SPARK),) if self.engine == "spark" else ()
        return ((("type",), Extra.KEYED), *spark)

    @property
    def on_spark(self) -> bool:
        return self.engine != "arrow" and self.chosen_engine.name == "spark"

    @cached_property
    def chosen_engine(self) -> Engine:
        """Return the engine of the part.

        Raises:
            ConfigError: the topology cannot be planned.
        """
        from headrace.extensions.streams.engines import choose_engine  # noqa: PLC0415 - needs Arrow

        return choose_engine(self.engine, *self.planned)

    @property
    def row_keys(self) -> str:
        return "store"

    @property
    @override
    def has_fixed_keys(self) -> bool:
        # without a store there is nothing that more partitions would split
        return self.stores is None

    @override
    def split_step(self, channel: ChannelConfig) -> str:
        plan, _ = self.planned
        if not plan.answers and {*channel.topics} <= {*plan.by_key.values()}:
            return (
                f"headrace streams reshard {self.topology} --partitions N, with that number, moves "
                "each row to where it belongs"
            )
        return (
            f"give topology {self.topology} another group, which reads its topics from the "
            "beginning: rows of its stores cannot be moved"
        )

    @property
    @override
    def has_rows(self) -> bool:
        return self.stores is not None

    @override
    def state_key(self, channel: ChannelConfig) -> str | None:
        return self.stores

    @override
    def refuse_state(self, former: str, channel: ChannelConfig) -> str | None:
        known, now = _fingerprints(former), _fingerprints(self.stores or "")
        changed = sorted(name for name in known.keys() & now.keys() if known[name] != now[name])
        if not changed:
            return None
        changelog = changelog_name(channel.group, channel.topics[0])
        return (
            f"store {changed[0]} of topology {self.topology} was changed: its key, windows, "
            f"aggregates or their order differ from those of the rows in {changelog}. Raise "
            "version= of the operator, which begins from nothing, take another group, or set the "
            "code back; headrace state forget deletes what there is"
        )

    def left_out(self, channel: ChannelConfig) -> Iterator[str]:
        rejects = channel.rejects
        assert isinstance(rejects, StreamsRejects), "the configuration has the processor's"
        for records, policy in (
            ("records that an operator fails on", rejects.failing),
            ("records whose windows are over", rejects.late),
        ):
            if policy == "skip":
                yield f"{records} are left out"
            elif policy == "dead_letter":
                yield f"{records} go to {rejects.topic}, once"

    @cached_property
    def planned(self) -> tuple[Plan, Channel]:
        """Return the plan and the part of it, by the code as it is at the first use.

        Raises:
            ConfigError: they cannot be made.
        """
        plan = self.plan()
        return plan, plan.part(self.part)

    @override
    def purged_topics(self, channel: ChannelConfig) -> tuple[str, ...]:
        # others may read the rest
        plan, _ = self.planned
        own = {*plan.by_key.values(), *plan.answer_topics}
        return tuple(each for each in super().purged_topics(channel) if each in own)

    @override
    def topics_by_key(self, channel: ChannelConfig) -> tuple[TopicByKey, ...]:
        plan, part = self.planned
        made = plan.by_key_of(part)
        topics = [self.internal.topic_by_key(name, made[name]) for name in made]
        for name in self._table_topics & {*part.writes}:
            sources = tuple(topic for topic in plan.inputs_of(part) if topic not in made)
            topics.append(self.internal.topic_by_key(name, sources, TABLE_SETTINGS))
        answers = plan.answers_of(part)
        topics += (self._answers(name, answers[name]) for name in answers if name in part.writes)
        return tuple(topics)

    @override
    def made_topics(self, channel: ChannelConfig) -> tuple[TopicByKey, ...]:
        # each side of a join by a foreign key begins with both topics, whichever comes first
        plan, part = self.planned
        written = self.topics_by_key(channel)
        names = {each.name for each in written}
        answers = plan.answers_of(part).items()
        return (*written, *(self._answers(*each) for each in answers if each[0] not in names))

    @override
    def shared_topics(self, channel: ChannelConfig) -> tuple[str, ...]:
        return self.planned[1].shared

    def _answers(self, name: str, sources: tuple[str, ...]) -> TopicByKey:
        """Return a topic of a join by a foreign key, with the partitions of its reader's others."""
        internal = self.internal.model_copy(update={"partitions": None})
        return internal.topic_by_key(name, sources)

    @property
    def _table_topics(self) -> set[str]:
        """Return the topics by which rows go to tables."""
        return {table_topic(self.topology_group, name) for name in self.tables}

    @override
    def outputs(self, channel: ChannelConfig) -> tuple[str, ...]:
        plan, part = self.planned
        by_key = plan.by_key_of(part)
        own = {*by_key, *self._table_topics, *plan.answer_topics}
        return tuple(topic for topic in part.writes if topic not in own)

    def notes(self, channel: ChannelConfig) -> Iterator[str]:
        del channel
        plan, part = self.planned
        yield self.chosen_engine.reason
        for place in part.operators:
            operator = plan.operators[place]
            yield f"operator {operator.label}{plan.by(place)}"

    @override
    def conflicts_in(self, channel: ChannelConfig) -> Iterator[FieldConflict]:
        idle = self.max_task_idle
        if idle is not None and idle < SHORTEST_IDLE:
            yield FieldConflict(
                ("processor", "max_task_idle"),
                f"is {idle:g}s; take 1s or longer, because where a partition ends is known half a "
                "second later",
            )


def _fingerprints(stores: str) -> dict[str, str]:
    pairs = (each.rpartition(":") for each in stores.split())
    return {name: fingerprint for name, _, fingerprint in pairs}


@dataclass(frozen=True, slots=True)
class _ChannelKeys(FreeMapping):
    """Keys of a channel, as a channel has them."""

    description = "a mapping of a channel's keys"

    def _refused(self, name: str, value: Any) -> str | None:
        del value
        return "is what the topology decides; leave it out" if name in _OF_TOPOLOGY else None


class TopologyConfig(TopologySection):
    """A topology of operators on streams, and how the channels run that it becomes."""

    code: Restarts[ImportPath]
    """The function that returns the topology (package.module:name). It is called whenever the
    configuration is read."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the function."""

    group: Restarts[GroupName]
    """The beginning of the names of its channels' groups, and of the topics that it makes."""

    engine: Restarts[EngineChoice] = "arrow"
    """The engine of operators without state, as in a processor of type streams. A part has another
    by ``engine`` in its processor, below channels."""

    channel: Restarts[Annotated[Mapping[str, Any], _ChannelKeys()]] = Field(default={})
    """Keys that each of its channels has, as a channel has them: batch, rejects, workers, ...; in
    processor those of type streams."""

    channels: Restarts[Mapping[Name, Annotated[Mapping[str, Any], _ChannelKeys()]]] = Field(
        default={}
    )
    """The same for single channels, by their names without that of the topology."""

    tables: Restarts[Mapping[Name, Annotated[SinkConfig, SINKS]]] = Field(default={})
    """Tables of aggregates by their names, each a sink of a channel that is made for it. With mode:
    upsert a table has the row of each key and window as it is, else each window once it is over."""

    @property
    def table_rows(self) -> dict[str, Literal["updates", "final"]]:
        """Return which rows of aggregates go to their tables."""
        return {
            name: "updates" if getattr(sink, "mode", "append") == "upsert" else "final"
            for name, sink in self.tables.items()
        }

    def plan(self, name: str, folders: Any = ()) -> Plan:
        """Return the plan of the topology of this name. Imports its code from ``folders``, too.

        Raises:
            ConfigError: it cannot be made.
        """
        from headrace.extensions.streams.load import load_plan  # noqa: PLC0415 - needs Arrow

        options = reveal_all(self.options)
        return load_plan(self.code, options, name, self.group, self.table_rows, folders)

    @override
    def make_channels(self, name: str, info: ValidationInfo) -> Mapping[str, ChannelConfig]:
        from headrace.extensions.streams.expansion import Expansion  # noqa: PLC0415 - needs Arrow

        return Expansion(self, name, info).channels()
