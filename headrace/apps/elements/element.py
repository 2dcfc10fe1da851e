"""Elements, and the reducer that one becomes: what its methods are called for, and when."""

from __future__ import annotations

import difflib
import inspect
import json
import types
import typing
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

from headrace.core.imports import load_callable
from headrace.core.user_text import describe_error, describe_value, kind_of
from headrace.extensions.keyed.codecs import field_of, from_json, to_json
from headrace.extensions.keyed.exact import exact_json
from headrace.keyed import Event, Fired, Output, Timer, at_clock, at_event, batched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: A key: one text, or several parts, each of which JSON knows.
Key: TypeAlias = "str | bytes | tuple[Any, ...]"


class SameKey(Enum):
    """The key finder that looks for none: see :data:`SAME_KEY`."""

    SAME = "same"
    """The key stays as it is."""

    def __repr__(self) -> str:
        return "SAME_KEY"


#: The key of the element that emits, or of the record that comes in.
SAME_KEY = SameKey.SAME

#: What finds a key in a value: a member's name (``customer.id`` is a member of a member), several
#: for a key of several parts, a function of the value, or :data:`SAME_KEY`.
KeyFinder: TypeAlias = "str | Sequence[str] | Callable[[Any], Any] | SameKey"

#: The member of a state that has what is not the element's own.
_MARKS = "_element"

#: The timers of an element.
_TIME, _TTL = "time", "ttl"


@dataclass(frozen=True, slots=True)
class Stream:
    """An output of the channel, and how the keys of its values are found.

    Without a key finder values have no key, and go to any partition.
    """

    name: str
    key: KeyFinder | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError(f"a stream is named {self.name!r}; give it an output's name")
        if self.key is None or isinstance(self.key, SameKey) or callable(self.key):
            return
        names: Sequence[object] = (self.key,) if isinstance(self.key, str) else self.key
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(
                f"stream {self.name!r}: key is {self.key!r}; write a member's name, a list of "
                "names, or a function of the value"
            )

    def key_of(self, value: Any) -> Any:
        """Return the key of a value, None where the stream has no key finder, or ``...``: the same.

        Parts are texts: ``7`` and ``"7"`` are one key, also among several. One part is a key by
        itself. A list that one name finds is a key of its parts as they are.

        Raises:
            ValueError: the value has none.
        """
        if self.key is None:
            return None
        if isinstance(self.key, SameKey):
            return ...
        if callable(self.key):
            found = self.key(value)
            if found is None:
                raise ValueError(f"stream {self.name!r}: its key finder returned no key")
        elif isinstance(self.key, str):
            found = self._read_path(value, self.key)
            if isinstance(found, list):  # as channels with key: value.NAME write it
                return tuple(found)
        else:
            found = tuple(self._read_path(value, name) for name in self.key)
        if isinstance(found, list | tuple):
            if not found:
                raise ValueError(f"stream {self.name!r}: its key finder returned no part of a key")
            parts = tuple(map(_key_text, found))
            return parts[0] if len(parts) == 1 else parts
        return found if isinstance(found, bytes) else _key_text(found)

    def _read_path(self, value: Any, name: str) -> Any:
        found = field_of(value, name.split("."))
        if found is None:
            raise ValueError(f"stream {self.name!r}: the value has no {name!r}, its key")
        return found


def _key_text(part: Any) -> str:
    """Return a part of a key as text; raises a ValueError or TypeError for what JSON lacks."""
    return part if isinstance(part, str) else to_json(part).decode()


@dataclass(slots=True)
class Call:
    """A running call of an element's method: what the element may know, and what it has done.

    ``streams`` are those that the element may emit to, by the name that it has for them; None:
    whichever it names.
    """

    key: Key
    now: int
    streams: Mapping[str, Stream] | None = None
    time: int = 0
    closed: bool = False
    outputs: list[Output] = field(default_factory=list)

    def find_stream(self, stream: Stream | str) -> Stream:
        """Return the stream that is meant by one that the class declares, or by its name.

        Raises:
            ValueError: there is none of that name.
        """
        if self.streams is None:
            return stream if isinstance(stream, Stream) else Stream(stream)
        name = stream.name if isinstance(stream, Stream) else stream
        if name not in self.streams:
            there = ", ".join(sorted(self.streams)) or "none"
            raise ValueError(
                f"the class declares no stream {name!r} to emit to, but {there}; write "
                f"{name} = Stream({name!r}) in it"
            )
        return self.streams[name]


class Element:
    """One instance for each key. A dataclass: its fields are the state, kept as JSON.

    Methods are called one after the other for a key; what they change and emit is committed
    together, exactly once. As with every reducer, they read no clock but :attr:`now`, and have no
    other effects.
    """

    _call: Call

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, or what a property sets; refuse what would be gone with the micro-batch.

        Raises:
            ValueError: there is no such field, or the value is not of its type.
        """
        if name != "_call":
            _check_assignment(self, name, value)
        object.__setattr__(self, name, value)

    @property
    def key(self) -> Key:
        """Return the key of this instance: a text, or a tuple of its parts."""
        return self._call.key

    @property
    def time(self) -> int:
        """Return when it happens, in ms: the time of the event, or that of the timer."""
        return self._call.time

    @property
    def now(self) -> int:
        """Return the wall clock of the micro-batch, in ms."""
        return self._call.now

    def emit(
        self,
        stream: Stream | str,
        value: Any,
        *,
        key: Any = ...,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Write a value to an output of the channel, at :attr:`time`.

        ``key`` is used in place of what the stream's key finder finds.
        """
        target = self._call.find_stream(stream)
        found = target.key_of(value) if key is ... else key
        self._call.outputs.append(Output(value, target.name, found, self.time, headers))

    def close(self) -> None:
        """Remove the instance once the method returns. The next event creates another."""
        self._call.closed = True

    def on_create(self) -> None:
        """Handle the creation: the first event of the key follows."""

    def on_event(self, event: Event[Any]) -> None:
        """Handle an event."""
        raise NotImplementedError

    def on_trigger(self) -> None:
        """Act on the events since the last time, after the one that completed their number."""

    def on_time(self) -> None:
        """Act at an interval of the wall clock."""

    def on_remove(self) -> None:
        """End: the instance was closed, or had no event for its time to live."""

    @classmethod
    def as_reducer(
        cls,
        *,
        every: int | None = None,
        gap: str | None = None,
        interval: str | None = None,
        ttl: str | None = None,
    ) -> ElementReducer:
        """Return the reducer for a keyed channel. Times are durations, such as ``5s``.

        ``on_trigger`` comes after each ``every``-th event, and after an event that is ``gap`` or
        more later than the last firing, or than the creation. ``on_time`` comes each ``interval``
        after the creation. An instance without events for ``ttl``, in stream time, is removed.

        Raises:
            ValueError: the class is no element, or does not go with these rules.
        """
        return ElementReducer(
            kind_of_element(cls, every=every, gap=gap, interval=interval, ttl=ttl)
        )


_HOOKS = ("on_create", "on_event", "on_trigger", "on_time", "on_remove")
_RESERVED = frozenset(name for name in vars(Element) if not name.startswith("__")) | {_MARKS}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which methods are called besides events. Times are in milliseconds."""

    every: int | None
    gap: int | None
    interval: int | None
    ttl: int | None
    max_instances: int | None = None


@dataclass(slots=True)
class Marks:
    """The marks that are stored of an instance besides its fields; times are in milliseconds.

    ``events`` were taken since the last firing, which was at ``since``. ``last`` is the latest time
    of an event, ``due`` that of the next ``on_time``.
    """

    events: int = 0
    since: int | None = None
    last: int | None = None
    due: int | None = None


class ElementKind:
    """An element class with its rules: makes instances, and writes them down."""

    def __init__(self, element: type[Element], rules: Rules) -> None:
        self.element = element
        self.rules = rules
        self._names = tuple(each.name for each in _state_fields(element))

    @property
    def streams(self) -> dict[str, Stream]:
        """Return the streams that the class declares, by the names of its attributes."""
        declared = ((name, getattr(self.element, name, None)) for name in dir(self.element))
        return {name: each for name, each in declared if isinstance(each, Stream)}

    def create(self, call: Call) -> Instance:
        """Return a new instance, whose ``on_create`` was called at ``call.time``."""
        made = Instance(self.rules, self._new(call), Marks())
        made.create()
        return made

    def read(self, state: Mapping[str, Any], call: Call) -> Instance:
        """Return an instance as it was stored; fields that were added since have their defaults."""
        made = self._new(call)
        for name in self._names:
            if name in state:
                # as it was stored, also by a class whose field had another type
                object.__setattr__(made, name, state[name])
        return Instance(self.rules, made, Marks(**state.get(_MARKS, {})))

    def copy(self, instance: Instance, call: Call) -> Instance:
        """Return an instance of the same state, for another call.

        Raises:
            ValueError, TypeError: the state cannot be written down.
        """
        return self.read(from_json(exact_json(self.dump(instance), "the state")), call)

    def dump(self, instance: Instance) -> dict[str, Any]:
        """Return what is stored of an instance.

        Raises:
            ValueError: a value is not of its field's type, or there is no such field.
        """
        element = instance.element
        all_fits = _fits_of(type(element))
        for name in vars(element):
            if name not in all_fits and name != "_call":
                raise _no_field(type(element), name)
        state: dict[str, Any] = {}
        for name, fits in all_fits.items():
            state[name] = value = getattr(element, name)
            if not fits(value):
                raise _misfit(type(element), name, value)
        unset = asdict(Marks())
        marks = {
            name: value for name, value in asdict(instance.marks).items() if value != unset[name]
        }
        return {**state, _MARKS: marks} if marks else state

    def _new(self, call: Call) -> Element:
        made = self.element()
        made._call = call  # noqa: SLF001 - of this module
        return made


class ElementReducer:
    """The reducer of an element: ``reduce(key, state, facts, now)``.

    ``outputs`` are the streams that the class declares.
    """

    def __init__(self, kind: ElementKind) -> None:
        self._kind = kind
        self.outputs = tuple(sorted({each.name for each in kind.streams.values()}))
        #: by it Spark's workers are sent the package that the class is from
        self.__module__ = kind.element.__module__
        if kind.rules.ttl is None:  # no timer of event time
            batched(self)

    def __call__(
        self, key: str | bytes, state: dict[str, Any] | None, facts: list[Any], now: int
    ) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return what becomes of an instance."""
        call = Call(parts_of_key(key), now)
        instance = None if state is None else self._kind.read(state, call)
        for fact in facts:
            if isinstance(fact, Event):
                if instance is None:
                    call.time = fact.ts
                    instance = self._kind.create(call)
                if not instance.is_removed:
                    instance.take(fact)
            elif instance is not None:
                instance.fire(fact)
            if instance is not None and instance.is_removed:
                instance = None
        if instance is None:
            return None, call.outputs, {}
        return self._kind.dump(instance), call.outputs, instance.timers()


class Instance:
    """One instance on its way through some facts."""

    def __init__(self, rules: Rules, element: Element, marks: Marks) -> None:
        self._rules = rules
        self.element = element
        self.marks = marks
        self._call = element._call  # noqa: SLF001 - of this module
        self.is_removed = False

    def create(self) -> None:
        """Create the instance."""
        if self._rules.interval is not None:
            self.marks.due = self._call.now + self._rules.interval
        if self._rules.gap is not None:
            self.marks.since = self._call.time
        self._run(self.element.on_create)

    def take(self, event: Event[Any]) -> None:
        """Apply an event, and the trigger if it completes one."""
        rules, marks, self._call.time = self._rules, self.marks, event.ts
        if rules.ttl is not None or rules.max_instances is not None:
            marks.last = event.ts if marks.last is None else max(marks.last, event.ts)
        self._run(lambda: self.element.on_event(event))
        if not self.is_removed and self._is_complete(event.ts):
            self._run(self.element.on_trigger)

    def _is_complete(self, time: int) -> bool:
        """Count an event; say whether the trigger fires, which begins again then."""
        rules, marks = self._rules, self.marks
        is_complete = False
        if rules.every is not None:
            marks.events += 1
            is_complete = marks.events >= rules.every
        if rules.gap is not None:
            marks.since = time if marks.since is None else marks.since
            is_complete = is_complete or time - marks.since >= rules.gap
        if is_complete:
            marks.events = 0
            marks.since = None if rules.gap is None else max(marks.since or 0, time)
        return is_complete

    def fire(self, fired: Fired) -> None:
        """Apply a timer. One of a rule that is not there any more does nothing."""
        self._call.time = fired.due
        if fired.name == _TTL and self._is_over(fired.due):
            self.remove()
        elif fired.name == _TIME and self._rules.interval is not None:
            missed = max(0, self._call.now - fired.due) // self._rules.interval
            self.marks.due = fired.due + (missed + 1) * self._rules.interval
            self._run(self.element.on_time)

    def _is_over(self, time: int) -> bool:
        """Return whether the time to live is over: it may have grown since the timer was set."""
        ttl, last = self._rules.ttl, self.marks.last
        return ttl is not None and (last is None or time >= last + ttl)

    def timers(self) -> dict[str, Timer]:
        """Return what the instance waits for; a rule that is new begins with this call."""
        found, marks = {}, self.marks
        if self._rules.interval is None:
            marks.due = None
        else:
            if marks.due is None:
                marks.due = self._call.now + self._rules.interval
            found[_TIME] = at_clock(marks.due)
        if self._rules.ttl is not None and marks.last is not None:
            found[_TTL] = at_event(marks.last + self._rules.ttl)
        return found

    def _run(self, method: Callable[[], None]) -> None:
        method()
        if self._call.closed:
            self.remove()

    def remove(self) -> None:
        """End the instance."""
        self.is_removed = True
        self.element.on_remove()
        self._call.closed = False


def kind_of_element(
    element: type[Element],
    *,
    every: int | None = None,
    gap: str | None = None,
    interval: str | None = None,
    ttl: str | None = None,
    max_instances: int | None = None,
) -> ElementKind:
    """Return a class with its rules, which are those of :meth:`Element.as_reducer`.

    ``max_instances`` is how many a partition may have, in an application.

    Raises:
        ValueError: the class is no element, or does not go with these rules.
    """
    rules = Rules(
        _count(every),
        _milliseconds("gap", gap),
        _milliseconds("interval", interval),
        _milliseconds("ttl", ttl),
        _count(max_instances, "max_instances", "instances for each partition"),
    )
    _check_class(element)
    _check_methods(element, rules)
    return ElementKind(element, rules)


def element_reducer(element: str, **rules: Any) -> ElementReducer:
    """Return the reducer of the element with an import path: a ``factory`` of a keyed channel.

    Raises:
        ImportPathError: the path cannot be imported.
        ValueError: it names no element, or does not go with the rules.
    """
    found = load_callable(element)
    if not (isinstance(found, type) and issubclass(found, Element)):
        raise ValueError(  # noqa: TRY004 - one kind of error for all that is wrong with an element
            f"{element!r} is no element; name a class that is derived from Element"
        )
    try:
        return found.as_reducer(**rules)
    except TypeError as error:
        unknown = sorted(rules.keys() - inspect.signature(found.as_reducer).parameters.keys())
        if not unknown:
            raise
        raise ValueError(
            f"there is no rule {unknown[0]!r}; the rules are every, gap, interval and ttl"
        ) from error


def parts_of_key(key: str | bytes) -> Key:
    """Return a key with its parts, as ``Output`` takes it; see ``headrace.keyed``."""
    if not isinstance(key, str) or not key.startswith("["):
        return key
    try:
        parts = json.loads(key)
    except ValueError:
        return key
    if len(parts) == 1 and isinstance(parts[0], str) and parts[0].startswith("["):
        return parts[0]
    return tuple(parts)


# --- what a field may be set to -----------------------------------------------------------------

#: Says whether a value is of a type, with all its parts.
_Fits: TypeAlias = "Callable[[Any], bool]"

#: By class, whose module may be loaded again: the old one is not to stay for it.
_known_fits: WeakKeyDictionary[type, Mapping[str, _Fits]] = WeakKeyDictionary()

_JSON_TYPES = frozenset({type(None), bool, int, float, str, list, dict})


def _check_assignment(element: Element, name: str, value: Any) -> None:
    """Refuse an attribute that is no field, and a field's value that is not of its type."""
    fits = _fits_of(type(element)).get(name)
    if fits is not None:
        if not fits(value):
            raise _misfit(type(element), name, value)
    elif not hasattr(getattr(type(element), name, None), "__set__"):
        raise _no_field(type(element), name)


def _no_field(element: type, name: str) -> ValueError:
    return ValueError(
        f"{_path_of(element)}: {name!r} is no field, and would be gone with the micro-batch; write "
        f"{name}: TYPE = DEFAULT in the class, or take a local variable"
    )


def _misfit(element: type, name: str, value: Any) -> ValueError:
    hint = typing.get_type_hints(element)[name]
    kind = hint.__name__ if type(hint) is type else str(hint)
    return ValueError(
        f"{_path_of(element)}: field {name!r} is of the type {kind}, and not, with all its parts, "
        f"{describe_value(value)}, a {kind_of(value)}; write one, or give the field the other "
        "type, too"
    )


def _fits_of(element: type) -> Mapping[str, _Fits]:
    """Return what says of each field's value whether it is of the field's type."""
    found = _known_fits.get(element)
    if found is None:
        hints = typing.get_type_hints(element)
        found = {each.name: _type_check(hints[each.name]) for each in _state_fields(element)}
        _known_fits[element] = found
    return found


def _type_check(hint: Any) -> _Fits:
    """Return what says whether a value is of an annotated type, as type checkers have it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return lambda value: any(type(value) is type(each) and value == each for each in arguments)
    if typing.is_typeddict(hint):
        return _fitting_members(hint)
    if origin is list and arguments:
        inner = _type_check(arguments[0])
        return lambda value: type(value) is list and all(map(inner, value))
    if origin is dict and arguments:
        inner = _type_check(arguments[1])
        return lambda value: type(value) is dict and all(map(inner, value.values()))
    if origin in {typing.Union, types.UnionType}:
        return _fitting_any(arguments)
    kind = origin or hint
    # others are refused with the class
    return _fitting_any((kind,)) if kind in _JSON_TYPES else lambda _: True


def _fitting_any(hints: Sequence[Any]) -> _Fits:
    if _JSON_TYPES.issuperset(hints):
        # an int is a float for type checkers, and a bool an int
        also: dict[Any, set[type]] = {float: {int, bool}, int: {bool}}
        allowed = frozenset(each for hint in hints for each in {hint, *also.get(hint, set())})
        return lambda value: type(value) in allowed
    each_fits = [_type_check(hint) for hint in hints]
    return lambda value: any(fits(value) for fits in each_fits)


def _fitting_members(hint: Any) -> _Fits:
    """Return what says whether a dict has the members of a ``TypedDict``."""
    inner = {name: _type_check(each) for name, each in typing.get_type_hints(hint).items()}
    # where annotations are texts, the class does not know itself which may be absent
    marked = typing.get_type_hints(hint, include_extras=True)
    needed = {
        name
        for name in hint.__required_keys__
        if typing.get_origin(marked[name]) is not typing.NotRequired
    }
    return lambda value: (
        type(value) is dict
        and needed <= value.keys()
        and all(fits(value[name]) for name, fits in inner.items() if name in value)
    )


# --- what is no element -------------------------------------------------------------------------


def _path_of(element: type) -> str:
    return f"{element.__module__}:{element.__qualname__}"


def _refuse(element: type, reason: str) -> NoReturn:
    raise ValueError(f"{_path_of(element)}: {reason}")


def _state_fields(element: type) -> tuple[Field[Any], ...]:
    assert is_dataclass(element), "it was checked"
    return fields(element)


def _check_class(element: type[Element]) -> None:
    """Refuse a class whose fields cannot be the state."""
    if not is_dataclass(element):
        _refuse(element, "is no dataclass; write @dataclass above it")
    if element.__dataclass_params__.frozen:
        _refuse(element, "is frozen, so that events could not change it; leave frozen out")
    try:
        hints = typing.get_type_hints(element)
    except Exception as error:  # noqa: BLE001 - whatever a user's annotations raise
        _refuse(element, f"its fields' types cannot be read: {describe_error(error)}")
    names = {each.name for each in fields(element)}
    for name in vars(element).get("__annotations__", {}):
        if name not in names and ClassVar not in {hints[name], typing.get_origin(hints[name])}:
            _refuse(element, f"{name} is no field yet; write @dataclass above the class")
    for each in fields(element):
        _check_field(element, each, hints[each.name])
    for name in dir(element):
        if isinstance(inspect.getattr_static(element, name), cached_property):
            _refuse(
                element,
                f"{name} is a cached_property, whose value would be kept for as long as a "
                "micro-batch, whatever events it has; write property, or a field",
            )
    _check_defaults(element)


def _check_field(element: type[Element], each: Field[Any], hint: Any) -> None:
    if each.name.startswith("_") or each.name in _RESERVED:
        _refuse(element, f"no field can have the name {each.name!r}; choose another")
    if each.default is MISSING and each.default_factory is MISSING:
        _refuse(element, f"field {each.name!r} has no default; give what a new key begins with")
    stranger = _not_json(hint)
    if stranger is not None:
        _refuse(
            element,
            f"field {each.name!r} has a {stranger}, which does not come back from JSON as it "
            "was; take None, bool, int, float, str, list, or dict with texts as keys",
        )


def _check_defaults(element: type[Element]) -> None:
    try:
        made = element()
    except Exception as error:  # noqa: BLE001 - a user's own
        _refuse(element, f"a new one cannot be made: {describe_error(error)}")
    for each in _state_fields(element):
        value = getattr(made, each.name)
        try:
            exact_json(value, "it")
        except (TypeError, ValueError) as error:
            _refuse(element, f"the default of {each.name!r} is not for JSON: {error}")


#: What JSON gives back as it was.
_PLAIN = (Any, object, None, type(None), bool, int, float, str, list, dict)


def _not_json(hint: Any) -> str | None:
    """Return the type in an annotation that JSON does not give back, None if there is none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        kinds = (type(each) for each in arguments)
        return next((kind.__name__ for kind in kinds if kind not in _JSON_TYPES), None)
    if typing.is_typeddict(hint):
        members = typing.get_type_hints(hint).values()
        return next(filter(None, map(_not_json, members)), None)
    if hint in _PLAIN:
        return None
    if origin is dict and arguments and arguments[0] is not str:
        return f"dict with keys of {_name(arguments[0])}"
    if origin in {list, dict, typing.Union, types.UnionType, typing.Annotated}:
        inner = arguments[:1] if origin is typing.Annotated else arguments
        return next(filter(None, map(_not_json, inner)), None)
    return _name(origin or hint)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))


#: The rules that a method is called by, and that call nothing without it.
_RULED = (("on_trigger", ("every", "gap")), ("on_time", ("interval",)))


def _check_methods(element: type[Element], rules: Rules) -> None:
    """Refuse methods that nothing would call, and rules that would call nothing."""
    for name in dir(element):
        if name.startswith("on_") and name not in _HOOKS and callable(getattr(element, name)):
            near = difflib.get_close_matches(name, _HOOKS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(_HOOKS)}"
            _refuse(element, f"nothing calls {name}; {hint}")
    if element.on_event is Element.on_event:
        _refuse(element, "has no on_event; write what an event does")
    for name in _HOOKS:
        arguments = ("self", "event") if name == "on_event" else ("self",)
        try:
            inspect.signature(getattr(element, name)).bind(*arguments)
        except TypeError as error:
            _refuse(element, f"{name} is called with ({', '.join(arguments)}): {error}")
        if inspect.iscoroutinefunction(getattr(element, name)):
            _refuse(element, f"{name} is async, and nothing would await it; leave async out")
    for name, needed in _RULED:
        given = [rule for rule in needed if getattr(rules, rule) is not None]
        if given and getattr(element, name) is getattr(Element, name):
            _refuse(element, f"{given[0]} is given, and there is no {name} that it would call")
        if not given and getattr(element, name) is not getattr(Element, name):
            _refuse(element, f"{name} is never called without {' or '.join(needed)}; give it to "
                             "as_reducer, or to the channel's options")  # fmt: skip


def _count(value: Any, name: str = "every", unit: str = "events") -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"{name} is {value!r}; it has to be a number of {unit}, 1 or more")
    return value


def _milliseconds(name: str, value: Any) -> int | None:
    if value is None:
        return None
    from headrace.config.types.units import (  # noqa: PLC0415 - no worker needs pydantic for it
        parse_duration,
    )

    seconds = parse_duration(value) if isinstance(value, str) else None
    if seconds is None or round(seconds * 1000) < 1:
        raise ValueError(f"{name} is {value!r}; it has to be a duration such as 30s or 10m")
    return round(seconds * 1000)
