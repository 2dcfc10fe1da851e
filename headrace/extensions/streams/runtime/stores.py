"""The rows of operators' stores in a channel's state: their keys, and what a micro-batch changed.

All stores of a channel are in one state, and its changelog: ``KeyedSink.commit_with`` writes both.
A row's key is the store's name, then for windows their begin or end as 19 digits of milliseconds,
then the key of the group; so the rows of a window lie together. Its value is a list in JSON: the
latest time of a record, and the parts of each aggregate.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from headrace.extensions.streams.kernels.layout import take_rows
from headrace.extensions.streams.kernels.records import NO_TIME
from headrace.extensions.streams.kernels.stores import MemoryKeyedWindows, MemoryStore, SortedRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.kernels.stores import StoredWindows
    from headrace.extensions.streams.runtime.task_rows import TaskRows
    from headrace.extensions.streams.runtime.window_room import WindowRoom

#: Digits of a time in a row's key: as many as 64 bits have.
_DIGITS = 19

#: Bytes of memory of a row of a window without its key and value, with its key's number.
_ROW_BYTES = 250


class Changes(NamedTuple):
    """The rows that changed, by column: keys, values, and the values before.

    A value is null where there is no row. ``formers`` is None where they are not known.
    """

    keys: pa.Array
    values: pa.Array
    formers: pa.Array | None = None

    @classmethod
    def of(
        cls,
        changed: Mapping[bytes, bytes | None],
        formers: Mapping[bytes, bytes | None] | None = None,
    ) -> Changes:
        """Return the rows with these keys; ``formers`` may have others, or not all of them."""
        keys, values = _binary(changed), _binary(changed.values())
        if formers is None or not changed.keys() <= formers.keys():
            return cls(keys, values)
        return cls(keys, values, _binary(map(formers.__getitem__, changed)))


def _binary(values: Iterable[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


class ChangingStore(Protocol):
    """A store of an operator that tells what changed."""

    def take_changes(self) -> Iterable[Changes]:
        """Return the rows that changed since the last call, each once."""
        ...


def time_in_key(time: int) -> bytes:
    """Return a time as keys of rows have it: they are in its order."""
    return b"%0*d" % (_DIGITS, time)


def split_times(key: bytes, count: int) -> tuple[list[int], bytes]:
    """Return the times that a row's key without the store begins with, and the group's key."""
    *times, name = key.split(b"/", count)
    return [int(each) for each in times], name


def rows_prefix(store: str) -> bytes:
    """Return what the keys of a store's rows begin with."""
    return f"{store}/".encode()


def time_key(store: str) -> bytes:
    """Return the key of the row with the operator time of a store."""
    return f"{store}:time".encode()


def times_prefix(store: str, *times: int) -> bytes:
    """Return what the keys of a store's rows of a window begin with, by its times."""
    return b"/".join([store.encode(), *map(time_in_key, times), b""])


def read_time(rows: TaskRows, store: str) -> int:
    """Return the operator time of a store in a task, ``NO_TIME`` before any record."""
    (value,) = rows.read([time_key(store)])
    return NO_TIME if value is None else int(value)


class StoredGroups:
    """Rows of groups by key, read from the state as a micro-batch needs them."""

    def __init__(self, store: str, layout: Layout, rows: TaskRows) -> None:
        self._prefix = rows_prefix(store)
        self._layout = layout
        self._rows = rows
        self._changed: dict[bytes, bytes] = {}
        self._formers: dict[bytes, bytes | None] = {}

    def read(self, names: pa.Array) -> Parts:
        """Return the rows of keys, those of no records where there is none.

        Raises:
            StateStoreError: they cannot be read.
        """
        keys = [self._prefix + name for name in names.to_pylist()]
        found = self._rows.read(keys)
        self._formers.update(zip(keys, found, strict=True))
        return self._layout.decode_texts(found)

    def write(self, names: pa.Array, rows: Parts) -> None:
        """Write the rows of keys."""
        keys = (self._prefix + name for name in names.to_pylist())
        values = self._layout.encode_texts(rows).to_pylist()
        self._changed.update(zip(keys, values, strict=True))

    def take_changes(self) -> Iterable[Changes]:
        """Return the rows that changed since the last call."""
        changed, self._changed = self._changed, {}
        formers, self._formers = self._formers, {}
        return [Changes.of(changed, formers)]


class _ChangedPane(NamedTuple):
    """Rows of a pane before and after a change; None: they are deleted."""

    pane: int
    names: pa.Array
    before: Parts
    after: Parts | None


class StoredPanes(MemoryStore):
    """Rows of tumbling or hopping windows, of which those in use are in memory.

    A pane is cold while the state may have rows of it that are not in memory. A key's row is read
    from there when a record of the key comes, and all rows of the pane when its last window is
    over. ``pane`` is the length of a pane in milliseconds.
    """

    def __init__(
        self, store: str, layout: Layout, pane: int, rows: TaskRows, room: WindowRoom
    ) -> None:
        """List the panes that the state has.

        Raises:
            StateStoreError: it cannot be read.
        """
        super().__init__(layout)
        self._store = store
        self._own_layout = layout
        self._pane = pane
        self._rows, self._room = rows, room
        heads = rows.list_heads(rows_prefix(store), _DIGITS)
        self._cold = {int(head) // pane for head in heads}
        #: Bytes of the largest row of those that were written last.
        self._size_of_row = 0
        #: The panes in memory, that which was written last at the end.
        self._written: dict[int, None] = {}
        self._changed: list[_ChangedPane] = []

    @override
    def list_panes(self) -> list[int]:
        return sorted({*super().list_panes(), *self._cold})

    @override
    def list_keys(self, pane: int) -> Array:
        if pane in self._cold:
            self._read_pane(pane)
        return super().list_keys(pane)

    @override
    def read(self, pane: int, keys: Array) -> Parts:
        if pane in self._cold:
            self._read_keys(pane, keys)
        return super().read(pane, keys)

    def _read_keys(self, pane: int, keys: Array) -> None:
        """Read rows of a cold pane into memory; where there is none, that of no records."""
        missing = np.sort(keys[~self.hold(pane, keys)])
        if len(missing):
            prefix = times_prefix(self._store, pane * self._pane)
            names = [prefix + name for name in self.name_keys(missing).to_pylist()]
            rows = self._own_layout.decode_texts(self._rows.read(names))
            super().write(pane, missing, rows)
            self._written.setdefault(pane)

    def _read_pane(self, pane: int) -> None:
        """Read all rows of a cold pane that are not in memory."""
        prefix = times_prefix(self._store, pane * self._pane)
        found = self._rows.read_all(prefix)
        numbers = self.number_keys(pa.array([*found], pa.binary()))
        order = np.argsort(numbers)
        rows = SortedRows(self._own_layout)
        values = self._own_layout.decode_texts([*found.values()])
        rows.write(numbers[order], take_rows(values, order))
        known = super().list_keys(pane)
        in_memory = super().read(pane, known)
        # among these are keys without a row, which were looked for
        there = self._own_layout.present(in_memory)
        rows.write(known[there], take_rows(in_memory, there))
        self.replace(pane, rows)
        self._cold.discard(pane)
        self._written.setdefault(pane)

    @override
    def write(self, pane: int, keys: Array, rows: Parts) -> None:
        before = self.read(pane, keys)
        super().write(pane, keys, rows)
        self._written.pop(pane, None)
        self._written[pane] = None
        self._changed.append(_ChangedPane(pane, self.name_keys(keys), before, rows))

    @override
    def drop_before(self, pane: int) -> None:
        for each in self.list_panes():
            if each < pane:
                keys = self.list_keys(each)
                before = self.read(each, keys)
                self._changed.append(_ChangedPane(each, self.name_keys(keys), before, None))
                self._written.pop(each, None)
        super().drop_before(pane)

    def take_changes(self) -> Iterable[Changes]:
        """Return the rows that changed since the last call, and keep fewer where there are many."""
        changed, self._changed = self._changed, []
        found = list(map(self._changes_of, changed))
        if len({each.pane for each in changed}) < len(changed):
            found = [_joined(found)]
        self._cool()
        return found

    def _changes_of(self, changed: _ChangedPane) -> Changes:
        prefix = times_prefix(self._store, changed.pane * self._pane)
        keys = pc.binary_join_element_wise(prefix, changed.names, b"")
        if changed.after is None:
            values = pa.nulls(len(keys), pa.binary())
        else:
            values = self._own_layout.encode_texts(changed.after)
            sizes = pc.add(pc.binary_length(keys), pc.binary_length(values))
            self._size_of_row = pc.max(sizes).as_py() or 0
        return Changes(keys, values, self._texts(changed.before))

    def _cool(self) -> None:
        """Drop rows from memory that the state has, of panes that were written longest ago."""
        each = self._size_of_row + _ROW_BYTES
        counts = {pane: self.count_rows(pane) for pane in self._written}
        size = each * sum(counts.values())
        most = self._room.share(self, size)
        if size <= most:
            return
        gone = []
        for pane, count in counts.items():
            gone.append(pane)
            size -= each * count
            if size <= most // 2:
                break
        self._room.share(self, size)
        for pane in gone:
            del self._written[pane]
        self._cold.update(gone)
        self.drop(gone)

    def _texts(self, rows: Parts) -> pa.Array:
        """Return the values of rows, null for those of no records."""
        there = self._own_layout.present(rows)
        if there.all():
            return self._own_layout.encode_texts(rows)
        values = self._own_layout.encode_texts(take_rows(rows, there))
        places = np.cumsum(there) - 1
        return values.take(pa.array(places, mask=~there))


def _joined(several: Sequence[tuple[pa.Array, ...]]) -> Changes:
    """Return changes one after the other as one: of several of a row the last one counts."""
    changed: dict[bytes, bytes | None] = {}
    formers: dict[bytes, bytes | None] = {}
    for keys, values, before in several:
        names = keys.to_pylist()
        changed.update(zip(names, values.to_pylist(), strict=True))
        # the first one has what was there
        formers = {**dict(zip(names, before.to_pylist(), strict=True)), **formers}
    return Changes.of(changed, formers)


class StoredWindowsByKey(MemoryKeyedWindows):
    """Rows of sessions or sliding windows, which are in memory until they are of no use."""

    def __init__(self, store: str, layout: Layout) -> None:
        super().__init__(layout)
        self._store = store
        self._own_layout = layout
        self._changed: dict[bytes, bytes | None] = {}

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        split = ((split_times(key, 2), value) for key, value in rows)
        self.load((name, begin, end, json.loads(value)) for ((end, begin), name), value in split)
        self._changed.clear()

    @override
    def replace(self, old: Iterable[tuple[bytes, int, int]], new: StoredWindows) -> None:
        gone = list(old)
        super().replace(gone, new)
        self._changed.update(dict.fromkeys(self._key(*each) for each in gone))
        keys = map(self._key, new.names, new.begins, new.ends)
        values = self._own_layout.encode_texts(new.rows).to_pylist()
        self._changed.update(zip(keys, values, strict=True))

    def _key(self, name: bytes, begin: int, end: int) -> bytes:
        return times_prefix(self._store, end, begin) + name

    def take_changes(self) -> Iterable[Changes]:
        """Return the rows that changed since the last call."""
        changed, self._changed = self._changed, {}
        return [Changes.of(changed)]
