"""The rows of a reducer in a channel's state: a state in JSON and timers, by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.extensions.streams.runtime.stores import Changes, rows_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.extensions.streams.runtime.task_rows import TaskRows


class StoredReducer:
    """Rows of a reducer, read from the state as records and timers need them. One thread."""

    def __init__(self, store: str, rows: TaskRows) -> None:
        self._prefix = rows_prefix(store)
        self._rows = rows
        self._changed: dict[bytes, bytes | None] = {}
        self._formers: dict[bytes, bytes | None] = {}

    def read(self, key: bytes) -> bytes | None:
        """Return the row of a key, None where there is none.

        Raises:
            StateStoreError: it cannot be read.
        """
        own = self._prefix + key
        if own in self._changed:
            return self._changed[own]
        if own not in self._formers:
            (self._formers[own],) = self._rows.read([own])
        return self._formers[own]

    def write(self, key: bytes, value: bytes | None) -> None:
        """Write the row of a key; None deletes it."""
        self._changed[self._prefix + key] = value

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Return all rows with their keys, without those that changed since."""
        return self._rows.read_all(self._prefix).items()

    def take_changes(self) -> Iterable[Changes]:
        """Return the rows that changed since the last call."""
        changed, self._changed = self._changed, {}
        formers, self._formers = self._formers, {}
        return [Changes.of(changed, formers)]
