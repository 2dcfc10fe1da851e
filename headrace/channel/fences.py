"""Shutting out the producers of former owners before a partition's offset is read."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.clock import Deadline
    from headrace.coordinators.claims import Claim
    from headrace.coordinators.lease import Lease
    from headrace.kafka.ports import OffsetStore


class Fences:
    """Remembers whom it shut out: the partitions of one former owner name the same producer.

    It remembers for as long as a lease lasts. The ids end with member epochs, and those begin
    again when ZooKeeper loses its data: a later producer may then have the id of one that was shut
    out. No lease outlives that, because the member's node is gone with the data.
    """

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self._lock = Lock()
        self._done: tuple[Lease | None, frozenset[str]] = None, frozenset()

    def are_up(self, claim: Claim) -> bool:
        """Whether nobody of before may commit any more. Does not block."""
        return self._shut_out_under(claim.lease).issuperset(claim.unfenced)

    def put_up(self, claim: Claim, deadline: Deadline) -> Claim:
        """Shut out whoever may still commit, and return the claim without them. Blocks.

        Raises:
            OffsetStoreError: one of them may still commit.
        """
        if not claim.unfenced:
            return claim
        with self._lock:
            done = self._shut_out_under(claim.lease)
            wanted = [i for i in claim.unfenced if i not in done]
            if wanted:
                self._store.fence(wanted, claim.partition, deadline)
                self._done = claim.lease, done.union(wanted)
        return claim.fenced()

    def _shut_out_under(self, lease: Lease) -> frozenset[str]:
        remembered, done = self._done
        return done if remembered is lease else frozenset()
