"""Operators row by row: slow and obvious, for the kernels to be compared with."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.streams.windows import TimeWindows


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
