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
    from collections.abc import Iterator

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
class _Changed:
    """A pane's changed rows: keys by number, and the rows as records with each first window left
    them, the last ones of all.
    """

    keys: Array
    steps: list[tuple[int, Parts]]

    def up_to(self, window: int | None) -> Parts | None:
        """Return the rows as far as they are in a window; None where no record is."""
        rows = [parts for first, parts in self.steps if window is None or first <= window]
        return rows[-1] if rows else None


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
            return WindowResult({each: self._rows([]) for each in self._emits}, no_rows())
        times = operator_times(self.time, records.times)
        opened = self._first_open(times[[0, -1]])
        opened = opened[:1] if opened[0] == opened[1] else self._first_open(times)
        taken, late = self._take(records, opened)
        try:
            rows, changed, closed = self._emit(taken, times, int(opened[-1]))
        except RowError as error:
            raise RowError(int(taken.at[error.at]), str(error)) from error.__cause__
        self._write(changed, int(opened[-1]))
        self.time = int(times[-1])
        return WindowResult(rows, late, closed)

    def _first_open(self, times: Array) -> Array:
        """Return the first window that is open at operator times."""
        windows = self._windows
        first = (times - windows.size - windows.grace) // windows.every + 1
        return np.asarray(np.maximum(first, 0))

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

    def _emit(
        self, taken: _Taken, times: Array, opened: int
    ) -> tuple[dict[Emit, WindowRows], dict[int, _Changed], int]:
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
                rows[Emit.UPDATES] = self._rows(updates, len(times) - 1)
        over = self._find_over(changed, opened)
        if Emit.FINAL in self._emits:
            rows[Emit.FINAL] = self._final(over, changed, times)
            return rows, changed, len(rows[Emit.FINAL])
        return rows, changed, self._count_over(over, changed)

    def _change(
        self, taken: _Taken, inputs: Inputs
    ) -> tuple[dict[int, _Changed], tuple[Array, Array]]:
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
        edges = np.flatnonzero(np.diff(panes)) + 1
        slices = list(zip([0, *edges.tolist()], [*edges.tolist(), len(panes)], strict=True))
        changed: dict[int, _Changed] = {}
        if offsets == 1:
            read = [self.store.read(int(panes[a]), numbers[a:b]) for a, b in slices]
            before = tuple(np.concatenate(part) for part in zip(*read, strict=True))
            after = self._layout.extend(before, groups, inputs)
            for a, b in slices:
                rows = take_rows(after, slice(a, b))
                changed[int(panes[a])] = _Changed(numbers[a:b], [(int(first[a]), rows)])
        else:
            rows = self._layout.extend(self._layout.empty(len(groups)), groups, inputs)
            for a, b in slices:
                part = take_rows(rows, slice(a, b))
                changed[int(panes[a])] = self._steps(int(panes[a]), numbers[a:b], first[a:b], part)
        if self._panes == 1:
            return changed, (panes, numbers)
        which, windows = expand(first, panes // self._step + 1)
        return changed, (windows, numbers[which])

    def _steps(self, pane: int, numbers: Array, first: Array, rows: Parts) -> _Changed:
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
        return _Changed(keys, steps)

    def _values(
        self,
        wanted: tuple[Array, Array],
        changed: dict[int, _Changed],
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

    def _merge_windows(self, windows: Array, keys: Array, changed: dict[int, _Changed]) -> Parts:
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

    def _lacks(self, window: int, changed: dict[int, _Changed]) -> bool:
        """Return whether records of the micro-batch are in a window's panes, but not in it."""
        panes = range(window * self._step, window * self._step + self._panes)
        return any(pane in changed and changed[pane].steps[-1][0] > window for pane in panes)

    def _merge_window(self, window: int, keys: Array, changed: dict[int, _Changed]) -> Parts:
        """Return the rows of one window, of the records that are in it alone."""
        first = window * self._step
        table = self._fill(range(first, first + self._panes), keys, changed, window)
        merged = take_rows(table, 0)
        for pane in range(1, self._panes):
            merged = self._layout.merge(merged, take_rows(table, pane))
        return merged

    def _fill(
        self, panes: range, keys: Array, changed: dict[int, _Changed], window: int | None = None
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
        if any(self._layout.may_overflow(rows, inputs) for _, _, rows in updates):
            self._running(taken, inputs)

    def _find_over(self, changed: dict[int, _Changed], opened: int) -> tuple[Array, Array]:
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

    def _count_over(self, pairs: tuple[Array, Array], changed: dict[int, _Changed]) -> int:
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
        self, pairs: tuple[Array, Array], changed: dict[int, _Changed], times: Array
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

    def _write(self, changed: dict[int, _Changed], opened: int) -> None:
        for pane, rows in changed.items():
            if pane // self._step >= opened:
                self.store.write(pane, rows.keys, rows.steps[-1][1])
        self.store.drop_before(opened * self._step)
