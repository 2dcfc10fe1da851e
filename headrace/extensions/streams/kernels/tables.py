"""Joins with tables in columns: a stream with a table, and two tables.

A table's row is the last record of its key in the order in which records are read, whatever their
times; a record without a value deletes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.kernels.groups import Groups, accumulate_highest
from headrace.extensions.streams.kernels.joins import Joined, JoinKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.extensions.streams.kernels.records import Array, Records


class TableStore(Protocol):
    """The rows of a table by key. One thread at a time."""

    def read(self, names: pa.Array) -> tuple[pa.Array, Array]:
        """Return values and times of keys; where there is no row, null and below 0."""
        ...

    def write(self, names: pa.Array, values: pa.Array, times: Array) -> None:
        """Write rows of keys; a null deletes one."""
        ...


class MemoryTable:
    """A table in this process, which ends with it."""

    def __init__(self, kind: pa.DataType) -> None:
        self._type = kind
        self._rows: dict[bytes, tuple[pa.Scalar, int]] = {}

    def read(self, names: pa.Array) -> tuple[pa.Array, Array]:
        found = [self._rows.get(name) for name in names.to_pylist()]
        values = pa.array([row and row[0] for row in found], self._type)
        return values, np.array([-1 if row is None else row[1] for row in found], np.int64)

    def write(self, names: pa.Array, values: pa.Array, times: Array) -> None:
        for name, value, time in zip(names.to_pylist(), values, times.tolist(), strict=True):
            if value.is_valid:
                self._rows[name] = (value, time)
            else:
                self._rows.pop(name, None)

    def dump(self) -> Iterable[tuple[bytes, Any, int]]:
        """Yield each row as key, value and time."""
        for name, (value, time) in sorted(self._rows.items()):
            yield name, value.as_py(), time


@dataclass(frozen=True, slots=True)
class _Versions:
    """The rows of a table on the way through a micro-batch.

    ``values`` are those before it, one for each key, then those that were written in it. ``now`` is
    the place of the key's row with each record, and ``before`` that without it.
    """

    values: pa.Array
    times: Array
    now: Array
    before: Array

    @classmethod
    def follow(
        cls, store: TableStore, records: Records, groups: Groups, written: Array, rows: pa.Array
    ) -> _Versions:
        """Return the versions of a table that the records under ``written`` change to ``rows``."""
        values, times = store.read(records.names)
        keys = len(values)
        places = np.zeros(len(records), np.int64)
        places[written] = np.arange(1, len(rows) + 1)
        ordered = places[groups.order]
        highest = accumulate_highest(ordered, groups.ordered_ids)
        earlier = np.append(0, highest[:-1])
        earlier[groups.starts] = 0
        key = records.codes[groups.order]
        now, before = np.empty(len(records), np.int64), np.empty(len(records), np.int64)
        now[groups.order] = np.where(highest > 0, keys + highest - 1, key)
        before[groups.order] = np.where(earlier > 0, keys + earlier - 1, key)
        return cls(
            pa.concat_arrays([values, rows.cast(values.type)]),
            np.concatenate([times, records.times[written]]),
            now,
            before,
        )

    def valid(self, places: Array) -> Array:
        """Return which places have a row."""
        valid = np.asarray(self.values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        return np.asarray(valid[places])

    def write(self, store: TableStore, records: Records, groups: Groups) -> None:
        """Write the last row of each key that the micro-batch changed."""
        last = groups.order[groups.starts + groups.sizes - 1]
        place = self.now[last]
        changed = place >= len(self.values) - (len(self.times) - len(records.names))
        last, place = last[changed], place[changed]
        names = records.names.take(pa.array(records.codes[last]))
        store.write(names, self.values.take(pa.array(place)), self.times[place])


class StreamTableKernel:
    """Joins each record of a stream with the row that a table has for its key at that moment.

    ``INNER`` leaves out records without a row. A record without a value is left out by both. One
    thread.
    """

    def __init__(self, kind: JoinKind, store: TableStore) -> None:
        """Join with the table of a store.

        Raises:
            ValueError: a table's rows without a record cannot be emitted.
        """
        if kind is JoinKind.OUTER:
            raise ValueError("a stream is joined with a table by an inner or a left join")
        self._kind, self._store = kind, store

    def process(
        self, records: Records, of_table: Array, stream_rows: pa.Array, table_rows: pa.Array
    ) -> Joined:
        """Join the records of the stream, and apply those under ``of_table`` to the table."""
        groups = Groups(records.codes, len(records.names))
        versions = _Versions.follow(self._store, records, groups, of_table, table_rows)
        at = np.flatnonzero(~of_table)
        has_value = np.asarray(stream_rows.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        kept = has_value
        if self._kind is JoinKind.INNER:
            kept = kept & versions.valid(versions.now[at])
        at = at[kept]
        joined = Joined(
            at,
            records.codes[at],
            records.names,
            records.times[at],
            stream_rows.filter(pa.array(kept)),
            versions.values.take(pa.array(versions.now[at])),
        )
        versions.write(self._store, records, groups)
        return joined


class TableTableKernel:
    """Joins two tables by key: each change of either side is a change of the result.

    ``INNER`` has a row where both sides have one, ``LEFT`` where the left side has one, ``OUTER``
    where either has. A row of which both sides are null is a deletion. Nothing is emitted while a
    side that has to have a row has none, nor for a deletion of nothing that meets nothing. One
    thread.
    """

    def __init__(self, kind: JoinKind, left: TableStore, right: TableStore) -> None:
        self._stores = (left, right)
        self._needed = {
            JoinKind.INNER: (True, True),
            JoinKind.LEFT: (True, False),
            JoinKind.OUTER: (False, False),
        }[kind]

    def process(
        self, records: Records, right: Array, left_rows: pa.Array, right_rows: pa.Array
    ) -> Joined:
        """Apply changes of both sides, of which those under ``right`` are the right one's."""
        groups = Groups(records.codes, len(records.names))
        sides = (
            _Versions.follow(self._stores[0], records, groups, ~right, left_rows),
            _Versions.follow(self._stores[1], records, groups, right, right_rows),
        )
        has = [versions.valid(versions.now) for versions in sides]
        had = [versions.valid(versions.before) for versions in sides]
        own, other = np.where(right, has[1], has[0]), np.where(right, has[0], has[1])
        before = np.where(right, had[1], had[0])
        needs_other = np.where(right, self._needed[0], self._needed[1])
        at = np.flatnonzero(other | (~needs_other & (own | before)))
        exists = has[0] | has[1]
        for needed, side in zip(self._needed, has, strict=True):
            exists = exists & (side | (not needed))
        times = [
            np.where(valid, versions.times[versions.now], -1)
            for versions, valid in zip(sides, has, strict=True)
        ]
        other_times = np.where(right, times[0], times[1])
        values = [
            versions.values.take(pa.array(versions.now[at], mask=~exists[at])) for versions in sides
        ]
        joined = Joined(
            at,
            records.codes[at],
            records.names,
            np.maximum(records.times, other_times)[at],
            values[0],
            values[1],
        )
        for versions, store in zip(sides, self._stores, strict=True):
            versions.write(store, records, groups)
        return joined
