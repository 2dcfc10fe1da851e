"""Tumbling and hopping windows in columns.

State is kept by pane, the greatest span that no window begins or ends in, so that a record changes
one row however many windows it is in. A window's value is merged from its panes.

A window is open as long as ``end + grace`` is above the operator time, which only rises: the open
windows are those from some first one on. So each record has a *first window*, the later of the
first one of its pane and the first one that is open, and is in all from it to the last one of its
pane. Records of one pane may differ in it, where a window closes within a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.groups import Groups, distinct, find_places
from headrace.extensions.streams.kernels.layout import Inputs, put_rows, take_rows
from headrace.extensions.streams.kernels.records import (
    NO_TIME,
    Array,
    Records,
    expand,
    operator_times,
    take_records,
)
from headrace.extensions.streams.kernels.rows import Emit, WindowResult, WindowRows, no_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.extensions.streams.kernels.chunk_groups import PaneGroups
    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.stores import WindowStore
    from headrace.extensions.streams.windows import TimeWindows

#: Cells of a table of panes and keys; windows are valued in runs that have no more.
_CELLS = 2**21


@dataclass(frozen=True, slots=True)
class _Taken:
    """The records of a micro-batch that are in an open window."""

    at: Array
    keys: Array
    numbers: Array
    panes: Array
    first: Array
    last: Array
    records: Records


@dataclass(frozen=True, slots=True)
class Changed:
    """A pane's changed rows: keys by number, and the rows as records with each first window left
    them, the last ones of all.
    """

    keys: Array
    steps: list[tuple[int, Parts]]

    def up_to(self, window: int | None) -> Parts | None:
        """Return the rows as far as they are in a window; None where no record is."""
        rows = [parts for first, parts in self.steps if window is None or first <= window]
        return rows[-1] if rows else None


@dataclass(frozen=True, slots=True)
class MergedPanes:
    """The changes by groups of chunks: rows by pane, windows that changed, and operator times.

    The times are those with the records that the chunks name.
    """

    changed: dict[int, Changed]
    updates: list[tuple[Array, Array, Parts]]
    times: Array


def first_open(windows: TimeWindows, times: Array) -> Array:
    """Return the first window that is open at operator times."""
    first = (times - windows.size - windows.grace) // windows.every + 1
    return np.asarray(np.maximum(first, 0))


def _slices(panes: Array) -> list[tuple[int, int]]:
    """Return where each pane begins and ends; they ascend."""
    edges = (np.flatnonzero(np.diff(panes)) + 1).tolist()
    return list(zip([0, *edges], [*edges, len(panes)], strict=True))


def _changed_panes(
    slices: Sequence[tuple[int, int]], panes: Array, numbers: Array, first: Array, rows: Parts
) -> dict[int, Changed]:
    """Return changed rows by pane, where all records of a pane have the same first window."""
    return {
        int(panes[a]): Changed(numbers[a:b], [(int(first[a]), take_rows(rows, slice(a, b)))])
        for a, b in slices
    }


class TimeWindowKernel:
    """Aggregates records by key in tumbling or hopping windows. One thread.

    ``time`` is the operator time, which the owner keeps with the offsets and gives back.
    """

    def __init__(
        self,
        windows: TimeWindows,
        layout: Layout,
        store: WindowStore,
        emits: frozenset[Emit],
        time: int = NO_TIME,
    ) -> None:
        self.time = time
        self._windows, self._layout, self.store, self._emits = windows, layout, store, emits
        self._step = windows.every // windows.pane
        self._panes = windows.panes

    def process(self, records: Records) -> WindowResult:
        """Count records, and return the rows to emit.

        Raises:
            RowError: a record is poison; nothing was counted.
        """
        if not len(records):
            return self._nothing()
        times = operator_times(self.time, records.times)
        opened = self._first_open(times[[0, -1]])
        opened = opened[:1] if opened[0] == opened[1] else self._first_open(times)
        taken, late = self._take(records, opened)
        try:
            changed, rows = self._emit(taken, len(times) - 1)
        except RowError as error:
            raise RowError(int(taken.at[error.at]), str(error)) from error.__cause__
        closed = self._close(changed, times, rows)
        return WindowResult(rows, late, closed)

    def merge(self, chunks: Sequence[PaneGroups]) -> MergedPanes | None:
        """Return what the groups of a micro-batch's chunks change, in their order.

        None: a record came when a window of its time was over, or a value may have left its type on
        the way. Then records are needed one by one. The state stays as it is.
        """
        if not chunks:
            return MergedPanes({}, [], np.array([self.time]))
        if not self._are_all_open(chunks):
            return None
        times = np.concatenate([chunk.times for chunk in chunks])
        changed, touched = self._change_groups(chunks)
        updates = []
        if self._layout.can_overflow or Emit.UPDATES in self._emits:
            updates = list(self._values(touched, changed, None))
        if self._layout.can_overflow:
            weights = [sum(each) for each in zip(*(c.weights for c in chunks), strict=True)]
            if any(self._layout.may_overflow(rows, weights) for _, _, rows in updates):
                return None
        return MergedPanes(changed, updates, operator_times(self.time, times))

    def take(self, merged: MergedPanes) -> WindowResult:
        """Count what was merged last, and return the rows to emit.

        A row comes from one of the records that the chunks name, by its place among these.
        """
        if not merged.changed:
            return self._nothing()
        rows: dict[Emit, WindowRows] = {}
        if Emit.UPDATES in self._emits:
            rows[Emit.UPDATES] = self._rows(merged.updates, len(merged.times) - 1)
        closed = self._close(merged.changed, merged.times, rows)
        return WindowResult(rows, no_rows(), closed)

    def _nothing(self) -> WindowResult:
        return WindowResult({each: self._rows([]) for each in self._emits}, no_rows())

    def _are_all_open(self, chunks: Sequence[PaneGroups]) -> bool:
        """Return whether each record came when the windows of its time were all as they are now."""
        now = int(self._first_open(np.array([self.time]))[0])
        before = now
        for chunk in chunks:
            first = self._first_window(chunk.panes, now)
            is_late = first > chunk.panes // self._step
            if (is_late | (np.maximum(chunk.opened, before) > first)).any():
                return False
            before = max(before, int(self._first_open(chunk.times[-1:])[0]))
        return True

    def _change_groups(
        self, chunks: Sequence[PaneGroups]
    ) -> tuple[dict[int, Changed], tuple[Array, Array]]:
        """Return the changed rows of each pane, and which keys changed in which windows."""
        numbered = [self.store.number_keys(chunk.names) for chunk in chunks]
        numbers = distinct(np.concatenate(numbered))
        keys = [
            find_places(numbers, own)[chunk.codes]
            for own, chunk in zip(numbered, chunks, strict=True)
        ]
        panes = np.concatenate([np.repeat(chunk.panes, chunk.counts) for chunk in chunks])
        lowest, span = int(panes.min()), len(numbers)
        place = panes - lowest
        groups = Groups(place * span + np.concatenate(keys), (int(place.max()) + 1) * span)
        panes, own = groups.numbers // span + lowest, numbers[groups.numbers % span]
        slices = _slices(panes)
        rows = self._read(slices, panes, own)
        start = 0
        for chunk in chunks:
            ids = groups.ids[start : start + len(chunk.codes)]
            put_rows(rows, ids, self._layout.merge(take_rows(rows, ids), chunk.rows))
            start += len(ids)
        opened = int(self._first_open(np.array([self.time]))[0])
        first = self._first_window(panes, opened)
        changed = _changed_panes(slices, panes, own, first, rows)
        return changed, self._touched(panes, own, first)

    def _first_open(self, times: Array) -> Array:
        """Return the first window that is open at operator times."""
        return first_open(self._windows, times)

    def _first_window(self, panes: Array, opened: Array | int) -> Array:
        """Return the first window of panes that is not before the first open one."""
        first = panes - self._panes
        return np.asarray(
            np.maximum((first if self._step == 1 else first // self._step) + 1, opened)
        )

    def _take(self, records: Records, opened: Array) -> tuple[_Taken, Array]:
        panes = records.times // self._windows.pane
        first = self._first_window(panes, opened)
        last = panes if self._step == 1 else panes // self._step
        mask = first <= last
        late = no_rows() if mask.all() else np.flatnonzero(~mask)
        at = np.arange(len(records))
        if len(late):
            at = at[mask]
            records = take_records(records, at)
            panes, first, last = panes[at], first[at], last[at]
        numbers = self.store.number_keys(records.names)
        order = np.argsort(numbers)
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        keys = ranks[records.codes]
        return _Taken(at, keys, numbers[order], panes, first, last, records), late

    def _emit(self, taken: _Taken, last: int) -> tuple[dict[int, Changed], dict[Emit, WindowRows]]:
        """Return the changed rows, and those to emit of windows that go on."""
        inputs = Inputs(self._layout, taken.records)
        changed, touched = self._change(taken, inputs)
        rows: dict[Emit, WindowRows] = {}
        if Emit.EACH in self._emits:
            rows[Emit.EACH] = self._each(taken, inputs)
        checked = self._layout.can_overflow and Emit.EACH not in self._emits
        if checked or Emit.UPDATES in self._emits:
            updates = list(self._values(touched, changed, None))
            if checked:
                self._check(taken, inputs, updates)
            if Emit.UPDATES in self._emits:
                rows[Emit.UPDATES] = self._rows(updates, last)
        return changed, rows

    def _close(
        self, changed: dict[int, Changed], times: Array, rows: dict[Emit, WindowRows]
    ) -> int:
        """Write changed rows, add those of windows that are over, and return how many these are.

        ``times`` are the operator times with records.
        """
        opened = int(self._first_open(times[-1:])[0])
        over = self._find_over(changed, opened)
        if Emit.FINAL in self._emits:
            rows[Emit.FINAL] = self._final(over, changed, times)
            closed = len(rows[Emit.FINAL])
        else:
            closed = self._count_over(over, changed)
        self._write(changed, opened)
        self.time = int(times[-1])
        return closed

    def _change(
        self, taken: _Taken, inputs: Inputs
    ) -> tuple[dict[int, Changed], tuple[Array, Array]]:
        """Return the changed rows of each pane, and which keys changed in which windows."""
        if not len(taken.at):
            return {}, (no_rows(), no_rows())
        lowest, span = int(taken.panes.min()), len(taken.numbers)
        opened = int(self._first_open(np.array([self.time]))[0])
        offset = taken.first - self._first_window(taken.panes, opened)
        offsets = int(offset.max()) + 1
        place = taken.panes - lowest
        bound = int(place.max()) + 1
        if offsets > 1:
            place, bound = place * offsets + offset, bound * offsets
        groups = Groups(place * span + taken.keys, bound * span)
        key, place = groups.numbers % span, groups.numbers // span
        panes = place // offsets + lowest
        numbers = taken.numbers[key]
        first = self._first_window(panes, opened) + place % offsets
        slices = _slices(panes)
        if offsets == 1:
            before = self._read(slices, panes, numbers)
            after = self._layout.extend(before, groups, inputs)
            changed = _changed_panes(slices, panes, numbers, first, after)
        else:
            rows = self._layout.extend(self._layout.empty(len(groups)), groups, inputs)
            changed = {}
            for a, b in slices:
                part = take_rows(rows, slice(a, b))
                changed[int(panes[a])] = self._steps(int(panes[a]), numbers[a:b], first[a:b], part)
        return changed, self._touched(panes, numbers, first)

    def _read(self, slices: Sequence[tuple[int, int]], panes: Array, numbers: Array) -> Parts:
        """Return the stored rows of keys in panes, which ascend."""
        read = [self.store.read(int(panes[a]), numbers[a:b]) for a, b in slices]
        return tuple(np.concatenate(part) for part in zip(*read, strict=True))

    def _touched(self, panes: Array, numbers: Array, first: Array) -> tuple[Array, Array]:
        """Return the windows from the first one of each pane and key on, and the keys."""
        if self._panes == 1:
            return panes, numbers
        which, windows = expand(first, panes // self._step + 1)
        return windows, numbers[which]

    def _steps(self, pane: int, numbers: Array, first: Array, rows: Parts) -> Changed:
        """Return a pane's changed rows where its records differ in their first window."""
        keys = np.unique(numbers)
        now = self.store.read(pane, keys)
        steps: list[tuple[int, Parts]] = []
        for window in np.unique(first).tolist():
            mask = first == window
            at = np.searchsorted(keys, numbers[mask])
            merged = self._layout.merge(take_rows(now, at), take_rows(rows, mask))
            now = tuple(part.copy() for part in now)
            put_rows(now, at, merged)
            steps.append((window, now))
        return Changed(keys, steps)

    def _values(
        self,
        wanted: tuple[Array, Array],
        changed: dict[int, Changed],
        order: Array | None,
    ) -> Iterator[tuple[Array, Array, Parts]]:
        """Yield windows, keys and rows of pairs of window and key, ascending by both.

        ``changed`` is left out of what was before the micro-batch. ``order`` has a place for each
        number of a key, by which the keys of a window are sorted in place of the number.
        """
        windows, numbers = wanted
        listed = distinct(windows)
        runs = list(self._runs(listed, len(distinct(numbers))))
        if len(runs) > 1:
            by_window = np.argsort(windows, kind="stable")
            windows, numbers = windows[by_window], numbers[by_window]
        for first, last in runs:
            inside = slice(0, len(windows))
            if len(runs) > 1:
                inside = slice(*np.searchsorted(windows, [first, last + 1]).tolist())
            run = listed[(listed >= first) & (listed <= last)]
            keys = distinct(numbers[inside])
            table = self._merge_windows(run, keys, changed)
            place = find_places(keys, numbers[inside])
            if order is not None:
                by_name = np.argsort(order[keys])
                keys, table = keys[by_name], tuple(part[:, by_name] for part in table)
                place = np.argsort(by_name)[place]
            mask = np.zeros((len(run), len(keys)), np.bool_)
            mask[find_places(run, windows[inside]), place] = True
            row, column = np.nonzero(mask)
            yield run[row], keys[column], tuple(part[row, column] for part in table)

    def _runs(self, windows: Array, keys: int) -> Iterator[tuple[int, int]]:
        """Yield first and last of windows that lie together and are not too many at once."""
        most = max(_CELLS // max(keys, 1) // self._step, 1)
        first = last = None
        for window in windows.tolist():
            if first is None or last is None:
                first = window
            elif (window - last) * self._step > self._panes or window - first >= most:
                yield first, last
                first = window
            last = window
        if first is not None and last is not None:
            yield first, last

    def _merge_windows(self, windows: Array, keys: Array, changed: dict[int, Changed]) -> Parts:
        """Return a table of windows and keys: the row of each.

        Panes are in blocks as long as a window. A window is a block, or the right part of one
        block and the left part of the next: so two merges for a pane do, and one for a window.
        """
        layout, panes, step = self._layout, self._panes, self._step
        lowest = int(windows[0]) * step
        count = int(windows[-1]) * step + panes - lowest
        table = self._fill(range(lowest, lowest + count), keys, changed)
        begins = windows * step - lowest
        if panes == 1:
            return take_rows(table, begins)
        merged = take_rows(table, begins)
        rows = {begin: row for row, begin in enumerate(begins.tolist())}
        part = layout.empty(len(keys))
        for pane in range(count - 1, -1, -1):
            own = take_rows(table, pane)
            part = own if (pane + 1) % panes == 0 else layout.merge(own, part)
            if pane in rows:
                put_rows(merged, rows[pane], part)
        for pane in range(panes, count):
            own = take_rows(table, pane)
            part = own if pane % panes == 0 else layout.merge(part, own)
            row = rows.get(pane - panes + 1)
            if row is not None and (pane + 1) % panes:
                put_rows(merged, row, layout.merge(take_rows(merged, row), part))
        for row, window in enumerate(windows.tolist()):
            if self._lacks(window, changed):
                put_rows(merged, row, self._merge_window(window, keys, changed))
        return merged

    def _lacks(self, window: int, changed: dict[int, Changed]) -> bool:
        """Return whether records of the micro-batch are in a window's panes, but not in it."""
        panes = range(window * self._step, window * self._step + self._panes)
        return any(pane in changed and changed[pane].steps[-1][0] > window for pane in panes)

    def _merge_window(self, window: int, keys: Array, changed: dict[int, Changed]) -> Parts:
        """Return the rows of one window, of the records that are in it alone."""
        first = window * self._step
        table = self._fill(range(first, first + self._panes), keys, changed, window)
        merged = take_rows(table, 0)
        for pane in range(1, self._panes):
            merged = self._layout.merge(merged, take_rows(table, pane))
        return merged

    def _fill(
        self, panes: range, keys: Array, changed: dict[int, Changed], window: int | None = None
    ) -> Parts:
        """Return a table of panes and keys, with the micro-batch as far as it is in a window."""
        table = tuple(
            part.reshape(len(panes), len(keys))
            for part in self._layout.empty(len(panes) * len(keys))
        )
        stored = set(self.store.list_panes())
        for row, pane in enumerate(panes):
            if pane in stored:
                put_rows(table, row, self.store.read(pane, keys))
            if pane in changed and (rows := changed[pane].up_to(window)) is not None:
                own = changed[pane].keys
                at = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
                here = keys[at] == own
                put_rows(table, (row, at[here]), take_rows(rows, here))
        return table

    def _each(self, taken: _Taken, inputs: Inputs) -> WindowRows:
        """Return a row for each record and window of it."""
        which, windows, numbers, rows = self._running(taken, inputs)
        return self._build(taken.at[which], windows, numbers, rows)

    def _running(self, taken: _Taken, inputs: Inputs) -> tuple[Array, Array, Array, Parts]:
        """Return record, window, key and row for each record in each of its windows."""
        which, windows = expand(taken.first, taken.last + 1)
        if not len(which):
            return which, windows, no_rows(), self._layout.empty(0)
        numbers = taken.numbers[taken.keys[which]]
        lowest, span = int(windows.min()), int(taken.numbers.max()) + 1
        bound = (int(windows.max()) - lowest + 1) * span
        groups = Groups((windows - lowest) * span + numbers, bound)
        pairs = (groups.numbers // span + lowest, groups.numbers % span)
        parts = [rows for _, _, rows in self._values(pairs, {}, None)]
        before = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
        if len(which) > len(taken.at):
            inputs = Inputs(self._layout, take_records(taken.records, which))
        try:
            ordered = self._layout.extend_scan(before, groups, inputs)
        except RowError as error:
            raise RowError(int(which[error.at]), str(error)) from error.__cause__
        rows = tuple(np.empty_like(part) for part in ordered)
        put_rows(rows, groups.order, ordered)
        over = np.flatnonzero(self._layout.overflows(rows))
        if len(over):
            raise RowError(int(which[over[0]]), "an aggregate leaves the range of its type")
        return which, windows, numbers, rows

    def _check(
        self, taken: _Taken, inputs: Inputs, updates: list[tuple[Array, Array, Parts]]
    ) -> None:
        """Refuse a record with which a window's value leaves its type, however it goes on."""
        weights = self._layout.weigh(inputs)
        if any(self._layout.may_overflow(rows, weights) for _, _, rows in updates):
            self._running(taken, inputs)

    def _find_over(self, changed: dict[int, Changed], opened: int) -> tuple[Array, Array]:
        """Return windows that are over and were open before, and the keys with rows in them.

        A pair of both is there once for each pane, and may have no record in the window.
        """
        windows, numbers = [no_rows()], [no_rows()]
        start = int(self._first_open(np.array([self.time]))[0])
        for pane in {*self.store.list_panes(), *changed}:
            first = max((pane - self._panes) // self._step + 1, start)
            last = min(pane // self._step, opened - 1)
            if first <= last:
                keys = self.store.list_keys(pane)
                if pane in changed:
                    keys = np.union1d(keys, changed[pane].keys)
                windows.append(np.repeat(np.arange(first, last + 1), len(keys)))
                numbers.append(np.tile(keys, last + 1 - first))
        return np.concatenate(windows), np.concatenate(numbers)

    def _count_over(self, pairs: tuple[Array, Array], changed: dict[int, Changed]) -> int:
        """Return how many of pairs of window and key have records."""
        if not len(pairs[0]):
            return 0
        panes = np.array([*changed], np.int64)
        first = self._first_window(panes, int(self._first_open(np.array([self.time]))[0]))
        last_steps = [each.steps[-1][0] for each in changed.values()]
        if (np.array(last_steps, np.int64) > first).any():
            # a late record may be in later windows of its pane alone
            values = self._values(pairs, changed, None)
            return sum(int(np.count_nonzero(self._layout.present(rows))) for _, _, rows in values)
        windows, numbers = pairs
        return len(distinct((windows - windows.min()) * (int(numbers.max()) + 1) + numbers))

    def _final(
        self, pairs: tuple[Array, Array], changed: dict[int, Changed], times: Array
    ) -> WindowRows:
        """Return the rows of windows that are over."""
        if not len(pairs[0]):
            return self._rows([])
        keys = distinct(pairs[1])
        names = self.store.name_keys(keys).to_pylist()
        order = np.empty(int(keys[-1]) + 1, np.int64)
        order[keys[sorted(range(len(names)), key=names.__getitem__)]] = np.arange(len(names))
        found = []
        for window, number, rows in self._values(pairs, changed, order):
            present = self._layout.present(rows)
            found.append((window[present], number[present], take_rows(rows, present)))
        return self._rows(found, times=times)

    def _rows(
        self,
        found: list[tuple[Array, Array, Parts]],
        at: int = 0,
        times: Array | None = None,
    ) -> WindowRows:
        windows = np.concatenate([no_rows(), *(each[0] for each in found)])
        numbers = np.concatenate([no_rows(), *(each[1] for each in found)])
        parts = [self._layout.empty(0), *(each[2] for each in found)]
        rows = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
        records = np.full(len(windows), at)
        if times is not None:
            over = windows * self._windows.every + self._windows.size + self._windows.grace
            records = np.searchsorted(times, over)
        return self._build(records, windows, numbers, rows)

    def _build(self, at: Array, windows: Array, numbers: Array, rows: Parts) -> WindowRows:
        starts = windows * self._windows.every
        groups = Groups(numbers, int(numbers.max(initial=-1)) + 1)
        return WindowRows(
            at,
            groups.ids,
            self.store.name_keys(groups.numbers),
            starts,
            starts + self._windows.size,
            rows[0],
            self._layout.results(rows),
            np.ones(len(windows), np.bool_),
        )

    def _write(self, changed: dict[int, Changed], opened: int) -> None:
        for pane, rows in changed.items():
            if pane // self._step >= opened:
                self.store.write(pane, rows.keys, rows.steps[-1][1])
        self.store.drop_before(opened * self._step)
