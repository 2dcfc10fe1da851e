"""Reading the state of a running channel: what is committed, for people and other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.keyed.fold import KeyRow
from headrace.keyed.restore import RestoreProgress
from headrace.keyed.store import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace.keyed.state import KeyedState, Progress
    from headrace.keyed.store import RocksStore, Size, StoredRow


class FoundKey(NamedTuple):
    """A key with its row, and where its partition is with it."""

    partition: int
    key: bytes
    row: KeyRow
    progress: Progress


class StatePartition(NamedTuple):
    """One held partition. ``restoring`` is None where its state is there.

    ``size`` is None while it is not counted: some moments more.
    """

    partition: int
    progress: Progress
    restoring: RestoreProgress | None = None
    size: Size | None = None


class StateReader:
    """Reads committed state only, whatever is staged. Any thread; what reads rows blocks.

    ``held`` returns the partitions that the channel has, ``restoring`` how far those are whose
    state is not there.

    Raises:
        StateStoreError: the store cannot be read, or the partition was given up meanwhile.
    """

    def __init__(
        self,
        state: KeyedState,
        store: RocksStore,
        held: Callable[[], Collection[int]],
        restoring: Callable[[], Mapping[int, RestoreProgress]],
    ) -> None:
        self._state = state
        self._store = store
        self._held = held
        self._restoring = restoring

    def partitions(self) -> list[StatePartition]:
        """Return the partitions that are held, by number. Does not block."""
        progress, held = self._restoring(), sorted(self._held())
        return [
            StatePartition(
                number,
                self._state.progress(number),
                None if ready else progress.get(number, RestoreProgress()),
                self._store.size(number) if ready else None,
            )
            for number in held
            for ready in [self._state.is_ready(number)]
        ]

    def find(self, key: bytes, partition: int | None = None) -> list[FoundKey]:
        """Return a key in each partition that has it, of those whose state is there."""
        wanted = [n for n in self._ready() if partition is None or n == partition]
        rows = ((n, *self._state.committed(PartitionKey(n, key))) for n in wanted)
        return [_found(n, key, row, progress) for n, row, progress in rows if row is not None]

    def page(
        self, prefix: bytes, after: tuple[int, bytes] | None, limit: int, partition: int | None
    ) -> list[FoundKey]:
        """Return up to ``limit`` keys that begin so, by partition and key, ``after`` one."""
        return list(self._page(prefix, after, limit, partition))

    def _page(
        self, prefix: bytes, after: tuple[int, bytes] | None, limit: int, partition: int | None
    ) -> Iterator[FoundKey]:
        for number in self._ready():
            if limit <= 0:
                return
            if (after is not None and number < after[0]) or partition not in {None, number}:
                continue
            last = after[1] if after is not None and number == after[0] else None
            rows, progress = self._state.committed_rows(number, prefix, last, limit)
            limit -= len(rows)
            yield from (_found(number, key, row, progress) for key, row in rows)

    def _ready(self) -> list[int]:
        return [number for number in sorted(self._held()) if self._state.is_ready(number)]


def _found(partition: int, key: bytes, row: StoredRow, progress: Progress) -> FoundKey:
    return FoundKey(partition, key, KeyRow.of(*row), progress)
