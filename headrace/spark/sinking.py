"""The end of every engine's way: what a job made goes into the sink, or is thrown away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.spark.sinks.moving import move_offset, move_without_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.records import TopicPartition
    from headrace.spark.sinks.contract import OffsetMove, PartitionCommit, Sink


@dataclass(frozen=True, slots=True)
class Staged:
    """A micro-batch that was computed and is not committed yet.

    ``sink`` is the sink's own. ``skipped`` has the offsets of undecodable records that were left
    out, by partition.
    """

    sink: Any
    skipped: Mapping[TopicPartition, Sequence[int]]


class SinkEngine:
    """What engines have in common: a sink of their own. They differ in how they stage."""

    def __init__(self, sink: Sink[Any]) -> None:
        self._sink = sink

    def stored_offset(self, identity: str) -> int | None:
        """Return the sink's offset for a partition. May block."""
        return self._sink.stored_offset(identity)

    def skipped(self, staged: Staged) -> Mapping[TopicPartition, Sequence[int]]:
        """Return the offsets of undecodable records that the reducer did not get."""
        return staged.skipped

    def commit(self, staged: Staged, offsets: Sequence[PartitionCommit]) -> None:
        """Make the result and the offsets visible, both or neither; see :meth:`Sink.commit`."""
        self._sink.commit(staged.sink, offsets)

    def discard(self, staged: Staged) -> None:
        """Remove a result that will not be committed."""
        self._sink.discard(staged.sink)

    def move(self, offsets: Sequence[PartitionCommit]) -> None:
        """Move the sink's offsets without data, as a micro-batch without a result does."""
        move_without_data(self._sink, offsets)

    def move_to(self, move: OffsetMove, note: str) -> None:
        """Move one of the sink's offsets forward or back. Any thread; blocks.

        Raises:
            HeadraceError: the sink keeps offsets and cannot move them.
        """
        move_offset(self._sink, move, note)
