"""The collector as the Go program is, byte for byte, but for where its state is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.apps.collector import go_json
from headrace.apps.collector.errors import EventRefusedError
from headrace.apps.collector.events import (
    CREATE,
    DEFAULT_TTL,
    DONE,
    ENVELOPE,
    ERROR_LENGTH,
    LAST_DEADLINE,
    MOST_ID,
    OWN,
    REJECTED,
    USUAL_LIMITS,
    Limits,
    Outcome,
    Outputs,
    fits,
    timed_out,
    too_large,
    unknown_group,
    unknown_type,
)
from headrace.core.user_text import plain_text
from headrace.extensions.keyed.exact import exact_json
from headrace.keyed import Event, Fired, Output, Timer, at_event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HANDLER: Mapping[str, go_json.Reader] = {"topic": go_json.text, "payload": go_json.anything}
_GROUP: Mapping[str, go_json.Reader] = {
    **ENVELOPE,
    "expected": go_json.texts,
    "ttl": go_json.whole,
    "created": go_json.text,
    "handler": go_json.structs("EnvelopGroupHandler", _HANDLER),
    "payload": go_json.anything,
    "results": go_json.mapping,
}
_ENTITY: Mapping[str, go_json.Reader] = {
    **ENVELOPE,
    "error": go_json.text,
    "group": go_json.text,
    "result": go_json.anything,
}

_TYPES = (OWN - {REJECTED}) | {CREATE, DONE}


@dataclass(frozen=True, slots=True)
class Compat:
    """The reducer of mode ``compat``: each value is an event as the original reads it."""

    destinations: Outputs
    limits: Limits = USUAL_LIMITS

    def with_limits(self, *, max_row: int, max_output: int) -> Compat:
        """Return the reducer for a channel with these limits."""
        return replace(self, limits=replace(self.limits, max_row=max_row, max_output=max_output))

    @property
    def group_room(self) -> int:
        """Return the bytes that a group may have, in its row and as the outcome has it."""
        most = self.limits.max_row
        return min(most - most // 8, self.limits.max_output // 2)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the outputs that the channel has to have."""
        return self.destinations.names

    def __call__(
        self, key: str, state: dict[str, Any] | None, facts: Sequence[Event[Any] | Fired], now: int
    ) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return what becomes of a group."""
        del now
        outputs: list[Output] = []
        for fact in facts:
            try:
                if isinstance(fact, Fired):
                    outcome = None if state is None else _time_out(state, fact.due)
                else:
                    state, outcome = self._apply_event(key, state, fact)
            except EventRefusedError as error:
                outputs += self.destinations.rejection(key, plain_text(str(error), ERROR_LENGTH))
                continue
            if outcome is not None:
                state = None
                document = go_json.write_struct(outcome.members(self.destinations.times))
                outputs.append(Output(document, to=self.destinations.outcomes))
        timers = {} if state is None else {"deadline": at_event(_deadline(state) + 1)}
        return state, outputs, timers

    def _apply_event(
        self, key: str, state: dict[str, Any] | None, event: Event[Any]
    ) -> tuple[dict[str, Any] | None, Outcome | None]:
        """Return the state after an event, and the outcome if there is one."""
        document = go_json.parse(_bytes_of(event.value))
        name = go_json.unmarshal(document, "EventEnvelop", ENVELOPE).get("type", "")
        if name not in _TYPES:
            raise EventRefusedError(unknown_type(name))
        if name not in {CREATE, DONE}:
            return state, None
        if not fits(key):
            raise EventRefusedError(f"The key has {len(key.encode())} bytes; {MOST_ID} are taken")
        if name == CREATE:
            return self._create(document, event.ts), None
        return self._apply_done(state, document, event.ts)

    def _create(self, document: Any, ts: int) -> dict[str, Any]:
        group = go_json.unmarshal(document, "EventEnvelopGroup", _GROUP)
        ttl = group.get("ttl", 0)
        state = {
            "id": group.get("id", ""),
            "expected": group.get("expected", []),
            "ttl": ttl if ttl > 0 else DEFAULT_TTL,
            "created": ts,
            "payload": group.get("payload"),
            "results": {},
        }
        state["size"] = self._required(state["id"], _size_of(state), self.group_room)
        return state

    def _apply_done(
        self, state: dict[str, Any] | None, document: Any, ts: int
    ) -> tuple[dict[str, Any], Outcome | None]:
        done = go_json.unmarshal(document, "EventEnvelopEntityDone", _ENTITY)
        entity, group, error = (done.get(name, "") for name in ("id", "group", "error"))
        if state is None:
            raise EventRefusedError(unknown_group(entity, group))
        size = state.get("size") or _size_of(state)
        is_expected = entity in state["expected"]
        if is_expected:
            added = _cost(entity) + _cost(done.get("result"))
            if size + added > self.group_room:
                # of what came twice the last counts alone
                others = {name: v for name, v in state["results"].items() if name != entity}
                size = _size_of({**state, "results": others})
            size = self._required(group, size + added, self.group_room)
        most = self.limits.max_output
        self._required(group, size + sum(map(_cost, (entity, group, error))), most - most // 8)
        if is_expected:
            state["results"][entity] = done.get("result")
            state["size"] = size
        if error:
            return state, _outcome(state, group, ts, entity=entity, error=error)
        if all(name in state["results"] for name in state["expected"]):
            return state, _outcome(state, group, ts)
        return state, None

    @staticmethod
    def _required(group: str, size: int, most: int) -> int:
        """Return a size; raises _RefusedError if it is more than there is room for."""
        if size > most:
            raise EventRefusedError(too_large(group, size, most))
        return size


def _cost(value: Any) -> int:
    """Return the bytes that a value has, in a row or in an outcome, which escapes more."""
    return max(len(go_json.write(value).encode()), len(exact_json(value))) + 2


def _size_of(state: Mapping[str, Any]) -> int:
    return sum(_cost(state[name]) for name in ("id", "expected", "payload", "results"))


def _deadline(state: Mapping[str, Any]) -> int:
    return min(LAST_DEADLINE, int(state["created"] + state["ttl"] * 1000))


def _time_out(state: Mapping[str, Any], due: int) -> Outcome:
    return _outcome(state, state["id"], due, entity=state["id"], error=timed_out(state["ttl"]))


def _outcome(
    state: Mapping[str, Any],
    group: str,
    resolved: int,
    *,
    entity: str = "",
    error: str | None = None,
) -> Outcome:
    return Outcome(
        group, state["created"], resolved, state["results"], state["payload"], entity, error
    )


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if value is None or isinstance(value, bytes):
        return value or b""
    raise TypeError(
        f"the value is a {type(value).__name__}, and mode: compat reads bytes as Go does; set "
        "value: bytes for the channel's processor, or mode: strict"
    )
