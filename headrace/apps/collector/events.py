"""The collector's events: their types, whose they are, and what the collector writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from headrace.apps.collector import go_json
from headrace.keyed import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

CREATE = "EventGroupCollectorCreate"
DONE = "EventGroupCollectorEntityDone"
SUCCESS = "EventGroupCollectorSuccess"
FAILURE = "EventGroupCollectorFailure"
REJECTED = "EventGroupCollectorRejected"

#: What the collector writes itself, and passes over where it reads the topic that it writes to.
OWN = frozenset({SUCCESS, FAILURE, REJECTED})

#: The seconds that a group has, where its creator does not say so.
DEFAULT_TTL = 30

#: The last moment that a deadline may be, in milliseconds: the end of the year 9999.
LAST_DEADLINE = 253_402_300_799_999


class Times(Enum):
    """How moments are written in outcomes, always in UTC."""

    RFC3339 = "rfc3339"
    """Whole seconds, as the original does: ``2020-07-17T23:38:21Z``."""

    MICROS = "micros"
    """The same with six digits of a second: ``2020-07-17T23:38:21.402000Z``."""

    GO = "go"
    """As Go prints a time: ``2020-07-17 23:38:21.402 +0000 UTC``."""

    def text(self, ms: int) -> str:
        """Return a moment that is given in milliseconds since the Unix epoch."""
        seconds, millis = divmod(ms, 1000)
        moment = datetime.fromtimestamp(seconds, UTC)
        whole = moment.strftime("%Y-%m-%dT%H:%M:%S")
        match self:
            case Times.RFC3339:
                return f"{whole}Z"
            case Times.MICROS:
                return f"{whole}.{millis:03d}000Z"
            case Times.GO:
                fraction = f".{millis:03d}".rstrip("0").rstrip(".")
                return f"{whole.replace('T', ' ')}{fraction} +0000 UTC"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where outcomes and rejections go, by the names of the channel's outputs.

    ``outcomes`` is None where the channel has one output, ``rejected`` where nobody wants them.
    """

    outcomes: str | None = None
    rejected: str | None = None
    times: Times = Times.RFC3339

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs by their names; none where the channel has one, which needs no name."""
        return tuple(name for name in (self.outcomes, self.rejected) if name is not None)

    def rejection(self, value: Any) -> list[Output]:
        """Return what says that an event was rejected, if anything is to."""
        return [] if self.rejected is None else [Output(value, to=self.rejected)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a group ended. Moments are in milliseconds; ``error`` is None for a success."""

    group: str
    created: int
    resolved: int
    results: Mapping[str, Any]
    payload: Any
    entity: str = ""
    error: str | None = None

    @property
    def type(self) -> str:
        """The type of its event."""
        return SUCCESS if self.error is None else FAILURE

    def members(self, times: Times) -> list[tuple[str, Any]]:
        """Return what its event has, in the order of the original."""
        failed = [] if self.error is None else [("entity", self.entity), ("error", self.error)]
        return [
            ("type", self.type),
            ("id", self.group),
            *failed,
            ("created", times.text(self.created)),
            ("resolved", times.text(self.resolved)),
            ("results", {name: self.results[name] for name in sorted(self.results)}),
            ("payload", self.payload),
        ]


def timed_out(ttl: int) -> str:
    """Return the error of a group that had no outcome for ``ttl`` seconds."""
    return f"Operation timed out after {ttl} seconds"


def unknown_group(entity: str, group: str) -> str:
    """Return what is said of an event whose group is not there."""
    return f"Entity '{entity}' got unknown group id '{group}'"


def unknown_type(name: str) -> str:
    """Return what is said of an event whose type is none of the collector's."""
    return f"Unable to parse '{name}' into GroupCollectorEnumeration"


class HasValue(Protocol):
    """A record with a value, as :class:`headrace.keyed.Event` is one."""

    @property
    def value(self) -> Any:
        """Bytes, text, or what JSON was decoded to; None for a tombstone."""


ENVELOPE: Mapping[str, go_json.Reader] = {
    "type": go_json.text,
    "id": go_json.text,
    "sender": go_json.text,
}


def group_of(event: HasValue) -> str:
    """Return the key of an event: ``id`` where it creates a group, ``group`` of a done entity.

    All that belongs to no group has the empty key, where it is rejected: nothing raises. Bytes and
    text are read as mode ``compat`` reads them, with names that have no case.
    """
    value = event.value
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        try:
            value = _folded(go_json.parse(value))
        except go_json.GoJsonError:
            return ""
    if not isinstance(value, dict):
        return ""
    found = value.get({CREATE: "id", DONE: "group"}.get(str(value.get("type")), ""))
    return found if isinstance(found, str) else ""


def _folded(document: Any) -> Any:
    try:
        envelope = go_json.unmarshal(document, "EventEnvelop", ENVELOPE)
        return envelope | go_json.unmarshal(document, "EventEnvelop", {"group": go_json.text})
    except go_json.GoJsonError:
        return None


def shown(value: Any) -> Any:
    """Return an event as JSON can have it, to show it in a rejection."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
