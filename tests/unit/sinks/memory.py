"""An exactly-once sink in memory, which can be made to fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.errors import SinkConflictError
from headrace.sinks.contract import Guarantee
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.sinks.contract import OffsetMove, PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch


@dataclass
class Store:
    """Hold stored rows, and errors that the next commits raise."""

    rows: list[Any] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    discarded: list[Any] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    is_open: bool = False


class Fixed:
    """A sink on a store, whose offsets cannot be moved."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, store: Store, name: str = "") -> None:
        self.store = store
        self.name = name

    def open(self) -> None:
        """Record that the sink is open."""
        self.store.is_open = True

    def stored_offset(self, identity: str) -> int | None:
        """Return what is stored."""
        return self.store.offsets.get(identity)

    def stage(self, micro_batch: MicroBatch, result: Any) -> list[Any]:
        """Keep the rows, which are a list here, or a table."""
        del micro_batch
        return list(result.to_pylist() if hasattr(result, "to_pylist") else result or [])

    def commit(self, staged: list[Any], offsets: Sequence[PartitionCommit]) -> None:
        """Store all of it, or raise the next error."""
        self.store.journal.append(self.name)
        if self.store.errors:
            raise self.store.errors.pop(0)
        self._move(offsets)
        self.store.rows += staged

    def _move(self, offsets: Sequence[PartitionCommit] | Sequence[OffsetMove]) -> None:
        conflicts = [
            SinkConflictError(each.partition, each.start, stored)
            for each in offsets
            if (stored := self.stored_offset(each.identity)) not in {None, each.start}
        ]
        if conflicts:
            raise CommitConflictError(conflicts)
        self.store.offsets.update({each.identity: each.next_offset for each in offsets})

    def discard(self, staged: list[Any]) -> None:
        """Record the discarded result."""
        self.store.discarded.append(staged)

    def close(self) -> None:
        """Record that the sink is closed."""
        self.store.is_open = False


class Movable(Fixed):
    """A sink on a store, whose offsets can be moved."""

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move them, or raise the next error."""
        assert note
        if self.store.errors:
            raise self.store.errors.pop(0)
        self._move(moves)


class Loose(Fixed):
    """A sink on a store that keeps no offsets."""

    guarantee = Guarantee.AT_LEAST_ONCE

    def stored_offset(self, identity: str) -> int | None:
        """Return None: it keeps none."""
        del identity
        return None
