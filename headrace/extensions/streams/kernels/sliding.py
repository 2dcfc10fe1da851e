"""Sliding windows in columns.

A record at t has a left window that ends with it and a right one that begins 1 ms after it. Windows
are made of windows, by the rules of Kafka Streams: which windows take which records is found out
record by record, on numbers alone; values are then computed for all windows together. A window is
over, and takes no record, once ``end + grace`` is below the operator time. It is kept as long as a
record that is not late may need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.groups import Groups
from headrace.extensions.streams.kernels.layout import Inputs, put_rows, take_rows
from headrace.extensions.streams.kernels.records import (
    NO_TIME,
    Records,
    operator_times,
    take_records,
)
from headrace.extensions.streams.kernels.rows import (
    Emit,
    WindowResult,
    WindowRows,
    list_window_rows,
    no_rows,
)
from headrace.extensions.streams.kernels.stores import StoredWindows

if TYPE_CHECKING:
    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.kernels.stores import KeyedWindowStore
    from headrace.extensions.streams.windows import SlidingWindows


@dataclass(slots=True, eq=False)
class _Window:
    """A window on the way through a micro-batch.

    Its rows are those of the stored window ``base``, below 0 for none, and the records ``added``.
    ``emitted`` has each change: the record, its place among the changes of the key, and how many of
    the records were added then. A window of the store is not ``made``.
    """

    begin: int
    time: int
    base: int
    made: bool = True
    added: list[int] = field(default_factory=list)
    emitted: list[tuple[int, int, int]] = field(default_factory=list)

    def copy(self, begin: int) -> _Window:
        """Return a window with the same rows, which was not emitted."""
        return _Window(begin, self.time, self.base, added=list(self.added))


class _Windows:
    """The windows of one key, by their begin."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.by_begin: dict[int, _Window] = {}
        self._open_from = 0
        self._changes = 0

    def add(self, at: int, time: int, open_from: int) -> bool:
        """Add a record; return whether it was in time.

        Windows that begin before ``open_from`` are over.
        """
        if time < open_from:
            return False
        self._open_from = open_from
        size, windows = self._size, self.by_begin
        lowest, highest = max(0, time - 2 * size), time + 1
        near = sorted(begin for begin in windows if lowest <= begin <= highest)
        left = max(0, time - size)
        containing = [begin for begin in near if left < begin <= time]
        if time < size:
            self._add_early(at, time, containing)
            return True
        right = self._find_right(time, windows[containing[-1]] if containing else None)
        earlier = max((begin for begin in near if begin < left), default=None)
        previous = windows.get(left if earlier is None else earlier)
        last = -1 if previous is None else previous.time
        for begin in reversed(containing):
            self._put(begin, at, time)
        had_left = left in windows
        if had_left:
            same = windows[left].time == time
            self._put(left, at, time)
            if same:
                return True
        self._make_previous(at, time, last)
        if not had_left and left >= open_from:
            if left in windows:  # as the right one of the record before: it is emitted twice
                self._note(windows[left], at)
            else:
                if earlier is not None and last >= left:
                    windows[left] = windows[earlier].copy(left)
                self._put(left, at, time)
        self._make_right(at, right)
        return True

    def _add_early(self, at: int, time: int, containing: list[int]) -> None:
        """Add a record whose left window would begin before 0: that is the first one there."""
        first = self.by_begin.get(0)
        right = self._find_right(time, self.by_begin[containing[-1]] if containing else first)
        last = -1 if first is None else first.time
        for begin in containing:
            self._put(begin, at, time)
        self._make_right(at, right)
        if last < time:
            self._make_previous(at, time, last)
        self._put(0, at, time)

    def _make_previous(self, at: int, time: int, last: int) -> None:
        """Make the right window of the record before, if there is none and it has this record."""
        begin = last + 1
        if last >= 0 and begin not in self.by_begin and begin + self._size >= time:
            self._put(begin, at, time)

    def _find_right(self, time: int, after: _Window | None) -> _Window | None:
        """Return the record's right window, if there is none and something is in it."""
        if time + 1 in self.by_begin or after is None or after.time <= time:
            return None
        return after.copy(time + 1)

    def _make_right(self, at: int, right: _Window | None) -> None:
        if right is not None:
            self.by_begin[right.begin] = right
            self._note(right, at)

    def _put(self, begin: int, at: int, time: int) -> None:
        """Add a record to a window, which is made if there is none, unless it is over."""
        if begin >= self._open_from:
            window = self.by_begin.get(begin)
            if window is None:
                window = self.by_begin[begin] = _Window(begin, time, -1)
            window.time = max(window.time, time)
            window.added.append(at)
            self._note(window, at)

    def _note(self, window: _Window, at: int) -> None:
        self._changes += 1
        window.emitted.append((at, self._changes, len(window.added)))


class SlidingKernel:
    """Aggregates records by key in sliding windows. One thread.

    ``time`` is the operator time, which the owner keeps with the offsets and gives back.
    """

    def __init__(
        self,
        windows: SlidingWindows,
        layout: Layout,
        store: KeyedWindowStore,
        emits: frozenset[Emit],
        time: int = NO_TIME,
    ) -> None:
        self.time, self.store = time, store
        self._windows, self._layout, self._emits = windows, layout, emits

    def process(self, records: Records) -> WindowResult:
        """Count records, and return the rows to emit.

        Raises:
            RowError: a record is poison; nothing was counted.
        """
        times = operator_times(self.time, records.times) if len(records) else no_rows()
        names = records.names.to_pylist()
        stored = self.store.read(names)
        keys = {name: _Windows(self._windows.size) for name in names}
        latest = stored.rows[0].tolist()
        for place, (name, begin) in enumerate(zip(stored.names, stored.begins, strict=True)):
            keys[name].by_begin[begin] = _Window(begin, latest[place], place, made=False)
        limits = times - self._windows.size - self._windows.grace
        rows = zip(records.codes.tolist(), records.times.tolist(), limits.tolist(), strict=True)
        late = [
            at
            for at, (code, time, open_from) in enumerate(rows)
            if not keys[names[code]].add(at, time, open_from)
        ]
        changed = [
            (name, window)
            for name, windows in keys.items()
            for window in windows.by_begin.values()
            if window.emitted
        ]
        found, closed = self._finish(records, times, stored.rows, changed)
        return WindowResult(found, np.array(late, np.int64), closed)

    def _finish(
        self, records: Records, times: Array, stored: Parts, changed: list[tuple[bytes, _Window]]
    ) -> tuple[dict[Emit, WindowRows], int]:
        """Compute and store the changed windows; return what to emit, and how many are over."""
        layout, size, grace = self._layout, self._windows.size, self._windows.grace
        windows = [window for _, window in changed]
        steps = self._compute(records, stored, windows)
        offsets = np.cumsum([0, *(len(window.added) + 1 for window in windows)]).tolist()
        last = [stop - 1 for stop in offsets[1:]]
        values = take_rows(steps, np.array(last, np.int64))
        rows: dict[Emit, WindowRows] = {}
        if Emit.EACH in self._emits:
            each = [
                (at, order, name, window.begin, offset + count)
                for (name, window), offset in zip(changed, offsets[:-1], strict=True)
                for at, order, count in window.emitted
            ]
            found = [(at, name, b, b + size, place) for at, _, name, b, place in sorted(each)]
            rows[Emit.EACH] = list_window_rows(layout, found, steps, latest=True)
        written = StoredWindows(
            [name for name, _ in changed],
            [window.begin for window in windows],
            [window.begin + size for window in windows],
            values,
        )
        keys = list(zip(written.names, written.begins, written.ends, strict=True))
        if Emit.UPDATES in self._emits:
            updates = [(len(times) - 1, *key, place) for place, key in enumerate(keys)]
            rows[Emit.UPDATES] = list_window_rows(layout, updates, values, latest=True)
        old = [key for key, window in zip(keys, windows, strict=True) if not window.made]
        self.store.replace(old, written)
        before, self.time = self.time, int(times[-1]) if len(times) else self.time
        done = self.store.read_before(self.time - grace)
        if Emit.FINAL in self._emits:
            order = sorted(
                (end, name, begin, place)
                for place, (end, name, begin) in enumerate(
                    zip(done.ends, done.names, done.begins, strict=True)
                )
                if end >= before - grace
            )
            at = np.searchsorted(times, np.array([row[0] for row in order]) + grace, "right")
            final = [
                (which, name, begin, end, place)
                for which, (end, name, begin, place) in zip(at.tolist(), order, strict=True)
            ]
            rows[Emit.FINAL] = list_window_rows(layout, final, done.rows, latest=True)
        useless = self.time - 3 * size - grace
        gone = zip(done.names, done.begins, done.ends, strict=True)
        self.store.replace(
            [key for key in gone if key[1] < useless],
            StoredWindows([], [], [], layout.empty(0)),
        )
        return rows, int(np.count_nonzero(np.array(done.ends, np.int64) >= before - grace))

    def _compute(self, records: Records, stored: Parts, windows: list[_Window]) -> Parts:
        """Return for each window its row before any record, then that with each one added.

        Raises:
            RowError: the first record with which a value cannot be computed.
        """
        layout = self._layout
        base = layout.empty(len(windows))
        has_base = np.array([window.base >= 0 for window in windows], np.bool_)
        places = np.array([window.base for window in windows], np.int64)[has_base]
        put_rows(base, has_base, take_rows(stored, places))
        sizes = np.array([len(window.added) for window in windows], np.int64)
        offsets = np.cumsum(sizes + 1) - sizes - 1
        steps = layout.empty(int(sizes.sum()) + len(windows))
        put_rows(steps, offsets, base)
        if not sizes.sum():
            return steps
        which = np.array([at for window in windows for at in window.added], np.int64)
        ids = np.repeat(np.arange(len(windows)), sizes)
        groups = Groups(ids, len(windows))
        try:
            ordered = layout.extend_scan(
                take_rows(base, groups.numbers),
                groups,
                Inputs(layout, take_records(records, which)),
            )
        except RowError as error:
            raise RowError(int(which[error.at]), str(error)) from error.__cause__
        over = layout.overflows(ordered)
        if over.any():
            at = int(which[groups.order][over].min())
            raise RowError(at, "an aggregate leaves the range of its type")
        # the rows of a window are together, and in the order in which they were added
        put_rows(steps, np.arange(len(which)) + ids + 1, ordered)
        return steps
