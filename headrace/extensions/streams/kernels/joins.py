"""Stream-stream joins in columns: records of two sides by key, within an interval of time.

A pair is emitted with the one of its records that is read later. The operator time T is the highest
time of all records, that with the record included. A record of the buffer is a partner while its
time is at least T - before - after - grace. In left and outer joins a record without a partner is
emitted alone once ``time + reach + grace < T``, before the record of which the time is T is joined;
records of a side that is emitted alone are no partners from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.kernels.groups import (
    BITS,
    Groups,
    distinct,
    find_places,
    sort_pairs,
)
from headrace.extensions.streams.kernels.records import (
    NO_TIME,
    Array,
    Records,
    expand,
    operator_times,
)
from headrace.extensions.streams.kernels.rows import no_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.extensions.streams.windows import JoinWindows

_LEFT, _RIGHT = 0, 1


class JoinKind(Enum):
    """The sides whose records a join emits without a partner: none, the left, or both."""

    INNER = (False, False)
    LEFT = (True, False)
    OUTER = (True, True)


@dataclass(frozen=True, slots=True)
class Joined:
    """Rows of a join, in the order in which they are emitted.

    ``at`` is the record that a row comes with. ``codes`` are positions in ``names``. ``left`` and
    ``right`` have the values of both sides; one is null where the other side's record is alone.
    ``alone`` counts these, ``late`` the records that were read when their own time with all that a
    partner may be later, and the grace, was over.
    """

    at: Array
    codes: Array
    names: pa.Array
    times: Array
    left: pa.Array
    right: pa.Array
    alone: int = 0
    late: int = 0

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class Side:
    """Records of one side, sorted by number of the key, time and order of arrival.

    ``rows`` are places in ``values``, which are in the order of arrival. A record is ``alone`` as
    long as it has had no partner and was not emitted.
    """

    keys: Array
    times: Array
    orders: Array
    alone: Array
    rows: Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> tuple[Array, Array, Array, Array, Array]:
        """Return all but the values."""
        return self.keys, self.times, self.orders, self.alone, self.rows

    def take(self, at: Array) -> Side:
        """Return the records at places or under a mask, with all values."""
        keys, times, orders, alone, rows = (column[at] for column in self.columns)
        return Side(keys, times, orders, alone, rows, self.values)

    def compact(self) -> Side:
        """Return the same records without the values of others, but for a few."""
        first = int(self.rows.min(initial=len(self.values)))
        rows, values = self.rows - first, self.values.slice(first)
        if len(values) > 2 * len(rows):
            by_row = np.argsort(rows)
            values = values.take(pa.array(rows[by_row]))
            rows[by_row] = np.arange(len(rows))
        return Side(self.keys, self.times, self.orders, self.alone, rows, values)


def empty_side(kind: pa.DataType) -> Side:
    """Return a side without records."""
    numbers = no_rows()
    return Side(numbers, numbers, numbers, np.empty(0, np.bool_), numbers, pa.array([], kind))


class JoinBuffer:
    """The records of both sides that may get a partner or be emitted alone, in this process."""

    def __init__(self, left: pa.DataType, right: pa.DataType) -> None:
        self.sides = [empty_side(left), empty_side(right)]
        self.order = 0
        self._numbers: dict[bytes, int] = {}
        self._names: list[bytes] = []

    def number_keys(self, names: pa.Array) -> Array:
        """Return the number of each key; a new key gets the next one."""
        listed = names.to_pylist()
        found = list(map(self._numbers.get, listed))
        if None in found:
            for place, name in enumerate(listed):
                if name not in self._numbers:
                    self._numbers[name] = len(self._names)
                    self._names.append(name)
                found[place] = self._numbers[name]
        return np.array(found, np.int64)

    @property
    def numbered(self) -> int:
        """Return how many keys have a number."""
        return len(self._names)

    def name_keys(self, numbers: Array) -> list[bytes]:
        """Return the keys of numbers."""
        names = self._names
        return [names[number] for number in numbers.tolist()]

    def forget_keys(self) -> None:
        """Remove the keys without records, once they are most of all, and number the others."""
        used = Groups(np.concatenate([side.keys for side in self.sides]), len(self._names))
        if len(self._names) < 2 * len(used) + _SPARE:
            return
        numbers = np.full(len(self._names), -1, np.int64)
        numbers[used.numbers] = np.arange(len(used))
        self._names = self.name_keys(used.numbers)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self.sides = [
            Side(numbers[s.keys], s.times, s.orders, s.alone, s.rows, s.values) for s in self.sides
        ]

    def dump(self) -> list[tuple[int, bytes, int, int, bool, Any]]:
        """Return each record as side, key, time, order, whether it is alone, and its value."""
        found = []
        for number, side in enumerate(self.sides):
            columns = (column.tolist() for column in (side.times, side.orders, side.alone))
            values = side.values.take(pa.array(side.rows)).to_pylist()
            rows = zip(self.name_keys(side.keys), *columns, values, strict=True)
            found += [(number, *row) for row in rows]
        return sorted(found, key=lambda row: row[3])

    def load(self, rows: Sequence[tuple[int, bytes, int, int, bool, Any]]) -> None:
        """Store the records that :meth:`dump` returned."""
        for number in (_LEFT, _RIGHT):
            own = [row for row in rows if row[0] == number]
            keys = self.number_keys(pa.array([row[1] for row in own], pa.binary()))
            times, orders = (np.array([row[at] for row in own], np.int64) for at in (2, 3))
            alone = np.array([row[4] for row in own], np.bool_)
            values = pa.array([row[5] for row in own], self.sides[number].values.type)
            side = Side(keys, times, orders, alone, np.arange(len(own)), values)
            self.sides[number] = side.take(sort_pairs(keys, times))
        self.order = max((row[3] for row in rows), default=-1) + 1


#: Keys without records that are numbered, at least, before all are numbered again.
_SPARE = 4096


class JoinKernel:
    """Joins two streams by key. One thread.

    ``time`` is the operator time, which the owner keeps with the offsets and gives back.
    """

    def __init__(
        self, windows: JoinWindows, kind: JoinKind, buffer: JoinBuffer, time: int = NO_TIME
    ) -> None:
        self.time, self.buffer = time, buffer
        self._windows, self._kind = windows, kind
        #: How much later than a record of the side its last partner may be.
        self._reach = (windows.after, windows.before)
        #: How far behind the operator time a record of the side is still a partner.
        self._kept = tuple(
            (reach if alone else windows.before + windows.after) + windows.grace
            for reach, alone in zip(self._reach, kind.value, strict=True)
        )

    def process(
        self, records: Records, right: Array, left_rows: pa.Array, right_rows: pa.Array
    ) -> Joined:
        """Join records, and return the pairs and what stayed alone.

        ``right`` says of each record whether it is of the right side. ``left_rows`` and
        ``right_rows`` have the values of each side's records, as they arrived; a record with a null
        joins nothing, and only its time counts.
        """
        times = operator_times(self.time, records.times) if len(records) else no_rows()
        old = self.buffer.sides
        keys = self.buffer.number_keys(records.names)[records.codes]
        new = [
            self._sort_side(side, keys, records.times, right, values)
            for side, values in enumerate((left_rows, right_rows))
        ]
        pairs = self._find_pairs(old, new, times)
        rows = [pairs]
        if self._kind is not JoinKind.INNER:
            rows = [*self._find_alone(old, new, pairs, times, records.times), pairs]
        joined = self._build(rows, new, self._count_late(new, times))
        if len(records):
            self.time = int(times[-1])
            self._keep(old, new)
            self.buffer.order += len(records)
        return joined

    def _sort_side(
        self, side: int, keys: Array, times: Array, right: Array, values: pa.Array
    ) -> Side:
        """Return the records of a side that have a value, with all values of the side."""
        at = np.flatnonzero(right == bool(side))
        before = self.buffer.sides[side].values
        rows = np.arange(len(at))
        if values.null_count:
            rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            at = at[rows]
        order = sort_pairs(keys[at], times[at])
        rows, at = rows[order], at[order]
        return Side(
            keys[at],
            times[at],
            self.buffer.order + at,
            np.zeros(len(at), np.bool_),
            len(before) + rows,
            pa.concat_arrays([before, values]),
        )

    def _find_pairs(self, old: list[Side], new: list[Side], times: Array) -> _Rows:
        """Return the pairs of which the later one is new."""
        places = _Places([*old, *new])
        parts = []
        for side in (_LEFT, _RIGHT):
            mine, other = new[side], old[1 - side]
            at, partner = places.probe(mine, other, self._reach[1 - side], self._reach[side])
            parts.append(self._pair(side, (mine, at), (other, partner), times))
        left, right = new
        at, partner = places.probe(left, right, self._reach[_RIGHT], self._reach[_LEFT])
        first = left.orders[at] < right.orders[partner]
        second = ~first
        parts += [
            self._pair(_LEFT, (left, at[second]), (right, partner[second]), times),
            self._pair(_RIGHT, (right, partner[first]), (left, at[first]), times),
        ]
        # partners of one record are by time and order already, but for those before and in the
        # micro-batch, of which the former come first
        pairs = _concat(parts)
        return pairs.take(sort_pairs(pairs.at, pairs.partner_time))

    def _pair(
        self, side: int, mine: tuple[Side, Array], other: tuple[Side, Array], times: Array
    ) -> _Rows:
        """Return pairs of records, of which those of ``mine`` are read later, where the others are
        still remembered. Both are a side and places in it.
        """
        (own, at), (its, partner) = mine, other
        read = own.orders[at] - self.buffer.order
        partner_times = its.times[partner]
        kept = partner_times >= times[read] - self._kept[1 - side]
        if not kept.all():
            at, partner, read, partner_times = (
                column[kept] for column in (at, partner, read, partner_times)
            )
        rows = (own.rows[at], its.rows[partner])
        left, right = rows if side == _LEFT else rows[::-1]
        later = np.maximum(own.times[at], partner_times)
        orders = its.orders[partner]
        return _Rows(read, own.keys[at], later, left, right, orders, partner_times)

    def _find_alone(
        self, old: list[Side], new: list[Side], pairs: _Rows, times: Array, own_times: Array
    ) -> list[_Rows]:
        """Return what is emitted alone, before pairs and with them; note what is still alone."""
        before = self.buffer.order
        valid = np.zeros(len(times), np.bool_)
        for added in new:
            valid[added.orders - before] = True
        closing = np.flatnonzero(valid & (own_times == times))
        never = len(times)
        orders = Groups(pairs.partner, int(pairs.partner.max(initial=-1)) + 1)
        first_pair = np.full(len(orders), never)
        np.minimum.at(first_pair, orders.ids, pairs.at)
        paired = np.zeros(len(times), np.bool_)
        paired[pairs.at] = True
        due, at_once = [], []
        for side in (_LEFT, _RIGHT):
            if not self._kind.value[side]:
                continue
            for records, is_new in ((old[side], False), (new[side], True)):
                over = records.times + self._reach[side] + self._windows.grace
                place = np.searchsorted(times[closing], over, "right")
                closes = np.append(closing, never)[place]
                found = np.minimum(np.searchsorted(orders.numbers, records.orders), len(orders) - 1)
                joins = np.full(len(records), never)
                if len(orders):
                    same = orders.numbers[found] == records.orders
                    joins[same] = first_pair[found[same]]
                alone = records.alone
                if is_new:
                    read = records.orders - before
                    alone = ~paired[read]
                    is_over = alone & (over < times[read])
                    at_once.append(_Rows.alone(records.take(is_over), read[is_over], side))
                    alone = alone & ~is_over
                emitted = alone & (closes < never) & (joins >= closes)
                due.append(_Rows.alone(records.take(emitted), closes[emitted], side))
                records.alone[:] = alone & (joins == never) & ~emitted
        return [self._sort_due(_concat(due)), _concat(at_once)]

    def _sort_due(self, due: _Rows) -> _Rows:
        """Return rows in the order (record, time, right before left, key, order)."""
        names = self.buffer.name_keys(due.keys)
        rank = np.empty(len(due), np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        groups = Groups(due.keys, int(due.keys.max(initial=-1)) + 1)
        by_key = np.full(len(groups), len(due))
        np.minimum.at(by_key, groups.ids, rank)
        by_name = by_key[groups.ids] if len(due) else rank
        return due.take(np.lexsort((due.partner, by_name, due.right < 0, due.times, due.at)))

    def _count_late(self, new: list[Side], times: Array) -> int:
        """Return how many new records were read when their own time and the grace were over."""
        late = 0
        for side, records in enumerate(new):
            over = records.times + self._reach[side] + self._windows.grace
            late += int(np.count_nonzero(over < times[records.orders - self.buffer.order]))
        return late

    def _build(self, rows: list[_Rows], new: list[Side], late: int) -> Joined:
        """Return rows with values: of one record, what is due comes before all others."""
        joined = _concat(rows)
        phase = np.repeat([0, *[1] * (len(rows) - 1)] if len(rows) > 1 else [1], [*map(len, rows)])
        joined = joined.take(np.argsort(joined.at * 2 + phase, kind="stable"))
        groups = Groups(joined.keys, int(joined.keys.max(initial=-1)) + 1)
        left, right = (
            side.values.take(pa.array(np.maximum(rows, 0), mask=rows < 0))
            for side, rows in zip(new, (joined.left, joined.right), strict=True)
        )
        names = pa.array(self.buffer.name_keys(groups.numbers), pa.binary())
        alone = int(np.count_nonzero((joined.left < 0) | (joined.right < 0)))
        return Joined(joined.at, groups.ids, names, joined.times, left, right, alone, late)

    def _keep(self, old: list[Side], new: list[Side]) -> None:
        """Keep the records that may get a partner, or are still to be emitted alone."""
        for number, (before, added) in enumerate(zip(old, new, strict=True)):
            kept = [
                side.take((side.times >= self.time - self._kept[number]) | side.alone)
                for side in (before, added)
            ]
            keys, times, orders, alone, rows = (
                np.concatenate(column)
                for column in zip(*(side.columns for side in kept), strict=True)
            )
            side = Side(keys, times, orders, alone, rows, added.values)
            side = side.take(sort_pairs(side.keys, side.times))
            self.buffer.sides[number] = side.compact()
        self.buffer.forget_keys()


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to emit: ``left`` and ``right`` are places of values, below 0 where there is none.

    ``partner`` is the order of the partner that was read first, or of the record that is alone.
    """

    at: Array
    keys: Array
    times: Array
    left: Array
    right: Array
    partner: Array
    partner_time: Array

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[Array]:
        return iter(getattr(self, name) for name in self.__slots__)

    @classmethod
    def alone(cls, side: Side, at: Array, number: int) -> _Rows:
        """Return rows of records of a side without partners."""
        none = np.full(len(side), -1)
        left, right = (side.rows, none) if number == _LEFT else (none, side.rows)
        return cls(at, side.keys, side.times, left, right, side.orders, side.times)

    def take(self, at: Array) -> _Rows:
        """Return rows at places."""
        return _Rows(*(column[at] for column in self))


def _concat(rows: list[_Rows]) -> _Rows:
    return _Rows(*(np.concatenate(column) for column in zip(*rows, strict=True)))


class _Places:
    """Keys and times of a micro-batch as one number each, which sorts as (key, time) does."""

    def __init__(self, sides: list[Side]) -> None:
        self._keys = distinct(np.concatenate([side.keys for side in sides[2:]]))
        times = np.concatenate([side.times for side in sides])
        self._lowest = int(times.min(initial=0 if not len(times) else int(times[0])))
        self._span = int(times.max(initial=self._lowest)) - self._lowest
        self._bits = (self._span + 1).bit_length()
        #: Times of which only the order counts, where there is no room for them as they are.
        self._listed: Array | None = None
        if self._bits + len(self._keys).bit_length() > BITS:
            self._listed = np.unique(times)
            self._span, self._bits = len(self._listed), len(self._listed).bit_length() + 1

    def probe(self, mine: Side, other: Side, back: int, forward: int) -> tuple[Array, Array]:
        """Return places of ``mine`` and of ``other`` that have the same key, and times at most
        ``back`` earlier or ``forward`` later in the other.
        """
        if not len(mine) or not len(other):
            return no_rows(), no_rows()
        at = np.minimum(np.searchsorted(self._keys, other.keys), len(self._keys) - 1)
        here = np.flatnonzero(self._keys[at] == other.keys)
        places = self._number(at[here], other.times[here], "left")
        keys = find_places(self._keys, mine.keys)
        first = np.searchsorted(places, self._number(keys, mine.times - back, "left"), "left")
        last = np.searchsorted(places, self._number(keys, mine.times + forward, "right"), "right")
        which, found = expand(first, last)
        return which, here[found]

    def _number(self, keys: Array, times: Array, side: Literal["left", "right"]) -> Array:
        if self._listed is None:
            offset = np.clip(times - self._lowest, -1, self._span + 1) + 1
        else:
            offset = np.searchsorted(self._listed, times, side) + (side == "left")
        return np.asarray((keys << (self._bits + 1)) | offset)
