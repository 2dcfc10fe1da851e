"""The memory that windows' rows may take, of all tasks of a channel together."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Hashable


class WindowRoom:
    """Shares out bytes of memory among stores. Any thread.

    Each store says what it has, and gives up its part of what is too much when it asks. What a
    store had that is no more is free.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._sizes: WeakKeyDictionary[Hashable, int] = WeakKeyDictionary()

    def share(self, store: Hashable, size: int) -> int:
        """Set how many bytes a store has, and return how many of them it may keep."""
        with self._lock:
            self._sizes[store] = size
            total = sum(self._sizes.values())
        return size if total <= self._most else size * self._most // total
