"""The rows of a task in its channel's state, as its operators read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.extensions.keyed.row import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.keyed.state import LayeredState


class TaskRows:
    """Reads rows with all that is staged. Any thread; each call blocks.

    Their keys begin with the name of a store.

    Raises:
        StateStoreError: by each method, where rows cannot be read.
    """

    def __init__(self, state: LayeredState, partition: int) -> None:
        self._state = state
        self.partition = partition

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of rows, None where there is none."""
        found = self._state.get_many([PartitionKey(self.partition, key) for key in keys])
        return [None if row is None else row.state for row in found]

    def read_all(self, prefix: bytes) -> dict[bytes, bytes]:
        """Return the values of all rows whose keys begin so, by the rest of their keys."""
        found = self._state.rows_of(self.partition, prefix).items()
        start = len(prefix)
        return {key[start:]: row.state for key, row in found if row.state is not None}

    def list_heads(self, prefix: bytes, length: int) -> set[bytes]:
        """Return what follows ``prefix`` in keys, as far as ``length`` bytes, each once."""
        return self._state.heads_of(self.partition, prefix, length)
