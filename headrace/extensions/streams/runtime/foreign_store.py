"""Joins by a foreign key, as rows of a channel's state.

On the left side a row is a result, with the time of the right row in it. On the right side it says
that a left row wants a right one: its key has both keys, the length of the first before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from headrace.extensions.streams.inline.foreign import Answered, Subscriptions
from headrace.extensions.streams.runtime.stores import Changes, rows_prefix
from headrace.extensions.streams.runtime.table_store import ChangingTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from headrace.extensions.streams.rows import Row

#: The value of a row whose key says all.
_THERE = b"true"


class StoredAnswers(ChangingTable, Answered):
    """The results of a join by a foreign key, which tell what of them changed. One thread.

    ``mark`` is the key of the row that says that all left rows have asked, and ``is_marked``
    whether it is there.
    """

    def __init__(self, store: str, row: type[Row]) -> None:
        super().__init__(store, row)
        self.mark = f"{store}:asked".encode()
        self.is_marked = False

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        for key, held, said in self._format.read(rows):
            self.rows[key] = held
            self.set_right_time(key, said["right"])

    @override
    def take_changes(self) -> Iterable[Changes]:
        marked = [] if self.is_marked else [Changes.of({self.mark: _THERE})]
        self.is_marked = True
        return [*marked, *super().take_changes()]

    @override
    def _describe(self, key: bytes) -> Mapping[str, Any]:
        return {"right": self.right_times.get(key)}


class StoredSubscriptions(Subscriptions):
    """The left rows that want each right row, which tell what of them changed. One thread."""

    def __init__(self, store: str) -> None:
        super().__init__()
        self._prefix = rows_prefix(store)
        self._changed: dict[bytes, bytes | None] = {}

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        for row, _ in rows:
            length, _, names = row.partition(b"/")
            size = int(length)
            super().add(names[:size], names[size + 1 :])

    @override
    def add(self, foreign_key: bytes, key: bytes) -> None:
        if key not in self.by_key.get(foreign_key, ()):
            self._changed[self._row(foreign_key, key)] = _THERE
        super().add(foreign_key, key)

    @override
    def remove(self, foreign_key: bytes, key: bytes) -> None:
        if key in self.by_key.get(foreign_key, ()):
            self._changed[self._row(foreign_key, key)] = None
        super().remove(foreign_key, key)

    def _row(self, foreign_key: bytes, key: bytes) -> bytes:
        return self._prefix + b"%d/%b/%b" % (len(foreign_key), foreign_key, key)

    def take_changes(self) -> Iterable[Changes]:
        """Return the rows that changed since the last call."""
        changed, self._changed = self._changed, {}
        return [Changes.of(changed)]
