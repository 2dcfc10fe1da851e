"""The collector with one outcome for each group, whatever comes twice, late or out of order."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from headrace.apps.collector.errors import EventRefusedError
from headrace.apps.collector.events import (
    CREATE,
    DEFAULT_TTL,
    DONE,
    ERROR_LENGTH,
    LAST_DEADLINE,
    MOST_ID,
    OWN,
    REJECTED,
    SUCCESS,
    USUAL_LIMITS,
    Limits,
    Outcome,
    Outputs,
    brief,
    fits,
    quoted,
    shown,
    timed_out,
    too_large,
    unknown_group,
    unknown_type,
)
from headrace.apps.collector.go_json import MAX_DEPTH
from headrace.core.user_text import plain_text
from headrace.extensions.keyed.exact import exact_json
from headrace.keyed import Event, Fired, Output, Timer, at_event

if TYPE_CHECKING:
    from collections.abc import Sequence

_HANDLERS = ("onsuccess", "onfailure")

#: Bytes of events that a group may be made of, at most: its row, in which they are kept, stays well
#: below the 512 KiB that a channel's ``state.max_row`` is.
MOST_BYTES = 256 << 10

#: A number that may have more digits in Python's words, as 1e15 has.
_MAY_GROW = re.compile(rb"[0-9][eE]")

_TOO_DEEP = f"the event is nested more than {MAX_DEPTH} levels deep"


@dataclass(frozen=True, slots=True)
class CreateEvent:
    """A group is created. ``need`` of the ``expected`` entities have to succeed."""

    expected: tuple[str, ...]
    ttl: int
    need: int
    fail_fast: bool
    payload: Any
    handlers: dict[str, dict[str, Any]]

    @property
    def digest(self) -> str:
        """Return what two events have in common that create the same group."""
        body = [self.expected, self.ttl, self.need, self.fail_fast, self.payload, self.handlers]
        return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class DoneEvent:
    """An entity of a group is done; it failed if it has an error."""

    entity: str
    result: Any
    error: str


def read(key: str, document: Any) -> CreateEvent | DoneEvent | None:
    """Return a group's event, None for one that the collector wrote itself.

    Raises:
        EventRefusedError: it is no event of this group.
    """
    if not fits(key):
        raise EventRefusedError(
            f"the event's key has {len(key.encode())} bytes; {MOST_ID} are taken"
        )
    if not isinstance(document, dict):
        raise EventRefusedError(f"the event is {_kind(document)}; it has to be an object")
    name = document.get("type")
    if not isinstance(name, str):
        raise EventRefusedError(unknown_type("" if name is None else _kind(name)))
    if name in OWN:
        return None
    if name not in {CREATE, DONE}:
        raise EventRefusedError(unknown_type(name))
    member = "id" if name == CREATE else "group"
    group = _member(document, member, str, "a text")
    if not group:
        raise EventRefusedError(f"{member} is empty; it has to name the group")
    if not fits(group):
        raise EventRefusedError(f"{member} has {len(group.encode())} bytes; {MOST_ID} are taken")
    if group != key:
        raise EventRefusedError(
            f"the event is of group '{brief(group)}', and its key is '{brief(key)}'; let the "
            "channel's key be headrace.apps.collector:group_of, or the producer's that of the group"
        )
    return _create(document) if name == CREATE else _parse_done(document)


def document_of(value: Any) -> Any:
    """Return what an event is in JSON, of which all can be written as JSON again.

    Raises:
        EventRefusedError: it is no JSON, or cannot be written.
    """
    if isinstance(value, (bytes, str)):
        return _parsed(value)
    try:
        exact_json(value, "the event")
    except (TypeError, ValueError) as error:
        raise EventRefusedError(str(error)) from None
    if _is_too_deep(value):
        raise EventRefusedError(_TOO_DEEP)
    return value


def _parsed(value: bytes | str) -> Any:
    """Return what JSON says, if it can be written as JSON again, in a state or an outcome."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        found = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\u" in text or isinstance(value, str):
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise EventRefusedError("the event has half of a character (\\ud...)") from None
    except ValueError as error:
        raise EventRefusedError(f"the event is no JSON: {error}") from None
    except RecursionError:
        raise EventRefusedError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(found):
        raise EventRefusedError(_TOO_DEEP)
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{brief(text)} is more than a number can be")
    return number


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [each for each in level if isinstance(each, (dict, list))]
        if not inner:
            return False
        level = [
            child for each in inner for child in (each.values() if isinstance(each, dict) else each)
        ]
    return True


def _cost(value: Any, document: Any, *, parked: bool) -> int:
    """Return the bytes that are kept of an event at most, in the words in which they are kept."""
    if not isinstance(value, (str, bytes)):
        return len(exact_json(document))
    data = value.encode() if isinstance(value, str) else value
    size = len(data)
    if parked:  # as a text in JSON
        size = max(size, len(exact_json(shown(value))))
    return max(size, len(exact_json(document))) if _MAY_GROW.search(data) else size


def _create(value: dict[str, Any]) -> CreateEvent:
    expected = _member(value, "expected", list, "a list of texts", [])
    if not all(isinstance(each, str) for each in expected):
        raise EventRefusedError("expected has to be a list of texts")
    expected = tuple(sorted(set(expected)))
    ttl = _member(value, "ttl", int, "a whole number of seconds", DEFAULT_TTL)
    need = _member(value, "need", int, "a whole number", len(expected))
    if not min(1, len(expected)) <= need <= len(expected):
        raise EventRefusedError(f"need is {need}, and {len(expected)} are expected")
    fail_fast = _member(value, "fail_fast", bool, "true or false", True)
    payload, handlers = value.get("payload"), _handlers(value)
    return CreateEvent(
        expected, ttl if ttl > 0 else DEFAULT_TTL, need, fail_fast, payload, handlers
    )


def _handlers(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    handlers = _member(value, "handler", dict, "an object", {})
    found = {}
    for name in _HANDLERS:
        handler = _member(handlers, name, dict, "an object", {})
        if handler:
            _member(handler, "topic", str, "a text")
            found[name] = {each: handler[each] for each in ("topic", "payload") if each in handler}
    return found


def _parse_done(value: dict[str, Any]) -> DoneEvent:
    entity = _member(value, "id", str, "a text")
    return DoneEvent(entity, value.get("result"), _member(value, "error", str, "a text", ""))


def _member(value: dict[str, Any], name: str, kind: type, accepted: str, *absent: Any) -> Any:
    """Return a member, or what it is where it is absent or null."""
    found = value.get(name)
    if found is None and absent:
        return absent[0]
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise EventRefusedError(f"{name} is {_kind(found)}; it has to be {accepted}")
    return found


def _kind(value: Any) -> str:
    match value:
        case None:
            return "absent or null"
        case bool() | int() | float():
            return brief(json.dumps(value))
        case str():
            return "a text"
        case dict():
            return "an object"
        case _:
            return "a list"


@dataclass(frozen=True, slots=True)
class Strict:
    """The reducer of mode ``strict``. Times to live are in milliseconds."""

    destinations: Outputs
    routes: tuple[re.Pattern[str], ...]
    orphan_ttl: int
    late_ttl: int
    limits: Limits = USUAL_LIMITS

    def with_limits(self, *, max_row: int, max_output: int) -> Strict:
        """Return the reducer for a channel with these limits."""
        return replace(self, limits=replace(self.limits, max_row=max_row, max_output=max_output))

    def with_outputs(self, names: Sequence[str]) -> Strict:
        """Return the reducer for a channel with outputs of these names."""
        return replace(self, limits=replace(self.limits, outputs=tuple(names)))

    @property
    def group_room(self) -> int:
        """Return the bytes of events that a group may be made of."""
        return min(MOST_BYTES, self.limits.max_row // 2, self.limits.max_output // 4)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the outputs that the channel has to have."""
        return self.destinations.names

    def __call__(
        self, key: str, state: dict[str, Any] | None, facts: Sequence[Event[Any] | Fired], now: int
    ) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return what becomes of a group."""
        del now
        group = _Group(self, key, state)
        for fact in facts:
            if isinstance(fact, Fired):
                group.fire(fact)
            else:
                group.take(fact)
        return group.state, group.outputs, group.timers()


class _Group:
    """A group on its way through some facts.

    Its state has a ``phase``: ``parked``, with entities that were done before the group was created
    (``parked``: pairs of time and event), ``open``, or ``closed``, with the type of its outcome.
    ``counts`` has how many events were passed over, by reason.
    """

    def __init__(self, rules: Strict, key: str, state: dict[str, Any] | None) -> None:
        self._rules = rules
        self._key = key
        self.state = state
        self.outputs: list[Output] = []

    @property
    def _phase(self) -> str | None:
        return None if self.state is None else self.state["phase"]

    def timers(self) -> dict[str, Timer]:
        """Return what the group waits for."""
        match self.state:
            case {"phase": "parked", "parked": parked}:
                first = min(ts for ts, _ in parked)
                return {"orphans": at_event(first + self._rules.orphan_ttl + 1)}
            case {"phase": "open", "deadline": deadline}:
                return {"deadline": at_event(deadline + 1)}
            case {"phase": "closed", "resolved": resolved}:
                return {"grave": at_event(resolved + self._rules.late_ttl + 1)}
        return {}

    def fire(self, fired: Fired) -> None:
        """Apply a timer."""
        assert self.state is not None
        if fired.name == "orphans":
            self._give_up_parked(fired.due)
        elif fired.name == "deadline":
            self._close_group(fired.due, entity=self._key, error=timed_out(self.state["ttl"]))
        else:
            self.state = None

    def take(self, event: Event[Any]) -> None:
        """Apply an event."""
        try:
            document = document_of(event.value)
            found = read(self._key, document)
        except EventRefusedError as error:
            self._reject("invalid", str(error), event.ts, event.value)
            return
        if found is None:
            return
        is_parked = isinstance(found, DoneEvent) and self._phase in {None, "parked"}
        size = _cost(event.value, document, parked=is_parked)
        if isinstance(found, DoneEvent) and found.error:
            size += len(exact_json(found.entity))
        most = self._rules.group_room
        if self._phase != "closed" and size + self._size > most:
            text = too_large(self._key, size + self._size, most)
            self._reject("too_large", text, event.ts, event.value)
            return
        if isinstance(found, CreateEvent):
            self._create(found, event)
        else:
            self._apply_done(found, event.ts, event.value)
        if self.state is not None and self._phase != "closed":
            self.state["size"] = self._size + size

    @property
    def _size(self) -> int:
        """Return how many bytes of events the group is made of, those that are passed over among
        them.
        """
        return 0 if self.state is None else self.state.get("size", 0)

    # --- a group's life ---------------------------------------------------------------------

    def _create(self, create: CreateEvent, event: Event[Any]) -> None:
        if self.state is not None and self._phase != "parked":
            if self.state["digest"] == create.digest:
                self._count("duplicate")
            else:
                text = f"Group '{self._key}' is {self._phase}, and was created with another body"
                self._reject("conflict", text, event.ts, event.value)
            return
        parked = [] if self.state is None else self.state["parked"]
        self.state = {
            "phase": "open",
            "created": event.ts,
            "deadline": min(LAST_DEADLINE, event.ts + create.ttl * 1000),
            "ttl": min(create.ttl, LAST_DEADLINE),
            "expected": list(create.expected),
            "need": create.need,
            "fail_fast": create.fail_fast,
            "results": {},
            "errors": {},
            "payload": create.payload,
            "handlers": self._admitted(create, event),
            "digest": create.digest,
            "counts": {} if self.state is None else self.state["counts"],
            "size": self._size,
        }
        self._close_if_certain(event.ts)
        for ts, value in parked:
            done = self._unparked(ts, value)
            if done is not None:
                self._apply_done(done, max(ts, event.ts), value)

    def _unparked(self, ts: int, value: Any) -> DoneEvent | None:
        """Return an event that was parked, None where it is none any more: it is rejected."""
        try:
            done = read(self._key, document_of(value))
        except EventRefusedError as error:
            self._reject("invalid", str(error), ts, value)
            return None
        return done if isinstance(done, DoneEvent) else None

    def _admitted(self, create: CreateEvent, event: Event[Any]) -> dict[str, dict[str, Any]]:
        """Return the handlers whose topic a route admits."""
        found = {}
        for name, handler in create.handlers.items():
            topic, there = handler["topic"], self._rules.limits.outputs
            if not any(route.search(topic) for route in self._rules.routes):
                text = f"No pattern of routes admits topic '{brief(topic)}' of {name}"
            elif there is not None and topic not in there:
                text = f"No output of the channel is named '{brief(topic)}', the topic of {name}"
            else:
                found[name] = handler
                continue
            self._reject("not_routed", text, event.ts, event.value)
        return found

    def _apply_done(self, done: DoneEvent, ts: int, value: Any) -> None:
        if self.state is None:
            self.state = {"phase": "parked", "parked": [], "counts": {}}
        state = self.state
        if state["phase"] == "parked":
            state["parked"].append([ts, shown(value)])
        elif state["phase"] == "closed":
            text = f"Entity '{brief(done.entity)}' is late: group '{self._key}' is closed"
            self._reject("late", text, ts, value)
        elif done.entity not in state["expected"]:
            text = f"Entity '{brief(done.entity)}' is not expected by group '{self._key}'"
            self._reject("not_expected", text, ts, value)
        elif done.entity in state["results"]:
            self._count("duplicate")
        elif ts > state["deadline"]:
            text = f"Entity '{brief(done.entity)}' came after the deadline of group '{self._key}'"
            self._reject("late", text, ts, value)
        else:
            state["results"][done.entity] = done.result
            if done.error:
                state["errors"][done.entity] = done.error
            self._close_if_certain(ts)

    def _close_if_certain(self, ts: int) -> None:
        """Close the group if its outcome is certain."""
        state = self.state
        assert state is not None
        expected, answered, failed = (
            len(state[name]) for name in ("expected", "results", "errors")
        )
        if answered - failed >= state["need"]:
            self._close_group(ts)
        elif answered == expected or (state["fail_fast"] and expected - failed < state["need"]):
            entity, error = next(iter(state["errors"].items()))
            self._close_group(ts, entity=entity, error=error)

    def _close_group(self, ts: int, *, entity: str = "", error: str | None = None) -> None:
        state = self.state
        assert state is not None
        outcome = Outcome(
            self._key, state["created"], ts, state["results"], state["payload"], entity, error
        )
        document = dict(outcome.members(self._rules.destinations.times))
        if state["errors"] and (state["need"] < len(state["expected"]) or not state["fail_fast"]):
            document["errors"] = state["errors"]
        self.outputs.append(Output(document, to=self._rules.destinations.outcomes))
        handler = state["handlers"].get(_HANDLERS[0 if outcome.type == SUCCESS else 1])
        if handler is not None:
            payload = handler.get("payload", state["payload"])
            self.outputs.append(Output(document | {"payload": payload}, to=handler["topic"]))
        self.state = {
            "phase": "closed",
            "outcome": outcome.type,
            "resolved": ts,
            "digest": state["digest"],
            "counts": state["counts"],
        }

    def _give_up_parked(self, due: int) -> None:
        """Reject what was parked for too long."""
        assert self.state is not None
        parked = self.state["parked"]
        kept = []
        for ts, value in parked:
            if ts + self._rules.orphan_ttl >= due:
                kept.append([ts, value])
                continue
            done = self._unparked(due, value)
            if done is not None:
                self._reject("unknown_group", unknown_group(done.entity, self._key), due, value)
        self.state = self.state | {"parked": kept} if kept else None

    # --- what is passed over ----------------------------------------------------------------

    def _count(self, reason: str) -> None:
        if self.state is not None:
            counts = self.state["counts"]
            counts[reason] = counts.get(reason, 0) + 1

    def _reject(self, reason: str, text: str, ts: int, value: Any) -> None:
        self._count(reason)
        room = self._rules.limits.max_output // 2
        self.outputs += self._rules.destinations.rejection(
            self._key,
            {
                "type": REJECTED,
                "id": self._key if fits(self._key) else brief(self._key),
                "reason": reason,
                "error": plain_text(text, ERROR_LENGTH),
                "at": self._rules.destinations.times.text(ts),
                "event": quoted(value, room),
            },
        )
