"""Shutting out the producers of former owners before a partition's offset is read."""

from __future__ import annotations

from dataclasses import replace
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
        self._doubted: tuple[Lease | None, frozenset[str]] = None, frozenset()

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

    def doubt(self, claim: Claim) -> Claim:
        """Return the claim with all producers of before to be shut out, once for each lease.

        To be used where the brokers have an offset in doubt for longer than any transaction lasts:
        shutting out ends that as well. Does not block for long.
        """
        with self._lock:
            doubted = _under(claim.lease, self._doubted)
            fresh = [i for i in claim.former_producers if i not in doubted]
            self._doubted = claim.lease, doubted.union(fresh)
            self._done = claim.lease, self._shut_out_under(claim.lease).difference(fresh)
        return replace(claim, unfenced=tuple(dict.fromkeys([*claim.unfenced, *fresh])))

    def _shut_out_under(self, lease: Lease) -> frozenset[str]:
        return _under(lease, self._done)


def _under(lease: Lease, known: tuple[Lease | None, frozenset[str]]) -> frozenset[str]:
    """Return what is known under one lease; nothing, where it is known under another."""
    remembered, ids = known
    return ids if remembered is lease else frozenset()
