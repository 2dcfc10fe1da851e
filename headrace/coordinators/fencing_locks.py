"""Locks under which former owners' producers are shut out: by one member after the other."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING

from headrace.coordinators.znodes import GroupPaths
from headrace.core.errors import HeadraceError
from headrace.kafka.errors import OffsetStoreError
from headrace.zookeeper.errors import NodeExistsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.core.clock import Deadline
    from headrace.zookeeper.protocol import Session

#: Seconds between two tries to have the lock; shutting out takes some tenths of a second.
_RETRY = 0.05


class FencingLocks:
    """Keeps members that take over from the same former owner from one another's way.

    Each begins again under the former producer's id, which aborts whatever is open under it: also
    the transaction by which another just finishes a commit that the brokers had decided. So each
    has an ephemeral node for it, which ends with its session at the latest. Any thread of one
    channel; blocks.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._paths = GroupPaths(group)

    @contextmanager
    def __call__(self, transactional_id: str, deadline: Deadline) -> Iterator[None]:
        """Hold the lock while the block runs.

        Raises:
            OffsetStoreError: another member has it, or ZooKeeper did not answer.
        """
        path = self._paths.fencing_lock(transactional_id)
        if not self._wait_for(path, transactional_id, deadline):
            raise OffsetStoreError(
                f"another member is shutting {transactional_id!r} out ({path}); it is tried again"
            )
        try:
            yield
        finally:
            # what cannot be deleted ends with the session, and is ours until then
            with suppress(HeadraceError):
                self._session.delete(path)

    def _wait_for(self, path: str, transactional_id: str, deadline: Deadline) -> bool:
        """Acquire the lock once it is free; return False if that took too long."""
        try:
            self._session.ensure(self._paths.fencing)
            while not self._try_lock(path):
                if deadline.remaining <= _RETRY:
                    return False
                Event().wait(_RETRY)
        except HeadraceError as error:
            raise OffsetStoreError(
                f"{transactional_id!r} is not shut out, as ZooKeeper gives no lock: {error}"
            ) from error
        return True

    def _try_lock(self, path: str) -> bool:
        try:
            self._session.create(path, ephemeral=True)
        except NodeExistsError:
            found = self._session.exists(path)
            # one channel shuts out one producer at a time: a lock of ours was left
            return found is not None and found.owner_session == self._session.session_id
        return True
