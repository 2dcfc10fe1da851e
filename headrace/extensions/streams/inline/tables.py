"""Operators that keep rows by key: tables and joins, one row after the other in task order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.encode import encode_structs
from headrace.extensions.streams.expressions import FieldNode, Part, PartNode
from headrace.extensions.streams.inline.batch import (
    QUIET,
    Batch,
    Change,
    batch_of,
    column_of,
    key_columns,
    mask_of,
)
from headrace.extensions.streams.inline.stateless import split_by_key
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.keys import decode_keys, encode_keys
from headrace.extensions.streams.operators import Join

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.inline.batch import Poison
    from headrace.extensions.streams.operators import (
        Filter,
        Lookup,
        Output,
        TableJoin,
    )

    Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """A row of a table, and the time of the latest record in it."""

    row: Fields
    time: int


class View:
    """A table as it is in the middle of a micro-batch: each change is seen from its place on."""

    def __init__(self, rows: Mapping[bytes, Held], changes: Sequence[Change]) -> None:
        """Start before the changes, which follow in their order; ``rows`` are those after them."""
        self._rows = rows
        self._changes = changes
        self._next = 0
        self._changed: dict[bytes, Held | None] = {}
        for change in reversed(changes):
            self._changed[change.key] = _held(change.before, change.former)

    def advance(self, at: int) -> None:
        """Apply the changes of records up to a place, that one included."""
        while self._next < len(self._changes) and self._changes[self._next].at <= at:
            change = self._changes[self._next]
            self._next += 1
            self._changed[change.key] = _held(change.row, change.row_time)

    def rows_before(self) -> dict[bytes, Held]:
        """Return all rows as they were before the changes."""
        former: dict[bytes, Held | None] = {}
        for change in reversed(self._changes):
            former[change.key] = _held(change.before, change.former)
        found = {**self._rows, **former}
        return {key: held for key, held in found.items() if held is not None}

    def get(self, key: bytes) -> Held | None:
        """Return the row of a key."""
        return self._changed[key] if key in self._changed else self._rows.get(key)


def _held(row: Fields | None, time: int) -> Held | None:
    return None if row is None else Held(row, time)


class TableState:
    """A table of the last row of each key."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Held] = {}

    def put(
        self, at: int, key: bytes, row: Fields | None, time: int, row_time: int | None = None
    ) -> Change:
        """Store a row, or delete it, and return the change; ``row_time`` is the row's own time."""
        own = time if row_time is None else row_time
        before = self.rows.pop(key, None)
        if row is not None:
            self.rows[key] = Held(row, own)
        former = (None, -1) if before is None else (before.row, before.time)
        return Change(at, key, row, former[0], time, own, former[1])


class FilteredTable:
    """The rows of a table of which a condition is true."""

    def __init__(self, operator: Filter, rows: Mapping[bytes, Held]) -> None:
        """Start with the rows of the whole table; one at fault was noted when it came."""
        self.state = TableState()
        self.state.rows = filter_rows(operator, rows)

    def follow(self, changes: Sequence[Change]) -> None:
        """Apply changes of the rows that are there."""
        for change in changes:
            self.state.put(change.at, change.key, change.row, change.time, change.row_time)


class SourceTable:
    """A topic as a table: the last record of a key in its order, whatever its time.

    With ``is_stored`` a row is poison that JSON cannot have: one with a number that is not finite.
    """

    def __init__(
        self, output: Output, state: TableState | None = None, *, is_stored: bool = False
    ) -> None:
        self._output = output
        self.state = TableState() if state is None else state
        self._is_stored = is_stored

    def process(self, batch: Batch, label: str, poison: Poison) -> list[Change]:
        """Return the changes of records; one without a key is poison."""
        if self._is_stored:
            batch = batch.without(unstorable(batch), poison, label)
        keys = batch.keys(self._output.key).to_pylist()
        changes = []
        rows = zip(keys, batch.to_rows(), batch.at.tolist(), batch.times.tolist(), strict=True)
        for key, row, at, time in rows:
            if key is None:
                poison.note(at, f"{label}: the record has no key")
            else:
                changes.append(self.state.put(at, key, row, time))
        return changes


def filter_table(operator: Filter, changes: list[Change], poison: Poison) -> list[Change]:
    """Return changes of a table of which only some rows are there."""
    assert operator.output is not None, "rows come out"
    sides = []
    # a row before was noted when it came, by its own record
    for rows, noted in (([e.row for e in changes], poison), ([e.before for e in changes], QUIET)):
        side = [replace(change, row=row) for change, row in zip(changes, rows, strict=True)]
        batch = batch_of(side, operator.output)
        found = evaluate(operator.where, batch.columns(), len(batch))
        for place, reason in sorted(found.faults.items()):
            if batch.present[place]:
                noted.note(int(batch.at[place]), f"{operator.label}: {reason}")
        kept = (mask_of(found.values) & batch.present).tolist()
        sides.append([row if keep else None for row, keep in zip(rows, kept, strict=True)])
    return [
        replace(change, row=row, before=before)
        for change, row, before in zip(changes, *sides, strict=True)
        if row is not None or before is not None
    ]


def unstorable(batch: Batch) -> dict[int, str]:
    """Return which rows JSON cannot have, with the reason."""
    faults: dict[int, str] = {}
    kinds = [pa.field(name, each.type) for name, each in batch.fields.items()]
    rows = pa.StructArray.from_arrays(list(batch.fields.values()), fields=kinds)
    encode_structs(rows, batch.row, faults)
    return faults


def emit_changes(emit: Emit, changes: Sequence[Change], output: Output) -> Batch:
    """Return changes as rows: all of them, or the last one of each key."""
    if emit is Emit.UPDATES:
        last = {change.key: place for place, change in enumerate(changes)}
        changes = [changes[place] for place in sorted(last.values())]
    return batch_of(changes, output)


# --- what joins compute of pairs ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of each side, None where one is alone."""

    at: int
    key: bytes
    left: Fields | None
    right: Fields | None
    time: int


def in_task_order(
    changes: tuple[Sequence[Change], Sequence[Change]],
) -> list[tuple[int, int, int]]:
    """Return the changes of two tables as record, side, and place among those of the side."""
    return sorted(
        (change.at, side, place) for side in (0, 1) for place, change in enumerate(changes[side])
    )


class PairFields:
    """Computes the fields of pairs."""

    def __init__(
        self, fields: Mapping[str, Node], left: Output, right: Output, output: Output
    ) -> None:
        self._fields, self._left, self._right, self._output = fields, left, right, output

    def compute(self, pairs: Sequence[Pair], label: str, poison: Poison) -> Batch:
        """Return the rows of pairs, without those at fault."""
        return self.compute_kept(pairs, label, poison)[0]

    def compute_kept(
        self, pairs: Sequence[Pair], label: str, poison: Poison
    ) -> tuple[Batch, list[int]]:
        """Return the rows of pairs without those at fault, and the places of these pairs."""
        size = len(pairs)
        keys = pa.array([each.key for each in pairs], pa.binary())
        parts = decode_keys(keys, self._output.key).parts
        times = np.array([each.time for each in pairs], np.int64)
        columns: dict[Node, pa.Array] = {
            **key_columns(parts),
            PartNode(Part.TIME): pa.array(times),
            **_side(self._left, [each.left for each in pairs]),
            **_side(self._right, [each.right for each in pairs]),
        }
        found = {name: evaluate(node, columns, size) for name, node in self._fields.items()}
        faults = {at: text for each in reversed(found.values()) for at, text in each.faults.items()}
        batch = Batch(
            self._output.row,
            {name: each.values for name, each in found.items()},
            parts,
            times,
            np.array([each.at for each in pairs], np.int64),
            np.ones(size, np.bool_),
        )
        kept = [place for place in range(size) if place not in faults]
        return batch.without(faults, poison, label), kept


def _side(output: Output, rows: Sequence[Fields | None]) -> dict[Node, pa.Array]:
    return {
        FieldNode(output.row, name): column_of(rows, name, each.type)
        for name, each in output.row.__fields__.items()
    }


class LookupState:
    """Joins each row with the row that a table has for its key at that place."""

    def __init__(self, operator: Lookup, left: Output, right: Output) -> None:
        assert operator.output is not None, "rows come out"
        self._operator, self._left, self._right = operator, left, right
        self._pairs = PairFields(operator.fields, left, right, operator.output)
        #: How many rows of the last micro-batch came out alone, and had no key to look up.
        self.alone = self.without_key = 0

    def process(self, batch: Batch, view: View, poison: Poison) -> Batch:
        """Return the rows with what the table knows; deletions are left out."""
        operator = self._operator
        self.without_key = 0
        if operator.on is None:
            batch, keys = split_by_key(batch, self._left.key, operator.label, poison)
            looked = keys
        else:
            batch, values = batch.take(np.flatnonzero(batch.present)).compute(
                operator.on, poison, operator.label
            )
            keys, looked = batch.keys(self._left.key), encode_keys([values], self._right.key)
        pairs = []
        rows = zip(
            keys.to_pylist(),
            looked.to_pylist(),
            batch.to_rows(),
            batch.at.tolist(),
            batch.times.tolist(),
            strict=True,
        )
        for key, wanted, row, at, time in rows:
            view.advance(at)
            self.without_key += wanted is None
            held = None if wanted is None else view.get(wanted)
            if held is not None or operator.join is Join.LEFT:
                pairs.append(Pair(at, key, row, None if held is None else held.row, time))
        self.alone = count_alone(pairs)
        return self._pairs.compute(pairs, operator.label, poison)


def count_alone(pairs: Sequence[Pair]) -> int:
    """Return how many pairs have a row of one side only."""
    return sum(each.left is None or each.right is None for each in pairs)


def filter_rows(operator: Filter, rows: Mapping[bytes, Held]) -> dict[bytes, Held]:
    """Return the rows of a table of which a condition is true."""
    changes = [Change(0, key, held.row, None, held.time, held.time) for key, held in rows.items()]
    kept = {change.key for change in filter_table(operator, changes, QUIET)}
    return {key: held for key, held in rows.items() if key in kept}


class TableJoinState:
    """Joins two tables by key: each change of either side is a change, with the later time."""

    def __init__(self, operator: TableJoin, left: Output, right: Output) -> None:
        assert operator.output is not None, "rows come out"
        self._operator = operator
        self._pairs = PairFields(operator.fields, left, right, operator.output)
        self._needed = {
            Join.INNER: (True, True),
            Join.LEFT: (True, False),
            Join.OUTER: (False, False),
        }[operator.join]
        self.state = TableState()
        #: How many changes of the last micro-batch were to a row of one side only.
        self.alone = 0

    def fill(self, left: Mapping[bytes, Held], right: Mapping[bytes, Held]) -> None:
        """Set the rows to those of two tables; a pair at fault was noted when it came."""
        pairs: list[Pair] = []
        for key in {**left, **right}:
            both = (left.get(key), right.get(key))
            one, other = (None if each is None else each.row for each in both)
            if not self._is_gone(one, other):
                time = max(each.time for each in both if each is not None)
                pairs.append(Pair(0, key, one, other, time))
        batch, kept = self._pairs.compute_kept(pairs, self._operator.label, QUIET)
        for place, row in zip(kept, batch.to_rows(), strict=True):
            pair = pairs[place]
            self.state.put(0, pair.key, row, pair.time)

    def process(
        self, views: tuple[View, View], changes: tuple[list[Change], list[Change]], poison: Poison
    ) -> list[Change]:
        """Return the changes of the result."""
        merged = in_task_order(changes)
        pairs: list[Pair] = []
        made: list[tuple[int, bytes, int, int, int | None]] = []
        for at, side, place in merged:
            change = changes[side][place]
            views[1 - side].advance(at if side else at - 1)
            other = views[1 - side].get(change.key)
            nothing = change.row is None and change.before is None
            if other is None and (self._needed[1 - side] or nothing):
                continue
            time = change.time if other is None else max(change.time, other.time)
            # of a row that lost its partner it is the later one of those that are left
            there = (_held(change.row, change.row_time), other)
            row_time = max((each.time for each in there if each is not None), default=time)
            own = (change.row, None if other is None else other.row)
            left, right = own if side == 0 else own[::-1]
            if self._is_gone(left, right):
                made.append((at, change.key, time, row_time, None))
            else:
                made.append((at, change.key, time, row_time, len(pairs)))
                pairs.append(Pair(at, change.key, left, right, time))
        self.alone = count_alone(pairs)
        batch, kept = self._pairs.compute_kept(pairs, self._operator.label, poison)
        rows = dict(zip(kept, batch.to_rows(), strict=True))
        return [
            self.state.put(at, key, None if pair is None else rows[pair], time, row_time)
            for at, key, time, row_time, pair in made
            if pair is None or pair in rows
        ]

    def _is_gone(self, left: Fields | None, right: Fields | None) -> bool:
        missing = (left is None, right is None)
        pairs = zip(self._needed, missing, strict=True)
        return all(missing) or any(needed and lost for needed, lost in pairs)
