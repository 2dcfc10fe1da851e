"""A channel's sink, as the processor of its micro-batches uses it."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.errors import HeadraceError
from headrace.sinks.contract import (
    BatchCommitSink,
    CopyingSink,
    PartialSink,
    StoredLeaderEpochs,
    TransactionalOffsets,
    results_of,
)
from headrace.sinks.micro_batch import MicroBatch
from headrace.sinks.several import SeveralSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.core.records import Batch, ResultRecord, TopicPartition
    from headrace.core.undecodable import Undecodable
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Sink


def _nothing() -> None:
    """Return at once, for engines that keep nothing."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A micro-batch that was computed and is not committed yet.

    ``kept`` is the sink's own. ``skipped`` has the offsets of undecodable records that were left
    out, by partition, and ``keyless`` those of records that could not be re-keyed. ``rejected`` are
    undecodable records that have to be in the dead-letter topic before it is committed. ``release``
    lets go what the engine keeps for it, and is called once it is committed or discarded.
    """

    kept: Any
    skipped: Mapping[TopicPartition, Sequence[int]]
    keyless: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    rejected: Undecodable = field(default_factory=dict)
    release: Callable[[], None] = _nothing


class ChannelSink:
    """Answers for every sink what only some can do, and has one thread at a time commit.

    What was staged is committed or discarded by its holder, once, and never both.
    """

    def __init__(self, sink: Sink[Any]) -> None:
        self._sink = sink
        self._commit_lock = threading.Lock()

    def open(self) -> None:
        """Open the sink. See :meth:`Sink.open`."""
        self._sink.open()

    def close(self) -> None:
        """Release what the sink has, after the last call."""
        self._sink.close()

    def stored_offset(self, identity: str) -> int | None:
        """Return the sink's offset for a partition. May block."""
        return self._sink.stored_offset(identity)

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return the leader epoch that the sink keeps with it. May block."""
        if not isinstance(self._sink, StoredLeaderEpochs):
            return None
        return self._sink.stored_leader_epoch(identity)

    def boundary(self, batch: Batch) -> int | None:
        """Return where a batch has to be cut, None where it need not be. Does not block."""
        if not isinstance(self._sink, PartialSink):
            return None
        found = self._sink.boundary(batch.assignment.identity, batch.start)
        return None if found is None or found >= batch.next_offset else found

    @property
    def groups(self) -> bool:
        """Return whether the sink takes several results in one transaction."""
        return isinstance(self._sink, BatchCommitSink)

    def stage(
        self, micro_batch: MicroBatch, returned: object, check: Callable[[object], Any]
    ) -> Any:
        """Keep what a reducer returned: one result, or with several outputs one for each.

        On the thread that runs the jobs; a DataFrame's runs here. An exception means that nothing
        is kept.

        Raises:
            TypeError: ``check`` refuses it, or it names an output that does not exist.
        """
        if isinstance(self._sink, SeveralSink) and returned is not None:
            result = results_of(returned, check, self._sink.names)
            return self._sink.stage(micro_batch, result)
        return self._sink.stage(micro_batch, check(returned))

    def stage_nothing(self, micro_batch: MicroBatch) -> Staged:
        """Keep that a micro-batch has no result; its offsets are stored all the same."""
        return Staged(self._sink.stage(micro_batch, None), {})

    def commit(
        self,
        staged: Sequence[Staged],
        offsets: Sequence[PartitionCommit],
        copies: Sequence[ResultRecord] = (),
    ) -> None:
        """Make results and offsets visible, all of it or nothing; several where it ``groups``.

        ``copies`` are records of ours that go to other topics in the same transaction.

        See :meth:`Sink.commit` and :meth:`BatchCommitSink.commit_all`. Where it fails nothing is
        discarded by that: of several each may still be committed by itself.
        """
        with self._commit_lock:
            if copies:
                assert isinstance(self._sink, CopyingSink), "the configuration demands one"
                self._sink.commit_with([each.kept for each in staged], offsets, copies)
            elif len(staged) == 1:
                self._sink.commit(staged[0].kept, offsets)
            else:
                assert isinstance(self._sink, BatchCommitSink), "one at a time, then"
                self._sink.commit_all([each.kept for each in staged], offsets)
        for each in staged:
            each.release()

    def discard(self, staged: Staged) -> None:
        """Remove a result that will not be committed."""
        try:
            self._sink.discard(staged.kept)
        finally:
            staged.release()

    def move(self, offsets: Sequence[PartitionCommit]) -> None:
        """Move offsets without data, as a micro-batch without a result does. Any thread; blocks."""
        micro_batch = MicroBatch(uuid.uuid4().hex[:16], "", ())
        with self._commit_lock:
            kept = self._sink.stage(micro_batch, None)
            try:
                self._sink.commit(kept, offsets)
            except BaseException:
                self._sink.discard(kept)
                raise

    def move_to(self, move: OffsetMove, note: str) -> None:
        """Move one offset forward or back, as an operator asks. Any thread; blocks.

        Raises:
            HeadraceError: the sink keeps offsets and cannot move them.
        """
        if not isinstance(self._sink, TransactionalOffsets):
            name = type(self._sink).__name__
            raise HeadraceError(f"{name} keeps offsets and has no move_offsets; give it one")
        self._sink.move_offsets([move], note)
