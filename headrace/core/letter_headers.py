"""Headers of dead letters: what they say of a record, under our names and Kafka Connect's.

Kafka Connect's names are those of KIP-298, ``errors.deadletterqueue.context.headers.enable``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace.core.user_text import message_of, plain_error, trace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Whose names headers have.
LetterNames: TypeAlias = Literal["headrace", "connect"]

#: What the names of our headers, and of Kafka Connect's, begin with.
PREFIX = "headrace."
CONNECT_PREFIX = "__connect.errors."

#: Characters of an error's message that go along. Spark's may fill pages, and end with the cause.
MESSAGE_LENGTH = 1000

#: The same of a traceback, of which the end says where it was.
TRACEBACK_LENGTH = 4000

#: Characters from the end of one that are looked at for that.
_TRACEBACK_READ = 1_000_000


class Stage(Enum):
    """The stage at which a record failed, in Kafka Connect's words."""

    VALUE = "VALUE_CONVERTER"
    """Its value cannot be read."""

    KEY = "TRANSFORMATION"
    """Its key, or its time, cannot be found."""

    PROCESS = "TASK_PUT"
    """The user's code or the sink did not take it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason a record is set aside. ``code`` refused it; ``error`` is None if nothing raised.

    ``message`` is said where nothing was raised.
    """

    message: str
    error: BaseException | None = None
    stage: Stage = Stage.PROCESS
    code: object = None


@dataclass(frozen=True, slots=True)
class LetterHeaders:
    """The headers that a channel's dead letters have. Sent to Spark's workers."""

    names: LetterNames = "headrace"
    group: str = ""

    @property
    def are_ours(self) -> bool:
        """Return whether they are named by us."""
        return self.names == "headrace"

    def of(self, said: Mapping[str, str], failure: Failure) -> list[tuple[str, bytes]]:
        """Return the headers of one. ``said`` is what ours say, by their names without prefix."""
        if self.are_ours:
            return our_headers(said)
        return _encoded(CONNECT_PREFIX, self._connect(said, failure))

    def _connect(self, said: Mapping[str, str], failure: Failure) -> Iterable[tuple[str, str]]:
        if "topic" in said:
            yield from ((name, said[name]) for name in ("topic", "partition", "offset"))
        yield "connector.name", self.group
        # tasks of Kafka Connect have numbers; what works by itself here is a partition
        yield "task.id", said["partition"]
        yield "stage", failure.stage.value
        if failure.code is not None:
            yield "class.name", full_name(failure.code)
        error = failure.error
        if error is None:
            yield "exception.message", shortened(failure.message)
            return
        yield "exception.class.name", full_name(type(plain_error(error)))
        yield "exception.message", shortened(message_of(error))
        text = trace_of(error, _TRACEBACK_READ)
        yield "exception.stacktrace", shortened(text, TRACEBACK_LENGTH)


def our_headers(said: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return headers under our names, which are given without prefix."""
    return _encoded(PREFIX, said.items())


def our_header(name: str, texts: Iterable[str]) -> tuple[str, list[bytes]]:
    """Return a header under our name, with a value for each record's text."""
    return PREFIX + name, [text.encode("utf-8", "replace") for text in texts]


def _encoded(prefix: str, named: Iterable[tuple[str, str]]) -> list[tuple[str, bytes]]:
    return [(prefix + name, text.encode("utf-8", "replace")) for name, text in named]


#: Headers under our names alone.
OUR_HEADERS = LetterHeaders()


#: A header of a record, as the client has it.
Header = tuple[str, "bytes | None"]

#: What ours say, in the order in which they are written.
_SAID = (
    "group",
    "topic",
    "topic_id",
    "partition",
    "offset",
    "timestamp",
    "overflow",
    "timer",
    "error",
    "message",
    "attempt",
)
_OURS: Mapping[str, str | None] = {PREFIX + name: name for name in _SAID}

#: What Kafka Connect's say by our names, None where we say no such thing, in the order in which
#: its DeadLetterQueueReporter and we write them.
_CONNECTS: Mapping[str, str | None] = {
    CONNECT_PREFIX + name: meaning
    for name, meaning in (
        ("topic", "topic"),
        ("partition", "partition"),
        ("offset", "offset"),
        ("connector.name", "group"),
        ("task.id", None),
        ("stage", None),
        ("class.name", None),
        ("exception.class.name", "error"),
        ("exception.message", "message"),
        ("exception.stacktrace", None),
    )
}

#: What says which record a letter was made of.
_PLACE = ("topic", "partition", "offset")

#: The header of a record that was replayed: which letter it was, as ``topic:partition:offset``.
REPLAYED_HEADER = "headrace.replayed"


@dataclass(frozen=True, slots=True)
class LetterOrigin:
    """The record that a dead letter was made of, and why. What its headers do not say is None.

    ``timestamp`` is the record's own, in milliseconds since the epoch. ``timer`` names the timer
    that failed, where the letter was made of no record. ``headers`` are the record's own.
    """

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    topic_id: str | None = None
    group: str | None = None
    timestamp: int | None = None
    error: str | None = None
    message: str | None = None
    attempt: int | None = None
    timer: str | None = None
    headers: tuple[Header, ...] = field(default=(), repr=False)

    @property
    def identity(self) -> tuple[object, ...] | None:
        """Return what all letters of one record share; None where the headers do not say."""
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return self.group, self.topic, self.topic_id, self.partition, self.offset

    @property
    def replays(self) -> int:
        """Return how often the record had been replayed before it failed."""
        return sum(name == REPLAYED_HEADER for name, _ in self.headers)


def read_letter(headers: Iterable[Header] | None) -> dict[str, str]:
    """Return what a dead letter's headers say, by our names without prefix.

    Where only Kafka Connect's names are there, what they say: ``topic``, ``partition``, ``offset``,
    ``group``, ``error`` and ``message``. Of a record that was a dead letter more than once the
    last count. Empty for what is none.
    """
    return _read(headers)[0]


def _read(headers: Iterable[Header] | None) -> tuple[dict[str, str], list[Header]]:
    """Return what a letter's headers say, and the record's own headers."""
    own = list(headers or ())
    end = len(own)
    while end and own[end - 1][0] not in _OURS and own[end - 1][0] not in _CONNECTS:
        end -= 1
    # what came to the letter later is the record's own, too
    own, later = own[:end], own[end:]
    said: dict[str, str] = {}
    for _ in range(2):
        found, rest = _last_set(own)
        if not found or (said and any(said.get(name) != found.get(name) for name in _PLACE)):
            break
        # what ours say counts, whichever come first
        is_ours = own[-1][0] in _OURS
        said, own = {**said, **found} if is_ours else {**found, **said}, rest
    return said, [*own, *later]


def letter_origin(headers: Iterable[Header] | None) -> LetterOrigin:
    """Return what the headers of a letter say, by Headrace's names, Kafka Connect's, or both.

    A record that came from a dead-letter topic itself has the headers of both letters: the last
    ones count, the others are its own.
    """
    said, own = _read(headers)
    if said.get("overflow"):
        said.setdefault("error", f"overflow ({said['overflow']})")
    numbers = {name: _number(said.get(name)) for name in _NUMBERS}
    texts = {name: said.get(name) for name in _TEXTS}
    return LetterOrigin(**texts, **numbers, headers=tuple(own))  # type: ignore[arg-type]


_NUMBERS = ("partition", "offset", "timestamp", "attempt")
_TEXTS = ("topic", "topic_id", "group", "error", "message", "timer")


def _last_set(headers: list[Header]) -> tuple[dict[str, str], list[Header]]:
    """Return what the last letter's headers of one kind say, and the headers before them."""
    names = next((kind for kind in (_OURS, _CONNECTS) if headers and headers[-1][0] in kind), {})
    places = {name: place for place, name in enumerate(names)}
    said: dict[str, str] = {}
    before, end = len(places), len(headers)
    # where they are not in their order any more another letter's headers begin
    while end and places.get(headers[end - 1][0], before) < before:
        end -= 1
        name, value = headers[end]
        before, meaning = places[name], names[name]
        if meaning is not None and value is not None:
            said[meaning] = value.decode("utf-8", "replace")
    return said, headers[:end]


def _number(text: str | None) -> int | None:
    digits = (text or "").removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdecimal() else None


def shortened(text: str, length: int = MESSAGE_LENGTH) -> str:
    """Return the beginning and the end of a long text."""
    if len(text) <= length:
        return text
    half = length // 2 - 2
    return f"{text[:half]} … {text[-half:]}"


def full_name(thing: object) -> str:
    """Return the name of a class or a function with its module, of an object that of its class."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    name: str = named.__qualname__
    module = named.__module__
    return name if module == "builtins" else f"{module}.{name}"


#: The code in the message of an undecodable record's error.
_CODE = re.compile(r"\[([A-Z][A-Z0-9_]*)\]")


def code_of(message: str | None) -> str | None:
    """Return the code in the message of an undecodable record's error, None without one."""
    match = _CODE.search(message or "")
    return None if match is None else match[1]
