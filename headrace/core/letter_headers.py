"""Headers of dead letters: what they say of a record, under our names and Kafka Connect's.

Kafka Connect's names are those of KIP-298, ``errors.deadletterqueue.context.headers.enable``.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Whose names headers have.
LetterNames: TypeAlias = Literal["headrace", "connect", "both"]

#: What the names of our headers, and of Kafka Connect's, begin with.
PREFIX = "headrace."
CONNECT_PREFIX = "__connect.errors."

#: Characters of an error's message that go along. Spark's may fill pages, and end with the cause.
MESSAGE_LENGTH = 1000

#: The same of a traceback, of which the end says where it was.
TRACEBACK_LENGTH = 4000

#: What Kafka Connect's names are for, by ours; what has none is said under ours alone.
_ALIKE = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "connector.name": "group",
    "exception.class.name": "error",
    "exception.message": "message",
}


class Stage(Enum):
    """Where a record failed, in Kafka Connect's words."""

    VALUE = "VALUE_CONVERTER"
    """Its value cannot be read."""

    KEY = "TRANSFORMATION"
    """Its key, or its time, cannot be found."""

    PROCESS = "TASK_PUT"
    """The user's code or the sink did not take it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a record is set aside. ``code`` is what refused it, ``error`` None where nothing raised.

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

    def of(self, said: Mapping[str, str], failure: Failure) -> list[tuple[str, bytes]]:
        """Return the headers of one. ``said`` is what ours say, by their names without prefix."""
        named: list[tuple[str, str]] = []
        if self.names != "connect":
            named += ((PREFIX + name, text) for name, text in said.items())
        if self.names != "headrace":
            named += ((CONNECT_PREFIX + name, text) for name, text in self._connect(said, failure))
        return [(name, text.encode("utf-8", "replace")) for name, text in named]

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
        yield "exception.class.name", full_name(type(error))
        yield "exception.message", shortened(str(error))
        text = "".join(traceback.format_exception(error))
        yield "exception.stacktrace", shortened(text, TRACEBACK_LENGTH)


#: Headers under our names alone.
OUR_HEADERS = LetterHeaders()


def read_letter(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return what a dead letter's headers say, by our names without prefix.

    Where only Kafka Connect's names are there, what they say: ``topic``, ``partition``, ``offset``,
    ``group``, ``error`` and ``message``. Of a record that was a dead letter more than once the
    last count. Empty for what is none.
    """
    ours: dict[str, str] = {}
    theirs: dict[str, str] = {}
    for name, data in headers:
        text = (data or b"").decode("utf-8", "replace")
        if name.startswith(PREFIX):
            ours[name.removeprefix(PREFIX)] = text
        elif (alike := _ALIKE.get(name.removeprefix(CONNECT_PREFIX))) and name.startswith(
            CONNECT_PREFIX
        ):
            theirs[alike] = text
    return theirs | ours


def is_letter_header(name: str) -> bool:
    """Whether a header is one that dead letters have beside the record's own."""
    return name.startswith((PREFIX, CONNECT_PREFIX))


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
