"""Operators row by row: slow and obvious, for the kernels to be compared with."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.streams.windows import (
        JoinWindows,
        SessionWindows,
        SlidingWindows,
        TimeWindows,
    )


class Record(NamedTuple):
    """A record: key, time, and the value that aggregates take."""

    key: str
    time: int
    value: Any = None


class Row(NamedTuple):
    """A row that an operator emits; ``values`` of None withdraws an earlier one."""

    at: int
    key: str
    start: int
    end: int
    time: int
    values: tuple[Any, ...] | None


#: The records of a window, by time and place of arrival.
Rows = list[tuple[int, int, Any]]


def present(rows: Rows) -> list[Any]:
    """Return the values that are not null, as they arrived."""
    return [value for _, _, value in rows if value is not None]


def by_time(rows: Rows) -> list[Any]:
    """Return the values that are not null, by time and arrival."""
    return [value for _, _, value in sorted(rows, key=lambda row: row[:2]) if value is not None]


def order_key(value: Any) -> Any:
    """Return what a value is sorted by: NaN is above all other floats."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def add_up(values: Sequence[Any]) -> Any:
    """Return the exact sum, rounded once."""
    if not values:
        return None
    if not any(map(_is_float, values)):
        return sum(values[1:], values[0])
    rest = [value for value in values if not math.isfinite(value)]
    if rest:
        return sum(rest)
    total = sum(map(Fraction, values), Fraction())
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def find_mean(values: Sequence[Any]) -> Any:
    """Return the exact mean, rounded once."""
    if not values:
        return None
    if any(_is_float(value) and not math.isfinite(value) for value in values):
        return add_up(values)
    return float(sum(map(Fraction, values), Fraction()) / len(values))


def find_distinct(values: Sequence[Any], limit: int) -> list[Any]:
    """Return the different values in ascending order."""
    kept: list[Any] = []
    for value in sorted(values, key=order_key):
        if not kept or order_key(kept[-1]) != order_key(value):
            kept.append(value)
    return kept[:limit]


def find_top(rows: Rows, limit: int) -> list[Any]:
    """Return the highest values, of equal ones the earliest first."""
    values = by_time(rows)
    return sorted(values, key=order_key, reverse=True)[:limit]


@dataclass
class WindowedRows:
    """Tumbling and hopping windows, one record at a time."""

    windows: TimeWindows
    aggregate: Callable[[Rows], tuple[Any, ...]]
    time: int = -1
    count: int = 0
    state: dict[tuple[int, str], Rows] = field(default_factory=lambda: defaultdict(list))
    each: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    final: list[Row] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def process(self, records: Sequence[Record]) -> None:
        """Take the records of a micro-batch, and tell its updates."""
        size, every, grace = self.windows.size, self.windows.every, self.windows.grace
        changed: dict[tuple[int, str], Row] = {}
        for record in records:
            at = self.count
            self.count += 1
            self.time = max(self.time, record.time)
            over = sorted(pair for pair in self.state if pair[0] + size + grace <= self.time)
            for start, key in over:
                self.final.append(self._row(at, start, key))
                del self.state[start, key]
            last = record.time // every * every
            starts = [
                start
                for start in range(last, record.time - size, -every)
                if start >= 0 and start + size + grace > self.time
            ]
            if not starts:
                self.late.append(at)
            for start in sorted(starts):
                self.state[start, record.key].append((record.time, at, record.value))
                row = self._row(at, start, record.key)
                self.each.append(row)
                changed[start, record.key] = row
        self.updates += [changed[pair]._replace(at=self.count - 1) for pair in sorted(changed)]

    def _row(self, at: int, start: int, key: str) -> Row:
        rows = self.state[start, key]
        latest = max(time for time, _, _ in rows)
        return Row(at, key, start, start + self.windows.size, latest, self.aggregate(rows))


@dataclass
class SessionRows:
    """Sessions, one record at a time: each is its bounds and its records."""

    windows: SessionWindows
    aggregate: Callable[[Rows], tuple[Any, ...]]
    time: int = -1
    count: int = 0
    state: list[tuple[int, str, int, Rows]] = field(default_factory=list)
    each: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    final: list[Row] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def process(self, records: Sequence[Record]) -> None:
        """Process the records of a micro-batch, and note its updates."""
        before = {session[:3] for session in self.state}
        changed: dict[tuple[int, str, int], Row] = {}
        for record in records:
            self._add(record, changed)
        rows = [row for pair, row in changed.items() if row.values is not None or pair in before]
        self.updates += sorted(row._replace(at=self.count - 1) for row in rows)

    def _add(self, record: Record, changed: dict[tuple[int, str, int], Row]) -> None:
        gap, at = self.windows.gap, self.count
        self.count += 1
        self.time = max(self.time, record.time)
        open_from = self.time - gap - self.windows.grace
        for session in sorted(self.state, key=lambda session: session[:3]):
            if session[0] < open_from:
                end, key, begin, rows = session
                self.final.append(Row(at, key, begin, end, end, self.aggregate(rows)))
                self.state.remove(session)
        near = [
            session
            for session in self.state
            if session[1] == record.key
            and session[0] >= record.time - gap
            and session[2] <= record.time + gap
        ]
        end = max([record.time, *(session[0] for session in near)])
        begin = min([record.time, *(session[2] for session in near)])
        if end < open_from:
            self.late.append(at)
            return
        rows = [(record.time, at, record.value)]
        for session in sorted(near, key=lambda session: (session[0], session[2])):
            self.state.remove(session)
            rows += session[3]
            if (session[2], session[0]) != (begin, end):
                gone = Row(at, record.key, session[2], session[0], session[0], None)
                self.each.append(gone)
                changed[session[:3]] = gone
        self.state.append((end, record.key, begin, rows))
        row = Row(at, record.key, begin, end, end, self.aggregate(rows))
        self.each.append(row)
        changed[end, record.key, begin] = row


@dataclass
class SlidingRows:
    """Sliding windows, one record at a time: each has its begin and its records."""

    windows: SlidingWindows
    aggregate: Callable[[Rows], tuple[Any, ...]]
    time: int = -1
    count: int = 0
    state: dict[str, dict[int, Rows]] = field(default_factory=lambda: defaultdict(dict))
    told: set[tuple[int, str]] = field(default_factory=set)
    each: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    final: list[Row] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def process(self, records: Sequence[Record]) -> None:
        """Process the records of a micro-batch, and note its updates."""
        before = len(self.each)
        for record in records:
            self.time = max(self.time, record.time)
            self._tell_final()
            if self._is_over(record.time):
                self.late.append(self.count)
            else:
                self._add(record, (record.time, self.count, record.value))
            self.count += 1
        last = {(row.start, row.key): row for row in self.each[before:]}
        self.updates += [last[pair]._replace(at=self.count - 1) for pair in sorted(last)]

    def _is_over(self, begin: int) -> bool:
        return begin + self.windows.size + self.windows.grace < self.time

    def _tell_final(self) -> None:
        pairs = [(begin, key) for key, windows in self.state.items() for begin in windows]
        for begin, key in sorted(pairs):
            if self._is_over(begin) and (begin, key) not in self.told:
                self.told.add((begin, key))
                self.final.append(self._row(begin, key, self.state[key][begin]))

    def _row(self, begin: int, key: str, rows: Rows) -> Row:
        latest = max(time for time, _, _ in rows)
        end = begin + self.windows.size
        return Row(self.count, key, begin, end, latest, self.aggregate(rows))

    def _add(self, record: Record, row: tuple[int, int, Any]) -> None:  # noqa: C901
        time, key, size = record.time, record.key, self.windows.size
        # windows as they were before the record
        old = {
            begin: list(rows)
            for begin, rows in self.state[key].items()
            if time - 2 * size <= begin <= time + 1
        }
        left = max(0, time - size)
        containing = sorted(begin for begin in old if left < begin <= time)
        after = old[containing[-1]] if containing else old.get(0) if time < size else None

        def latest(rows: Rows | None) -> int:
            return -1 if rows is None else max(each[0] for each in rows)

        def put(begin: int, rows: Rows) -> None:
            if not self._is_over(begin):
                self.state[key][begin] = rows
                self.each.append(self._row(begin, key, rows))

        def make_right() -> None:
            if time + 1 not in old and latest(after) > time:
                put(time + 1, list(after or []))

        def make_previous(last: int) -> None:
            if 0 <= last < time and last + 1 not in old and last + 1 + size >= time:
                put(last + 1, [row])

        if time < size:
            for begin in containing:
                put(begin, [*old[begin], row])
            make_right()
            make_previous(latest(old.get(0)))
            put(0, [*self.state[key].get(0, []), row])
            return
        for begin in reversed(containing):
            put(begin, [*old[begin], row])
        if left in old:
            put(left, [*old[left], row])
            if latest(old[left]) == time:
                return
        earlier = old[max(b for b in old if b < left)] if min(old, default=left) < left else None
        make_previous(latest(earlier if earlier is not None else old.get(left)))
        if left not in old:
            put(left, [*(earlier or []), row] if latest(earlier) >= left else [row])
        make_right()


class Joined(NamedTuple):
    """A row of a join; a side without a record is None."""

    at: int
    key: str
    time: int
    left: Any
    right: Any


@dataclass
class JoinRows:
    """A stream-stream join, one record at a time; a record without a value only has a time."""

    windows: JoinWindows
    tells_alone: tuple[bool, bool]
    time: int = -1
    buffer: list[tuple[int, int, int, str, Any]] = field(default_factory=list)
    alone: list[tuple[int, int, str, int, Any]] = field(default_factory=list)
    rows: list[Joined] = field(default_factory=list)

    def process(self, at: int, side: int, record: Record) -> None:
        """Process one record, of side 0 or 1."""
        reach = (self.windows.after, self.windows.before)
        grace = self.windows.grace
        self.time = max(self.time, record.time)
        if record.value is None:
            return
        if record.time == self.time:
            # right before left, as its number is negative
            for entry in sorted(self.alone):
                time, minus, key, _, value = entry
                if time + reach[-minus] + grace < self.time:
                    self.alone.remove(entry)
                    self.rows.append(Joined(at, key, time, *_sorted(-minus, value, None)))
        partners = sorted(
            (time, place, value)
            for time, place, its, key, value in self.buffer
            if its != side
            and key == record.key
            and record.time - reach[1 - side] <= time <= record.time + reach[side]
            and time >= self.time - (reach[its] if self.tells_alone[its] else sum(reach)) - grace
        )
        for time, place, value in partners:
            self.alone = [entry for entry in self.alone if entry[3] != place]
            pair = _sorted(side, record.value, value)
            self.rows.append(Joined(at, record.key, max(time, record.time), *pair))
        self.buffer.append((record.time, at, side, record.key, record.value))
        if not partners and self.tells_alone[side]:
            if record.time + reach[side] + grace < self.time:
                pair = _sorted(side, record.value, None)
                self.rows.append(Joined(at, record.key, record.time, *pair))
            else:
                self.alone.append((record.time, -side, record.key, at, record.value))


def _sorted(side: int, own: Any, other: Any) -> tuple[Any, Any]:
    """Return left and right."""
    return (own, other) if side == 0 else (other, own)


@dataclass
class TableRows:
    """Joins with tables, one change at a time: values and times of both sides by key."""

    needed: tuple[bool, bool]
    tables: tuple[dict[str, tuple[Any, int]], dict[str, tuple[Any, int]]] = field(
        default_factory=lambda: ({}, {})
    )
    rows: list[Joined] = field(default_factory=list)

    def look_up(self, at: int, side: int, record: Record) -> None:
        """Join a record of side 0 with the row of side 1, or change that row."""
        if side == 1:
            self._change(side, record)
        elif record.value is not None:
            value, _ = self.tables[1].get(record.key, (None, 0))
            if value is not None or not self.needed[1]:
                self.rows.append(Joined(at, record.key, record.time, record.value, value))

    def join(self, at: int, side: int, record: Record) -> None:
        """Change a row of either side, and note the change of the result."""
        had = record.key in self.tables[side]
        self._change(side, record)
        other = self.tables[1 - side].get(record.key)
        if other is None and (self.needed[1 - side] or (record.value is None and not had)):
            return
        values = [self.tables[number].get(record.key, (None, 0))[0] for number in (0, 1)]
        if any(needed and value is None for needed, value in zip(self.needed, values, strict=True)):
            values = [None, None]
        time = record.time if other is None else max(record.time, other[1])
        self.rows.append(Joined(at, record.key, time, *values))

    def _change(self, side: int, record: Record) -> None:
        self.tables[side].pop(record.key, None)
        if record.value is not None:
            self.tables[side][record.key] = (record.value, record.time)
