"""Aggregates by key: without windows, and in windows of all kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams import aggregates as declared
from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.expressions import Part, PartNode
from headrace.extensions.streams.inline.batch import Batch, Change, key_columns
from headrace.extensions.streams.inline.stateless import row_objects, split_by_key
from headrace.extensions.streams.inline.tables import Held, TableState
from headrace.extensions.streams.kernels.chunk_groups import KeyGroups, PaneGroups
from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.groups import Groups
from headrace.extensions.streams.kernels.layout import Inputs, Layout, put_rows, take_rows
from headrace.extensions.streams.kernels.partials import Fold, make_partial
from headrace.extensions.streams.kernels.records import NO_TIME, Records
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.kernels.sessions import SessionKernel
from headrace.extensions.streams.kernels.sliding import SlidingKernel
from headrace.extensions.streams.kernels.stores import MemoryKeyedWindows, MemoryStore
from headrace.extensions.streams.kernels.time_windows import TimeWindowKernel
from headrace.extensions.streams.keys import decode_keys
from headrace.extensions.streams.plan import stored_order
from headrace.extensions.streams.windows import SessionWindows, SlidingWindows, TimeWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.inline.batch import Poison
    from headrace.extensions.streams.inline.grouped import Grouped
    from headrace.extensions.streams.kernels.partials import Partial, Parts
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.kernels.rows import WindowResult
    from headrace.extensions.streams.kernels.stores import KeyedWindowStore, WindowStore
    from headrace.extensions.streams.kernels.time_windows import MergedPanes
    from headrace.extensions.streams.operators import Aggregate, Output
    from headrace.extensions.streams.windows import Windows


#: Later than the end of any window.
_ALL = 2**62


def layout_of(operator: Aggregate) -> Layout:
    """Return the layout of the stored rows of an operator."""
    partials = _partials_of(operator)
    for each in partials:
        if isinstance(each, Fold):
            each.finds_all = operator.windows is None
    return Layout(partials, stored_order(operator))


def _partials_of(operator: Aggregate) -> list[Partial]:
    return [
        make_partial(each.aggregate, [kind.arrow() for kind in each.types], each.result)
        for each in operator.aggregates.values()
    ]


class Inflow:
    """The rows of a stream as records of a kernel: keys, times, arguments of the aggregates."""

    def __init__(self, operator: Aggregate, source: Output) -> None:
        self._operator, self._source = operator, source
        self._aggregates = list(
            zip(operator.aggregates.values(), _partials_of(operator), strict=True)
        )

    def read(self, batch: Batch, poison: Poison) -> tuple[Batch, Records]:
        """Return the rows that have a key and no fault, and what is aggregated of them."""
        label = self._operator.label
        batch, _ = split_by_key(batch, self._source.key, label, poison)
        found, faults = batch.columns(), dict[int, str]()
        for each, partial in self._aggregates:
            made = [evaluate(node, found, len(batch)) for node in each.arguments]
            faults.update(partial.find_faults([one.values for one in made]))
            for one in made:
                faults.update(one.faults)
        batch = batch.without(faults, poison, label)
        found, columns = batch.columns(), list[Any]()
        for each, _ in self._aggregates:
            if isinstance(each.aggregate, declared.Fold):
                rows = np.empty(len(batch), object)
                rows[:] = row_objects(batch)
                columns.append(rows)
            columns += [evaluate(node, found, len(batch)).values for node in each.arguments]
        return batch, Records.of(batch.keys(self._source.key), batch.times, *columns)


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a kernel: where they come from, their keys, windows and values."""

    at: Array
    keys: pa.Array
    times: Array
    values: Sequence[pa.Array]
    present: Array
    starts: Array | None = None
    ends: Array | None = None


def result_batch(operator: Aggregate, result: Result) -> Batch:
    """Return the rows of an aggregate, with the fields that are of the group."""
    output = operator.output
    assert output is not None, "rows come out"
    parts = decode_keys(result.keys, output.key).parts
    columns: dict[Node, pa.Array] = dict(key_columns(parts))
    if result.starts is not None:
        columns[PartNode(Part.WINDOW_START)] = pa.array(result.starts, pa.int64())
        columns[PartNode(Part.WINDOW_END)] = pa.array(result.ends, pa.int64())
    size = len(result.at)
    fields = {name: evaluate(node, columns, size).values for name, node in operator.fields.items()}
    made = dict(zip(operator.aggregates, result.values, strict=True))
    ordered = {name: fields.get(name, made.get(name)) for name in output.row.__fields__}
    return Batch(output.row, ordered, parts, result.times, result.at, result.present)


def retried(
    records: Records, batch: Batch, process: Callable[[Records], Any], poison: Poison, label: str
) -> tuple[Batch, Any]:
    """Return what a kernel makes of records, without those that it cannot take."""
    while True:
        try:
            return batch, process(records)
        except RowError as error:
            for at, reason in sorted(error.reasons.items()):
                poison.note(int(batch.at[at]), f"{label}: {reason}")
            kept = np.delete(np.arange(len(batch)), list(error.reasons))
            batch = batch.take(kept)
            columns = tuple(
                each.take(pa.array(kept)) if isinstance(each, pa.Array) else each[kept]
                for each in records.columns
            )
            records = Records(records.codes[kept], records.names, records.times[kept], columns)


class GroupRows(Protocol):
    """Rows of groups by key. One thread."""

    def read(self, names: pa.Array) -> Parts:
        """Return the rows of keys, which are distinct; where there is none, that of no records."""
        ...

    def write(self, names: pa.Array, rows: Parts) -> None:
        """Write the rows of keys, which are distinct."""
        ...


class MemoryRows:
    """Rows of groups in this process, which end with it."""

    def __init__(self, layout: Layout) -> None:
        self._store = MemoryStore(layout)

    def read(self, names: pa.Array) -> Parts:
        return self._store.read(0, self._store.number_keys(names))

    def write(self, names: pa.Array, rows: Parts) -> None:
        numbers = self._store.number_keys(names)
        order = np.argsort(numbers)
        self._store.write(0, numbers[order], take_rows(rows, order))


class GroupState:
    """Aggregates by key, without windows.

    ``state`` has the table's rows; with ``keeps_rows`` off, those of the last micro-batch alone.
    """

    def __init__(
        self,
        operator: Aggregate,
        source: Output,
        rows: GroupRows | None = None,
        *,
        keeps_rows: bool = True,
    ) -> None:
        self._operator = operator
        self._inflow = Inflow(operator, source)
        self._layout = layout_of(operator)
        self._rows = rows or MemoryRows(self._layout)
        self._keeps_rows = keeps_rows
        self.state = TableState()

    def process(self, batch: Batch, poison: Poison) -> list[Change]:
        """Return the change of each record."""
        batch, records = self._inflow.read(batch, poison)
        batch, ordered = retried(records, batch, self._extend, poison, self._operator.label)
        if ordered is None:
            return []
        names, rows = ordered
        result = Result(
            batch.at, names, rows[0], self._layout.results(rows), np.ones(len(batch), np.bool_)
        )
        made = result_batch(self._operator, result)
        keys = names.to_pylist()
        return [
            self.state.put(at, key, row, time)
            for at, key, row, time in zip(
                made.at.tolist(), keys, made.to_rows(), made.times.tolist(), strict=True
            )
        ]

    def _extend(self, records: Records) -> tuple[pa.Array, Parts] | None:
        """Return the key of each record, and the row of its group with it."""
        if not len(records):
            return None
        groups = Groups(records.codes.astype(np.int64), len(records.names))
        names = records.names.take(pa.array(groups.numbers))
        before = self._rows.read(names)
        if not self._keeps_rows:
            self.recall(names, before)
        ordered = self._layout.extend_scan(before, groups, Inputs(self._layout, records))
        rows = tuple(np.empty_like(part) for part in ordered)
        for part, values in zip(rows, ordered, strict=True):
            part[groups.order] = values
        over = np.flatnonzero(self._layout.overflows(rows))
        if len(over):
            raise RowError(int(over[0]), "an aggregate leaves the range of its type")
        self._rows.write(names, take_rows(ordered, groups.starts + groups.sizes - 1))
        return records.names.take(pa.array(records.codes)), rows

    def recall(self, names: pa.Array, rows: Parts) -> None:
        """Set the table's rows to those of keys; where there is none, it has none."""
        there = np.flatnonzero(self._layout.present(rows))
        keys, own = names.take(pa.array(there)), take_rows(rows, there)
        none = np.zeros(len(there), np.int64)
        found = Result(none, keys, own[0], self._layout.results(own), np.ones(len(there), np.bool_))
        made = result_batch(self._operator, found)
        self.state = TableState()
        for key, row, time in zip(
            keys.to_pylist(), made.to_rows(), made.times.tolist(), strict=True
        ):
            assert row is not None, "these rows are there"
            self.state.rows[key] = Held(row, time)


@dataclass(frozen=True, slots=True)
class MergedKeys:
    """The keys that groups of chunks change, and their rows.

    ``last`` is the last record of each among the rows that came, ``at`` its place in the
    micro-batch.
    """

    names: pa.Array
    rows: Parts
    last: Array
    at: Array


class StreamedGroups:
    """Aggregates by key of which nothing but a stream of changes is read. In columns only.

    ``emits`` are the ways in which the changes come out: each, or the last one of a key.
    """

    def __init__(
        self, operator: Aggregate, source: Output, rows: GroupRows, emits: frozenset[Emit]
    ) -> None:
        self._operator, self._emits = operator, emits
        self._inflow = Inflow(operator, source)
        self._layout = layout_of(operator)
        self._rows = rows

    def process(self, batch: Batch, poison: Poison) -> dict[Emit, Batch]:
        """Return the rows to emit."""
        batch, records = self._inflow.read(batch, poison)
        label = self._operator.label
        batch, changed = retried(records, batch, self._extend, poison, label)
        found: dict[Emit, Batch] = {}
        for emit, (at, names, rows) in changed.items():
            present = np.ones(len(at), np.bool_)
            values = self._layout.results(rows)
            result = Result(batch.at[at], names, rows[0], values, present)
            found[emit] = result_batch(self._operator, result)
        return found

    def _extend(self, records: Records) -> dict[Emit, tuple[Array, pa.Array, Parts]]:
        """Return the changes: places of records, their keys, and the rows of these with them."""
        groups = Groups(records.codes.astype(np.int64), len(records.names))
        names = records.names.take(pa.array(groups.numbers))
        before, inputs = self._rows.read(names), Inputs(self._layout, records)
        ends = groups.starts + groups.sizes - 1
        ordered = None
        if Emit.EACH in self._emits:
            ordered = self._scan(before, groups, inputs)
            after = take_rows(ordered, ends)
        else:
            after = self._layout.extend(before, groups, inputs)
            weights = self._layout.weigh(inputs) if self._layout.can_overflow else ()
            if weights and self._layout.may_overflow(after, weights):
                self._scan(before, groups, inputs)
        self._rows.write(names, after)
        found: dict[Emit, tuple[Array, pa.Array, Parts]] = {}
        if ordered is not None:
            by_record = np.argsort(groups.order)
            keys = records.names.take(pa.array(records.codes))
            found[Emit.EACH] = (np.arange(len(records)), keys, take_rows(ordered, by_record))
        if Emit.UPDATES in self._emits:
            last = groups.order[ends] if len(groups) else groups.numbers
            by_record = np.argsort(last)
            keys = names.take(pa.array(by_record))
            found[Emit.UPDATES] = (last[by_record], keys, take_rows(after, by_record))
        return found

    def merge(self, chunks: Sequence[Grouped]) -> MergedKeys | None:
        """Return what the groups of a micro-batch's chunks change, in their order.

        None: a value may have left its type on the way, so that records are needed one by one.
        """
        keys = [each.groups for each in chunks if isinstance(each.groups, KeyGroups)]
        listed = pa.concat_arrays([pa.array([], pa.binary()), *(each.names for each in keys)])
        encoded = listed.dictionary_encode()
        names, ids = encoded.dictionary, encoded.indices.to_numpy()
        rows, last = self._rows.read(names), np.zeros(len(names), np.int64)
        start = records = 0
        for each in keys:
            own = ids[start : start + len(each.names)]
            put_rows(rows, own, self._layout.merge(take_rows(rows, own), each.rows))
            last[own] = records + each.last
            start, records = start + len(own), records + each.size
        if self._layout.can_overflow and keys:
            weights = [sum(each) for each in zip(*(each.weights for each in keys), strict=True)]
            if self._layout.may_overflow(rows, weights):
                return None
        at = np.zeros(len(names), np.int64)
        at[ids] = np.concatenate([np.empty(0, np.int64), *(chunk.at for chunk in chunks)])
        return MergedKeys(names, rows, last, at)

    def take(self, merged: MergedKeys) -> dict[Emit, Batch]:
        """Write what was merged last, and return the rows to emit."""
        self._rows.write(merged.names, merged.rows)
        if Emit.UPDATES not in self._emits:
            return {}
        order = np.argsort(merged.last)
        rows = take_rows(merged.rows, order)
        result = Result(
            merged.at[order],
            merged.names.take(pa.array(order)),
            rows[0],
            self._layout.results(rows),
            np.ones(len(order), np.bool_),
        )
        return {Emit.UPDATES: result_batch(self._operator, result)}

    def _scan(self, before: Parts, groups: Groups, inputs: Inputs) -> Parts:
        """Return the row of its group at each record, in the order of the groups.

        Raises:
            RowError: with a record a value leaves the range of its type.
        """
        ordered = self._layout.extend_scan(before, groups, inputs)
        over = np.flatnonzero(self._layout.overflows(ordered))
        if len(over):
            at = int(groups.order[over].min())
            raise RowError(at, "an aggregate leaves the range of its type")
        return ordered


def _kernel_of(
    windows: Windows, layout: Layout, emits: frozenset[Emit], store: Any, time: int
) -> Any:
    """Return the kernel of windows, with a store in memory where none is given."""
    if isinstance(windows, TimeWindows):
        panes = MemoryStore(layout) if store is None else store
        return TimeWindowKernel(windows, layout, panes, emits, time)
    own = MemoryKeyedWindows(layout) if store is None else store
    if isinstance(windows, SlidingWindows):
        return SlidingKernel(windows, layout, own, emits, time)
    return SessionKernel(windows, layout, own, emits, time)


class MergedWindows(NamedTuple):
    """The windows that groups of chunks change, and the records that rows may come from."""

    panes: MergedPanes
    at: Array


class WindowState:
    """Aggregates in windows. ``store`` is that of the windows' kind, ``time`` the operator time."""

    def __init__(
        self,
        operator: Aggregate,
        windows: Windows,
        source: Output,
        emits: frozenset[Emit],
        *,
        store: WindowStore | KeyedWindowStore | None = None,
        time: int = NO_TIME,
    ) -> None:
        self._operator, self._windows = operator, windows
        self._inflow = Inflow(operator, source)
        self._layout = layout_of(operator)
        self._kernel = _kernel_of(windows, self._layout, emits, store, time)
        self.late = 0
        #: The late records of the last micro-batch, by their places.
        self.late_at: Array = np.empty(0, np.int64)
        #: How many windows of keys were over with the last micro-batch.
        self.closed = 0

    @property
    def time(self) -> int:
        """Return the operator time."""
        return int(self._kernel.time)

    def process(self, batch: Batch, poison: Poison) -> dict[Emit, Batch]:
        """Return the rows to emit."""
        batch, records = self._inflow.read(batch, poison)
        label = self._operator.label
        batch, result = retried(records, batch, self._kernel.process, poison, label)
        return self._emitted(result, batch.at)

    def merge(self, chunks: Sequence[Grouped]) -> MergedWindows | None:
        """Return what the groups of a micro-batch's chunks change, in their order.

        None: records are needed one by one, as the kernel says.
        """
        panes = [each.groups for each in chunks if isinstance(each.groups, PaneGroups)]
        merged = self._kernel.merge(panes)
        if merged is None:
            return None
        return MergedWindows(merged, np.concatenate([each.at for each in chunks]))

    def take(self, merged: MergedWindows) -> dict[Emit, Batch]:
        """Count what was merged last, and return the rows to emit."""
        return self._emitted(self._kernel.take(merged.panes), merged.at)

    def _emitted(self, result: WindowResult, places: Array) -> dict[Emit, Batch]:
        """Return rows of windows; ``places`` are those of records in the micro-batch."""
        self.late += len(result.late)
        self.late_at = places[result.late]
        self.closed = result.closed
        found = {}
        for emit, rows in result.rows.items():
            keys = rows.names.take(pa.array(rows.codes, pa.int64()))
            at = places[rows.at] if len(rows.at) else rows.at
            made = Result(at, keys, rows.times, rows.values, rows.present, rows.starts, rows.ends)
            found[emit] = result_batch(self._operator, made)
        return found

    def stored(self) -> Iterator[tuple[bytes, int, Mapping[str, Any]]]:
        """Yield the windows that are not over: key, begin, row."""
        windows = self._windows
        if isinstance(windows, TimeWindows):
            yield from self._stored_panes(windows)
            return
        stored = self._kernel.store.read_before(_ALL)
        reach = windows.gap if isinstance(windows, SessionWindows) else 0
        is_open = np.array(stored.ends, np.int64) + reach + windows.grace >= self.time
        places = list(np.flatnonzero(is_open).tolist())
        places.sort(key=lambda place: (stored.names[place], stored.begins[place]))
        yield from self._open_windows(
            [stored.names[place] for place in places],
            [stored.begins[place] for place in places],
            [stored.ends[place] for place in places],
            take_rows(stored.rows, np.array(places, np.int64)),
        )

    def _stored_panes(self, windows: TimeWindows) -> Iterator[tuple[bytes, int, Mapping[str, Any]]]:
        store = self._kernel.store
        panes = store.list_panes()
        step = windows.every // windows.pane
        first = max((self.time - windows.size - windows.grace) // windows.every + 1, 0)
        for window in range(first, panes[-1] // step + 1 if panes else first):
            own = range(window * step, window * step + windows.panes)
            keys: Array = np.unique(np.concatenate([store.list_keys(pane) for pane in own]))
            rows = self._layout.empty(len(keys))
            for pane in own:
                rows = self._layout.merge(rows, store.read(pane, keys))
            begin = window * windows.every
            names = store.name_keys(keys).to_pylist()
            size = len(names)
            yield from self._open_windows(
                names, [begin] * size, [begin + windows.size] * size, rows
            )

    def _open_windows(
        self, names: list[bytes], begins: list[int], ends: list[int], rows: Parts
    ) -> Iterator[tuple[bytes, int, Mapping[str, Any]]]:
        size = len(names)
        found = Result(
            np.zeros(size, np.int64),
            pa.array(names, pa.binary()),
            rows[0],
            self._layout.results(rows),
            np.ones(size, np.bool_),
            np.array(begins, np.int64),
            np.array(ends, np.int64),
        )
        made = result_batch(self._operator, found).to_rows()
        for name, begin, row in zip(names, begins, made, strict=True):
            assert row is not None, "rows of windows are there"
            yield name, begin, row


def filter_windows(batch: Batch, where: Node, label: str, poison: Poison, emit: Emit) -> Batch:
    """Return rows of windows of which a condition is true; others are deletions, or left out."""
    found = evaluate(where, batch.columns(), len(batch))
    for place, reason in sorted(found.faults.items()):
        if batch.present[place]:
            poison.note(int(batch.at[place]), f"{label}: {reason}")
    kept = pc.fill_null(found.values, False).to_numpy(zero_copy_only=False)
    if emit is Emit.FINAL:
        return batch.take(np.flatnonzero(kept & batch.present))
    fields = {
        name: pc.if_else(pa.array(kept), values, None) for name, values in batch.fields.items()
    }
    return replace(batch, fields=fields, present=kept & batch.present)
