"""The stage of a channel: its operators that run on any cut of a task's records.

They need no state, and nothing that comes of one, so that workers may run them on parts of a
micro-batch. What comes of the parts is put together in the order of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.inline.batch import Written, merge_batches
from headrace.extensions.streams.operators import (
    Apply,
    Filter,
    KeyBy,
    Merge,
    Peek,
    Select,
    Sink,
    Source,
    TableSource,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.streams.inline.batch import Batch
    from headrace.extensions.streams.plan import Channel, Plan

#: Operators without state; a filter has one where it is of a table.
_STATELESS = (Source, Filter, Select, Apply, Peek, Merge, KeyBy, Sink)


@dataclass(frozen=True, slots=True)
class Stage:
    """The operators of a channel's stage, by their places.

    ``reads`` are tables and changes of key whose topics are read. ``yields`` are the operators of
    which others, outside of the stage, read the rows. ``functions`` call users' code.
    """

    operators: frozenset[int]
    reads: frozenset[int]
    yields: frozenset[int]
    functions: tuple[int, ...]
    needs_values: bool


def stage_of(plan: Plan, channel: Channel) -> Stage:
    """Return the stage of a channel."""
    places, reads, yields = set[int](), set[int](), set[int]()
    for place in channel.operators:
        operator = plan.operators[place]
        read = {each for each in operator.inputs if each in plan.by_key}
        if isinstance(operator, TableSource):
            read.add(place)
        reads |= read
        if isinstance(operator, _STATELESS) and places.union(read).issuperset(operator.inputs):
            places.add(place)
        else:
            yields |= (places & {*operator.inputs}) | read
    decoded = reads | {each for each in places if isinstance(plan.operators[each], Source)}
    return Stage(
        frozenset(places),
        frozenset(reads),
        frozenset(yields),
        tuple(each for each in sorted(places) if isinstance(plan.operators[each], (Apply, Peek))),
        any(map(plan.fields.get, decoded)) or not plan.as_read.isdisjoint(places),
    )


@dataclass(slots=True)
class StageRows:
    """Rows, records and poison of a stage, by the places of operators.

    ``rows`` are those that it yields, ``written`` the records that it writes, ``notes`` the records
    that are poison, by their places in the micro-batch, with the reasons.
    """

    stage: Stage
    rows: dict[int, Batch] = field(default_factory=dict)
    written: dict[int, Written] = field(default_factory=dict)
    notes: dict[int, list[tuple[int, str]]] = field(default_factory=dict)

    def moved(self, start: int) -> StageRows:
        """Return the same of records that begin at a place in the micro-batch."""
        return StageRows(
            self.stage,
            {place: replace(each, at=each.at + start) for place, each in self.rows.items()},
            {place: replace(each, at=each.at + start) for place, each in self.written.items()},
            {
                place: [(at + start, reason) for at, reason in each]
                for place, each in self.notes.items()
            },
        )


def merge_stages(parts: Sequence[StageRows]) -> StageRows:
    """Return what came of several parts of a micro-batch, which are in its order."""
    found = StageRows(parts[0].stage)
    for place in parts[0].rows:
        found.rows[place] = merge_batches([each.rows[place] for each in parts])
    for place in parts[0].written:
        found.written[place] = _joined([each.written[place] for each in parts])
    for each in parts:
        for place, notes in each.notes.items():
            found.notes.setdefault(place, []).extend(notes)
    return found


def _joined(several: Sequence[Written]) -> Written:
    return Written(
        pa.concat_arrays([each.keys for each in several]),
        pa.concat_arrays([each.values for each in several]),
        np.concatenate([each.times for each in several]),
        np.concatenate([each.at for each in several]),
    )


class Notes:
    """The records that are poison to each operator of a stage. A ``Poison``."""

    def __init__(self) -> None:
        self.by_place: dict[int, list[tuple[int, str]]] = {}
        self._place = 0

    def begin(self, place: int) -> None:
        """Start with the next operator."""
        self._place = place

    def note(self, at: int, reason: str) -> None:
        """Record why a record is poison to the operator."""
        self.by_place.setdefault(self._place, []).append((at, reason))
