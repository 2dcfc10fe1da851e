"""The records that the rows of a sink are of: the part that sinks which can replace have in common.

A row of a reducer may be of many records, of several partitions. What is known of it for certain is
the micro-batch that it came with, so output is replaced by whole micro-batches.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from headrace.core.errors import ResultMisfitError
from headrace.core.records import present_identity
from headrace.sinks.errors import ReplaceRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from headrace.sinks.contract import OffsetMove, Replacement
    from headrace.sinks.micro_batch import OffsetRange

#: The column that says for each row which micro-batch it is of.
ORIGIN = "headrace_origin"

#: A micro-batch's first offset, and the one after its last, by the partitions' identities.
Ranges: TypeAlias = "Mapping[str, tuple[int, int]]"


def require_no_origin(place: object, columns: Collection[str]) -> None:
    """Return if a result has no column of the sink's name; raises ResultMisfitError."""
    if ORIGIN in columns:
        raise ResultMisfitError(
            f"{place}: the result has a column {ORIGIN}, which is the sink's own; give it another "
            "name"
        )


def origin_text(ranges: Iterable[OffsetRange]) -> str:
    """Return ranges as a row has them: JSON, with what identities begin with said once."""
    found: dict[str, dict[str, list[int]]] = {}
    for each in ranges:
        data, _, number = each.identity.rpartition("/")
        found.setdefault(data, {})[number] = [each.start, each.next_offset]
    return json.dumps(found, separators=(",", ":"), sort_keys=True)


def ranges_of_text(text: str) -> Ranges:
    """Return what a row's text says; raises ValueError."""
    try:
        return {
            present_identity(f"{data}/{number}"): (int(start), int(next_offset))
            for data, parts in json.loads(text).items()
            for number, (start, next_offset) in parts.items()
        }
    except (AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error


def whole_micro_batches(
    moves: Sequence[OffsetMove],
    stored: Callable[[str], int | None],
    micro_batches_after: Callable[[Mapping[str, int]], Mapping[str, Ranges]],
) -> tuple[dict[str, int], Collection[str]]:
    """Return where partitions have to go so that whole micro-batches are read again, and which.

    Offsets of the moves that are not after where they start, or ``stored`` ones, are read again
    from there. ``micro_batches_after`` returns those that have records from an offset on, by their
    names. Each of them drags its other partitions back to where it begins, and those again others;
    a partition that stands there or before needs no move.
    """
    starts = {move.identity: move.start for move in moves}
    needed = {move.identity: move.next_offset for move in moves}

    def position(identity: str) -> int | None:
        return starts[identity] if identity in starts else stored(identity)

    while True:
        again = {n: at for n, at in needed.items() if (old := position(n)) is None or at <= old}
        found = micro_batches_after(again)
        before = dict(needed)
        for ranges in found.values():
            for name, (start, _) in ranges.items():
                at = needed.get(name, position(name))
                if at is None or start < at:
                    needed[name] = start
        if needed == before:
            return needed, found.keys()


def require_known(
    place: object,
    moves: Sequence[OffsetMove],
    needed: Mapping[str, int],
    known_from: Callable[[str], int | None],
) -> None:
    """Return if all rows of what is past the offsets say which records they are of.

    For a table, ``place``, that has rows which do not. ``known_from`` returns the offset from which
    on those of a partition do, None if none does yet. An offset that moves forward needs no row.

    Raises:
        ReplaceRefusedError: rows of a partition's range are older.
    """
    starts = {move.identity: move.start for move in moves}
    for identity, offset in needed.items():
        first = known_from(identity)
        if offset > starts.get(identity, offset) or (first is not None and first <= offset):
            continue
        since = "have none yet" if first is None else f"have one from offset {first} on"
        raise ReplaceRefusedError(
            f"{place}: the table has rows that do not say which records they are of, because they "
            f"are older than origin: true; those of {identity} {since}, so choose an offset from "
            "there, or remove the older rows by hand"
        )


def require_covered(moves: Sequence[OffsetMove], replacement: Replacement) -> None:
    """Return if the moves are those that replacing takes; raises ReplaceRefusedError."""
    asked = {move.identity: move.next_offset for move in moves}
    lacking = {n: to for n, to in replacement.offsets.items() if asked.get(n) != to}
    if lacking:
        named = ", ".join(f"{name} to {to}" for name, to in sorted(lacking.items()))
        raise ReplaceRefusedError(
            f"output of these ranges can only be removed with that of other records: {named}; "
            "move those partitions there as well"
        )
