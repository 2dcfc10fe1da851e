"""The sections of topologies, and of the channels that they become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError
from typing_extensions import override

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.models.base import Hot, Restarts
from headrace.config.models.channel import ChannelConfig
from headrace.config.models.rejects import RejectsModel, StreamsRejects
from headrace.config.models.sink import SINKS, SinkConfig
from headrace.config.models.topology import TopologySection
from headrace.config.problems import problems
from headrace.config.types.scalars import FreeText, GroupName, ImportPath, Name, PositiveNumber
from headrace.config.types.secrets import FreeMapping, Options, reveal_all
from headrace.config.types.units import PositiveSeconds
from headrace.core.errors import ConfigError
from headrace.core.extras import Extra
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import (
    SHORTEST_IDLE,
    InternalTopicsConfig,
    StateConfig,
    StateProcessorConfig,
)
from headrace.extensions.streams.decode import has_bytes
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.load import load_plan
from headrace.extensions.streams.operators import (
    Lookup,
    Reduce,
    StreamJoin,
    TableJoin,
    TableSource,
)
from headrace.extensions.streams.tables import (
    TABLE_SETTINGS,
    find_aggregate,
    table_channel,
    table_rows,
    table_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import ValidationInfo

    from headrace.config.errors import Steps
    from headrace.config.models.processor import TopicByKey
    from headrace.extensions.streams.operators import Operator, Output
    from headrace.extensions.streams.plan import Channel, Plan

#: Seconds between two deletions of what is processed of a by-key topic, as Kafka Streams has it.
PURGE_INTERVAL = 30.0

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

    tables: Restarts[Mapping[Name, Literal["updates", "final"]]] = Field(default={})
    """The aggregates of the topology whose rows go to tables, and which of their rows."""

    stores: Restarts[FreeText | None] = None
    """The stores of the part, each with what its rows depend on; null: there is none."""

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
        tables = {name: Emit(emit) for name, emit in self.tables.items()}
        return load_plan(
            self.code, reveal_all(self.options), self.topology, self.topology_group, tables
        )

    @property
    def code_paths(self) -> tuple[str, ...]:
        return (self.code,)

    @property
    def rate_limit(self) -> float | None:
        return self.max_rate

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        return ((("type",), Extra.KEYED),)

    @property
    def row_keys(self) -> str:
        return "store"

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
        return plan, part_of(plan, self.part)

    @override
    def purged_topics(self, channel: ChannelConfig) -> tuple[str, ...]:
        # others may read the rest
        by_key = {*self.planned[0].by_key.values()}
        return tuple(each for each in super().purged_topics(channel) if each in by_key)

    @override
    def topics_by_key(self, channel: ChannelConfig) -> tuple[TopicByKey, ...]:
        plan, part = self.planned
        made = plan.by_key_of(part)
        topics = [self.internal.topic_by_key(name, made[name]) for name in made]
        for name in self._table_topics & {*part.writes}:
            sources = tuple(topic for topic in part.topics if topic not in made)
            topics.append(self.internal.topic_by_key(name, sources, TABLE_SETTINGS))
        return tuple(topics)

    @property
    def _table_topics(self) -> set[str]:
        """Return the topics by which rows go to tables."""
        return {table_topic(self.topology_group, name) for name in self.tables}

    @override
    def outputs(self, channel: ChannelConfig) -> tuple[str, ...]:
        plan, part = self.planned
        by_key = plan.by_key_of(part)
        own = {*by_key, *self._table_topics}
        return tuple(topic for topic in part.writes if topic not in own)

    def notes(self, channel: ChannelConfig) -> Iterator[str]:
        del channel
        plan, part = self.planned
        for place in part.operators:
            operator = plan.operators[place]
            by_key = f", to {plan.by_key[place]}" if place in plan.by_key else ""
            yield f"operator {operator.label}{by_key}"

    @override
    def conflicts_in(self, channel: ChannelConfig) -> Iterator[FieldConflict]:
        idle = self.max_task_idle
        if idle is not None and idle < SHORTEST_IDLE:
            yield FieldConflict(
                ("processor", "max_task_idle"),
                f"is {idle:g}s; take 1s or longer, because where a partition ends is known half a "
                "second later",
            )


def part_of(plan: Plan, part: str) -> Channel:
    """Return a part of a plan by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    found = {each.name.removeprefix(f"{plan.name}."): each for each in plan.channels}
    if part not in found:
        named = ", ".join(found)
        raise ConfigError([f"topology {plan.name} has no part {part}; it has {named}"])
    return found[part]


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
    def _emits(self) -> dict[str, Emit]:
        """Return which rows go to the tables."""
        return {
            name: Emit.UPDATES if getattr(sink, "mode", "append") == "upsert" else Emit.FINAL
            for name, sink in self.tables.items()
        }

    def plan(self, name: str, folders: Any = ()) -> Plan:
        """Return the plan of the topology of this name. Imports its code from ``folders``, too.

        Raises:
            ConfigError: it cannot be made.
        """
        options = reveal_all(self.options)
        return load_plan(self.code, options, name, self.group, self._emits, folders)

    @override
    def make_channels(self, name: str, info: ValidationInfo) -> Mapping[str, ChannelConfig]:
        try:
            plan = self.plan(name, info.data.get("python_path") or ())
        except ConfigError as error:
            found = [FieldConflict(("code",), f"is {self.code}, which {e}") for e in error.problems]
            raise conflict_in(found) from error
        conflicts = list(self._conflicts(plan))
        documents: dict[str, dict[str, Any]] = {}
        parts = {}
        for each in plan.channels_in_order:
            part = each.name.removeprefix(f"{name}.")
            parts[part], documents[part] = each, self._document(plan, each, part)
        for table in self.tables:
            documents[table_channel(table)] = self._table_document(plan, table)
        made: dict[str, ChannelConfig] = {}
        for part, document in documents.items():
            try:
                channel = ChannelConfig.model_validate(document, context=info.context)
                made[f"{name}.{part}"] = channel
                if part in parts:
                    # beside the fields: the code need not be called again
                    channel.processor.__dict__["planned"] = (plan, parts[part])
            except ValidationError as error:
                conflicts += [
                    FieldConflict(self._origin(part, steps), sentence)
                    for steps, sentence in problems(error, ChannelConfig)
                ]
        if conflicts:
            raise conflict_in(list(dict.fromkeys(conflicts)))
        return made

    def _conflicts(self, plan: Plan) -> Iterator[FieldConflict]:
        parts = [each.name.removeprefix(f"{plan.name}.") for each in plan.channels]
        parts += map(table_channel, self.tables)
        for part in self.channels:
            if part not in parts:
                yield FieldConflict(
                    ("channels", part),
                    f"is no channel of the topology, which becomes {', '.join(parts)}",
                )
        for name, sink in self.tables.items():
            found, key = find_aggregate(plan.operators, name), set(getattr(sink, "key", ()))
            assert found is not None, "the plan has it"
            if self._emits[name] is Emit.UPDATES and key != (own := set(table_rows(found[1]).key)):
                yield FieldConflict(
                    ("tables", name, "key"),
                    f"is {', '.join(sorted(key))}, and a row of {name} is told from others by "
                    f"{', '.join(sorted(own))}; write that",
                )
        for operator in plan.operators:
            if isinstance(operator, StreamJoin):
                yield from self._conflicts_of_join(plan, operator)
            if isinstance(operator, TableSource):
                yield from self._conflicts_of_rows(operator, operator.output, None)
            if runs_in_tests_only(operator):
                yield FieldConflict(
                    ("code",),
                    f"is {self.code}, and {operator.label} runs in StreamsTest only, not in a "
                    "channel yet; leave it out, or join in a keyed reducer (docs/keyed.md)",
                )

    def _conflicts_of_join(self, plan: Plan, operator: StreamJoin) -> Iterator[FieldConflict]:
        for place in operator.inputs:
            output = plan.operators[place].output
            yield from self._conflicts_of_rows(operator, output, plan.fields[place])

    def _conflicts_of_rows(
        self, operator: Operator, output: Output | None, names: Sequence[str] | None
    ) -> Iterator[FieldConflict]:
        """Yield which fields of rows cannot be kept in a state."""
        assert output is not None, "there are rows"
        fields = output.row.__fields__
        for name in fields if names is None else names:
            if has_bytes(fields[name].type):
                yield FieldConflict(
                    ("code",),
                    f"is {self.code}, and {operator.label} would keep "
                    f"{output.row.__name__}.{name}, which has bytes; leave the field out, or "
                    "have text in its place",
                )

    def _origin(self, part: str, steps: Steps) -> Steps:
        """Return where in this section a key of a channel stands."""
        tables = {table_channel(name): name for name in self.tables}
        if part in tables and steps and steps[0] == "sink":
            return ("tables", tables[part], *steps[1:])
        own = self.channels.get(part, {})
        return ("channels", part, *steps) if steps and steps[0] in own else ("channel", *steps)

    def _table_document(self, plan: Plan, name: str) -> dict[str, Any]:
        """Return the section of the channel that writes the table of an aggregate."""
        found = find_aggregate(plan.operators, name)
        assert found is not None, "the plan has it"
        rows, sink = table_rows(found[1]), self.tables[name]
        if "repeated" in type(sink).model_fields and self._emits[name] is Emit.UPDATES:
            # of several updates of a row in one micro-batch the last one counts
            sink = sink.model_copy(update={"repeated": "last"})
        every = reveal_all(self.channel)
        own = reveal_all(self.channels.get(table_channel(name), {}))
        processor = {
            **(own.get("processor") or {}),
            "type": "arrow",
            "reducer": "headrace.extensions.streams.tables:rows_of",
            "decode": "json",
            "schema": rows.ddl,
        }
        return {
            **{key: value for key, value in every.items() if key not in {"rejects", "processor"}},
            **own,
            **_READS_ALL,
            "topics": [table_topic(self.group, name)],
            "group": f"{self.group}.{table_channel(name)}",
            "processor": processor,
            "sink": sink,
        }

    def _document(self, plan: Plan, part: Channel, name: str) -> dict[str, Any]:
        """Return the section of a channel."""
        every, own = reveal_all(self.channel), reveal_all(self.channels.get(name, {}))
        given = {**every, **own}
        stores = {each.name: f"{each.rows}:{each.fingerprint}" for each in plan.stores}
        by_key = {*plan.by_key.values()}
        processor = {
            **(every.get("processor") or {}),
            **(own.get("processor") or {}),
            "type": "streams",
            "code": self.code,
            "options": reveal_all(self.options),
            "topology": plan.name,
            "topology_group": plan.group,
            "part": name,
            "tables": {table: emit.value for table, emit in self._emits.items()},
            "stores": " ".join(stores[each] for each in part.stores) or None,
        }
        internal = dict(processor.get("internal") or {})
        if by_key.intersection(part.topics):
            internal.setdefault("purge_input", f"{PURGE_INTERVAL:g}s")
        return {
            **given,
            "topics": list(part.topics),
            "group": part.group,
            "processor": {**processor, "internal": internal},
        }


_READS_ALL = {"initial_offset": "earliest", "offset_out_of_range": "stop"}


def runs_in_tests_only(operator: Operator) -> bool:
    """Return whether channels do not run an operator."""
    match operator:
        case Reduce() | TableSource(shared=True):
            return True
        case TableJoin() | Lookup():
            return operator.on is not None
    return False
