"""The stored row of a group: the partial of each aggregate, and the latest time of its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.kernels.partials import LatestTime, Side, make_filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.extensions.streams.kernels.groups import Groups
    from headrace.extensions.streams.kernels.partials import Partial, Parts
    from headrace.extensions.streams.kernels.records import Array, Records


class Inputs:
    """The columns of a micro-batch, prepared for each aggregate."""

    def __init__(self, layout: Layout, records: Records) -> None:
        self.times = records.times
        self.columns: list[Sequence[Any]] = []
        position = 0
        for partial in layout.partials:
            stop = position + partial.width
            self.columns.append(partial.read_columns(records.columns[position:stop]))
            position = stop


class Layout:
    """The parts of a row: first the latest time, then those of each aggregate.

    ``stored`` is the order in which the aggregates are encoded, by their places.
    """

    def __init__(self, aggregates: Sequence[Partial], stored: Sequence[int] | None = None) -> None:
        places = range(len(aggregates)) if stored is None else stored
        self._stored = [0, *(place + 1 for place in places)]
        self.partials: tuple[Partial, ...] = (LatestTime(), *aggregates)
        self._slices: list[slice] = []
        position = 0
        for partial in self.partials:
            stop = position + len(partial.identity)
            self._slices.append(slice(position, stop))
            position = stop
        self.identity = tuple(part for partial in self.partials for part in partial.identity)

    def __len__(self) -> int:
        return len(self.identity)

    def _each(self, *rows: Parts) -> Iterator[tuple[Partial, tuple[Parts, ...]]]:
        for partial, part in zip(self.partials, self._slices, strict=True):
            yield partial, tuple(row[part] for row in rows)

    def empty(self, size: int) -> Parts:
        """Return rows of groups without records."""
        return tuple(make_filled(size, dtype, value) for dtype, value in self.identity)

    def present(self, rows: Parts) -> Array:
        """Return which rows have a record."""
        return np.asarray(rows[0] >= 0)

    def reduce(self, groups: Groups, inputs: Inputs) -> Parts:
        """Return the row of each group's records alone."""
        return self._concat(
            partial.reduce(groups, columns, inputs.times)
            for partial, columns in zip(self.partials, inputs.columns, strict=True)
        )

    def extend(self, before: Parts, groups: Groups, inputs: Inputs) -> Parts:
        """Return the row of each group with its records added to what was before."""
        return self._concat(
            partial.extend(part, groups, columns, inputs.times)
            for (partial, (part,)), columns in zip(self._each(before), inputs.columns, strict=True)
        )

    def extend_scan(self, before: Parts, groups: Groups, inputs: Inputs) -> Parts:
        """Return the row of its group at each record, in the order of the groups."""
        return self._concat(
            partial.extend_scan(part, groups, columns, inputs.times)
            for (partial, (part,)), columns in zip(self._each(before), inputs.columns, strict=True)
        )

    def scan_changes(
        self,
        before: Parts,
        groups: Groups,
        added: tuple[Inputs, Array],
        removed: tuple[Inputs, Array],
    ) -> Parts:
        """Return the row of its group with each change, in the order of the groups.

        Rows after changes are added and those before taken away, each where its mask is true.
        """
        inputs = zip(added[0].columns, removed[0].columns, strict=True)
        times = added[0].times
        return self._concat(
            partial.scan_changes(part, groups, Side(new, added[1]), Side(old, removed[1]), times)
            for (partial, (part,)), (new, old) in zip(self._each(before), inputs, strict=True)
        )

    def merge(self, first: Parts, second: Parts) -> Parts:
        """Return the rows of both, element by element; the first has the earlier records."""
        return self._concat(
            partial.merge(one, other) for partial, (one, other) in self._each(first, second)
        )

    def results(self, rows: Parts) -> tuple[pa.Array, ...]:
        """Return the values of the aggregates."""
        pairs = list(self._each(rows))
        return tuple(partial.result(part) for partial, (part,) in pairs[1:])

    @property
    def can_overflow(self) -> bool:
        """Return whether a value may be too large for its type."""
        return any(partial.can_overflow for partial in self.partials)

    def weigh(self, inputs: Inputs) -> list[float]:
        """Return how much records can add up to in each aggregate, whatever their signs."""
        return [
            partial.weigh(columns)
            for partial, columns in zip(self.partials, inputs.columns, strict=True)
        ]

    def may_overflow(self, after: Parts, weights: Sequence[float]) -> bool:
        """Return whether a value may have left its type on the way to the rows after.

        ``weights`` are those of the records that came on that way.
        """
        return any(
            partial.may_overflow(part, weight)
            for (partial, (part,)), weight in zip(self._each(after), weights, strict=True)
        )

    def overflows(self, rows: Parts) -> Array:
        """Return which rows have a value that left its type."""
        over = np.zeros(len(rows[0]), np.bool_)
        for partial, (part,) in self._each(rows):
            found = partial.overflows(part)
            if found is not None:
                over |= found
        return over

    def encode(self, rows: Parts) -> list[list[Any]]:
        """Return rows as JSON values."""
        columns = [
            [partial.encode(row) for row in zip(*(each.tolist() for each in part), strict=True)]
            for partial, (part,) in self._each(rows)
        ]
        return [list(row) for row in zip(*(columns[at] for at in self._stored), strict=True)]

    def encode_texts(self, rows: Parts) -> pa.Array:
        """Return rows as JSON in bytes, as :meth:`encode` has them."""
        texts: list[Any] = []
        each = list(self._each(rows))
        for place in self._stored:
            partial, (part,) = each[place]
            if partial.is_whole:
                own = pa.array(part[0]).cast(pa.string())
            else:
                listed = zip(*(column.tolist() for column in part), strict=True)
                own = pa.array(_texts(map(partial.encode, listed)), pa.string())
            texts += [pa.scalar("," if texts else "["), own]
        joined = pc.binary_join_element_wise(*texts, "]", "")
        return joined.cast(pa.binary())

    def decode_texts(self, texts: Sequence[bytes | None]) -> Parts:
        """Return what :meth:`encode_texts` made, and rows of no records for None."""
        rows = self.empty(len(texts))
        there = [at for at, text in enumerate(texts) if text is not None]
        if there:
            # read together: a call for each would take longer than what it does
            joined = b",".join(text for text in texts if text is not None)
            put_rows(rows, there, self.decode(json.loads(b"[" + joined + b"]")))
        return rows

    def pack(self, rows: Parts) -> list[pa.Array]:
        """Return rows as columns for another process: numbers as they are, all else as JSON."""
        columns: list[pa.Array] = []
        for partial, (part,) in self._each(rows):
            if partial.is_numeric:
                columns += map(pa.array, part)
            else:
                listed = zip(*(column.tolist() for column in part), strict=True)
                columns.append(pa.array(_texts(map(partial.encode, listed)), pa.string()))
        return columns

    def unpack(self, columns: Sequence[pa.Array]) -> Parts:
        """Return the rows that :meth:`pack` made columns of."""
        left = iter(columns)
        rows = self.empty(len(columns[0]))
        for partial, part in zip(self.partials, self._slices, strict=True):
            if partial.is_numeric:
                for array in rows[part]:
                    array[:] = next(left).to_numpy(zero_copy_only=False)
                continue
            texts = ",".join(next(left).to_pylist())
            _put_decoded(rows[part], partial, json.loads(f"[{texts}]"))
        return rows

    def decode(self, values: Sequence[Sequence[Any]]) -> Parts:
        """Return the rows that :meth:`encode` wrote."""
        rows = self.empty(len(values))
        for column, place in enumerate(self._stored):
            partial, part = self.partials[place], self._slices[place]
            if partial.is_whole:
                rows[part][0][:] = [value[column] for value in values]
                continue
            _put_decoded(rows[part], partial, [value[column] for value in values])
        return rows

    @staticmethod
    def _concat(parts: Iterator[Parts]) -> Parts:
        return tuple(array for part in parts for array in part)


def _texts(values: Iterable[Any]) -> list[str]:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    return list(map(encode, values))


def _put_decoded(parts: Parts, partial: Partial, values: Sequence[Any]) -> None:
    """Write the partials that were encoded as JSON values."""
    decoded = map(partial.decode, values)
    for array, items in zip(parts, zip(*decoded, strict=True), strict=False):
        array[:] = items


def take_rows(rows: Parts, at: Any) -> Parts:
    """Return the rows at positions, or where a mask is true."""
    return tuple(part[at] for part in rows)


def put_rows(rows: Parts, at: Any, new: Parts) -> None:
    """Write rows at positions, or where a mask is true."""
    for part, values in zip(rows, new, strict=True):
        part[at] = values
