"""Rows of an aggregate that are grouped in chunks, apart from its state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.extensions.streams.inline.aggregates import Inflow, layout_of
from headrace.extensions.streams.inline.stage import Notes
from headrace.extensions.streams.kernels.chunk_groups import reduce_keys, reduce_panes
from headrace.extensions.streams.operators import Aggregate
from headrace.extensions.streams.windows import TimeWindows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.extensions.streams.inline.batch import Batch
    from headrace.extensions.streams.kernels.chunk_groups import KeyGroups, PaneGroups
    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.operators import Output
    from headrace.extensions.streams.plan import Plan

#: Groups by row up to which they come back: one is up to twice as long as a row, and is to be made.
_FEW = 1 / 3


@dataclass(frozen=True, slots=True)
class Grouped:
    """The groups of a chunk's rows, none where no row counts.

    ``records`` are how many rows came, ``skipped`` how many of them are deletions, and ``notes``
    the ones that are poison, by their places in the micro-batch. ``at`` are the places of the
    records that rows may come from.
    """

    records: int
    skipped: int
    notes: Sequence[tuple[int, str]]
    at: Array
    groups: KeyGroups | PaneGroups | None

    def moved(self, start: int) -> Grouped:
        """Return the same of records that begin at a place in the micro-batch."""
        notes = [(at + start, reason) for at, reason in self.notes]
        return replace(self, notes=notes, at=self.at + start)


class Grouper:
    """Groups the rows of a chunk for an aggregate."""

    def __init__(self, operator: Aggregate, source: Output) -> None:
        self._windows = operator.windows
        self._inflow = Inflow(operator, source)
        self.layout: Layout = layout_of(operator)

    def group(self, batch: Batch) -> Grouped:
        """Return the groups of rows."""
        notes = Notes()
        kept, records = self._inflow.read(batch, notes)
        found: tuple[KeyGroups | PaneGroups | None, Array] = (None, np.empty(0, np.int64))
        if len(records) and isinstance(self._windows, TimeWindows):
            found = reduce_panes(self._windows, self.layout, records)
        elif len(records):
            found = reduce_keys(self.layout, records)
        groups, named = found
        return Grouped(len(batch), batch.deletions, notes.listed, kept.at[named], groups)


def groupers_of(plan: Plan, places: Iterable[int]) -> dict[int, Grouper]:
    """Return what groups rows for aggregates, by their places."""
    found = {}
    for place in places:
        operator = plan.operators[place]
        assert isinstance(operator, Aggregate), "others have no groups"
        source = plan.operators[operator.inputs[0]].output
        assert source is not None, "rows come out"
        found[place] = Grouper(operator, source)
    return found


def are_few(grouped: Grouped, rows: int) -> bool:
    """Return whether it pays to have groups in place of rows."""
    return grouped.groups is None or len(grouped.groups.rows[0]) <= _FEW * rows
