"""The part in C: where it is, and whether it can be used with the client that is installed."""

from __future__ import annotations

import ctypes as c
import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from confluent_kafka import cimpl

from headrace.kafka.errors import LibraryMissingError

if TYPE_CHECKING:
    from typing import Any

#: Beside this file, where the build put it; see ``hatch_build.py``.
PATH = Path(__file__).with_name("libheadrace_consumer.so")

#: Bytes for a sentence of the library's, or of librdkafka's.
SENTENCE = 512

#: Bytes of an ``ArrowArray``: five numbers and five addresses.
ARROW_ARRAY = 80

#: As in ``consumer.c``.
REVISION = 5

_NAME = 256


class PartHead(c.Structure):
    """The result for one partition: ``part_head_t``."""

    _fields_ = (
        ("topic", c.c_char * _NAME),
        ("partition", c.c_int32),
        ("leader_epoch", c.c_int32),
        ("count", c.c_int64),
        ("first_offset", c.c_int64),
        ("last_offset", c.c_int64),
        ("bytes", c.c_int64),
    )


class EventStruct(c.Structure):
    """An event in place of a record, or beside records: ``event_t``."""

    _fields_ = (
        ("kind", c.c_int32),
        ("code", c.c_int32),
        ("partition", c.c_int32),
        ("offset", c.c_int64),
        ("topic", c.c_char * _NAME),
        ("text", c.c_char * _NAME),
    )


class FailureStruct(c.Structure):
    """The first record that was not taken, and why: ``failure_t``."""

    _fields_ = (
        ("code", c.c_int32),
        ("topic", c.c_char * _NAME),
        ("text", c.c_char * _NAME),
    )


class ValuesStruct(c.Structure):
    """Values of a column of bytes: ``values_t``."""

    _fields_ = (
        ("valid", c.c_void_p),
        ("ends", c.c_void_p),
        ("data", c.c_void_p),
        ("offset", c.c_int64),
    )


class ListsStruct(c.Structure):
    """Headers of a column: ``lists_t``."""

    _fields_ = (
        ("valid", c.c_void_p),
        ("ends", c.c_void_p),
        ("offset", c.c_int64),
        ("names", ValuesStruct),
        ("values", ValuesStruct),
    )


_NAMES, _CONSUMER, _WHY = c.POINTER(c.c_char_p), c.c_void_p, (c.c_char_p, c.c_size_t)
_PRODUCER, _VALUES = c.c_void_p, c.POINTER(ValuesStruct)

#: What each function takes and returns. Other threads of Python run while one of these does.
_BLOCKING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "revision": (c.c_int, ()),
    "bind": (c.c_int, (c.c_char_p, *_WHY)),
    "open": (_CONSUMER, (_NAMES, _NAMES, c.c_int, *_WHY)),
    "close": (None, (_CONSUMER,)),
    "direct": (
        c.c_int,
        (
            _CONSUMER,
            c.c_int,
            _NAMES,
            c.POINTER(c.c_int32),
            c.POINTER(c.c_int64),
            c.POINTER(c.c_int32),
            c.c_int,
            *_WHY,
        ),
    ),
    "look_up": (c.c_int, (_CONSUMER, c.c_char_p, c.c_int)),
    "take": (c.c_int32, (_CONSUMER, c.c_int64, c.c_int64, c.c_int)),
    "produce": (
        c.c_int64,
        (
            _PRODUCER,
            c.c_char_p,
            _VALUES,
            _VALUES,
            c.POINTER(ListsStruct),
            c.c_void_p,
            c.c_void_p,
            c.c_int64,
            c.c_int64,
        ),
    ),
}

#: The same of those that are done sooner than the interpreter's lock would be handed on and back:
#: to take it again, a thread waits for as long as another one may keep it, which is 5 ms.
_QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "end": (c.c_int64, (_CONSUMER, c.c_char_p, c.c_int32)),
    "part": (c.POINTER(PartHead), (_CONSUMER, c.c_int32)),
    "give": (None, (_CONSUMER, c.c_int32, c.c_void_p)),
    "event_count": (c.c_int32, (_CONSUMER,)),
    "event": (c.POINTER(EventStruct), (_CONSUMER, c.c_int32)),
    "newest": (_PRODUCER, ()),
    "forget": (None, (_PRODUCER,)),
    "failure": (c.c_int32, (_PRODUCER, c.POINTER(FailureStruct))),
}


@cache
def load() -> Any:
    """Return an object with its functions, bound to the librdkafka of the Python client.

    Any thread. What the functions do is said in ``consumer.c`` and ``producer.h``.

    Raises:
        LibraryMissingError: it was not built, or does not fit this librdkafka.
    """
    try:
        blocking, quick = c.CDLL(str(PATH)), c.PyDLL(str(PATH))
        functions = SimpleNamespace(**_typed(blocking, _BLOCKING), **_typed(quick, _QUICK))
    except (OSError, AttributeError) as error:
        raise LibraryMissingError(f"the library was not built: {error}") from error
    if functions.revision() != REVISION:
        raise LibraryMissingError("the library is of another version; install Headrace again")
    why = c.create_string_buffer(SENTENCE)
    if functions.bind(os.fsencode(cimpl.__file__), why, SENTENCE):
        raise LibraryMissingError(why.value.decode("utf-8", "replace"))
    return functions


def _typed(library: Any, types: dict[str, tuple[Any, tuple[Any, ...]]]) -> dict[str, Any]:
    found = {}
    for name, (result, arguments) in types.items():
        function = getattr(library, f"headrace_{name}")
        function.restype, function.argtypes = result, arguments
        found[name] = function
    return found
