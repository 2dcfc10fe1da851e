"""Stores of windowed rows: by pane first, or by the key that a window belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.kernels.layout import put_rows, take_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array

#: Rows that a pane has beside its sorted ones, at least, before both are sorted together.
_FEW = 1024
#: How far numbers may lie apart for rows to be found by a table of places.
_SPREAD = 4
#: Keys without rows that are numbered, at least, before all are numbered again.
_SPARE = 4096


class WindowStore(Protocol):
    """Rows of a windowed operator by pane and number of the key. One thread at a time.

    A pane is the number of its place in time. Numbers of keys hold until :meth:`drop_before`.
    """

    def number_keys(self, names: pa.Array) -> Array:
        """Return the number of each key; a new key gets the next one."""
        ...

    def name_keys(self, numbers: Array) -> pa.Array:
        """Return the keys of numbers."""
        ...

    def list_panes(self) -> list[int]:
        """Return the panes that have rows, in ascending order."""
        ...

    def list_keys(self, pane: int) -> Array:
        """Return the numbers of the keys that have a row in a pane, in ascending order."""
        ...

    def read(self, pane: int, keys: Array) -> Parts:
        """Return the rows of keys, which are distinct; where there is none, that of no records."""
        ...

    def write(self, pane: int, keys: Array, rows: Parts) -> None:
        """Write the rows of keys, which are distinct and ascending."""
        ...

    def drop_before(self, pane: int) -> None:
        """Remove the rows of all panes before one."""
        ...


class _Run:
    """Rows sorted by number."""

    def __init__(self, keys: Array, parts: Parts) -> None:
        self.keys, self.parts = keys, parts
        self._places: Array | None = None

    def find(self, keys: Array) -> Array:
        """Return the place of each number, below 0 where it has none."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        if self._places is None:
            highest = int(self.keys[-1])
            if highest > _SPREAD * len(self.keys):
                at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
                return np.where(self.keys[at] == keys, at, -1)
            self._places = np.full(highest + 2, -1)
            self._places[self.keys] = np.arange(len(self.keys))
        return self._places[np.minimum(keys, len(self._places) - 1)]

    def merge(self, keys: Array, parts: Parts) -> _Run:
        """Return a run with these rows too; none of the numbers is in this one."""
        if not len(self.keys):
            return _Run(keys, tuple(part.copy() for part in parts))
        both = np.concatenate([self.keys, keys])
        order = np.argsort(both, kind="stable")
        pairs = zip(self.parts, parts, strict=True)
        return _Run(both[order], tuple(np.concatenate(pair)[order] for pair in pairs))


class SortedRows:
    """Rows by number, in two runs sorted by it: a new row goes into the short one first."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._long = self._short = _Run(np.empty(0, np.int64), layout.empty(0))

    @property
    def keys(self) -> Array:
        """Return the numbers that have a row, in ascending order."""
        return np.sort(np.concatenate([self._long.keys, self._short.keys]))

    def read(self, keys: Array) -> Parts:
        """Return the rows of numbers, or those of no records."""
        at = self._long.find(keys)
        here = at >= 0
        if here.all():
            return take_rows(self._long.parts, at)
        rows = self._layout.empty(len(keys))
        put_rows(rows, here, take_rows(self._long.parts, at[here]))
        rest = np.flatnonzero(~here)
        at = self._short.find(keys[rest])
        here = at >= 0
        put_rows(rows, rest[here], take_rows(self._short.parts, at[here]))
        return rows

    def write(self, keys: Array, rows: Parts) -> None:
        """Write the rows of numbers, which are distinct and ascending."""
        for run in (self._long, self._short):
            at = run.find(keys)
            here = at >= 0
            put_rows(run.parts, at[here], take_rows(rows, here))
            keys, rows = keys[~here], take_rows(rows, ~here)
        if len(keys):
            self._short = self._short.merge(keys, rows)
            if len(self._short.keys) > _FEW + len(self._long.keys) // 8:
                self._long = self._long.merge(self._short.keys, self._short.parts)
                self._short = _Run(keys[:0], self._layout.empty(0))

    def hold(self, keys: Array) -> Array:
        """Return a mask of the numbers that have a row."""
        return np.asarray((self._long.find(keys) >= 0) | (self._short.find(keys) >= 0))

    def __len__(self) -> int:
        return len(self._long.keys) + len(self._short.keys)

    def renumber(self, numbers: Array) -> None:
        """Change the number of each row to one that keeps their order."""
        self._long, self._short = (
            _Run(numbers[run.keys], run.parts) for run in (self._long, self._short)
        )


class MemoryStore:
    """Windowed rows in this process, which end with it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._numbers: dict[bytes, int] = {}
        self._names: list[bytes] = []
        self._panes: dict[int, SortedRows] = {}
        self._most = _SPARE

    def number_keys(self, names: pa.Array) -> Array:
        listed = names.to_pylist()
        numbers = self._numbers
        found = list(map(numbers.get, listed))
        if None in found:
            for position, name in enumerate(listed):
                if found[position] is None:
                    found[position] = numbers[name] = len(numbers)
                    self._names.append(name)
        return np.array(found, np.int64)

    def name_keys(self, numbers: Array) -> pa.Array:
        names = self._names
        return pa.array([names[number] for number in numbers.tolist()], pa.binary())

    def list_panes(self) -> list[int]:
        return sorted(self._panes)

    def list_keys(self, pane: int) -> Array:
        rows = self._panes.get(pane)
        return np.empty(0, np.int64) if rows is None else rows.keys

    def read(self, pane: int, keys: Array) -> Parts:
        rows = self._panes.get(pane)
        return self._layout.empty(len(keys)) if rows is None else rows.read(keys)

    def write(self, pane: int, keys: Array, rows: Parts) -> None:
        if pane not in self._panes:
            self._panes[pane] = SortedRows(self._layout)
        self._panes[pane].write(keys, rows)

    def hold(self, pane: int, keys: Array) -> Array:
        """Return a mask of the keys that have a row in a pane."""
        rows = self._panes.get(pane)
        return np.zeros(len(keys), np.bool_) if rows is None else rows.hold(keys)

    def count_rows(self, pane: int) -> int:
        """Return how many rows a pane has."""
        rows = self._panes.get(pane)
        return 0 if rows is None else len(rows)

    def replace(self, pane: int, rows: SortedRows) -> None:
        """Set all rows of a pane."""
        self._panes[pane] = rows

    def drop_before(self, pane: int) -> None:
        self.drop([each for each in self._panes if each < pane])

    def drop(self, panes: Collection[int]) -> None:
        """Remove the rows of panes that are here; numbers of keys no longer hold."""
        for each in panes:
            del self._panes[each]
        if panes and len(self._names) > self._most:
            self._forget_keys()

    def _forget_keys(self) -> None:
        """Remove the keys without rows, and number the others again."""
        listed = [rows.keys for rows in self._panes.values()]
        alive = np.unique(np.concatenate(listed)) if listed else np.empty(0, np.int64)
        self._most = 2 * len(alive) + _SPARE
        if 2 * len(alive) > len(self._names):
            return
        numbers = np.full(len(self._names), -1, np.int64)
        numbers[alive] = np.arange(len(alive))
        self._names = [self._names[number] for number in alive.tolist()]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        for rows in self._panes.values():
            rows.renumber(numbers)

    @property
    def numbered(self) -> int:
        """Return how many keys have a number."""
        return len(self._names)

    def dump(self) -> Iterable[tuple[int, bytes, list[Any]]]:
        """Yield each row as pane, key and JSON value, pane by pane."""
        for pane in self.list_panes():
            keys = self.list_keys(pane)
            values = self._layout.encode(self.read(pane, keys))
            for number, value in zip(keys.tolist(), values, strict=True):
                yield pane, self._names[number], value

    def load(self, rows: Iterable[tuple[int, bytes, Sequence[Any]]]) -> None:
        """Write rows that :meth:`dump` yielded."""
        panes: dict[int, tuple[list[bytes], list[Sequence[Any]]]] = {}
        for pane, name, value in rows:
            names, values = panes.setdefault(pane, ([], []))
            names.append(name)
            values.append(value)
        for pane, (names, values) in panes.items():
            keys = self.number_keys(pa.array(names, pa.binary()))
            order = np.argsort(keys)
            self.write(pane, keys[order], take_rows(self._layout.decode(values), order))


@dataclass(frozen=True, slots=True)
class StoredWindows:
    """Windows with their rows: the key of each by name, and its bounds."""

    names: list[bytes]
    begins: list[int]
    ends: list[int]
    rows: Parts

    def __len__(self) -> int:
        return len(self.names)


class KeyedWindowStore(Protocol):
    """Rows of windows that a key has by itself: sessions and sliding ones. One thread at a time."""

    def read(self, names: Sequence[bytes]) -> StoredWindows:
        """Return the windows of keys."""
        ...

    def read_before(self, end: int) -> StoredWindows:
        """Return the windows that end before a time."""
        ...

    def replace(self, old: Iterable[tuple[bytes, int, int]], new: StoredWindows) -> None:
        """Remove windows by key, begin and end, and write others."""
        ...


class MemoryKeyedWindows:
    """Windows by key in this process, which end with it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._places: dict[bytes, dict[tuple[int, int], int]] = {}
        self._owners: list[tuple[bytes, int] | None] = []
        self._ends = np.empty(0, np.int64)
        self._rows = layout.empty(0)
        self._free: list[int] = []

    def read(self, names: Sequence[bytes]) -> StoredWindows:
        places = self._places
        return self._take(
            [
                (name, begin, end, place)
                for name in names
                if name in places
                for (begin, end), place in places[name].items()
            ]
        )

    def read_before(self, end: int) -> StoredWindows:
        found = []
        for place in np.flatnonzero(self._ends < end).tolist():
            owner = self._owners[place]
            if owner is not None:
                found.append((owner[0], owner[1], int(self._ends[place]), place))
        return self._take(found)

    def _take(self, found: list[tuple[bytes, int, int, int]]) -> StoredWindows:
        names, begins, ends, places = map(list, zip(*found, strict=True)) if found else ([],) * 4
        return StoredWindows(names, begins, ends, take_rows(self._rows, np.array(places, int)))

    def replace(self, old: Iterable[tuple[bytes, int, int]], new: StoredWindows) -> None:
        for name, begin, end in old:
            place = self._places[name].pop((begin, end))
            if not self._places[name]:
                del self._places[name]
            self._owners[place] = None
            self._free.append(place)
        self._grow(len(new) - len(self._free))
        places = [self._free.pop() for _ in range(len(new))]
        for name, begin, end, place in zip(new.names, new.begins, new.ends, places, strict=True):
            self._places.setdefault(name, {})[begin, end] = place
            self._owners[place] = (name, begin)
            self._ends[place] = end
        put_rows(self._rows, np.array(places, int), new.rows)

    def _grow(self, missing: int) -> None:
        if missing > 0:
            size = len(self._owners)
            more = max(missing, size)
            self._owners += [None] * more
            self._ends = np.concatenate([self._ends, np.zeros(more, np.int64)])
            empty = self._layout.empty(more)
            self._rows = tuple(np.concatenate(pair) for pair in zip(self._rows, empty, strict=True))
            self._free += range(size, size + more)

    def dump(self) -> Iterable[tuple[bytes, int, int, list[Any]]]:
        """Yield each window as key, begin, end and JSON value."""
        found = self.read(sorted(self._places))
        values = self._layout.encode(found.rows)
        yield from zip(found.names, found.begins, found.ends, values, strict=True)

    def load(self, rows: Iterable[tuple[bytes, int, int, Sequence[Any]]]) -> None:
        """Write windows that :meth:`dump` yielded."""
        listed = list(rows)
        if listed:
            names, begins, ends, values = map(list, zip(*listed, strict=True))
            self.replace((), StoredWindows(names, begins, ends, self._layout.decode(values)))
