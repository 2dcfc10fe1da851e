"""Shutting out the producers of former owners before a partition's offset is read."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.clock import Deadline
    from headrace.coordinators.claims import Claim
    from headrace.kafka.ports import OffsetStore


class Fences:
    """Remembers whom it shut out: the partitions of one former owner name the same producer."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self._lock = Lock()
        self._done: set[str] = set()

    def are_up(self, claim: Claim) -> bool:
        """Whether nobody of before may commit any more. Does not block."""
        return self._done.issuperset(claim.unfenced)

    def put_up(self, claim: Claim, deadline: Deadline) -> Claim:
        """Shut out whoever may still commit, and return the claim without them. Blocks.

        Raises:
            OffsetStoreError: one of them may still commit.
        """
        if not claim.unfenced:
            return claim
        with self._lock:
            wanted = [i for i in claim.unfenced if i not in self._done]
            if wanted:
                self._store.fence(wanted, deadline)
                self._done.update(wanted)
        return claim.fenced()
