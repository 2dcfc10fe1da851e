"""The two sides of taking a keyed channel's state over, and why they do not fit.

A channel has a reducer, and so has an operator of a topology. A state means the same in both where
its facts are the same records by the same key, and the same reducer makes it of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.errors import UsageError
from headrace.core.imports import load_callable, make
from headrace.extensions.keyed.api import TimerClock
from headrace.extensions.keyed.names import REKEY_SUFFIX, is_by_key
from headrace.extensions.keyed.row import PREFIX, KeyRow
from headrace.extensions.keyed.section import KeyedProcessorConfig
from headrace.extensions.streams.expressions import FieldNode, Part, PartNode
from headrace.extensions.streams.inline.reducers import KeyState
from headrace.extensions.streams.operators import KeyBy, Reduce, Source, function_name
from headrace.extensions.streams.types import BYTES, TEXT
from headrace.ops.state.change import StateOf
from headrace.ops.streams.commands import plan_of, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.config import ChannelConfig, Config
    from headrace.extensions.streams.operators import Operator
    from headrace.extensions.streams.plan import Channel, Plan, Store


class Adopter(NamedTuple):
    """The operator that takes a state over, with its store and the part that has it.

    ``key_by`` is the place of the change of key that the part reads, None where it reads inputs.
    """

    plan: Plan
    operator: Reduce
    store: Store
    part: Channel
    key_by: int | None

    @classmethod
    def of(cls, config: Config, name: str) -> Adopter:
        """Return the reducer of this name; with the topology's before it where several have it.

        Raises:
            UsageError: there is none, or more than one.
            ConfigError: a topology cannot be planned.
        """
        plans = [plan_of(config, topology) for topology in config.topologies]
        every = [
            (plan, place, operator)
            for plan in plans
            for place, operator in enumerate(plan.operators)
            if isinstance(operator, Reduce)
        ]
        found = [each for each in every if name in {each[2].name, f"{each[0].name}.{each[2].name}"}]
        if not found:
            names = sorted({operator.name for _, _, operator in every})
            raise unknown("reduce of a topology by the name", name, names)
        if len(found) > 1:
            named = ", ".join(f"{plan.name}.{operator.name}" for plan, _, operator in found)
            raise UsageError(f"there are several reducers {name}; choose one: {named}")
        ((plan, place, operator),) = found
        (store,) = (each for each in plan.stores if each.operator == place)
        (part,) = (each for each in plan.channels if place in each.operators)
        by_key = [at for at, topic in plan.by_key.items() if (topic,) == part.topics]
        return cls(plan, operator, store, part, by_key[0] if by_key else None)

    @property
    def label(self) -> str:
        """Return what the operator is called."""
        return f"{self.operator.label} of topology {self.plan.name}"

    @property
    def reader(self) -> Channel:
        """Return the part that reads the inputs."""
        if self.key_by is None:
            return self.part
        (found,) = (each for each in self.plan.channels if self.key_by in each.operators)
        return found

    @property
    def key(self) -> str:
        """Return the key of the facts as a channel's section has it."""
        if self.key_by is None:
            return "record"
        operator = self.plan.operators[self.key_by]
        assert isinstance(operator, KeyBy), "the others write nothing by key"
        sources = {each.output and each.output.row for each in _sources(self.plan, operator)}
        match operator.parts:
            case (FieldNode(row=row) as node,) if sources == {row}:
                return f"value.{_json_name(node)}"
            case (PartNode(part=Part.KEY),):
                return "key"
        return "an expression"


class KeyedState(NamedTuple):
    """A channel whose state is taken over, and its settings.

    ``writer`` is the channel that writes its records by key, None where it reads them as they are.
    """

    state: StateOf
    settings: KeyedProcessorConfig
    writer: ChannelConfig | None

    @classmethod
    def of(cls, config: Config, channel: str) -> KeyedState:
        """Return a keyed channel by its name.

        Raises:
            UsageError: there is no such channel, or it is of another type.
        """
        state = StateOf.of(config, channel)
        if not isinstance(state.processor, KeyedProcessorConfig):
            raise UsageError(
                f"channel {state.name} is of type {state.processor.type}; a channel of type keyed "
                "is taken over"
            )
        is_second = is_by_key(state.channel.group, state.input)
        writer = config.channels.get(f"{state.name}{REKEY_SUFFIX}") if is_second else None
        return cls(state, state.processor, writer)

    @property
    def key(self) -> str:
        """Return the key of its facts."""
        is_second = is_by_key(self.state.channel.group, self.state.input)
        is_unknown = is_second and self.writer is None
        return "that of records by key" if is_unknown else self.settings.facts_key

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the topics that the facts come from."""
        return tuple((self.writer or self.state.channel).topics)


def misfits(source: KeyedState, adopter: Adopter) -> Iterator[str]:
    """Yield why the state of a channel would mean something else in a topology."""
    settings, operator, plan = source.settings, adopter.operator, adopter.plan
    label = adopter.label
    if source.key != adopter.key:
        yield f"its key is {source.key}, and that of {label} is {adopter.key}"
    if source.inputs != adopter.reader.topics:
        yield (
            f"it reads {', '.join(source.inputs)}, and {adopter.reader.name}, for {label}, reads "
            f"{', '.join(adopter.reader.topics)}"
        )
    source_key = plan.operators[operator.inputs[0]].output
    assert source_key is not None, "rows come in"
    if source_key.key != ((BYTES,) if settings.keys == "bytes" else (TEXT,)):
        of_type = " and ".join(map(str, source_key.key))
        yield f"its reducer gets keys as {settings.keys}, and that of {label} as {of_type}"
    known, now = function_name(_reducer_of(settings)), function_name(operator.reducer)
    if known != now:
        yield f"its reducer is {known}, and that of {label} is {now}"
    if settings.encoding != "json":
        yield f"its states are encoded as {settings.encoding}, and those of {label} as json"
    if settings.ttl is not None:
        yield f"its keys are deleted after ttl: {settings.ttl:g}s, which {label} does not do"
    for read in _sources(plan, plan.operators[operator.inputs[0]]):
        if isinstance(read, Source):
            yield from _misfits_of_topic(settings, read)
        else:
            yield f"its facts are the records of a topic, and {label} reads {read.label}"


def _sources(plan: Plan, operator: Operator) -> Iterator[Operator]:
    """Yield what rows of an operator come from."""
    if not operator.inputs:
        yield operator
    for place in operator.inputs:
        yield from _sources(plan, plan.operators[place])


def _misfits_of_topic(settings: KeyedProcessorConfig, read: Source) -> Iterator[str]:
    """Yield what of a topic's records is read otherwise."""
    if settings.value != read.codec:
        yield f"its values are read as {settings.value}, and those of {read.label} as {read.codec}"
    time = "record"
    if isinstance(read.time, FieldNode):
        time = f"value.{_json_name(read.time)}"
    elif read.time is not None:
        time = "an expression"
    if settings.time != time:
        yield f"its facts have the time of {settings.time}, and those of {read.label} of {time}"


def _json_name(node: FieldNode) -> str:
    """Return what a field is called in JSON."""
    return node.row.__fields__[node.name].name


def _reducer_of(settings: KeyedProcessorConfig) -> Callable[..., Any]:
    """Return the reducer of a channel.

    Raises:
        ImportPathError: it cannot be imported or made.
    """
    if settings.factory is not None:
        made: Callable[..., Any] = make(settings.factory, settings.keyword_arguments())
        return made
    return load_callable(settings.code)


def adopted_row(key: bytes, row: KeyRow) -> KeyRow:
    """Return a row of a keyed channel as one of a reducer in a topology.

    Raises:
        UsageError: it has what a topology does not: a quarantine, or a timer of the wall clock.
    """
    timers, quarantined = row.read_extra()
    if quarantined is not None:
        raise UsageError(
            f"key {shown_key(key)} is in quarantine, which a topology has not: {quarantined}. "
            "headrace state release ends it; nothing was changed"
        )
    for name, timer in timers.items():
        if timer.clock is not TimerClock.EVENT or name.startswith(PREFIX):
            raise UsageError(
                f"key {shown_key(key)} has the timer {name}, which is not of event time or not of "
                "the reducer, and a topology has no other; have the channel run until it has "
                "fired, or set it with at_event. Nothing was changed"
            )
    return KeyRow(KeyState(row.state, {name: timer.due for name, timer in timers.items()}).row())


def shown_key(key: bytes) -> str:
    """Return a key as people read it."""
    return key.decode("utf-8", "backslashreplace")
