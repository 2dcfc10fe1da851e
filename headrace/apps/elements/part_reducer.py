"""The reducer of a part of an application: several elements on one key, and what they emit."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.apps.elements.added_events import EVICTED, AddedEvents, Bound
from headrace.apps.elements.app import App
from headrace.apps.elements.element import Call, parts_of_key
from headrace.apps.elements.plan import Wired, describe_finder
from headrace.core.imports import load_object
from headrace.core.user_text import describe_error
from headrace.extensions.keyed.codecs import from_json, key_bytes
from headrace.extensions.keyed.exact import exact_json
from headrace.keyed import Event, Fired, Output, batched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from headrace.apps.elements.element import Instance
    from headrace.apps.elements.plan import AppPlan, Part
    from headrace.keyed import Timer

#: Events that one record may lead to within its task, one after the other. More go round.
MAX_EVENTS = 10_000


class PartReducer:
    """The reducer of a part: ``reduce(key, state, facts, now)``.

    An element of which there is one a member has its instance in this object: what a call that
    fails did to it is undone, and a new process begins with a new one.

    The state has that of each element that has an instance of the key, by its name. What an element
    emits by its own key to another of the part is taken at once, in the order in which it was
    emitted, and after the event that it was emitted at. The rest are outputs.
    """

    def __init__(self, plan: AppPlan, part: Part) -> None:
        self.plan = plan
        self.part = part
        self.kinds = {name: plan.elements[name].kind for name in part.elements}
        self.emitted = {name: plan.emitted[name] for name in part.elements}
        self.by_topic = {topic: stream for stream, topic in part.topics.items()}
        self.targets = {
            name: [each for each in stream.targets if each in self.kinds]
            for name, stream in plan.streams.items()
        }
        self.of_member = {n for n in part.elements if plan.elements[n].singleton == "member"}
        #: The instances of which there is one a member.
        self.members: dict[str, Instance] = {}
        self.everywhere = part.everywhere
        self.internal = {n for n, e in plan.streams.items() if e.wired is Wired.INTERNAL}
        bounds = self._bounds()
        #: What adds events to those that come in, None where there are none to add.
        self.headrace_extend = (
            AddedEvents(part.topics_everywhere, bounds) if bounds or part.everywhere else None
        )
        written = plan.written_by(part)
        self.outputs = tuple(sorted(written))
        first = next(iter(self.kinds.values()))
        #: by it Spark's workers are sent the package that the classes are from
        self.__module__ = first.element.__module__
        if all(kind.rules.ttl is None for kind in self.kinds.values()):  # no timer of event time
            batched(self)

    def _bounds(self) -> dict[str, Bound]:
        """Return how many instances of an element a partition may have, and what makes them."""
        within = {each.name for streams in self.emitted.values() for each in streams.values()}
        # an event for all instances makes none
        within = (within & self.internal) - self.everywhere
        topics = {
            stream: topic
            for topic, stream in self.by_topic.items()
            if stream not in self.everywhere
        }
        return {
            name: Bound(
                most,
                frozenset(topics[each] for each in topics if name in self.targets[each]),
                any(name in self.targets[each] for each in within),
            )
            for name, kind in self.kinds.items()
            if (most := kind.rules.max_instances) is not None
        }

    def __call__(
        self,
        key: str | bytes,
        state: dict[str, Any] | None,
        facts: Sequence[Event[Any] | Fired],
        now: int,
    ) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return what becomes of the instances of a key.

        Raises:
            ValueError: events go round within the task, or a value cannot be emitted so.
        """
        run = _KeyRun(self, key, state or {}, now)
        for fact in facts:
            if isinstance(fact, Event) and fact.source == EVICTED:
                run.evict(fact.value, fact.ts)
            elif isinstance(fact, Event):
                run.take(self.by_topic[fact.source], fact)
            else:
                run.fire(fact)
        found = run.result()
        if self.of_member:
            run.keep_members()
        return found


class _KeyRun:
    """The instances of one key on their way through some facts."""

    def __init__(
        self, reducer: PartReducer, key: str | bytes, state: Mapping[str, Any], now: int
    ) -> None:
        self._reducer = reducer
        self._key = key_bytes(parts_of_key(key))
        self._state = dict(state)
        self._calls = {
            name: Call(parts_of_key(key), now, streams) for name, streams in reducer.emitted.items()
        }
        self._instances: dict[str, Instance | None] = {
            name: kind.read(state[name], self._calls[name]) if name in state else None
            for name, kind in reducer.kinds.items()
        }
        for name, instance in reducer.members.items():
            self._instances[name] = reducer.kinds[name].copy(instance, self._calls[name])
        self._waiting: deque[tuple[str, Event[Any]]] = deque()
        self._outputs: list[Output] = []
        self._fact: Event[Any] | None = None
        self._evicted: set[str] = set()

    def take(self, stream: str, event: Event[Any]) -> None:
        """Reduce an event of a stream, and what it leads to within the task."""
        self._fact = event
        self._waiting.append((stream, event))
        self._drain()

    def evict(self, name: str, time: int) -> None:
        """End an instance, of which there are too many; one that has ended stays so.

        What comes of it is not delivered to elements that are ended so, which it would make again.
        """
        instance = self._instances.get(name)
        if instance is not None:
            self._fact = None
            self._evicted.add(name)
            self._calls[name].time = time
            instance.remove()
            self._collect(name, instance)
            self._drain(self._evicted)

    def fire(self, fired: Fired) -> None:
        """Apply a timer; one of an element that is not there any more does nothing."""
        name, _, timer = fired.name.rpartition("/")
        instance = self._instances.get(name)
        if instance is not None and not self._has_fired(name, instance, fired):
            self._fact = None
            instance.fire(fired._replace(name=timer))
            self._collect(name, instance)
            self._drain()

    def _has_fired(self, name: str, instance: Instance, fired: Fired) -> bool:
        """Return whether a member's instance has had the timer by another partition."""
        due = instance.marks.due
        return name in self._reducer.of_member and due is not None and fired.due < due

    def keep_members(self) -> None:
        """Keep the instances of which there is one a member, for other partitions."""
        for name in self._reducer.of_member:
            instance = self._instances[name]
            if instance is None:
                self._reducer.members.pop(name, None)
            else:
                self._reducer.members[name] = instance

    def result(self) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return state, outputs and timers."""
        # what an element left that is no more part of the application stays, for when it returns
        state = {
            name: each for name, each in self._state.items() if name not in self._reducer.kinds
        }
        timers: dict[str, Timer] = {}
        for name, instance in self._instances.items():
            if instance is not None:
                dumped = self._reducer.kinds[name].dump(instance)
                if name not in self._reducer.of_member:
                    state[name] = dumped
                own = instance.timers()
                timers |= {f"{name}/{timer}": when for timer, when in own.items()}
        return state or None, self._outputs, timers

    def _drain(self, ended: Collection[str] = ()) -> None:
        """Deliver what waits, and what comes of it, to elements but those that are ended."""
        count = 0
        while self._waiting:
            stream, event = self._waiting.popleft()
            count += 1
            if count > MAX_EVENTS:
                raise ValueError(
                    f"stream {stream!r}: one record led to more than {MAX_EVENTS} events of its "
                    "key within the task, which seem to go round; have an element end them, or "
                    "send them by another key"
                )
            for name in self._reducer.targets[stream]:
                if name in ended:
                    continue
                if stream not in self._reducer.everywhere or self._instances[name] is not None:
                    self._deliver(name, event)

    def _deliver(self, name: str, event: Event[Any]) -> None:
        instance = self._instances[name]
        if instance is None:
            call = self._calls[name]
            call.time = event.ts
            instance = self._reducer.kinds[name].create(call)
            self._collect(name, instance)
        if not instance.is_removed:
            instance.take(event)
            self._collect(name, instance)

    def _collect(self, name: str, instance: Instance) -> None:
        """Collect what an element has emitted, and note whether it is there still."""
        self._instances[name] = None if instance.is_removed else instance
        call = self._calls[name]
        made, call.outputs = call.outputs, []
        for output in made:
            self._route(output)

    def _route(self, output: Output) -> None:
        reducer, stream = self._reducer, output.to
        assert stream is not None, "an element names its stream"
        if stream not in reducer.internal:
            self._outputs.append(output)
            return
        value = output.value
        # as it would be in a topic: what one changes later, the other does not see
        data = None if value is None else exact_json(value, f"a value for stream {stream!r}")
        if reducer.targets[stream] and self._is_own(output.key):
            ts = 0 if output.ts is None else output.ts
            decoded = None if data is None else from_json(data)
            fact = self._fact
            partition, offset = (0, 0) if fact is None else (fact.partition, fact.offset)
            headers = tuple(output.headers)
            self._waiting.append((stream, Event(decoded, ts, stream, partition, offset, headers)))
        elif stream in reducer.outputs:
            self._outputs.append(output._replace(value=data))
        else:
            raise ValueError(
                f"stream {stream!r} keeps the key, and has no topic for the key {output.key!r}; "
                "leave key= out, or give the stream a key finder"
            )

    def _is_own(self, key: Any) -> bool:
        return key is ... or (key is not None and key_bytes(key) == self._key)


def load_app(path: str) -> App:
    """Return the application of an import path: a class, an object, or a function that makes one.

    Raises:
        ImportPathError: the path cannot be imported.
        ValueError: it leads to no application, or making one fails.
    """
    found = load_object(path)
    if not isinstance(found, App) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise ValueError(f"{path!r} cannot be called: {describe_error(error)}") from error
    if not isinstance(found, App):
        raise ValueError(  # noqa: TRY004 - one kind of error for all that is no application
            f"{path!r} is a {type(found).__name__}, and no application; name a class that is "
            "derived from App, or a function that returns one"
        )
    return found


def app_reducer(
    app: str, part: str, name: str | None = None, plan: str | None = None
) -> PartReducer:
    """Return the reducer of a part of an application: a ``factory`` of a keyed channel.

    ``plan`` is the digest of the plan that the channel was made for.

    Raises:
        ConfigError: the application does not fit together, or has no such part.
        ImportPathError: it cannot be imported.
        ValueError: it has been changed since the channel was configured.
    """
    made = load_app(app).plan(name)
    if plan is not None and made.digest != plan:
        raise ValueError(
            f"application {made.name} is {made.digest} now, and the channel was made for {plan}; "
            "make the configuration again: headrace elements run --print-config"
        )
    return PartReducer(made, made.part(part))


def relay_reducer() -> Relay:
    """Return what writes each event as it is: a ``factory`` of a channel, for every partition."""
    return Relay()


class Relay:
    """The reducer that emits each event without a key, and keeps nothing."""

    outputs = ("out",)

    def __init__(self) -> None:
        batched(self)

    def __call__(
        self, key: str | bytes, state: None, facts: Sequence[Event[Any]], now: int
    ) -> tuple[None, list[Output], dict[str, Timer]]:
        """Return events as outputs, at their own times."""
        del key, state, now
        made = [Output(_relayed(each.value), "out", None, each.ts, each.headers) for each in facts]
        return None, made, {}


def _relayed(value: Any) -> bytes | None:
    return None if value is None else exact_json(value, "a value")


def key_function(app: str, stream: str, name: str | None = None) -> Callable[[Event[Any]], Any]:
    """Return what finds the key of an input stream's events: a ``factory`` of a re-keying channel.

    Raises:
        ConfigError: the application does not fit together, or has no such stream.
        ImportPathError: it cannot be imported.
    """
    return StreamKey(load_app(app).plan(name), stream)


class StreamKey:
    """The key finder of an input stream, as a function of events."""

    def __init__(self, plan: AppPlan, stream: str) -> None:
        if stream not in plan.streams:
            raise ValueError(
                f"application {plan.name} has no stream {stream!r}; it has "
                f"{', '.join(plan.streams)}"
            )
        self._stream = plan.streams[stream].stream
        code = self._stream.key
        self.__module__ = getattr(code, "__module__", None) or __name__
        self.__qualname__ = describe_finder(code)

    def __call__(self, event: Event[Any]) -> Any:
        """Return the key of an event.

        Raises:
            ValueError: it has none.
        """
        return self._stream.key_of(event.value)
