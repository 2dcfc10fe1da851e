"""The collector as the Go program is, byte for byte, but for where its state is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.apps.collector import go_json
from headrace.apps.collector.events import (
    CREATE,
    DEFAULT_TTL,
    DONE,
    ENVELOPE,
    LAST_DEADLINE,
    OWN,
    REJECTED,
    Outcome,
    Outputs,
    timed_out,
    unknown_group,
    unknown_type,
)
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


class _RefusedError(Exception):
    """An event that the original logs an error for, and passes over. The text is the original's."""


@dataclass(frozen=True, slots=True)
class Compat:
    """The reducer of mode ``compat``: each value is an event as the original reads it."""

    destinations: Outputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that the channel has to have."""
        return self.destinations.names

    def __call__(
        self, key: str, state: dict[str, Any] | None, facts: Sequence[Event[Any] | Fired], now: int
    ) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return what becomes of a group."""
        del key, now
        outputs: list[Output] = []
        for fact in facts:
            try:
                if isinstance(fact, Fired):
                    outcome = None if state is None else _time_out(state, fact.due)
                else:
                    state, outcome = _take(state, fact)
            except (_RefusedError, go_json.GoJsonError) as error:
                outputs += self.destinations.rejection(str(error))
                continue
            if outcome is not None:
                state = None
                document = go_json.write_struct(outcome.members(self.destinations.times))
                outputs.append(Output(document, to=self.destinations.outcomes))
        timers = {} if state is None else {"deadline": at_event(_deadline(state) + 1)}
        return state, outputs, timers


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


def _take(
    state: dict[str, Any] | None, event: Event[Any]
) -> tuple[dict[str, Any] | None, Outcome | None]:
    """Return the state after an event, and the outcome if there is one."""
    document = go_json.parse(_bytes_of(event.value))
    name = go_json.unmarshal(document, "EventEnvelop", ENVELOPE).get("type", "")
    if name not in _TYPES:
        raise _RefusedError(unknown_type(name))
    if name == CREATE:
        return _create(document, event.ts), None
    if name == DONE:
        return _done(state, document, event.ts)
    return state, None


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if value is None or isinstance(value, bytes):
        return value or b""
    raise TypeError(
        f"the value is a {type(value).__name__}, and mode: compat reads bytes as Go does; set "
        "value: bytes for the channel's processor, or mode: strict"
    )


def _create(document: Any, ts: int) -> dict[str, Any]:
    group = go_json.unmarshal(document, "EventEnvelopGroup", _GROUP)
    ttl = group.get("ttl", 0)
    return {
        "id": group.get("id", ""),
        "expected": group.get("expected", []),
        "ttl": ttl if ttl > 0 else DEFAULT_TTL,
        "created": ts,
        "payload": group.get("payload"),
        "results": {},
    }


def _done(
    state: dict[str, Any] | None, document: Any, ts: int
) -> tuple[dict[str, Any], Outcome | None]:
    done = go_json.unmarshal(document, "EventEnvelopEntityDone", _ENTITY)
    entity, group, error = (done.get(name, "") for name in ("id", "group", "error"))
    if state is None:
        raise _RefusedError(unknown_group(entity, group))
    if entity in state["expected"]:
        state["results"][entity] = done.get("result")
    if error:
        return state, _outcome(state, group, ts, entity=entity, error=error)
    if all(name in state["results"] for name in state["expected"]):
        return state, _outcome(state, group, ts)
    return state, None
