"""The stage of a channel: its operators that run on any cut of a task's records.

They need no state, and nothing that comes of one, so that workers may run them on parts of a
micro-batch. What comes of the parts is put together in the order of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.inline.batch import Written, merge_batches
from headrace.extensions.streams.inline.readers import emits_of, is_streamed
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.operators import (
    Aggregate,
    AggregateChanges,
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
from headrace.extensions.streams.windows import TimeWindows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from headrace.extensions.streams.inline.batch import Batch
    from headrace.extensions.streams.inline.grouped import Grouped, Grouper
    from headrace.extensions.streams.plan import Channel, Plan

#: Operators without state; a filter has one where it is of a table.
_STATELESS = (Source, Filter, Select, Apply, Peek, Merge, KeyBy, Sink)


@dataclass(frozen=True, slots=True)
class Stage:
    """The operators of a channel's stage, by their places.

    ``reads`` are tables and changes of key whose topics are read. ``yields`` are the operators of
    which others, outside of the stage, read the rows, which are its ``readers``; ``groups`` are
    those of them, with their readers, of which groups of rows will do. ``functions`` call users'
    code.
    """

    operators: frozenset[int]
    reads: frozenset[int]
    readers: Mapping[int, tuple[int, ...]]
    functions: tuple[int, ...]
    needs_values: bool
    groups: Mapping[int, tuple[int, ...]]

    @property
    def yields(self) -> AbstractSet[int]:
        """Return the operators whose rows are read outside of the stage."""
        return self.readers.keys()


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
    readers = {place: _readers(plan, channel, places, place) for place in sorted(yields)}
    return Stage(
        frozenset(places),
        frozenset(reads),
        readers,
        tuple(each for each in sorted(places) if isinstance(plan.operators[each], (Apply, Peek))),
        any(map(plan.fields.get, decoded)) or not plan.as_read.isdisjoint(places),
        {
            place: several
            for place, several in readers.items()
            if all(why_rows(plan, each) is None for each in several)
        },
    )


def _readers(plan: Plan, channel: Channel, stage: AbstractSet[int], place: int) -> tuple[int, ...]:
    """Return the operators outside of a stage that read an operator's rows."""
    if isinstance(plan.operators[place], TableSource):
        return (place,)
    readers = (each for each in channel.operators if place in plan.operators[each].inputs)
    return tuple(each for each in readers if each not in stage)


def why_rows(plan: Plan, place: int) -> str | None:
    """Return why an operator takes single rows, None where it takes groups of them as well."""
    operator, emits = plan.operators[place], emits_of(plan, place)
    why: str | None = None
    if not isinstance(operator, Aggregate) or isinstance(operator, AggregateChanges):
        why = "it looks at each row"
    elif operator.folds:
        why = "its function is called for each row, in their order"
    elif not (operator.windows is None or isinstance(operator.windows, TimeWindows)):
        why = "its windows begin and end with rows"
    elif Emit.EACH in emits:
        why = "each() has a row for each"
    elif operator.windows is None and not is_streamed(plan, place):
        why = "others read its table row by row"
    return why


@dataclass(slots=True)
class StageRows:
    """Rows, records and poison of a stage, by the places of operators.

    ``rows`` are those that it yields, ``groups`` what comes in place of some, chunk by chunk, by
    the places of aggregates, and ``merged`` the same together with what is stored. ``written`` are
    the records that the stage writes, ``notes`` the records that are poison, by their places in the
    micro-batch, with the reasons.
    """

    stage: Stage
    rows: dict[int, Batch] = field(default_factory=dict)
    groups: dict[int, list[Grouped]] = field(default_factory=dict)
    merged: dict[int, Any] = field(default_factory=dict)
    written: dict[int, Written] = field(default_factory=dict)
    notes: dict[int, list[tuple[int, str]]] = field(default_factory=dict)

    def moved(self, start: int) -> StageRows:
        """Return the same of records that begin at a place in the micro-batch."""
        return StageRows(
            self.stage,
            rows={place: replace(each, at=each.at + start) for place, each in self.rows.items()},
            groups={
                place: [each.moved(start) for each in chunks]
                for place, chunks in self.groups.items()
            },
            written={
                place: replace(each, at=each.at + start) for place, each in self.written.items()
            },
            notes={
                place: [(at + start, reason) for at, reason in each]
                for place, each in self.notes.items()
            },
        )


def merge_stages(parts: Sequence[StageRows], groupers: Mapping[int, Grouper]) -> StageRows:
    """Return what came of several parts of a micro-batch, which are in its order.

    Where some have rows of an operator and others groups, the rows are grouped here.
    """
    stage = parts[0].stage
    found = StageRows(stage)
    for place in stage.yields:
        rows = [each.rows[place] for each in parts if place in each.rows]
        if len(rows) == len(parts):
            found.rows[place] = merge_batches(rows)
            continue
        for aggregate in stage.groups[place]:
            found.groups[aggregate] = [
                chunk
                for each in parts
                for chunk in each.groups.get(aggregate)
                or [groupers[aggregate].group(each.rows[place])]
            ]
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

    @property
    def listed(self) -> list[tuple[int, str]]:
        """Return those of the operator."""
        return self.by_place.get(self._place, [])
