"""Aggregates in columns: what a group's rows come to, and how two such partial values become one.

A partial value is a row of one or more arrays, its *parts*. Merging is associative and has an
identity, so that windows can be merged from panes, and a micro-batch into what is stored. Of two
partials that are merged, the first has the earlier rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from decimal import Decimal
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.core.errors import ReducerError, RetryableError
from headrace.core.user_text import describe_error, describe_value
from headrace.extensions.streams import aggregates as declared
from headrace.extensions.streams.fitted import fit, python_value
from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.groups import accumulate_highest
from headrace.extensions.streams.kernels.records import Array
from headrace.extensions.streams.kernels.sums import (
    add_whole,
    round_scaled,
    scale_float,
    scan_whole,
    sum_floats,
    sum_whole,
    whole_objects,
)
from headrace.extensions.streams.kernels.values import (
    Codec,
    Values,
    float_to_json,
    make_json,
    make_objects,
    read_json,
)
from headrace.extensions.streams.types import Type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.kernels.groups import Groups

#: Partial values: arrays of one shape, one for each part.
Parts: TypeAlias = tuple[Array, ...]

_LONG, _OBJECT, _BOOL = np.dtype(np.int64), np.dtype(object), np.dtype(np.bool_)
_LOWEST = np.int64(-(2**63))
#: Where a sum in floats may be one of whole numbers that leaves 64 bits.
_NEAR_LIMIT = 2.0**62
#: What the digits of an Arrow decimal are below.
_DECIMAL_LIMIT = 10**38

_first, _second = itemgetter(0), itemgetter(1)


class Side(NamedTuple):
    """The rows before or after changes: their columns, null where ``there`` is false."""

    columns: Sequence[Any]
    there: Array


class Partial(ABC):
    """One aggregate in columns."""

    #: Columns of a micro-batch that it takes.
    width: ClassVar[int] = 1
    #: Whether a value may be too large for its type.
    can_overflow: ClassVar[bool] = False
    #: Whether JSON has the one part as it is: a whole number.
    is_whole: ClassVar[bool] = False

    @property
    @abstractmethod
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        """Return the type of each part, and its value where there are no rows."""

    @abstractmethod
    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        """Return the partial of each group's rows."""

    @abstractmethod
    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        """Return the partial of each group's rows up to each row, in the order of the groups."""

    @abstractmethod
    def merge(self, first: Parts, second: Parts) -> Parts:
        """Return the partials of both, element by element."""

    @abstractmethod
    def result(self, parts: Parts) -> pa.Array:
        """Return the values of the aggregate."""

    @property
    def is_numeric(self) -> bool:
        """Return whether all parts are numbers or true and false, as Arrow has them."""
        return not any(dtype.hasobject for dtype, _ in self.identity)

    @abstractmethod
    def encode(self, row: tuple[Any, ...]) -> Any:
        """Return a partial as JSON."""

    @abstractmethod
    def decode(self, value: Any) -> tuple[Any, ...]:
        """Return the partial that :meth:`encode` wrote."""

    def find_faults(self, columns: Sequence[pa.Array]) -> Mapping[int, str]:
        """Return the rows of which it cannot take the values, with the reasons."""
        del columns
        return {}

    def read_columns(self, columns: Sequence[Any]) -> Sequence[Values]:
        """Return its columns of a micro-batch, prepared once for all that is done with them."""
        return [Values(column, codec) for column, codec in zip(columns, self.codecs, strict=True)]

    @property
    def codecs(self) -> Sequence[Codec]:
        """Return how values of its columns are kept."""
        return ()

    def extend(
        self, before: Parts, groups: Groups, columns: Sequence[Values], times: Array
    ) -> Parts:
        """Return the partial of each group with its rows added to what was before."""
        return self.merge(before, self.reduce(groups, columns, times))

    def extend_scan(
        self, before: Parts, groups: Groups, columns: Sequence[Values], times: Array
    ) -> Parts:
        """Return what :meth:`extend` comes to at each row, in the order of the groups."""
        repeated = tuple(part[groups.ordered_ids] for part in before)
        return self.merge(repeated, self.scan(groups, columns, times))

    def scan_changes(
        self, before: Parts, groups: Groups, added: Side, removed: Side, times: Array
    ) -> Parts:
        """Return the partial of each group with each change, in the order of the groups.

        Raises:
            TypeError: the aggregate cannot take away a row.
        """
        added_up = self.extend_scan(before, groups, added.columns, times)
        return self.merge(added_up, self.negate(self.scan(groups, removed.columns, times)))

    def negate(self, parts: Parts) -> Parts:
        """Return the partials that take these away when they are merged.

        Raises:
            TypeError: there are none.
        """
        raise TypeError(f"{type(self).__name__} takes nothing away from {len(parts)} parts")

    def overflows(self, parts: Parts) -> Array | None:
        """Return which values cannot be written, None where that cannot be."""
        del parts
        return None

    def weigh(self, columns: Sequence[Values]) -> float:
        """Return how much the rows of a micro-batch can add up to, whatever their signs."""
        del columns
        return 0

    def may_overflow(self, after: Parts, weight: float) -> bool:
        """Return whether a value may have left its type on the way through a micro-batch.

        ``after`` are the partials that came of it, ``weight`` is that of its rows.
        """
        del after, weight
        return False


class Sketch(Partial):
    """An aggregate that takes values one by one: those of rows alone are added to nothing."""

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        return self.extend(self._empty(len(groups)), groups, columns, times)

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        return self.extend_scan(self._empty(len(groups)), groups, columns, times)

    def _empty(self, size: int) -> Parts:
        return tuple(make_filled(size, *each) for each in self.identity)


class LatestTime(Partial):
    """The latest time of the rows; below 0 where there are none."""

    width = 0
    is_whole = True

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((_LONG, -1),)

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del columns
        latest = np.full(len(groups), -1, np.int64)
        np.maximum.at(latest, groups.ids, times)
        return (latest,)

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del columns
        rows = _scan_best(groups, times, None, lowest=False)
        return (times[rows],)

    def scan_changes(
        self, before: Parts, groups: Groups, added: Side, removed: Side, times: Array
    ) -> Parts:
        counted = np.where(added.there | removed.there, times, -1)
        return self.extend_scan(before, groups, (), counted)

    def merge(self, first: Parts, second: Parts) -> Parts:
        return (np.maximum(first[0], second[0]),)

    def result(self, parts: Parts) -> pa.Array:
        return pa.array(parts[0])

    def encode(self, row: tuple[Any, ...]) -> Any:
        return int(row[0])

    def decode(self, value: Any) -> tuple[Any, ...]:
        return (value,)


class Count(Partial):
    """The number of rows."""

    width = 0
    is_whole = True

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((_LONG, 0),)

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del columns, times
        return (groups.sizes.astype(np.int64),)

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del columns
        return (np.arange(1, len(times) + 1) - groups.starts[groups.ordered_ids],)

    def scan_changes(
        self, before: Parts, groups: Groups, added: Side, removed: Side, times: Array
    ) -> Parts:
        del times
        steps = added.there.astype(np.int64) - removed.there
        return (before[0][groups.ordered_ids] + _scan_sums(groups, steps),)

    def merge(self, first: Parts, second: Parts) -> Parts:
        return (first[0] + second[0],)

    def result(self, parts: Parts) -> pa.Array:
        return pa.array(parts[0])

    def encode(self, row: tuple[Any, ...]) -> Any:
        return int(row[0])

    def decode(self, value: Any) -> tuple[Any, ...]:
        return (value,)


class _OfOne(Partial):
    """An aggregate of one column."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    @property
    def codecs(self) -> Sequence[Codec]:
        return (self._codec,)


class WholeSum(_OfOne):
    """The sum of whole numbers: its lower 64 bits, how often 2**64, and the number of values."""

    can_overflow = True

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((_LONG, 0), (_LONG, 0), (_LONG, 0))

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        return (*sum_whole(columns[0].keys, groups), _count_valid(groups, columns[0]))

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        return (*scan_whole(columns[0].keys, groups), _scan_valid(groups, columns[0]))

    def merge(self, first: Parts, second: Parts) -> Parts:
        low, carry = add_whole((first[0], first[1]), (second[0], second[1]))
        return (low, carry, first[2] + second[2])

    def negate(self, parts: Parts) -> Parts:
        low, carry, count = parts
        # the lowest number of 64 bits is its own negative, and 2**64 is missing
        return (-low, np.where(low == _LOWEST, 1 - carry, -carry), -count)

    def result(self, parts: Parts) -> pa.Array:
        return pa.array(parts[0], mask=parts[2] == 0)

    def encode(self, row: tuple[Any, ...]) -> Any:
        return [int(row[0]) + int(row[1]) * 2**64, int(row[2])]

    def decode(self, value: Any) -> tuple[Any, ...]:
        low = (value[0] + 2**63) % 2**64 - 2**63
        return (low, (value[0] - low) // 2**64, value[1])

    def overflows(self, parts: Parts) -> Array | None:
        return np.asarray(parts[1] != 0)

    def weigh(self, columns: Sequence[Values]) -> float:
        return float(np.abs(columns[0].keys.astype(np.float64)).sum())

    def may_overflow(self, after: Parts, weight: float) -> bool:
        stored = np.abs(after[0].astype(np.float64) + after[1] * 2.0**64).max(initial=0.0)
        return bool(stored + 2 * weight >= _NEAR_LIMIT)


class WholeMean(WholeSum):
    """The sum of whole numbers by the number of values."""

    can_overflow = False

    def result(self, parts: Parts) -> pa.Array:
        some = parts[2] > 0
        sums, counts = whole_objects(parts[0], parts[1]), np.where(some, parts[2], 1)
        return pa.array((sums / counts.astype(object)).astype(np.float64), mask=~some)

    def overflows(self, parts: Parts) -> Array | None:
        del parts
        return None

    def may_overflow(self, after: Parts, weight: float) -> bool:
        del after, weight
        return False


class FloatSum(_OfOne):
    """The exact sum of the finite values, the sum of the others, and the number of both."""

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((_OBJECT, 0), (np.dtype(np.float64), 0.0), (_LONG, 0))

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        values = columns[0].floats
        finite = np.isfinite(values)
        rest = np.zeros(len(groups))
        if not finite.all():
            with np.errstate(invalid="ignore"):
                np.add.at(rest, groups.ids[~finite], values[~finite])
            values = np.where(finite, values, 0.0)
        return (sum_floats(values, groups), rest, _count_valid(groups, columns[0]))

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        values = columns[0].floats[groups.order]
        finite = np.isfinite(values)
        whole = make_objects([scale_float(each) for each in np.where(finite, values, 0.0).tolist()])
        rest = np.where(finite, 0.0, values)
        sums = np.empty(len(values), object)
        others = np.empty(len(values))
        for start, size in zip(groups.starts.tolist(), groups.sizes.tolist(), strict=True):
            part = slice(start, start + size)
            sums[part] = np.add.accumulate(whole[part])
            with np.errstate(invalid="ignore"):
                others[part] = np.add.accumulate(rest[part])
        return (sums, others, _scan_valid(groups, columns[0]))

    def merge(self, first: Parts, second: Parts) -> Parts:
        with np.errstate(invalid="ignore"):
            return (first[0] + second[0], first[1] + second[1], first[2] + second[2])

    def negate(self, parts: Parts) -> Parts:
        return (-parts[0], 0.0 - parts[1], -parts[2])

    def result(self, parts: Parts) -> pa.Array:
        sums = np.array([round_scaled(each) for each in parts[0].tolist()], np.float64)
        return self._with_rest(sums, parts)

    def _with_rest(self, sums: Array, parts: Parts) -> pa.Array:
        values = np.where(parts[1] == 0, sums, parts[1])
        return pa.array(values, pa.float64(), mask=parts[2] == 0)

    def encode(self, row: tuple[Any, ...]) -> Any:
        number = int(row[0])
        zeros = (number & -number).bit_length() - 1 if number else 0
        return [number >> zeros, zeros, float_to_json(float(row[1])), int(row[2])]

    def decode(self, value: Any) -> tuple[Any, ...]:
        return (value[0] << value[1], float(value[2]), value[3])


class FloatMean(FloatSum):
    """The exact sum by the number of values, rounded once."""

    def result(self, parts: Parts) -> pa.Array:
        pairs = zip(parts[0].tolist(), parts[2].tolist(), strict=True)
        means = np.array([round_scaled(each, max(n, 1)) for each, n in pairs], np.float64)
        return self._with_rest(means, parts)


class DecimalSum(_OfOne):
    """The sum of decimals in units of their last digit, and the number of values."""

    can_overflow = True

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((_OBJECT, 0), (_LONG, 0))

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        sums = np.zeros(len(groups), object)
        np.add.at(sums, groups.ids, columns[0].unscaled())
        return (sums, _count_valid(groups, columns[0]))

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        ordered = np.add.accumulate(columns[0].unscaled()[groups.order])
        before = groups.starts[groups.ordered_ids] - 1
        sums = ordered - np.where(before < 0, 0, ordered[before])
        return (sums, _scan_valid(groups, columns[0]))

    def merge(self, first: Parts, second: Parts) -> Parts:
        return (first[0] + second[0], first[1] + second[1])

    def negate(self, parts: Parts) -> Parts:
        return (-parts[0], -parts[1])

    def result(self, parts: Parts) -> pa.Array:
        scale = self._codec.type.scale
        sums = [make_decimal(each, scale) for each in parts[0].tolist()]
        return pa.array(sums, pa.decimal128(38, scale), mask=parts[1] == 0)

    def encode(self, row: tuple[Any, ...]) -> Any:
        return [int(row[0]), int(row[1])]

    def decode(self, value: Any) -> tuple[Any, ...]:
        return tuple(value)

    def overflows(self, parts: Parts) -> Array | None:
        return np.asarray(np.abs(parts[0]) >= _DECIMAL_LIMIT, np.bool_)

    def weigh(self, columns: Sequence[Values]) -> float:
        # a whole number of any size, which is exact
        return int(np.abs(columns[0].unscaled()).sum())

    def may_overflow(self, after: Parts, weight: float) -> bool:
        stored = max(map(abs, after[0].ravel().tolist()), default=0)
        return bool(stored + 2 * weight >= _DECIMAL_LIMIT)


class DecimalMean(DecimalSum):
    """The sum of decimals by the number of values, as a float."""

    can_overflow = False

    def result(self, parts: Parts) -> pa.Array:
        unit = 10**self._codec.type.scale
        pairs = zip(parts[0].tolist(), parts[1].tolist(), strict=True)
        means = np.array([each / (unit * max(n, 1)) for each, n in pairs], np.float64)
        return pa.array(means, mask=parts[1] == 0)

    def overflows(self, parts: Parts) -> Array | None:
        del parts
        return None

    def may_overflow(self, after: Parts, weight: float) -> bool:
        del after, weight
        return False


class Extreme(_OfOne):
    """The lowest or the highest value, and whether there is one."""

    def __init__(self, codec: Codec, *, lowest: bool) -> None:
        super().__init__(codec)
        if not codec.sorts:
            raise TypeError(f"values of type {codec.type} have no order")
        self._lowest = lowest

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((self._codec.dtype, 0 if self._codec.numeric else None), (_BOOL, False))

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        values = columns[0]
        rows, sizes = groups.keep(values.valid)
        keys = values.keys[rows]
        some = sizes > 0
        best = (
            (np.minimum if self._lowest else np.maximum).reduceat(
                keys, (np.cumsum(sizes) - sizes)[some]
            )
            if len(rows)
            else keys
        )
        if not self._codec.numeric and len(rows):
            ids = np.repeat(np.arange(int(some.sum())), sizes[some])
            at = np.flatnonzero(keys == best[ids])
            _, first = np.unique(ids[at], return_index=True)
            best = values.take(rows[at[first]])
        return (_spread(best, some, self.identity[0]), some)

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        del times
        values = columns[0]
        rows = _scan_best(groups, values.keys, values.valid, lowest=self._lowest)
        some = rows >= 0
        return (_spread(values.take(rows[some]), some, self.identity[0]), some)

    def merge(self, first: Parts, second: Parts) -> Parts:
        better = second[1] & ~first[1]
        both = second[1] & first[1]
        if self._codec.numeric:
            closer = np.less if self._lowest else np.greater
            better |= both & closer(second[0], first[0])
        else:
            one, other = first[0][both], second[0][both]
            better[both] = (other < one) if self._lowest else (other > one)
        return (np.where(better, second[0], first[0]), first[1] | second[1])

    def result(self, parts: Parts) -> pa.Array:
        return self._codec.array(parts[0], parts[1])

    def encode(self, row: tuple[Any, ...]) -> Any:
        return [self._codec.to_json(row[0])] if row[1] else []

    def decode(self, value: Any) -> tuple[Any, ...]:
        if not value:
            return (self.identity[0][1], False)
        return (self._codec.from_json(value[0]), True)


class Endmost(_OfOne):
    """The value of the lowest or the highest time, that time, and whether there is one."""

    def __init__(self, codec: Codec, *, lowest: bool) -> None:
        super().__init__(codec)
        self._lowest = lowest

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        value = (self._codec.dtype, 0 if self._codec.numeric else None)
        return ((_LONG, -1), value, (_BOOL, False))

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        values = columns[0]
        rows, sizes = groups.keep(values.valid)
        some = sizes > 0
        picked = rows
        if len(rows):
            starts = (np.cumsum(sizes) - sizes)[some]
            best = (np.minimum if self._lowest else np.maximum).reduceat(times[rows], starts)
            ids = np.repeat(np.arange(len(starts)), sizes[some])
            at = np.flatnonzero(times[rows] == best[ids])
            edge = np.diff(ids[at]) != 0
            picked = rows[at[np.append(True, edge) if self._lowest else np.append(edge, True)]]
        return self._parts(values, times, picked, some)

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        values = columns[0]
        rows = _scan_best(groups, times, values.valid, lowest=self._lowest)
        some = rows >= 0
        return self._parts(values, times, rows[some], some)

    def _parts(self, values: Values, times: Array, rows: Array, some: Array) -> Parts:
        time, value, _ = self.identity
        return (_spread(times[rows], some, time), _spread(values.take(rows), some, value), some)

    def merge(self, first: Parts, second: Parts) -> Parts:
        closer = np.less if self._lowest else np.greater_equal
        better = second[2] & (~first[2] | closer(second[0], first[0]))
        return (
            np.where(better, second[0], first[0]),
            np.where(better, second[1], first[1]),
            first[2] | second[2],
        )

    def result(self, parts: Parts) -> pa.Array:
        return self._codec.array(parts[1], parts[2])

    def encode(self, row: tuple[Any, ...]) -> Any:
        return [int(row[0]), self._codec.to_json(row[1])] if row[2] else []

    def decode(self, value: Any) -> tuple[Any, ...]:
        if not value:
            return (-1, self.identity[1][1], False)
        return (value[0], self._codec.from_json(value[1]), True)


class Listed(Partial):
    """A list of at most ``limit`` entries: tuples that :meth:`sort` orders, the value last."""

    def __init__(self, codec: Codec, limit: int) -> None:
        self._codec, self._limit = codec, limit

    @property
    def codecs(self) -> Sequence[Codec]:
        return (self._codec,)

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((_OBJECT, ()),)

    @abstractmethod
    def sort(self, entries: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
        """Return the entries that are kept, in their order; of equal ones the first come first."""

    @abstractmethod
    def entries(
        self, rows: Array, columns: Sequence[Values], times: Array
    ) -> list[tuple[Any, ...]]:
        """Return the entries of rows."""

    def _valid(self, columns: Sequence[Values]) -> Array:
        valid = columns[0].valid
        for column in columns[1:]:
            valid = valid & column.valid
        return valid

    def reduce(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        rows, sizes = groups.keep(self._valid(columns))
        entries = self.entries(rows, columns, times)
        stops = np.cumsum(sizes).tolist()
        starts = [0, *stops[:-1]]
        lists = [self.sort(entries[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        return (make_objects(lists),)

    def scan(self, groups: Groups, columns: Sequence[Values], times: Array) -> Parts:
        valid = self._valid(columns)[groups.order].tolist()
        rows = groups.order[np.array(valid, np.bool_)]
        entries = iter(self.entries(rows, columns, times))
        lists: list[tuple[tuple[Any, ...], ...]] = []
        before = -1
        kept: tuple[tuple[Any, ...], ...] = ()
        for group, counts in zip(groups.ordered_ids.tolist(), valid, strict=True):
            kept = kept if group == before else ()
            before = group
            if counts:
                kept = self.sort([*kept, next(entries)])
            lists.append(kept)
        return (make_objects(lists),)

    def merge(self, first: Parts, second: Parts) -> Parts:
        merged = np.where(first[0] == _NO_ENTRIES, second[0], first[0])
        both = (first[0] != _NO_ENTRIES) & (second[0] != _NO_ENTRIES)
        if both.any():
            pairs = zip(first[0][both].tolist(), second[0][both].tolist(), strict=True)
            merged[both] = make_objects([self.sort([*one, *other]) for one, other in pairs])
        return (merged,)

    def result(self, parts: Parts) -> pa.Array:
        values = [each[-1] for entries in parts[0].tolist() for each in entries]
        ends = np.cumsum([0, *map(len, parts[0].tolist())])
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(self._codec.objects(values), self._codec.type)
        )


#: What an array of lists is compared with: numpy would take a tuple for a row of values.
_NO_ENTRIES = np.empty((), object)
_NO_ENTRIES[()] = ()


class Top(Listed):
    """Entries (by, time, value), those with the highest ``by`` first."""

    width = 2

    def __init__(self, codec: Codec, by: Codec, limit: int) -> None:
        super().__init__(codec, limit)
        if not by.sorts:
            raise TypeError(f"values of type {by.type} have no order")
        self._by = by

    @property
    def codecs(self) -> Sequence[Codec]:
        return (self._codec, self._by)

    def sort(self, entries: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
        by_time = sorted(entries, key=_second)
        return tuple(sorted(by_time, key=_first, reverse=True)[: self._limit])

    def entries(
        self, rows: Array, columns: Sequence[Values], times: Array
    ) -> list[tuple[Any, ...]]:
        of, by = (column.take(rows).tolist() for column in columns)
        return list(zip(by, times[rows].tolist(), of, strict=True))

    def encode(self, row: tuple[Any, ...]) -> Any:
        by, of = self._by.to_json, self._codec.to_json
        return [[by(entry[0]), entry[1], of(entry[2])] for entry in row[0]]

    def decode(self, value: Any) -> tuple[Any, ...]:
        by, of = self._by.from_json, self._codec.from_json
        return (tuple((by(entry[0]), entry[1], of(entry[2])) for entry in value),)


class Collect(Listed):
    """Entries (time, value), the lowest times first."""

    def sort(self, entries: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
        return tuple(sorted(entries, key=_first)[: self._limit])

    def entries(
        self, rows: Array, columns: Sequence[Values], times: Array
    ) -> list[tuple[Any, ...]]:
        return list(zip(times[rows].tolist(), columns[0].take(rows).tolist(), strict=True))

    def encode(self, row: tuple[Any, ...]) -> Any:
        of = self._codec.to_json
        return [[entry[0], of(entry[1])] for entry in row[0]]

    def decode(self, value: Any) -> tuple[Any, ...]:
        of = self._codec.from_json
        return (tuple((entry[0], of(entry[1])) for entry in value),)


class Distinct(Listed):
    """Entries (value,), in ascending order."""

    def __init__(self, codec: Codec, limit: int) -> None:
        super().__init__(codec, limit)
        if not codec.sorts:
            raise TypeError(f"values of type {codec.type} have no order")

    def sort(self, entries: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
        return tuple(sorted(set(entries))[: self._limit])

    def entries(
        self, rows: Array, columns: Sequence[Values], times: Array
    ) -> list[tuple[Any, ...]]:
        del times
        return [(value,) for value in columns[0].take(rows).tolist()]

    def encode(self, row: tuple[Any, ...]) -> Any:
        return [self._codec.to_json(entry[0]) for entry in row[0]]

    def decode(self, value: Any) -> tuple[Any, ...]:
        return (tuple((self._codec.from_json(entry),) for entry in value),)


class Fold(Partial):
    """The result of a Python function over rows, and whether there were any.

    Values are kept as a column has them, and the function gets a copy: it may change what it gets.
    Of a type of Arrow they are kept as they are.
    """

    def __init__(self, declaration: declared.Fold[Any], kind: Type | pa.DataType | None) -> None:
        self._declaration = declaration
        self._kind = kind if isinstance(kind, Type) else None
        #: Whether an error has all rows that fail: of records each of which is in one group.
        self.finds_all = False
        self._type = kind.arrow() if isinstance(kind, Type) else kind or pa.null()
        kept = pa.null() if self._kind is None else self._type
        self._to_json, self._from_json = make_json(kept), read_json(kept)

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((_OBJECT, None), (_BOOL, False))

    def _given(self, value: Any) -> Any:
        """Return a kept value as the functions get it."""
        return value if self._kind is None else python_value(value, self._kind)

    def _kept(self, value: Any) -> Any:
        """Return what a function returned as it is kept.

        Raises:
            TypeError: it is none of the field's type.
        """
        return value if self._kind is None else fit(value, self._kind)

    def read_columns(self, columns: Sequence[Any]) -> Sequence[Any]:
        return columns

    def reduce(self, groups: Groups, columns: Sequence[Any], times: Array) -> Parts:
        return self.extend(_nothing(self, len(groups)), groups, columns, times)

    def scan(self, groups: Groups, columns: Sequence[Any], times: Array) -> Parts:
        return self.extend_scan(_nothing(self, len(groups)), groups, columns, times)

    def extend(self, before: Parts, groups: Groups, columns: Sequence[Any], times: Array) -> Parts:
        values, _ = self.extend_scan(before, groups, columns, times)
        return (values[groups.starts + groups.sizes - 1], np.ones(len(groups), np.bool_))

    def extend_scan(
        self, before: Parts, groups: Groups, columns: Sequence[Any], times: Array
    ) -> Parts:
        del times
        add = self._declaration.add
        start = self._kept(self._declaration.start)
        values = [
            value if some else start
            for value, some in zip(before[0].tolist(), before[1].tolist(), strict=True)
        ]
        by_row = np.empty(len(groups.ids), object)
        failed: dict[int, str] = {}
        cause: BaseException | None = None
        for row, group in enumerate(groups.ids.tolist()):  # as rows arrived
            try:
                by_row[row] = values[group] = self._kept(
                    add(self._given(values[group]), columns[0][row])
                )
            except RetryableError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function
                # the value goes on without the row, as it will when it is left out
                failed[row] = f"fold failed: {describe_error(error)}"
                cause = cause or error
                if not self.finds_all:
                    break
        if failed:
            first = next(iter(failed))
            raise RowError(first, failed[first], failed) from cause
        return (by_row[groups.order], np.ones(len(groups.ids), np.bool_))

    def merge(self, first: Parts, second: Parts) -> Parts:
        both = first[1] & second[1]
        merged = np.where(first[1], first[0], second[0])
        if both.any():
            pairs = zip(first[0][both].tolist(), second[0][both].tolist(), strict=True)
            merged[both] = make_objects([self._merged(*pair) for pair in pairs])
        return (merged, first[1] | second[1])

    def _merged(self, one: Any, other: Any) -> Any:
        """Return one kept value of two.

        Raises:
            ReducerError: the user's function fails, which no single record is to blame for.
        """
        merge = self._declaration.merge
        if merge is None:
            raise TypeError("a fold without merge has rows in two panes or sessions")
        try:
            return self._kept(merge(self._given(one), self._given(other)))
        except RetryableError:
            raise
        except (Exception, SystemExit) as error:
            shown = f"{describe_value(one)} and {describe_value(other)}"
            raise ReducerError(
                f"merge of a fold fails for {shown}: {describe_error(error)}"
            ) from error

    def result(self, parts: Parts) -> pa.Array:
        return pa.array(parts[0].tolist(), self._type)

    def encode(self, row: tuple[Any, ...]) -> Any:
        if not row[1]:
            return []
        return [row[0] if row[0] is None else self._to_json(row[0])]

    def decode(self, value: Any) -> tuple[Any, ...]:
        if not value:
            return (None, False)
        return (value[0] if value[0] is None else self._from_json(value[0]), True)


def make_decimal(unscaled: int, scale: int) -> Any:
    """Return a decimal of a whole number of its last digit."""
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))


def make_partial(
    aggregate: declared.Agg[Any],
    kinds: Sequence[pa.DataType],
    result: Type | pa.DataType | None = None,
) -> Partial:
    """Return an aggregate in columns, of arguments of these types; a fold says its result's.

    Raises:
        TypeError: the aggregate cannot take a type.
    """
    codecs = [Codec(kind) for kind in kinds]
    made: Partial
    match aggregate:
        case declared.Count():
            made = Count()
        case declared.Fold():
            made = Fold(aggregate, result)
        case declared.Total() | declared.Mean():
            made = _make_sum(codecs[0], mean=isinstance(aggregate, declared.Mean))
        case declared.Least() | declared.Most():
            made = Extreme(codecs[0], lowest=isinstance(aggregate, declared.Least))
        case declared.First() | declared.Last():
            made = Endmost(codecs[0], lowest=isinstance(aggregate, declared.First))
        case declared.Top():
            made = Top(codecs[0], codecs[1], aggregate.limit)
        case declared.Collect():
            made = Collect(codecs[0], aggregate.limit)
        case declared.Distinct():
            made = Distinct(codecs[0], aggregate.limit)
        case declared.ApproxDistinct() | declared.ApproxQuantile() | declared.ApproxQuantiles():
            made = _make_sketch(aggregate, codecs[0])
        case _:
            raise TypeError(f"no such aggregate: {aggregate!r}")
    return made


def _make_sketch(aggregate: declared.Agg[Any], codec: Codec) -> Partial:
    """Return an approximate aggregate; its library is imported only where a program has one."""
    if isinstance(aggregate, declared.ApproxDistinct):
        from headrace.extensions.streams.kernels.distinct_sketch import (  # noqa: PLC0415 - extra
            ApproxDistinct,
        )

        return ApproxDistinct(codec)
    from headrace.extensions.streams.kernels.quantile_sketch import (  # noqa: PLC0415 - extra
        ApproxQuantiles,
    )

    assert isinstance(aggregate, (declared.ApproxQuantile, declared.ApproxQuantiles)), "no other"
    is_list = isinstance(aggregate, declared.ApproxQuantiles)
    return ApproxQuantiles(codec, aggregate.at, is_list=is_list)


def _make_sum(codec: Codec, *, mean: bool) -> Partial:
    if codec.whole:
        return (WholeMean if mean else WholeSum)(codec)
    if codec.floating:
        return (FloatMean if mean else FloatSum)(codec)
    if codec.decimal:
        return (DecimalMean if mean else DecimalSum)(codec)
    raise TypeError(f"values of type {codec.type} cannot be added up")


def _nothing(partial: Partial, size: int) -> Parts:
    return tuple(make_filled(size, dtype, value) for dtype, value in partial.identity)


def make_filled(size: int, dtype: np.dtype[Any], value: Any) -> Array:
    """Return an array with one value, which may be a sequence."""
    if dtype.hasobject:
        array = np.empty(size, object)
        array[:] = [value] * size
        return array
    return np.full(size, value, dtype)


def _spread(values: Array, some: Array, identity: tuple[np.dtype[Any], Any]) -> Array:
    """Return an array with ``values`` where ``some`` is true, and the identity elsewhere."""
    spread = make_filled(len(some), *identity)
    spread[some] = values
    return spread


def _count_valid(groups: Groups, values: Values) -> Array:
    if values.complete:
        return groups.sizes.astype(np.int64)
    return np.bincount(groups.ids[values.valid], minlength=len(groups)).astype(np.int64)


def _scan_valid(groups: Groups, values: Values) -> Array:
    return _scan_sums(groups, values.valid.astype(np.int64))


def _scan_sums(groups: Groups, numbers: Array) -> Array:
    """Return the sum of each group up to each row, in the order of the groups."""
    sums = np.cumsum(numbers[groups.order])
    before = groups.starts[groups.ordered_ids] - 1
    return np.asarray(sums - np.where(before < 0, 0, sums[before]), np.int64)


def _scan_best(groups: Groups, keys: Array, valid: Array | None, *, lowest: bool) -> Array:
    """Return the row with the best key so far, in the order of the groups; -1 where all are null.

    Of equal keys the first row is the best of the lowest, and the last one of the highest.
    """
    rows = len(keys)
    ranked = np.argsort(keys, kind="stable")
    score = np.empty(rows, np.int64)
    score[ranked] = np.arange(rows, 0, -1) if lowest else np.arange(1, rows + 1)
    if valid is not None:
        score[~valid] = 0
    best = accumulate_highest(score[groups.order], groups.ordered_ids)
    found = best > 0
    return np.where(found, ranked[np.where(found, rows - best if lowest else best - 1, 0)], -1)
