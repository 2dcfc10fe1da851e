"""Applications of elements: which elements there are, and which streams lead from one to another.

Nothing runs here. ``on_init`` names elements and streams; :meth:`App.plan` checks how they fit
together, and makes of them what channels run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.apps.elements.element import Element, ElementKind, Stream, kind_of_element
from headrace.apps.elements.plan import AppPlan, Placed, Wired, WiredStream, make_plan
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.apps.elements.element import KeyFinder
    from headrace.apps.elements.plan import Singleton

#: What is given to ``create_element`` besides streams.
_RULES = ("every", "gap", "interval", "ttl", "max_instances")
_OPTIONS = (*_RULES, "singleton")

#: A name of an element or of a stream: it becomes a part of topics' names.
_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,100}")


@dataclass(eq=False)
class Prototype:
    """An element of an application: a class with its rules, and the streams that it emits to."""

    name: str
    kind: ElementKind
    singleton: Singleton | None = None
    streams: dict[str, Stream] = field(default_factory=dict)

    def bind(self, **streams: Stream) -> Prototype:
        """Bind streams of the class, by the names of its attributes, to those of the application.

        Raises:
            ConfigError: the class has no such stream, or what is given is none.
        """
        declared = self.kind.streams
        for name, stream in streams.items():
            if name not in declared:
                there = ", ".join(declared) or "none"
                raise _unfit(
                    f"element {self.name}",
                    f"there is no option {name!r}; the options are "
                    f"{', '.join(_OPTIONS)}, and its streams are {there}: write "
                    f"{name} = Stream({name!r}) in the class to bind one",
                )
            if not isinstance(stream, Stream):
                kind = type(stream).__name__
                raise _unfit(
                    f"element {self.name}",
                    f"{name} is a {kind}, and it has to be a stream; give "
                    "what create_stream or create_output_stream returns",
                )
            self.streams[declared[name].name] = stream
        return self


class App:
    """An application: ``on_init`` creates its elements, and the streams between them.

    ``name`` is what its groups and topics begin with; without it, that of the class.
    """

    name: ClassVar[str] = ""

    def on_init(self) -> None:
        """Create elements and streams. It is called whenever the application is planned."""
        raise NotImplementedError

    def create_element(
        self,
        element: type[Element],
        name: str | None = None,
        *,
        singleton: Singleton | None = None,
        **options: Any,
    ) -> Prototype:
        """Return an element of the application, by the name of its class or another one.

        Args:
            element: its class.
            name: what its state is called by, where the class is there twice.
            singleton: in place of an instance for each key ``partition`` for one for each partition
                of what the element reads, or ``member`` for one in each process, whose state is in
                its memory alone.
            **options: rules (``every``, ``gap``, ``interval``, ``ttl``; ``max_instances`` of a
                partition, beyond which those end that had no event for longest), and streams that
                the class declares, by the names of its attributes.

        Raises:
            ConfigError: the name is taken, or the class does not go with the options.
        """
        found: Any = element  # whatever was given
        given = name or str(getattr(found, "__name__", found))
        self._require_new(f"element {given}", given, self._prototypes)
        if not (isinstance(found, type) and issubclass(found, Element)):
            raise _unfit(
                f"element {given}", f"{element!r} is no element; give a class derived from Element"
            )
        if singleton not in {None, "partition", "member"}:
            raise _unfit(
                f"element {given}",
                f"singleton is {singleton!r}; write singleton='partition', for one instance for "
                "each partition of what it reads, or 'member', for one in each process",
            )
        if singleton == "member" and "ttl" in options:
            raise _unfit(
                f"element {given}",
                "ttl goes by the stream time of a partition, and the instance is one for each "
                "member; leave ttl out, or write singleton='partition'",
            )
        if singleton is not None and "max_instances" in options:
            raise _unfit(
                f"element {given}",
                f"max_instances is given, and there is one instance for each {singleton}; leave "
                "one of the two out",
            )
        rules = {rule: options.pop(rule) for rule in _RULES if rule in options}
        try:
            kind = kind_of_element(element, **rules)
        except ValueError as error:
            raise _unfit(f"element {given}", str(error)) from error
        made = Prototype(given, kind, singleton)
        made.bind(**options)
        self._prototypes[given] = made
        return made

    def create_stream(
        self, name: str, key_finder: KeyFinder | Prototype | None, *elements: Prototype
    ) -> Stream:
        """Return a stream from elements of the application to others of it.

        With :data:`SAME_KEY` an event goes to the instances of the key that emits it; with another
        key finder to those of the key that it finds, which is decided event by event; without one
        to every instance that there is, or to singletons.

        Raises:
            ConfigError: the name is taken, or it is not to elements of this application.
        """
        return self._created(name, key_finder, elements, Wired.INTERNAL)

    def create_input_stream(
        self,
        name: str,
        key_finder: KeyFinder | Prototype | None = None,
        *elements: Prototype,
        topic: str | None = None,
    ) -> Stream:
        """Return a stream that others write: the topic of its name, or ``topic``.

        With :data:`SAME_KEY` the key is that of the record; without a key finder an event goes to
        every instance that there is, or to singletons.

        Raises:
            ConfigError: the name is taken, or it is not to elements of this application.
        """
        return self._created(name, key_finder, elements, Wired.INPUT, topic)

    def create_output_stream(
        self, name: str, key_finder: KeyFinder | None = None, *, topic: str | None = None
    ) -> Stream:
        """Return a stream that others read: the topic of its name, or ``topic``.

        Applications are connected by it: what is an output stream of one may be an input stream of
        others, each of which has all of it. Without a key finder values are spread over partitions.

        Raises:
            ConfigError: the name is taken.
        """
        return self._created(name, key_finder, (), Wired.OUTPUT, topic)

    def plan(self, name: str | None = None) -> AppPlan:
        """Return what is to be run, under a name of its own or another one.

        Raises:
            ConfigError: elements and streams do not fit together; each problem names one.
        """
        streams, placed = self.wire()
        chosen = name or self.name or _dashed(type(self).__name__)
        if not _NAME.fullmatch(chosen):
            raise ConfigError([f"the name {chosen!r} cannot be part of a topic's; choose another"])
        return make_plan(chosen, placed, streams)

    def wire(self) -> tuple[list[WiredStream], list[Placed]]:
        """Call ``on_init``; return the streams and elements that it creates, in their order.

        Raises:
            ConfigError: one of them cannot be created.
        """
        self._prototypes: dict[str, Prototype] = {}
        self._streams: dict[str, WiredStream] = {}
        self.on_init()
        placed = [
            Placed(each.name, each.kind, each.singleton, dict(each.streams))
            for each in self._prototypes.values()
        ]
        return list(self._streams.values()), placed

    def _created(
        self,
        name: str,
        key_finder: KeyFinder | Prototype | None,
        elements: tuple[Prototype, ...],
        wired: Wired,
        topic: str | None = None,
    ) -> Stream:
        if isinstance(key_finder, Prototype):  # the key finder is left out, as it may be
            elements = (key_finder, *elements)
            key_finder = None
        label = f"stream {name}"
        self._require_new(label, name, self._streams)
        if topic is not None and not _NAME.fullmatch(topic):
            raise _unfit(label, f"topic is {topic!r}, which is no topic's name; take another")
        given: tuple[Any, ...] = elements
        for each in given:
            if not isinstance(each, Prototype) or self._prototypes.get(each.name) is not each:
                raise _unfit(
                    label,
                    f"{each!r} is no element of this application; give what create_element returns",
                )
        try:
            stream = Stream(name, key_finder)
        except ValueError as error:
            raise ConfigError([str(error)]) from error
        targets = tuple(each.name for each in elements)
        self._streams[name] = WiredStream(stream, wired, targets, topic or name)
        return stream

    def _require_new(self, label: str, name: Any, known: dict[str, Any]) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _unfit(
                label,
                "the name becomes part of a topic's; take letters, digits, '.', '_' and "
                "'-', 100 at most",
            )
        if name in known:
            raise ConfigError([f"{label} is there already; give one of the two another name"])


def _unfit(label: str, reason: str) -> ConfigError:
    return ConfigError([f"{label}: {reason}"])


def _dashed(name: str) -> str:
    """Return the name of a class as topics have it: ``TwitterCounter`` is ``twitter-counter``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
