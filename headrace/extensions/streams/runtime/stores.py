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
from typing_extensions import override

from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.streams.kernels.layout import put_rows, take_rows
from headrace.extensions.streams.kernels.records import NO_TIME
from headrace.extensions.streams.kernels.stores import MemoryKeyedWindows, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.kernels.stores import StoredWindows

#: A row that changed: its key, and its value, None where it is deleted.
ChangedRow = tuple[bytes, "bytes | None"]

#: Digits of a time in a row's key: as many as 64 bits have.
_DIGITS = 19


class ChangingStore(Protocol):
    """A store of an operator that tells what changed."""

    def take_changes(self) -> Iterator[ChangedRow]:
        """Yield the rows that changed since the last call, each once."""
        ...


class KnowingStore(ChangingStore, Protocol):
    """A store that knows its rows before a micro-batch, so that they need not be read for it."""

    def take_formers(self) -> dict[bytes, bytes | None]:
        """Return the rows before the changes since the last call, by their keys; there may be more.

        A value is None where there was no row.
        """
        ...


def rows_prefix(store: str) -> bytes:
    """Return what the keys of a store's rows begin with."""
    return f"{store}/".encode()


def time_key(store: str) -> bytes:
    """Return the key of the row with the operator time of a store."""
    return f"{store}:time".encode()


def _pane_prefix(store: str, begin: int) -> bytes:
    return f"{store}/{begin:0{_DIGITS}d}/".encode()


def read_time(state: LayeredState, partition: int, store: str) -> int:
    """Return the operator time of a store in a partition, ``NO_TIME`` before any record."""
    (row,) = state.get_many([PartitionKey(partition, time_key(store))])
    return NO_TIME if row is None or row.state is None else int(row.state)


class StoredGroups:
    """Rows of groups by key, read from the state as a micro-batch needs them."""

    def __init__(self, store: str, layout: Layout, state: LayeredState, partition: int) -> None:
        self._prefix = rows_prefix(store)
        self._layout = layout
        self._state = state
        self._partition = partition
        self._changed: dict[bytes, bytes] = {}
        self._formers: dict[bytes, bytes | None] = {}

    def read(self, names: pa.Array) -> Parts:
        """Return the rows of keys, those of no records where there is none.

        Raises:
            StateStoreError: they cannot be read.
        """
        prefix, number = self._prefix, self._partition
        keys = [PartitionKey(number, prefix + name) for name in names.to_pylist()]
        found = [None if row is None else row.state for row in self._state.get_many(keys)]
        self._formers.update(zip((each.key for each in keys), found, strict=True))
        places = [at for at, state in enumerate(found) if state is not None]
        rows = self._layout.empty(len(keys))
        if places:
            # read together: a call for each row takes longer than what it does
            texts = b",".join(filter(None, found))
            put_rows(rows, places, self._layout.decode(json.loads(b"[" + texts + b"]")))
        return rows

    def write(self, names: pa.Array, rows: Parts) -> None:
        """Write the rows of keys."""
        keys = (self._prefix + name for name in names.to_pylist())
        self._changed.update(zip(keys, self._layout.encode_texts(rows), strict=True))

    def take_changes(self) -> Iterator[ChangedRow]:
        """Yield the rows that changed since the last call."""
        changed, self._changed = self._changed, {}
        yield from changed.items()

    def take_formers(self) -> dict[bytes, bytes | None]:
        """Return the rows that were read since the last call, as they were."""
        formers, self._formers = self._formers, {}
        return formers


class _ChangedPane(NamedTuple):
    """Rows of a pane before and after a change; None: they are deleted."""

    pane: int
    names: pa.Array
    before: Parts
    after: Parts | None


class StoredPanes(MemoryStore):
    """Rows of tumbling or hopping windows: those of open windows are in memory.

    ``pane`` is the length of a pane in milliseconds.
    """

    def __init__(self, store: str, layout: Layout, pane: int) -> None:
        super().__init__(layout)
        self._store = store
        self._own_layout = layout
        self._pane = pane
        self._changed: list[_ChangedPane] = []
        self._formers: dict[bytes, bytes | None] = {}

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        end = _DIGITS + 1
        self.load(
            (int(key[:_DIGITS]) // self._pane, key[end:], json.loads(value)) for key, value in rows
        )
        self._changed.clear()

    @override
    def write(self, pane: int, keys: Array, rows: Parts) -> None:
        before = self.read(pane, keys)
        super().write(pane, keys, rows)
        self._changed.append(_ChangedPane(pane, self.name_keys(keys), before, rows))

    @override
    def drop_before(self, pane: int) -> None:
        for each in self.list_panes():
            if each < pane:
                keys = self.list_keys(each)
                before = self.read(each, keys)
                self._changed.append(_ChangedPane(each, self.name_keys(keys), before, None))
        super().drop_before(pane)

    def take_changes(self) -> Iterator[ChangedRow]:
        """Yield the rows that changed since the last call."""
        changed, self._changed = self._changed, []
        found: dict[bytes, bytes | None] = {}
        for each in changed:
            prefix = _pane_prefix(self._store, each.pane * self._pane)
            keys = [prefix + name for name in each.names.to_pylist()]
            before = dict(zip(keys, self._texts(each.before), strict=True))
            # of several changes of a row the first one has what was there
            self._formers = {**before, **self._formers}
            if each.after is None:
                found.update(dict.fromkeys(keys))
            else:
                values = self._own_layout.encode_texts(each.after)
                found.update(zip(keys, values, strict=True))
        yield from found.items()

    def _texts(self, rows: Parts) -> list[bytes | None]:
        """Return the values of rows, None for those of no records."""
        there = self._own_layout.present(rows)
        texts: list[bytes | None] = [None] * len(there)
        values = self._own_layout.encode_texts(take_rows(rows, there))
        for at, value in zip(np.flatnonzero(there).tolist(), values, strict=True):
            texts[at] = value
        return texts

    def take_formers(self) -> dict[bytes, bytes | None]:
        """Return the rows before the changes that were taken last."""
        formers, self._formers = self._formers, {}
        return formers


class StoredWindowsByKey(MemoryKeyedWindows):
    """Rows of sessions or sliding windows, which are in memory until they are of no use."""

    def __init__(self, store: str, layout: Layout) -> None:
        super().__init__(layout)
        self._store = store
        self._own_layout = layout
        self._changed: dict[bytes, bytes | None] = {}

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        first, second = _DIGITS + 1, 2 * (_DIGITS + 1)
        self.load(
            (key[second:], int(key[first : second - 1]), int(key[:_DIGITS]), json.loads(value))
            for key, value in rows
        )
        self._changed.clear()

    @override
    def replace(self, old: Iterable[tuple[bytes, int, int]], new: StoredWindows) -> None:
        gone = list(old)
        super().replace(gone, new)
        self._changed.update(dict.fromkeys(self._key(*each) for each in gone))
        keys = map(self._key, new.names, new.begins, new.ends)
        self._changed.update(zip(keys, self._own_layout.encode_texts(new.rows), strict=True))

    def _key(self, name: bytes, begin: int, end: int) -> bytes:
        return _pane_prefix(self._store, end) + f"{begin:0{_DIGITS}d}/".encode() + name

    def take_changes(self) -> Iterator[ChangedRow]:
        """Yield the rows that changed since the last call."""
        changed, self._changed = self._changed, {}
        yield from changed.items()
