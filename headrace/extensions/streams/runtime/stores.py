"""The rows of operators' stores in a channel's state: their keys, and what a micro-batch changed.

All stores of a channel are in one state, and its changelog: ``KeyedSink.commit_with`` writes both.
A row's key is the store's name, then for windows their begin or end as 19 digits of milliseconds,
then the key of the group; so the rows of a window lie together. Its value is a list in JSON: the
latest time of a record, and the parts of each aggregate.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.streams.kernels.layout import put_rows
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

    def read(self, names: pa.Array) -> Parts:
        """Return the rows of keys, those of no records where there is none.

        Raises:
            StateStoreError: they cannot be read.
        """
        prefix, number = self._prefix, self._partition
        keys = [PartitionKey(number, prefix + name) for name in names.to_pylist()]
        found = self._state.get_many(keys)
        places = [at for at, row in enumerate(found) if row is not None and row.state is not None]
        rows = self._layout.empty(len(keys))
        if places:
            # read together: a call for each row takes longer than what it does
            texts = b",".join(found[at].state for at in places)  # type: ignore[union-attr,misc]
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


class StoredPanes(MemoryStore):
    """Rows of tumbling or hopping windows: those of open windows are in memory.

    ``pane`` is the length of a pane in milliseconds.
    """

    def __init__(self, store: str, layout: Layout, pane: int) -> None:
        super().__init__(layout)
        self._store = store
        self._own_layout = layout
        self._pane = pane
        self._changed: list[tuple[int, pa.Array, Parts | None]] = []

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        end = _DIGITS + 1
        self.load(
            (int(key[:_DIGITS]) // self._pane, key[end:], json.loads(value)) for key, value in rows
        )
        self._changed.clear()

    @override
    def write(self, pane: int, keys: Array, rows: Parts) -> None:
        super().write(pane, keys, rows)
        self._changed.append((pane, self.name_keys(keys), rows))

    @override
    def drop_before(self, pane: int) -> None:
        for each in self.list_panes():
            if each < pane:
                self._changed.append((each, self.name_keys(self.list_keys(each)), None))
        super().drop_before(pane)

    def take_changes(self) -> Iterator[ChangedRow]:
        """Yield the rows that changed since the last call."""
        changed, self._changed = self._changed, []
        found: dict[bytes, bytes | None] = {}
        for pane, names, rows in changed:
            prefix = _pane_prefix(self._store, pane * self._pane)
            keys = [prefix + name for name in names.to_pylist()]
            if rows is None:
                found.update(dict.fromkeys(keys))
            else:
                values = self._own_layout.encode_texts(rows)
                found.update(zip(keys, values, strict=True))
        yield from found.items()


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
