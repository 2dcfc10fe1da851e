"""Groups of a table: its changes by the group of each row, and aggregates that follow them.

The rules are those of Kafka Streams: of a row that moves, the former group hears of the row before,
and the new one of the row after. In a group the row before is taken away, then the row after added.
What was never counted, because it was at fault, is not taken away either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.changes import AFTER, BEFORE
from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.encode import json_texts
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.inline.aggregates import (
    GroupState,
    Result,
    result_batch,
)
from headrace.extensions.streams.inline.batch import Batch, Change, Written, batch_of, mask_of
from headrace.extensions.streams.inline.stateless import split_by_key
from headrace.extensions.streams.kernels.groups import Groups
from headrace.extensions.streams.kernels.layout import Inputs, take_rows
from headrace.extensions.streams.kernels.records import Records
from headrace.extensions.streams.keys import encode_keys
from headrace.extensions.streams.types import Kind, Type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.inline.batch import Poison
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.operators import AggregateChanges, GroupChanges, Output


def write_changes(
    operator: GroupChanges, changes: Sequence[Change], source: Output, poison: Poison
) -> Written:
    """Return the records of changes by group; a row after a change without a group is poison."""
    before = _Side(operator, [each.before for each in changes], changes, source)
    after = _Side(operator, [each.row for each in changes], changes, source)
    for place, reason in sorted(after.faults.items()):
        poison.note(changes[place].at, f"{operator.label}: {reason}")
    found: list[tuple[int, bytes, str, str]] = []
    for place in range(len(changes)):
        former, group = before.keys[place], after.keys[place]
        if former is not None and former == group:
            found.append((place, former, before.texts[place], after.texts[place]))
            continue
        if former is not None:
            found.append((place, former, before.texts[place], "null"))
        if group is not None:
            found.append((place, group, "null", after.texts[place]))
    values = [f'{{"{BEFORE}":{one},"{AFTER}":{other}}}'.encode() for _, _, one, other in found]
    times = np.array([each.time for each in changes], np.int64)
    at = np.array([each.at for each in changes], np.int64)
    taken = np.array([place for place, *_ in found], np.int64)
    return Written(
        pa.array([key for _, key, _, _ in found], pa.binary()),
        pa.array(values, pa.binary()),
        times[taken],
        at[taken],
    )


class _Side:
    """The rows before or after changes: of each its group and its text, None where there is none.

    ``faults`` are the rows that have no group, or no text in JSON.
    """

    def __init__(
        self,
        operator: GroupChanges,
        rows: Sequence[Mapping[str, Any] | None],
        changes: Sequence[Change],
        source: Output,
    ) -> None:
        assert operator.output is not None, "rows come out"
        side = [replace(change, row=row) for change, row in zip(changes, rows, strict=True)]
        batch = batch_of(side, source)
        columns, size = batch.columns(), len(batch)
        found = [evaluate(node, columns, size) for node in operator.parts]
        faults: dict[int, str] = {}
        texts = json_texts(_structs(batch), Type(Kind.ROW, True, row=source.row), "row", faults)
        for each in found:
            faults.update(each.faults)
        keys = encode_keys([each.values for each in found], operator.output.key).to_pylist()
        for place, key in enumerate(keys):
            if key is None:
                faults.setdefault(place, "the row has no key")
        there = batch.present.tolist()
        self.faults = {place: reason for place, reason in faults.items() if there[place]}
        counted = [there[place] and place not in faults for place in range(size)]
        self.keys: list[bytes | None] = [
            key if counts else None for key, counts in zip(keys, counted, strict=True)
        ]
        self.texts: list[str] = [
            text if counts else "null"
            for text, counts in zip(texts.to_pylist(), counted, strict=True)
        ]


def _structs(batch: Batch) -> pa.Array:
    """Return rows as structs, null where there is none."""
    kinds = [pa.field(name, each.type) for name, each in batch.fields.items()]
    return pa.StructArray.from_arrays(
        list(batch.fields.values()), fields=kinds, mask=pa.array(~batch.present)
    )


class TableGroupState(GroupState):
    """Aggregates of a table's groups. ``state`` is as that of :class:`GroupState`."""

    def __init__(
        self, operator: AggregateChanges, source: Output, *rows: Any, keeps_rows: bool = True
    ) -> None:
        super().__init__(operator, source, *rows, keeps_rows=keeps_rows)
        self._changes, self._grouped = operator, source

    def process(self, batch: Batch, poison: Poison) -> list[Change]:
        """Return the change of each record that counts."""
        label = self._changes.label
        batch, _ = split_by_key(batch, self._grouped.key, label, poison)
        if not len(batch):
            return []
        records = {
            side: self._read(batch, side, poison if side == AFTER else None)
            for side in (BEFORE, AFTER)
        }
        names, rows, counted = self._count(*records[BEFORE], *records[AFTER])
        over = np.flatnonzero(self._layout.overflows(rows) & counted)
        for place in over.tolist():
            # the sum itself goes on, so that what is taken away later is right
            poison.note(int(batch.at[place]), f"{label}: an aggregate leaves the range of its type")
        counted[over] = False
        places = np.flatnonzero(counted)
        own, keys = take_rows(rows, places), names.take(pa.array(places))
        values = self._layout.results(own)
        present = np.ones(len(places), np.bool_)
        made = result_batch(self._changes, Result(batch.at[places], keys, own[0], values, present))
        return [
            self.state.put(at, key, row, time)
            for at, key, row, time in zip(
                made.at.tolist(),
                keys.to_pylist(),
                made.to_rows(),
                made.times.tolist(),
                strict=True,
            )
        ]

    def _read(self, batch: Batch, side: str, poison: Poison | None) -> tuple[Records, Array]:
        """Return what is aggregated of the rows of a side, and which of them count.

        One at fault does not; it is poison where ``poison`` is given.
        """
        structs = batch.fields[side]
        there = mask_of(pc.is_valid(structs))
        row = self._changes.rows
        columns: dict[Node, pa.Array] = dict(batch.columns())
        for place, name in enumerate(row.__fields__):
            columns[FieldNode(row, name)] = pc.struct_field(structs, [place])
        faults: dict[int, str] = {}
        found = []
        for each in self._changes.aggregates.values():
            for node in each.arguments:
                values = evaluate(node, columns, len(batch))
                faults.update(_not_finite(values.values))
                faults.update(values.faults)
                found.append(values.values)
        if poison is not None:
            for place, reason in sorted(faults.items()):
                if there[place]:
                    poison.note(int(batch.at[place]), f"{self._changes.label}: {reason}")
        there[list(faults)] = False
        mask = pa.array(there)
        masked = [pc.if_else(mask, values, None) for values in found]
        keys = batch.keys(self._grouped.key)
        return Records.of(keys, batch.times, *masked), there

    def _count(
        self, before: Records, removed: Array, after: Records, added: Array
    ) -> tuple[pa.Array, Parts, Array]:
        """Return the key of each record, its group's row with it, and whether that is told."""
        groups = Groups(after.codes.astype(np.int64), len(after.names))
        names = after.names.take(pa.array(groups.numbers))
        rows = self._rows.read(names)
        if not self._keeps_rows:
            self.recall(names, rows)
        # nothing is taken away from a group that has no row yet
        known = self._layout.present(rows)[groups.ids] | _had_one(groups, added)
        removed &= known
        sides = ((Inputs(self._layout, after), added), (self._inputs(before, removed), removed))
        ordered = self._layout.scan_changes(rows, groups, *sides)
        self._rows.write(names, take_rows(ordered, groups.starts + groups.sizes - 1))
        by_record = tuple(np.empty_like(part) for part in ordered)
        for part, values in zip(by_record, ordered, strict=True):
            part[groups.order] = values
        return after.names.take(pa.array(after.codes)), by_record, added | removed

    def _inputs(self, records: Records, counted: Array) -> Inputs:
        mask = pa.array(counted)
        columns = tuple(pc.if_else(mask, values, None) for values in records.columns)
        return Inputs(self._layout, replace(records, columns=columns))


def _had_one(groups: Groups, added: Array) -> Array:
    """Return the records before which one of their group was added."""
    counts = np.cumsum(added[groups.order]) - added[groups.order]
    had = np.empty(len(added), np.bool_)
    had[groups.order] = counts - counts[groups.starts][groups.ordered_ids] > 0
    return had


def _not_finite(values: pa.Array) -> dict[int, str]:
    """Return the rows with a number that nothing can be taken away from again."""
    if not pa.types.is_floating(values.type):
        return {}
    places = np.flatnonzero(~mask_of(pc.fill_null(pc.is_finite(values), True))).tolist()
    return {place: f"{values[place].as_py()} cannot be taken away again" for place in places}
