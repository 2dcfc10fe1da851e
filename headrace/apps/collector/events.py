"""The collector's events: their types, whose they are, and what the collector writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from headrace.apps.collector import go_json
from headrace.apps.collector.errors import EventRefusedError
from headrace.core.user_text import describe_value, plain_text
from headrace.extensions.keyed.exact import exact_json
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

#: The last moment that a deadline may be, in milliseconds; more is no 64-bit number with a ``ttl``.
LAST_DEADLINE = 1 << 61

#: Bytes of a group's id, which is the key of all that is written of it.
MOST_ID = 4096

#: Characters of a name, and of all of an error, that are quoted.
_NAME_LENGTH, ERROR_LENGTH = 1000, 10_000

#: The same of an event that is quoted in a rejection, where all of it would be too large.
_EVENT_LENGTH = 4000

#: Bytes of a row, and of an output, that a group takes in any case, with room for a few events.
_LEAST_ROW, _LEAST_OUTPUT = 16 << 10, 128 << 10

#: After so many years, and seconds, the calendar is the same.
_CYCLE_YEARS, _CYCLE_SECONDS = 400, 12_622_780_800


class Times(Enum):
    """The format of moments in outcomes, always in UTC."""

    RFC3339 = "rfc3339"
    """Whole seconds, as the original does: ``2020-07-17T23:38:21Z``."""

    MICROS = "micros"
    """The same with six digits of a second: ``2020-07-17T23:38:21.402000Z``."""

    GO = "go"
    """As Go prints a time: ``2020-07-17 23:38:21.402 +0000 UTC``."""

    def text(self, ms: int) -> str:
        """Return a moment that is given in milliseconds since the Unix epoch."""
        seconds, millis = divmod(ms, 1000)
        # datetime ends with the year 9999, and Go's calendar does not
        cycles = max(0, seconds // _CYCLE_SECONDS - 1)
        moment = datetime.fromtimestamp(seconds - cycles * _CYCLE_SECONDS, UTC)
        year = moment.year + cycles * _CYCLE_YEARS
        whole = f"{year:04d}{moment:-%m-%dT%H:%M:%S}"
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
    """The destinations of outcomes and rejections, by the names of the channel's outputs.

    ``outcomes`` is None where the channel has one output, ``rejected`` where they are not wanted.
    """

    outcomes: str | None = None
    rejected: str | None = None
    times: Times = Times.RFC3339

    @property
    def names(self) -> tuple[str, ...]:
        """Return the outputs by their names; none where the channel has one only."""
        return tuple(name for name in (self.outcomes, self.rejected) if name is not None)

    def rejection(self, key: str, value: Any) -> list[Output]:
        """Return what says that an event was rejected, if anything is to.

        It has the event's key, and none where that is longer than an id may be.
        """
        if self.rejected is None:
            return []
        return [Output(value, to=self.rejected, key=... if fits(key) else None)]


@dataclass(frozen=True, slots=True)
class Limits:
    """The bytes that the channel lets a row and an output have, and the names of its outputs.

    Raises:
        ValueError: no group has room in such a row.
    """

    max_row: int = 512 << 10
    max_output: int = 1_000_000
    outputs: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, given, least in (
            ("state.max_row", self.max_row, _LEAST_ROW),
            ("max_output", self.max_output, _LEAST_OUTPUT),
        ):
            if given < least:
                raise ValueError(
                    f"{name} is {given}, and the collector takes {least} at least for a group with "
                    "a few events; raise it"
                )


#: What a channel has where nothing else is said.
USUAL_LIMITS = Limits()


def fits(group: str) -> bool:
    """Return whether a text may be the id of a group: short enough, and writable in UTF-8."""
    try:
        return len(group.encode()) <= MOST_ID
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a group. Moments are in milliseconds; ``error`` is None for a success."""

    group: str
    created: int
    resolved: int
    results: Mapping[str, Any]
    payload: Any
    entity: str = ""
    error: str | None = None

    @property
    def type(self) -> str:
        """Return the type of its event."""
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
    return f"Entity '{brief(entity)}' got unknown group id '{brief(group)}'"


def unknown_type(name: str) -> str:
    """Return what is said of an event whose type is none of the collector's."""
    return f"Unable to parse '{brief(name)}' into GroupCollectorEnumeration"


def too_large(group: str, size: int, most: int) -> str:
    """Return what is said of an event with which a group would have more bytes than are kept."""
    return f"The events of group '{brief(group)}' would have {size} bytes; {most} are kept of one"


def brief(name: str) -> str:
    """Return a name as errors quote it: of a long one the beginning and the end."""
    return plain_text(name, _NAME_LENGTH)


class HasValue(Protocol):
    """A record with a value, as :class:`headrace.keyed.Event` is one."""

    @property
    def value(self) -> Any:
        """Return the bytes, text, or what JSON was decoded to; None for a tombstone."""


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
        except EventRefusedError:
            return ""
    if not isinstance(value, dict):
        return ""
    kind = value.get("type")
    found = value.get({CREATE: "id", DONE: "group"}.get(kind if isinstance(kind, str) else "", ""))
    return found if isinstance(found, str) and fits(found) else ""


def _folded(document: Any) -> Any:
    try:
        envelope = go_json.unmarshal(document, "EventEnvelop", ENVELOPE)
        return envelope | go_json.unmarshal(document, "EventEnvelop", {"group": go_json.text})
    except EventRefusedError:
        return None


def shown(value: Any) -> Any:
    """Return an event as JSON can have it: bytes as the text that they are."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def quoted(value: Any, room: int) -> Any:
    """Return an event to show it in a rejection: all of it, or what there is room for in bytes."""
    value = shown(value)
    try:
        if len(exact_json([value])) <= room:
            return value
    except (TypeError, ValueError):
        pass  # halves of characters, what JSON does not know, or too deep
    text = plain_text(value) if isinstance(value, str) else describe_value(value, 2 * room)
    most = min(_EVENT_LENGTH, room // 8)  # a character has six bytes in JSON at most
    return text if len(text) <= most else f"{text[:most]} … ({len(text)} characters in all)"
