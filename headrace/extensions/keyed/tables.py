"""The tables between records and the store: what a fold is given, and what it returns."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from headrace.core.columns import HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.extensions.keyed.api import Event
    from headrace.extensions.keyed.row import KeyRow

    #: What makes a table of a table, here or in Spark's workers.
    TableFunction = Callable[[pa.Table], pa.Table]

    #: What calls one for each of some parts, and returns what it made, in their order.
    PartsRunner = Callable[[TableFunction, Sequence[pa.Table]], Sequence[pa.Table]]

_T = TypeVar("_T")

#: One record as the fold has it. ``time`` is the partition's stream time with it, ``late_by`` by
#: how much it is older than the stream time before it; all in milliseconds.
FACT = pa.struct(
    [
        ("source", pa.string()),
        ("offset", pa.int64()),
        ("ts", pa.int64()),
        ("time", pa.int64()),
        ("late_by", pa.int64()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)

#: One touched key. ``until`` is the partition's stream time at the end of the micro-batch (null: no
#: record had one yet), ``now`` the micro-batch's wall clock, both in milliseconds.
ROWS = pa.schema(
    [
        ("key", pa.binary()),
        ("partition", pa.int32()),
        ("state", pa.binary()),
        ("extra", pa.binary()),
        ("facts", pa.list_(FACT)),
        ("until", pa.int64()),
        ("now", pa.int64()),
    ]
)

OUTPUT = pa.struct(
    [
        ("to", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("ts", pa.int64()),
        ("headers", HEADERS),
    ]
)

#: What became of a touched key. ``state`` and ``extra`` count where it is ``changed``; both null
#: delete it. ``key`` is null for records without one. ``reason`` says why the first one that was
#: rejected was.
RESULT = pa.schema(
    [
        ("key", pa.binary()),
        ("partition", pa.int32()),
        ("changed", pa.bool_()),
        ("state", pa.binary()),
        ("extra", pa.binary()),
        ("outputs", pa.list_(OUTPUT)),
        ("fired", pa.int32()),
        ("late", pa.int32()),
        ("dropped", pa.int32()),
        ("rejected", pa.int32()),
        ("expired", pa.int32()),
        ("reason", pa.string()),
    ]
)

#: The name of the output that rejected facts go to: no output of a configuration can have it.
DEAD_LETTERS = "headrace.dead_letters"

#: Milliseconds since 1970 that a timer or an output may be at, before or after: some 140 million
#: years, so that adding to them stays within 64 bits.
MAX_TIME = 1 << 62

#: A record to be produced, as in :data:`OUTPUT`.
OutputRow: TypeAlias = "tuple[str, bytes | None, bytes | None, int, Any]"


class Fact(NamedTuple):
    """One record of a key, as in :data:`FACT`, and its lateness by ``facts.lateness_of``."""

    source: str
    offset: int
    ts: int
    time: int
    late_by: int
    value: bytes | None
    headers: Any
    lateness: int


class Touched(NamedTuple):
    """A key with facts or due timers, as in :data:`ROWS`."""

    key: bytes
    partition: int
    row: KeyRow
    facts: Sequence[Fact]
    until: int | None
    now: int
    #: The facts as the reducer is to see them, and how many of them are late; None where each has
    #: to be looked at first.
    events: Sequence[Event[Any]] | None = None
    late: int = 0


def named_tuples(kind: type[_T], fields: Iterable[tuple[Any, ...]]) -> list[_T]:
    """Return named tuples, without a call of Python's for each."""
    new: Any = tuple.__new__
    return list(map(new, repeat(kind), fields))


def header_pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return a record's headers as an event has them."""
    return () if not headers else tuple((each["key"], each["value"]) for each in headers)


def in_this_thread(function: TableFunction, parts: Sequence[pa.Table]) -> list[pa.Table]:
    """Call ``function`` for each part, one after the other. A ``PartsRunner``."""
    return list(map(function, parts))
