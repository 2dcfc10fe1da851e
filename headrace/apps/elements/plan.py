"""The plan of an application: which elements run in one task, and which topics lie between them.

Elements are in one part, which is a channel, where a stream leads to both, or where one emits to
the other by the key that it has itself. Names come from those that the author gives.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headrace.apps.elements.element import SAME_KEY, ElementKind, Stream
from headrace.core.errors import ConfigError
from headrace.extensions.keyed.names import by_key_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.apps.elements.element import KeyFinder

#: Of what there is one instance, in place of one of each key.
Singleton: TypeAlias = Literal["partition", "member"]

#: Hexadecimal digits of a fingerprint.
_DIGITS = 8

#: Characters of a topic's name at most, and those that its changelog adds.
_LONGEST = 249 - len(".state")


class Wired(Enum):
    """The ends of a stream."""

    INTERNAL = "stream"
    """From elements of the application to elements of it."""

    INPUT = "input"
    """From others to elements of the application."""

    OUTPUT = "output"
    """From elements of the application to others."""


@dataclass(frozen=True, slots=True)
class WiredStream:
    """A stream of an application. ``topic`` is that of an input or an output."""

    stream: Stream
    wired: Wired
    targets: tuple[str, ...]
    topic: str

    @property
    def name(self) -> str:
        """Return its name."""
        return self.stream.name

    @property
    def is_rekeyed(self) -> bool:
        """Return whether records of an input are written again by the key that is found."""
        return self.wired is Wired.INPUT and self.stream.key not in {None, SAME_KEY}


@dataclass(frozen=True, slots=True)
class Placed:
    """An element of an application: ``streams`` has those that it is bound to, by its own names."""

    name: str
    kind: ElementKind
    singleton: Singleton | None
    streams: Mapping[str, Stream]


@dataclass(frozen=True, slots=True)
class Part:
    """Elements that run in one task: a channel. ``topics`` has by stream those that it reads.

    ``key`` is what instances are by: ``record`` or ``partition``. ``within`` are streams from the
    part to itself; ``everywhere`` are those of which each event goes to every instance.
    """

    name: str
    group: str
    key: str
    elements: tuple[str, ...]
    topics: Mapping[str, str]
    within: frozenset[str]
    everywhere: frozenset[str]
    is_internal: bool

    @property
    def topics_everywhere(self) -> frozenset[str]:
        """Return the topics of which each event goes to every instance."""
        return frozenset(self.topics[name] for name in self.everywhere)


@dataclass(frozen=True, slots=True)
class AppPlan:
    """The parts that an application is run as. A value; any thread.

    ``emitted`` has by element the streams that its class declares, by the names that it has there.
    """

    name: str
    elements: Mapping[str, Placed]
    streams: Mapping[str, WiredStream]
    parts: tuple[Part, ...]
    emitted: Mapping[str, Mapping[str, Stream]]

    def part(self, name: str) -> Part:
        """Return a part by its name.

        Raises:
            ConfigError: there is none of this name.
        """
        found = {each.name: each for each in self.parts}
        if name not in found:
            raise ConfigError(
                [f"application {self.name} has no part {name}; it has {', '.join(found)}"]
            )
        return found[name]

    def written_topic(self, stream: str) -> str | None:
        """Return the topic that elements write a stream to, None of one that is never written."""
        found = self.streams[stream]
        if found.wired is Wired.OUTPUT:
            return found.topic
        if found.wired is Wired.INPUT:
            return None
        return next((part.topics[stream] for part in self.parts if stream in part.topics), None)

    def written_by(self, part: Part) -> dict[str, str]:
        """Return the topics of the streams that elements of a part may emit to, by stream."""
        named = {each.name for name in part.elements for each in self.emitted[name].values()}
        found = {name: self.written_topic(name) for name in self.streams if name in named}
        return {name: topic for name, topic in found.items() if topic is not None}

    @property
    def internal_topics(self) -> tuple[str, ...]:
        """Return the topics that the application keeps for itself, but for changelogs."""
        read = {topic for part in self.parts for topic in part.topics.values()}
        outside = {each.topic for each in self.streams.values() if each.wired is Wired.INPUT}
        return tuple(sorted(read - outside))

    @property
    def topics_everywhere(self) -> frozenset[str]:
        """Return the topics of which each partition has each event."""
        return frozenset().union(*(part.topics_everywhere for part in self.parts))

    def outside_topics(self, wired: Wired) -> tuple[str, ...]:
        """Return the topics of input streams, or of output streams."""
        return tuple(sorted({e.topic for e in self.streams.values() if e.wired is wired}))

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "name": self.name,
            "elements": {name: _element(each) for name, each in self.elements.items()},
            "streams": {
                name: {
                    "ends": each.wired.value,
                    "key": describe_finder(each.stream.key),
                    "to": list(each.targets),
                    "topic": self.written_topic(name) or each.topic,
                }
                for name, each in self.streams.items()
            },
            "parts": {
                each.name: {
                    "group": each.group,
                    "key": each.key,
                    "elements": list(each.elements),
                    "topics": dict(each.topics),
                    "within": sorted(each.within),
                    "everywhere": sorted(each.everywhere),
                    "writes": self.written_by(each),
                }
                for each in self.parts
            },
        }

    @property
    def digest(self) -> str:
        """Return a short digest of the document: an application that was changed has another."""
        text = json.dumps(self.document(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    def lines(self) -> Iterator[str]:
        """Yield the plan as text: a paragraph for each part, with what it reads and writes."""
        yield f"application {self.name}, {self.digest}"
        for part in self.parts:
            yield ""
            instances = _INSTANCES[part.key]
            yield f"part {part.name}: group {part.group}, an instance for each {instances}"
            for stream, topic in part.topics.items():
                yield f"  reads {stream} from {topic}{self._origin(stream)}"
            for name in part.elements:
                yield f"  element {name}{_rules_text(self.elements[name])}"
                for own, emitted in sorted(self.emitted[name].items()):
                    yield f"    {own} -> {self._way(part, emitted.name)}"

    def mermaid(self) -> str:
        """Return a picture in the language of Mermaid: parts, elements, topics."""
        lines = ["flowchart LR"]
        numbers = {name: f"e{number}" for number, name in enumerate(self.elements)}
        topics: dict[str, str] = {}
        for number, part in enumerate(self.parts):
            lines.append(f'  subgraph p{number}["{part.group}"]')
            lines += [f'    {numbers[name]}["{name}"]' for name in part.elements]
            lines.append("  end")
        arrows: list[str] = []
        for stream in self.streams.values():
            into = [numbers[name] for name in stream.targets]
            emitters = [n for n in self.elements if stream.stream in self.emitted[n].values()]
            topic = self.written_topic(stream.name) or (
                stream.topic if stream.wired is Wired.INPUT else None
            )
            if topic is not None:
                box = topics.setdefault(topic, f"t{len(topics)}")
                arrows += [f"  {numbers[name]} -->|{stream.name}| {box}" for name in emitters]
                arrows += [f"  {box} -->|{stream.name}| {each}" for each in into]
            arrows += [
                f"  {numbers[name]} -->|{stream.name}| {numbers[target]}"
                for name in emitters
                for target in stream.targets
                if self.is_local(name, stream.name)
            ]
        lines += [f'  {box}[("{topic}")]' for topic, box in topics.items()]
        return "\n".join([*lines, *dict.fromkeys(arrows)])

    def is_local(self, element: str, stream: str) -> bool:
        """Return whether an element's events of a stream may stay within its task."""
        return any(element in part.elements and stream in part.within for part in self.parts)

    def _origin(self, name: str) -> str:
        stream = self.streams[name]
        if any(name in part.everywhere for part in self.parts):
            copied = f", which has {stream.topic} in each partition"
            return f"{copied if stream.wired is Wired.INPUT else ''}, for every instance"
        if stream.is_rekeyed:
            return f", which has {stream.topic} by {describe_finder(stream.stream.key)}"
        return ""

    def _way(self, part: Part, name: str) -> str:
        topic, key = self.written_topic(name), describe_finder(self.streams[name].stream.key)
        if topic is None:
            return f"{name}, within the task"
        if name in part.within and self.streams[name].stream.key is not None:
            return f"{name} by {key}, within the task where the key stays, else to {topic}"
        return f"{name} by {key}, to {topic}"


_INSTANCES = {"record": "key", "partition": "partition"}


def describe_finder(finder: KeyFinder | None) -> str:
    """Return a key finder as a plan has it."""
    if finder is None:
        return "no key"
    if finder is SAME_KEY:
        return "the same key"
    if isinstance(finder, str):
        return finder
    if callable(finder):
        module = getattr(finder, "__module__", None) or type(finder).__module__
        return f"{module}:{getattr(finder, '__qualname__', type(finder).__qualname__)}"
    return ", ".join(finder)


_RULES = ("every", "gap", "interval", "ttl", "max_instances")


def _element(placed: Placed) -> dict[str, Any]:
    kind, rules = placed.kind, placed.kind.rules
    return {
        "class": f"{kind.element.__module__}:{kind.element.__qualname__}",
        "rules": {name: getattr(rules, name) for name in _RULES},
        "singleton": placed.singleton,
        "streams": {name: each.name for name, each in sorted(placed.streams.items())},
    }


def _rules_text(placed: Placed) -> str:
    rules = placed.kind.rules
    found = [] if placed.singleton is None else [f"one for each {placed.singleton}"]
    found += [] if rules.every is None else [f"every {rules.every}"]
    for name in ("gap", "interval", "ttl"):
        value = getattr(rules, name)
        if value is not None:
            found.append(f"{name} {value / 1000:.15g}s")
    if rules.max_instances is not None:
        found.append(f"{rules.max_instances} instances a partition at most")
    return f": {', '.join(found)}" if found else ""


def make_plan(name: str, placed: Sequence[Placed], streams: Sequence[WiredStream]) -> AppPlan:
    """Return the plan of elements and streams, in the order in which they were created.

    Raises:
        ConfigError: they do not fit together; each problem names an element or a stream.
    """
    return _Planner(name, placed, streams).plan()


class _Planner:
    """Checks how elements and streams fit together, and divides them."""

    def __init__(self, name: str, placed: Sequence[Placed], streams: Sequence[WiredStream]) -> None:
        self._name = name
        self._elements = {each.name: each for each in placed}
        self._streams = {each.name: each for each in streams}
        self._problems: list[str] = []

    def plan(self) -> AppPlan:
        self._check_ends()
        emitted = {name: self._emitted(each) for name, each in self._elements.items()}
        self._check_emitters(emitted)
        self._check_instances()
        self._raise()
        parts = tuple(self._parts(emitted))
        self._raise()
        return AppPlan(self._name, self._elements, self._streams, parts, emitted)

    def _raise(self) -> None:
        if self._problems:
            raise ConfigError(self._problems)

    # --- what does not fit

    def _check_ends(self) -> None:
        if not self._elements:
            self._problems.append("the application has no element; call create_element in on_init")
        for stream in self._streams.values():
            if stream.wired is not Wired.OUTPUT and not stream.targets:
                self._problems.append(
                    f"stream {stream.name}: no element takes it; name one after the key finder, or "
                    "create it with create_output_stream"
                )
        fed = {target for each in self._streams.values() for target in each.targets}
        for name in self._elements:
            if name not in fed:
                self._problems.append(
                    f"element {name}: no stream leads to it; name it in create_stream or "
                    "create_input_stream"
                )
        if self._elements and not any(e.wired is Wired.INPUT for e in self._streams.values()):
            self._problems.append(
                "the application has no input stream, so nothing comes in; call "
                "create_input_stream in on_init"
            )

    def _emitted(self, placed: Placed) -> dict[str, Stream]:
        """Return the streams that an element emits to, by the names that its class has for them."""
        written = {
            name: each.stream
            for name, each in self._streams.items()
            if each.wired is not Wired.INPUT
        }
        found: dict[str, Stream] = {}
        for attribute, declared in placed.kind.streams.items():
            bound = placed.streams.get(declared.name) or written.get(declared.name)
            if bound is None:
                self._problems.append(
                    f"element {placed.name}: its stream {declared.name!r} leads nowhere; give "
                    f"create_element {attribute}=..., or create a stream of that name"
                )
            elif (
                self._streams.get(bound.name) is None
                or bound is not self._streams[bound.name].stream
            ):
                self._problems.append(
                    f"element {placed.name}: {attribute} is stream {bound.name}, which is none of "
                    "this application's; give what create_stream or create_output_stream returns"
                )
            elif bound.name not in written:
                self._problems.append(
                    f"element {placed.name}: {attribute} is stream {bound.name}, which comes in "
                    "from others; give one of create_stream or create_output_stream"
                )
            else:
                found[declared.name] = bound
        return found

    def _check_emitters(self, emitted: Mapping[str, Mapping[str, Stream]]) -> None:
        """Check that each stream that elements write has one that emits to it."""
        named = {each.name for streams in emitted.values() for each in streams.values()}
        for stream in self._streams.values():
            if stream.wired is not Wired.INPUT and stream.name not in named:
                own = _identifier(stream.name)
                self._problems.append(
                    f"stream {stream.name}: no element emits to it; bind one's stream to it, or "
                    f"write {own} = Stream({stream.name!r}) in a class"
                )

    def _check_instances(self) -> None:
        keyed = {t for e in self._streams.values() if e.stream.key is not None for t in e.targets}
        fed = {target for each in self._streams.values() for target in each.targets}
        for name in fed - keyed:
            if self._elements[name].singleton is None:
                self._problems.append(
                    f"element {name}: only streams without a key finder lead to it, which go to "
                    "instances that are there, and it would have none; give a stream a key finder, "
                    "or the element singleton='partition' or 'member'"
                )
        for stream in self._streams.values():
            for name in stream.targets:
                singleton, key = self._elements[name].singleton, stream.stream.key
                if singleton is not None and key is not None and key is not SAME_KEY:
                    self._problems.append(
                        f"stream {stream.name}: it has a key finder, and element {name} is one for "
                        f"each {singleton}; leave the key finder out, or singleton"
                    )
                kept = stream.wired is Wired.INPUT and key is SAME_KEY
                if singleton is not None and kept:
                    self._problems.append(
                        f"stream {stream.name}: it has the key of its records, and element {name} "
                        f"is one for each {singleton}; leave SAME_KEY out, or singleton"
                    )

    # --- where it is cut

    def _groups(self, emitted: Mapping[str, Mapping[str, Stream]]) -> list[list[str]]:
        """Return the elements of each part, in the order in which they were created."""
        roots = {name: name for name in self._elements}

        def root(name: str) -> str:
            while roots[name] != name:
                name = roots[name]
            return name

        def unite(one: str, other: str) -> None:
            roots[root(other)] = root(one)

        read: dict[str, list[KeyFinder | None]] = {name: [] for name in self._elements}
        for stream in self._streams.values():
            for target in stream.targets:
                unite(stream.targets[0], target)
                read[target].append(stream.stream.key)
        for name, streams in emitted.items():
            for each in streams.values():
                targets = self._streams[each.name].targets
                keeps = each.key is SAME_KEY or (each.key is not None and each.key in read[name])
                if keeps and targets:
                    unite(name, targets[0])
        found: dict[str, list[str]] = {}
        for name in self._elements:
            found.setdefault(root(name), []).append(name)
        return list(found.values())

    def _parts(self, emitted: Mapping[str, Mapping[str, Stream]]) -> Iterator[Part]:
        for names in self._groups(emitted):
            first = names[0]
            keys = {_key_of(self._elements[name]) for name in names}
            if len(keys) > 1:
                several = ", ".join(
                    f"{name} ({_INSTANCES[_key_of(self._elements[name])]})" for name in names
                )
                self._problems.append(
                    f"elements {several} are connected without a change of key, and have instances "
                    "for different things; give a stream between them a key finder, or both the "
                    "same singleton"
                )
                continue
            group = f"{self._name}.{first}"
            streams = [each for each in self._streams.values() if {*each.targets} & {*names}]
            topics: dict[str, str] = {}
            for stream in streams:
                topic = self._topic_of(stream, group, by_key="record" in keys)
                if topic is None:
                    continue
                if topic in topics.values():
                    self._problems.append(
                        f"stream {stream.name}: topic {topic} is read by another stream of the "
                        f"same part, {first}; leave one of the two out"
                    )
                if len(topic) > _LONGEST:
                    self._problems.append(
                        f"stream {stream.name}: topic {topic} has more than {_LONGEST} characters; "
                        "take shorter names"
                    )
                topics[stream.name] = topic
            if not topics:
                self._problems.append(
                    f"element {first}: only streams of its own lead to it; have an input stream, "
                    "or one of another element, lead to it"
                )
                continue
            by_key = "record" in keys
            everywhere = frozenset(e.name for e in streams if by_key and e.stream.key is None)
            inside = all(
                e.wired is Wired.INTERNAL or e.is_rekeyed or e.name in everywhere for e in streams
            )
            yield Part(
                first,
                group,
                next(iter(keys)),
                tuple(names),
                topics,
                frozenset(e.name for e in streams if e.wired is Wired.INTERNAL),
                everywhere,
                inside,
            )

    @staticmethod
    def _topic_of(stream: WiredStream, group: str, *, by_key: bool) -> str | None:
        """Return the topic by which a part has a stream, None of one within it."""
        is_copied = by_key and stream.stream.key is None
        if stream.wired is Wired.INPUT and not stream.is_rekeyed and not is_copied:
            return stream.topic
        if stream.stream.key is SAME_KEY:
            return None
        return by_key_topic(group, stream.name)


def _key_of(placed: Placed) -> str:
    """Return what the state of an element's instances is by."""
    return "record" if placed.singleton is None else "partition"


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")
