"""The plan of a topology: which channels run which operators between which topics and stores.

A topology is cut at each change of key. What is connected without one is a channel: a task of it
has the same partition of each of its topics. Names come from the author's names alone, so that a
plan says the same wherever an operator stands in the code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ConfigError
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.streams.checks import is_topic
from headrace.extensions.streams.expressions import (
    FieldNode,
    document_of,
    value_document,
    walk,
)
from headrace.extensions.streams.operators import (
    Aggregate,
    AggregateChanges,
    Emitted,
    Filter,
    KeyBy,
    Merge,
    Named,
    Operator,
    Peek,
    Reduce,
    Sink,
    Source,
    Stateful,
    StreamJoin,
    TableJoin,
    TableSource,
    windows_document,
)
from headrace.extensions.streams.windows import SessionWindows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.streams.operators import Aggregated
    from headrace.extensions.streams.rows import Row

#: The version of the document; a program that reads another one cannot rely on its members.
VERSION = 1

#: Hexadecimal digits of a fingerprint, and of a plan's digest.
_DIGITS = 8

#: The kind of a store with what is wanted of a table, and the end of its name.
SUBSCRIPTIONS = "subscriptions"

#: Characters of a topic's name at most.
_LONGEST = 249


@dataclass(frozen=True, slots=True)
class Store:
    """State of an operator, and the topic that it is restored from.

    ``kind`` is rows, windows, sessions, join, foreign_join, subscriptions, table or keyed.
    ``fingerprint`` is of what the stored rows depend on: a store with another cannot go on with
    them. ``rows`` is what their keys begin with: the name, and the version from the second one on.
    ``holder`` is the place of the operator whose channel has it: subscriptions to a table are where
    the table is, and not where it is joined. ``kept`` has by name what the fingerprint is of.
    """

    name: str
    kind: str
    operator: int
    changelog: str
    fingerprint: str
    rows: str
    holder: int
    kept: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def document(self) -> dict[str, Any]:
        """Return the store as the plan's document has it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "operator": self.operator,
            "changelog": self.changelog,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Answers:
    """The topics between the two sides of a join by a foreign key.

    By ``subscribe`` the left side names the right rows that it wants, and by ``respond`` it has
    them. ``left`` and ``right`` are the places of the tables.
    """

    left: int
    right: int
    subscribe: str
    respond: str


@dataclass(frozen=True, slots=True)
class Channel:
    """A sub-topology: what runs together, partition by partition.

    ``topics`` are read in tasks, so they have the same number of partitions; those of joins by a
    foreign key are the last. ``shared`` are whole in each member. ``operators`` are places in the
    order of the code.
    """

    name: str
    group: str
    operators: tuple[int, ...]
    topics: tuple[str, ...]
    shared: tuple[str, ...]
    writes: tuple[str, ...]
    stores: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the channel as the plan's document has it."""
        return {
            "name": self.name,
            "group": self.group,
            "operators": list(self.operators),
            "topics": list(self.topics),
            "shared": list(self.shared),
            "writes": list(self.writes),
            "stores": list(self.stores),
        }


@dataclass(frozen=True)
class Plan:
    """The parts that a topology is run as. A value; any thread.

    ``by_key`` are the topics of changes of key by the operator's place; ``as_read`` says which of
    them have the values as they were read. ``answers`` are the topics of joins by a foreign key, by
    the join's place. ``fields`` are those that are read of each operator. ``decoders`` read values
    that name their schemas, by the places of the operators that name their topics.
    """

    name: str
    group: str
    operators: tuple[Operator, ...]
    channels: tuple[Channel, ...]
    stores: tuple[Store, ...]
    by_key: Mapping[int, str]
    answers: Mapping[int, Answers]
    as_read: frozenset[int]
    fields: Mapping[int, tuple[str, ...]]
    decoders: Mapping[int, CustomDecoder] = field(default_factory=dict, compare=False)

    @property
    def internal_topics(self) -> tuple[str, ...]:
        """Return the topics that the topology keeps for itself, in alphabetical order."""
        tables = {each.topic for each in self.operators if isinstance(each, TableSource)}
        changelogs = {each.changelog for each in self.stores} - tables
        return tuple(sorted({*changelogs, *self.by_key.values(), *self.answer_topics}))

    @cached_property
    def answer_topics(self) -> frozenset[str]:
        """Return the topics of joins by a foreign key."""
        pairs = ((each.subscribe, each.respond) for each in self.answers.values())
        return frozenset(topic for pair in pairs for topic in pair)

    @property
    def channels_in_order(self) -> tuple[Channel, ...]:
        """Return the channels, each after those that write what it reads, as far as that goes."""
        return tuple(each for circle in self.circles_in_order for each in circle)

    @property
    def circles_in_order(self) -> tuple[tuple[Channel, ...], ...]:
        """Return the channels, those together that ask each other for rows, in their order."""
        asked = {
            place: (answers.subscribe, answers.respond) for place, answers in self.answers.items()
        }
        groups = _Groups(len(self.channels))
        for pair in asked.values():
            readers = [
                n for n, each in enumerate(self.channels) if {*pair}.intersection(each.topics)
            ]
            for number in readers[1:]:
                groups.unite(number, readers[0])
        circles: dict[int, list[Channel]] = {}
        for number, each in enumerate(self.channels):
            circles.setdefault(groups.root(number), []).append(each)
        in_order = self._in_order(list(circles.values()))
        return tuple(
            tuple(each for (each,) in self._in_order([[one] for one in circle]))
            for circle in in_order
        )

    def _in_order(self, left: list[list[Channel]]) -> list[list[Channel]]:
        """Return groups of channels, each after those that write by key what it reads."""
        found: list[list[Channel]] = []
        while left:
            ready = [each for each in left if not self._waits(each, left)] or left[:1]
            found += ready
            left = [each for each in left if each not in ready]
        return found

    def _waits(self, group: list[Channel], left: list[list[Channel]]) -> bool:
        read = {topic for each in group for topic in each.topics} - self.answer_topics
        others = (each for other in left if other is not group for each in other)
        return any(read.intersection(each.writes) for each in others)

    def by_key_of(self, channel: Channel) -> dict[str, tuple[str, ...]]:
        """Return the topics of a channel's changes of key, with those that they are made of."""
        made = [self.by_key[place] for place in channel.operators if place in self.by_key]
        sources = tuple(topic for topic in self.inputs_of(channel) if topic not in made)
        return dict.fromkeys(made, sources)

    def read_by(self, place: int) -> str | None:
        """Return the topic that an operator names to read, None of one that reads others."""
        operator = self.operators[place]
        return operator.topic if isinstance(operator, Source | TableSource) else None

    def written_by(self, place: int) -> str | None:
        """Return the topic that an operator's rows go to, None where they go to none."""
        operator = self.operators[place]
        return operator.topic if isinstance(operator, Sink) else self.by_key.get(place)

    def inputs_of(self, channel: Channel) -> tuple[str, ...]:
        """Return the topics that a channel reads, without those of joins by a foreign key."""
        return tuple(topic for topic in channel.topics if topic not in self.answer_topics)

    def answers_of(self, channel: Channel) -> dict[str, tuple[str, ...]]:
        """Return the topics of joins by a foreign key of which a channel is a side.

        Each with those whose partitions it has, which are what its reader has in addition.
        """
        found = {}
        for reader in self.channels:
            for topic in self.answer_topics.intersection(reader.topics):
                if topic in channel.topics or topic in channel.writes:
                    found[topic] = self.inputs_of(reader)
        return dict(sorted(found.items()))

    def by(self, place: int) -> str:
        """Return by which topics an operator's rows go, as what follows its label."""
        if place in self.by_key:
            return f", to {self.by_key[place]}"
        if place in self.answers:
            return f", by {self.answers[place].subscribe} and {self.answers[place].respond}"
        return ""

    def joins_with(self, place: int) -> list[int]:
        """Return the joins by a foreign key whose right side a table is."""
        return [join for join, answers in self.answers.items() if answers.right == place]

    def part(self, name: str) -> Channel:
        """Return a part by its name, which is its channel's without the topology's.

        Raises:
            ConfigError: there is none of this name.
        """
        found = {each.name.removeprefix(f"{self.name}."): each for each in self.channels}
        if name not in found:
            raise ConfigError(
                [f"topology {self.name} has no part {name}; it has {', '.join(found)}"]
            )
        return found[name]

    def former_parts(self, channel: Channel) -> dict[str, str]:
        """Return what a part may have been called before it read its first topic.

        By the changelogs that it would have had then.
        """
        named = {each.topics[0]: each.name for each in self.channels}
        by_key = {topic: self.operators[place].own_name for place, topic in self.by_key.items()}
        found = {}
        for topic in self.inputs_of(channel)[1:]:
            part = by_key.get(topic) or topic.removeprefix(f"{self.group}.")
            if topic not in named:
                found[changelog_name(f"{self.group}.{part}", topic)] = part
        return found

    @property
    def stores_of_channels(self) -> tuple[tuple[Store, Channel], ...]:
        """Return the stores that have a name of the author's, each with the channel that has it.

        A shared table is whole in each member, and in no channel.
        """
        return tuple(
            (store, channel)
            for store in self.stores
            for channel in self.channels
            if store.kind != SUBSCRIPTIONS and store.holder in channel.operators
        )

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON values; its members are in the same order in any process."""
        return {
            "version": VERSION,
            "name": self.name,
            "group": self.group,
            "rows": {name: row_document(row) for name, row in _rows_of(self.operators).items()},
            "operators": [self._operator(place) for place in range(len(self.operators))],
            "channels": [each.document() for each in self.channels],
            "stores": [each.document() for each in self.stores],
            "internal_topics": list(self.internal_topics),
        }

    def json(self) -> str:
        """Return the document as text."""
        return json.dumps(self.document(), ensure_ascii=False, indent=2)

    @cached_property
    def digest(self) -> str:
        """Return a short digest of the document."""
        return _digest(self.document())

    def mermaid(self) -> str:
        """Return a picture in the language of Mermaid: channels, operators, topics."""
        return "\n".join(["flowchart LR", *self._boxes(), *dict.fromkeys(self._arrows())])

    def _operator(self, place: int) -> dict[str, Any]:
        operator = self.operators[place]
        found: dict[str, Any] = {"place": place, "op": operator.op}
        if operator.own_name is not None:
            found["name"] = operator.own_name
        if isinstance(operator, Stateful):
            found["version"] = operator.version
        found["inputs"] = list(operator.inputs)
        if operator.output is not None:
            found["rows"] = operator.output.row.__name__
            found["key"] = [each.document() for each in operator.output.key]
            found["table"] = operator.output.is_table
            found["fields_in_use"] = list(self.fields[place])
        if place in self.by_key:
            found["topic"] = self.by_key[place]
            found["values"] = "as_read" if place in self.as_read else "rows"
        if place in self.answers:
            answers = self.answers[place]
            found |= {"subscribe": answers.subscribe, "respond": answers.respond}
        return {**found, **operator.document()}

    def _boxes(self) -> Iterator[str]:
        for number, channel in enumerate(self.channels):
            shown = self._shown(channel)
            yield f'  subgraph c{number}["{_quoted(channel.name)}"]'
            yield from (f"    {self._box(place)}" for place in shown)
            if not shown:
                yield f'    p{number}["rows as they are"]'
            yield "  end"
        for place, operator in enumerate(self.operators):
            if _is_shared(operator):
                yield f"  {self._box(place)}"
        for number, topic in enumerate(self._topics):
            yield f'  t{number}[("{_quoted(topic)}")]'

    def _shown(self, channel: Channel) -> list[int]:
        """Return the operators of a channel that are boxes: not those that are topics."""
        operators = ((place, self.operators[place]) for place in channel.operators)
        return [place for place, each in operators if not isinstance(each, (Source, Sink))]

    def _box(self, place: int) -> str:
        return f'n{place}["{_quoted(self.operators[place].label)}"]'

    @property
    def _topics(self) -> list[str]:
        """Return the topics of the picture."""
        found: dict[str, None] = {}
        for place, operator in enumerate(self.operators):
            if isinstance(operator, (Source, TableSource, Sink)):
                found[operator.topic] = None
            elif place in self.by_key:
                found[self.by_key[place]] = None
            elif place in self.answers:
                answers = self.answers[place]
                found |= dict.fromkeys((answers.subscribe, answers.respond))
        return list(found)

    def _arrows(self) -> Iterator[str]:
        numbers = {topic: number for number, topic in enumerate(self._topics)}
        # where there is no box the rows pass through one of the channel's own
        passed = {
            place: f"p{number}"
            for number, channel in enumerate(self.channels)
            if not self._shown(channel)
            for place in channel.operators
        }
        for place, operator in enumerate(self.operators):
            if isinstance(operator, TableSource):
                yield f"  t{numbers[operator.topic]} --> n{place}"
            target = f"n{place}"
            if isinstance(operator, Sink):
                target = f"t{numbers[operator.topic]}"
            if place in self.answers:
                yield from self._answer_arrows(place, numbers)
            for each in operator.inputs[: 1 if place in self.answers else None]:
                source = self.operators[each]
                start = f"n{each}"
                if isinstance(source, Source):
                    start = f"t{numbers[source.topic]}"
                elif each in self.by_key:
                    start = f"t{numbers[self.by_key[each]]}"
                if place in passed:
                    yield f"  {start} --> {passed[place]}"
                    start = passed[place]
                yield f"  {start} --> {target}"
            if place in self.by_key:
                yield f"  n{place} --> t{numbers[self.by_key[place]]}"

    def _answer_arrows(self, place: int, numbers: Mapping[str, int]) -> Iterator[str]:
        """Yield the arrows between a join by a foreign key and its right side."""
        answers = self.answers[place]
        for one, topic, other in (
            (place, answers.subscribe, answers.right),
            (answers.right, answers.respond, place),
        ):
            yield f"  n{one} --> t{numbers[topic]}"
            yield f"  t{numbers[topic]} --> n{other}"


def make_plan(operators: Sequence[Operator], name: str, group: str) -> Plan:
    """Return the plan of operators.

    Raises:
        ConfigError: they do not fit together; each problem names its operator and the next step.
    """
    planner = _Planner(tuple(operators), name, group)
    problems = [*planner.problems()]
    if problems:
        raise ConfigError(problems)
    return planner.plan()


class _Groups:
    """Places that belong together (disjoint sets)."""

    def __init__(self, size: int) -> None:
        self._parents = list(range(size))

    def root(self, place: int) -> int:
        """Return the place that stands for all that belong together with one."""
        while self._parents[place] != place:
            place = self._parents[place]
        return place

    def unite(self, one: int, other: int) -> None:
        """Merge what belongs to two places."""
        self._parents[self.root(one)] = self.root(other)


class _Planner:
    """Cuts a topology and names its parts."""

    def __init__(self, operators: tuple[Operator, ...], name: str, group: str) -> None:
        self._operators = operators
        self._name, self._group = name, group
        self._consumers: dict[int, list[int]] = {place: [] for place in range(len(operators))}
        for place, operator in enumerate(operators):
            for each in operator.inputs:
                self._consumers[each].append(place)
        self._versions: dict[str, int] = {}
        for operator in operators:
            if isinstance(operator, Stateful):
                known = self._versions.get(operator.name, 1)
                self._versions[operator.name] = max(known, operator.version)
        self._by_key = {
            place: self._topic(operator.name, "by-key")
            for place, operator in enumerate(operators)
            if isinstance(operator, KeyBy)
        }
        self._answers = {
            place: Answers(
                operator.inputs[0],
                operator.inputs[1],
                self._topic(operator.name, "subscribe"),
                self._topic(operator.name, "respond"),
            )
            for place, operator in enumerate(operators)
            if isinstance(operator, TableJoin) and operator.on is not None
        }

    def plan(self) -> Plan:
        channels = sorted(self._channels(), key=lambda each: each.name)
        stores = sorted(self._stores(), key=lambda each: each.name)
        return Plan(
            name=self._name,
            group=self._group,
            operators=self._operators,
            channels=tuple(channels),
            stores=tuple(self._with_changelog(each, channels) for each in stores),
            by_key=self._by_key,
            answers=self._answers,
            as_read=frozenset(place for place in self._by_key if self._is_as_read(place)),
            fields={
                place: self._fields_in_use(place)
                for place, operator in enumerate(self._operators)
                if operator.output is not None
            },
        )

    def _with_changelog(self, store: Store, channels: Sequence[Channel]) -> Store:
        """Return a store with its channel's changelog; a shared table's topic is its own."""
        if _is_shared(self._operators[store.operator]):
            return store
        (own,) = (each for each in channels if store.holder in each.operators)
        return replace(store, changelog=changelog_name(own.group, own.topics[0]))

    def _topic(self, name: str, ending: str) -> str:
        return f"{self._group}.{self._versioned(name)}.{ending}"

    def _versioned(self, name: str) -> str:
        version = self._versions.get(name, 1)
        return name if version == 1 else f"{name}.v{version}"

    # --- what is wrong

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each thing that does not fit together."""
        if not self._operators:
            yield "the topology is empty; begin with app.stream(topic, rows)"
        yield from self._problems_of_names()
        yield from self._problems_of_topics()
        yield from self._problems_of_rows()
        yield from self._problems_of_parts()
        yield from self._dead_ends()

    def _problems_of_names(self) -> Iterator[str]:
        owners: dict[str, int] = {}
        for place, operator in enumerate(self._operators):
            if not isinstance(operator, Named):
                continue
            other = owners.setdefault(operator.name, place)
            if other == place:
                continue
            first = self._operators[other]
            if isinstance(operator, Aggregate) and self._is_group_of(other, place):
                owners[operator.name] = place
                continue
            yield (
                f"{operator.label}: the name is that of {first.label} as well, and state and "
                "topics are called by it; take another"
            )

    def _is_group_of(self, key_by: int, aggregate: int) -> bool:
        """Return whether a change of key is that of an aggregate, which share a name."""
        is_key_by = isinstance(self._operators[key_by], KeyBy)
        return is_key_by and self._operators[aggregate].inputs == (key_by,)

    def _problems_of_topics(self) -> Iterator[str]:
        read: dict[str, Source | TableSource] = {}
        for operator in self._operators:
            if not isinstance(operator, (Source, TableSource)):
                continue
            other = read.setdefault(operator.topic, operator)
            if _reading(other) != _reading(operator):
                yield (
                    f"{operator.label}: topic {operator.topic!r} is read with another codec or "
                    f"time by {other.label}; a topology reads a topic once, so read both alike"
                )
        written = {each.topic for each in self._operators if isinstance(each, Sink)}
        for topic in sorted(written & {*read}):
            yield (
                f"to {topic!r}: the topology reads the topic as well, so records would go round; "
                "write to another topic, or divide the topology in two"
            )
        # the log of a table is the topic that it reads
        own = {each.changelog for each in self._stores()} - {*read}
        own |= {*self._by_key.values()}
        own |= {each.subscribe for each in self._answers.values()}
        own |= {each.respond for each in self._answers.values()}
        for topic in sorted(own & {*read, *written}):
            yield f"topic {topic!r} is one that the topology keeps for itself; take another"
        for topic in sorted(own):
            if len(topic) > _LONGEST:
                yield f"topic {topic!r} has more than {_LONGEST} characters; take shorter names"
            elif not is_topic(topic):
                yield (
                    f"topic {topic!r}, which the topology would keep for itself, is no name of a "
                    "topic; take letters, digits, '.', '_' and '-' for its group"
                )

    def _problems_of_rows(self) -> Iterator[str]:
        known: dict[str, type[Row]] = {}
        for operator in self._operators:
            row = None if operator.output is None else operator.output.row
            for each in () if row is None else _with_inner(row):
                if known.setdefault(each.__name__, each) is not each:
                    yield (
                        f"{operator.label}: two rows are called {each.__name__}, of "
                        f"{known[each.__name__].__module__} and {each.__module__}; rename one"
                    )

    def _problems_of_parts(self) -> Iterator[str]:
        read = {each.topic for each in self._operators if isinstance(each, (Source, TableSource))}
        for place, topic in self._by_key.items():
            name = self._part_name(topic)
            if name in read:
                label = self._operators[place].label
                yield (
                    f"{label}: {name!r} is a topic that the topology reads as well, and parts are "
                    "called by what they read; take another name"
                )

    def _dead_ends(self) -> Iterator[str]:
        stores = {each.operator for each in self._stores()}
        for place, operator in enumerate(self._operators):
            ends = isinstance(operator, (Sink, Peek)) or place in stores
            if not ends and not self._consumers[place]:
                row = "" if operator.output is None else f" of {operator.output.row.__name__}"
                yield (
                    f"{operator.label}{row}: nothing comes of it; end it with .to(topic), or leave "
                    "it out"
                )

    # --- where it is cut

    def _components(self) -> list[list[int]]:
        """Return the operators that are connected without a change of key."""
        groups = _Groups(len(self._operators))
        topics: dict[str, int] = {}
        for place, operator in enumerate(self._operators):
            if isinstance(operator, (Source, TableSource)) and not _is_shared(operator):
                groups.unite(place, topics.setdefault(operator.topic, place))
            for number, each in enumerate(operator.inputs):
                source = self._operators[each]
                if isinstance(source, KeyBy):
                    groups.unite(place, topics.setdefault(self._by_key[each], place))
                elif not _is_shared(source) and not (place in self._answers and number == 1):
                    groups.unite(place, each)
        found: dict[int, list[int]] = {}
        for place, operator in enumerate(self._operators):
            if not _is_shared(operator):
                found.setdefault(groups.root(place), []).append(place)
        return list(found.values())

    def _channels(self) -> Iterator[Channel]:
        stores = list(self._stores())
        for places in self._components():
            topics = sorted({each for place in places for each in self._read(place)})
            # not the first: a part is not called by them, so a join may come and go
            topics += sorted({each for place in places for each in self._answers_read(place)})
            name = self._part_name(topics[0])
            shared = {
                source.topic
                for place in places
                for each in self._operators[place].inputs
                if isinstance(source := self._operators[each], TableSource) and source.shared
            }
            yield Channel(
                name=f"{self._name}.{name}",
                group=f"{self._group}.{name}",
                operators=tuple(places),
                topics=tuple(topics),
                shared=tuple(sorted(shared)),
                writes=tuple(sorted({each for place in places for each in self._written(place)})),
                stores=tuple(sorted(each.name for each in stores if each.holder in places)),
            )

    def _read(self, place: int) -> Iterator[str]:
        """Yield the topics of which an operator reads a task's partition, but for answers."""
        operator = self._operators[place]
        if isinstance(operator, (Source, TableSource)):
            yield operator.topic
        yield from (self._by_key[each] for each in operator.inputs if each in self._by_key)

    def _answers_read(self, place: int) -> Iterator[str]:
        """Yield the topics of joins by a foreign key that an operator reads, as either side."""
        if place in self._answers:
            yield self._answers[place].respond
        yield from (each.subscribe for each in self._answers.values() if each.right == place)

    def _written(self, place: int) -> Iterator[str]:
        """Yield the topics that an operator writes."""
        operator = self._operators[place]
        if isinstance(operator, Sink):
            yield operator.topic
        if place in self._by_key:
            yield self._by_key[place]
        if place in self._answers:
            yield self._answers[place].subscribe
        yield from (each.respond for each in self._answers.values() if each.right == place)

    def _part_name(self, topic: str) -> str:
        """Return what the part is called whose first topic by the alphabet this is.

        Not by its operators: these come and go while the state stays.
        """
        named = {self._by_key[place]: place for place in self._by_key}
        if topic in named:
            operator = self._operators[named[topic]]
            assert isinstance(operator, KeyBy), "these write by key"
            return operator.name
        return topic.removeprefix(f"{self._group}.")

    # --- what is kept

    def _stores(self) -> Iterator[Store]:
        for place, operator in enumerate(self._operators):
            kind = _kind_of_store(operator)
            if kind is None:
                continue
            assert isinstance(operator, Named), "state hangs on a name"
            changelog = self._topic(operator.name, "state")
            if isinstance(operator, TableSource):
                changelog = operator.topic
            kept = {"kind": kind, **self._kept(operator)}
            rows = self._versioned(operator.name)
            yield Store(operator.name, kind, place, changelog, _digest(kept), rows, place, kept)
            if place in self._answers:
                yield self._subscriptions(place, operator, changelog)

    def _subscriptions(self, place: int, operator: Named, changelog: str) -> Store:
        """Return the store with which rows of the right table a join by a foreign key wants."""
        outputs = [self._operators[each].output for each in operator.inputs]
        keys = [[part.document() for part in each.key] for each in outputs if each is not None]
        kept = {"kind": SUBSCRIPTIONS, "keys": keys}
        return Store(
            name=f"{operator.name}.{SUBSCRIPTIONS}",
            kind=SUBSCRIPTIONS,
            operator=place,
            changelog=changelog,
            fingerprint=_digest(kept),
            rows=f"{self._versioned(operator.name)}.{SUBSCRIPTIONS}",
            holder=self._answers[place].right,
            kept=kept,
        )

    def _kept(self, operator: Operator) -> dict[str, Any]:
        """Return what the rows of a store depend on, and not its place or what comes of them."""
        inputs = [self._operators[each].output for each in operator.inputs]
        key = [each.document() for each in (inputs[0].key if inputs and inputs[0] else ())]
        if isinstance(operator, Aggregate):
            windows = windows_document(operator.windows) or {}
            windows.pop("grace", None)
            group = _without_rows(operator.document()["group"])
            made = [_stored_document(each) for each in operator.aggregates.values()]
            ordered = [made[place] for place in stored_order(operator)]
            kept = {"key": key, "group": group, "windows": windows, "aggregates": ordered}
            # of a table's rows as they are, and not of all that there ever were
            is_of_table = isinstance(operator, AggregateChanges)
            return {**kept, "of": "table"} if is_of_table else kept
        if isinstance(operator, TableSource):
            rows = [] if operator.output is None else row_document(operator.output.row)
            return {"codec": operator.codec, "rows": rows}
        if isinstance(operator, StreamJoin):
            sides = [
                [row for row in row_document(output.row) if row["field"] in names]
                for output, names in zip(
                    filter(None, inputs), map(self._fields_in_use, operator.inputs), strict=True
                )
            ]
            return {"key": key, "rows": sides}
        if isinstance(operator, TableJoin) and operator.on is not None:
            assert operator.output is not None, "rows come out"
            on, right = _without_rows(document_of(operator.on)), inputs[1]
            asked = [each.document() for each in (right.key if right else ())]
            rows = row_document(operator.output.row)
            return {"key": key, "on": on, "asked": asked, "rows": rows}
        return {"key": key}

    # --- what is read

    def _is_as_read(self, place: int) -> bool:
        """Return whether the rows that come into an operator are values as they were read."""
        (source,) = self._operators[place].inputs
        found = self._operators[source]
        if isinstance(found, (Filter, Peek)):
            return self._is_as_read(source)
        return isinstance(found, Source) or (isinstance(found, KeyBy) and self._is_as_read(source))

    def _fields_in_use(self, place: int) -> tuple[str, ...]:
        """Return the fields that are read of what an operator yields, in the order of its row."""
        output = self._operators[place].output
        assert output is not None, "a sink yields nothing"
        found: set[str] = set()
        for node in self._own_expressions(place):
            found |= {
                each.name
                for each in walk(node)
                if isinstance(each, FieldNode) and each.row is output.row
            }
        for consumer in self._consumers[place]:
            found |= self._read_by(consumer, output.row)
        return tuple(name for name in output.row.__fields__ if name in found)

    def _own_expressions(self, place: int) -> tuple[Any, ...]:
        operator = self._operators[place]
        return operator.expressions if isinstance(operator, Source) else ()

    def _read_by(self, place: int, row: type[Row]) -> set[str]:
        operator = self._operators[place]
        as_read = isinstance(operator, KeyBy) and self._is_as_read(place)
        if operator.needs_whole_rows and not as_read:
            return {*row.__fields__}
        found = {
            each.name
            for node in operator.expressions
            for each in walk(node)
            if isinstance(each, FieldNode) and each.row is row
        }
        passes_on = isinstance(operator, (Filter, Merge, Peek, Emitted))
        return found | {*self._fields_in_use(place)} if passes_on else found


def _reading(source: Source | TableSource) -> tuple[Any, ...]:
    """Return what two readers of a topic have to have in common."""
    time = source.time if isinstance(source, Source) else None
    shared = isinstance(source, TableSource) and source.shared
    return (source.codec, None if time is None else _canonical(source.document()["time"]), shared)


def _is_shared(operator: Operator) -> bool:
    return isinstance(operator, TableSource) and operator.shared


def _quoted(text: str) -> str:
    """Return a text as Mermaid has it between quotes, where # begins the name of a character."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("'", "")


def _kind_of_store(operator: Operator) -> str | None:
    kind = None
    match operator:
        case Aggregate(windows=SessionWindows()):
            kind = "sessions"
        case Aggregate():
            kind = "rows" if operator.windows is None else "windows"
        case StreamJoin():
            kind = "join"
        case TableJoin() if operator.on is not None:
            kind = "foreign_join"
        case TableSource():
            kind = "table"
        case Reduce():
            kind = "keyed"
    return kind


# --- documents ------------------------------------------------------------------------------------


def _rows_of(operators: Sequence[Operator]) -> dict[str, type[Row]]:
    found: dict[str, type[Row]] = {}
    for operator in operators:
        if operator.output is not None:
            for row in _with_inner(operator.output.row):
                found.setdefault(row.__name__, row)
    return dict(sorted(found.items()))


def _with_inner(row: type[Row]) -> Iterator[type[Row]]:
    """Yield a row and those within it."""
    yield row
    for each in row.__fields__.values():
        kind = each.type
        while kind.item is not None:
            kind = kind.item
        if kind.row is not None:
            yield from _with_inner(kind.row)


def row_document(row: type[Row]) -> list[dict[str, Any]]:
    """Return a row's fields as a plan has them."""
    found = []
    for attribute, each in row.__fields__.items():
        document = {"field": attribute, "json": each.name, **each.type.document()}
        if each.has_default:
            document["default"] = value_document(each.default)
        found.append(document)
    return found


def stored_order(operator: Aggregate) -> list[int]:
    """Return the order in which the values of aggregates are stored, whatever that of the code."""
    found = [_canonical(_stored_document(each)) for each in operator.aggregates.values()]
    return sorted(range(len(found)), key=found.__getitem__)


def _stored_document(aggregated: Aggregated) -> Any:
    return _without_rows(aggregated.document())


def _without_rows(document: Any) -> Any:
    """Return a document without the names of rows, which may change."""
    if isinstance(document, dict):
        return {name: _without_rows(each) for name, each in document.items() if name != "row"}
    return [_without_rows(each) for each in document] if isinstance(document, list) else document


def _canonical(document: Any) -> str:
    return json.dumps(document, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def _digest(document: Any) -> str:
    return hashlib.sha256(_canonical(document).encode()).hexdigest()[:_DIGITS]
