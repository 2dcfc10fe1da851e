"""Where claimed partitions begin, read for all that are starting at once."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.channel.fences import Fences
    from headrace.channel.partition import OwnedPartition
    from headrace.clock import Deadline
    from headrace.kafka.ports import OffsetStore, StoredOffset


class StartOffsets:
    """Reads the group's offsets, after former owners are shut out. Any worker thread.

    A partition's offset is read after its claim, because before that another owner may move it.
    So what is read for one partition is read for all others that were claimed meanwhile: a
    request for each would cost more than all else in a large rebalance. It is kept for the very
    claim it was read for: after ZooKeeper lost its data, a later one may have the same epochs.

    A partition that failed is read by itself from then on, and holds up nobody: one that cannot be
    read, because a transaction has its offset in doubt, fails all that are asked for with it.
    """

    def __init__(
        self, store: OffsetStore, fences: Fences, held: Callable[[], Iterable[OwnedPartition]]
    ) -> None:
        self._store = store
        self._fences = fences
        self._held = held
        self._lock = Lock()
        self._found: dict[OwnedPartition, StoredOffset | None] = {}
        self._answered: WeakSet[OwnedPartition] = WeakSet()

    def read(self, owned: OwnedPartition, deadline: Deadline) -> StoredOffset | None:
        """Return the group's offset, None if there is none; each call looks anew. Blocks.

        Raises:
            OffsetStoreError: no answer, or a former owner may still commit.
        """
        owned.claim = self._fences.put_up(owned.claim, deadline)
        if owned.attempts > 1:
            return self._store.find([owned.partition], deadline).get(owned.partition)
        with self._lock:
            if owned not in self._found:
                self._read(owned, deadline)
            self._answered.add(owned)
            return self._found.pop(owned)

    def _read(self, owned: OwnedPartition, deadline: Deadline) -> None:
        starting = {other for other in self._held() if self._awaits(other)} | {owned}
        found = self._store.find([other.partition for other in starting], deadline)
        self._found = {other: found.get(other.partition) for other in starting}

    def _awaits(self, owned: OwnedPartition) -> bool:
        """Whether its offset will be asked for, and nobody of before can move it any more."""
        return (
            owned not in self._answered
            and owned.attempts <= 1
            and owned.is_unresolved()
            and self._fences.are_up(owned.claim)
        )
