"""Operators row by row: slow and obvious, for the kernels to be compared with."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.streams.windows import JoinWindows, SessionWindows, TimeWindows


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
            and time >= self.time - sum(reach) - grace
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
