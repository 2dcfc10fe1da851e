"""The second thread of a micro-batch: results into the sink, and offsets moved without data."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.errors import HeadraceError
from headrace.sinks.contract import (
    BatchCommitSink,
    PartialSink,
    StoredLeaderEpochs,
    TransactionalOffsets,
    results_of,
)
from headrace.sinks.micro_batch import MicroBatch
from headrace.sinks.several import SeveralSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.core.clock import Deadline
    from headrace.core.records import Batch, TopicPartition
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Sink


def move_without_data(sink: Sink[Any], offsets: Sequence[PartitionCommit]) -> None:
    """Commit offsets as a micro-batch without a result does. Blocks."""
    micro_batch = MicroBatch(uuid.uuid4().hex[:16], "", ())
    sink.commit(sink.stage(micro_batch, None), offsets)


def move_offset(sink: Sink[Any], move: OffsetMove, note: str) -> None:
    """Move one offset forward or back, as an operator asks. Any thread; blocks.

    Raises:
        HeadraceError: the sink keeps offsets and cannot move them.
    """
    if not isinstance(sink, TransactionalOffsets):
        name = type(sink).__name__
        raise HeadraceError(f"{name} keeps offsets and has no move_offsets; give it one")
    sink.move_offsets([move], note)


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Staged:
    """A micro-batch that was computed and is not committed yet.

    ``sink`` is the sink's own. ``skipped`` has the offsets of undecodable records that were left
    out, by partition.
    """

    sink: Any
    skipped: Mapping[TopicPartition, Sequence[int]]


class CommitThread:
    """Calls ``run_once`` again and again on one thread, until it is stopped and finds nothing.

    ``run_once`` says whether it found something, and waits for a fraction of a second at most
    where there is nothing. An exception from it is logged and does not end the thread.
    """

    def __init__(self, name: str, run_once: Callable[[], bool]) -> None:
        self._name = name
        self._run_once = run_once
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread once it finds nothing to do; say whether it ended by the deadline."""
        self._stopping.set()
        return deadline.joined(self._thread)

    def _run(self) -> None:
        while self._found_something() or not self._stopping.is_set():
            pass

    def _found_something(self) -> bool:
        try:
            return self._run_once()
        except Exception:
            log.exception("lane_failed", lane=self._name)
            return False


class SinkEngine:
    """What engines have in common: a sink of their own, and the thread that commits to it.

    They differ in how they stage, which they do on a thread of theirs meanwhile.
    """

    def __init__(self, sink: Sink[Any]) -> None:
        self._sink = sink
        self._commit_lock = threading.Lock()
        self._commits: CommitThread | None = None

    def _start_commits(self, channel: str, commit: Callable[[], bool]) -> None:
        self._commits = CommitThread(f"sink-{channel}", commit)
        self._commits.start()

    def _close_sink(self, deadline: Deadline) -> bool:
        """End the commits, after the lane, and close the sink; say whether they ended in time."""
        ended = self._commits is None or self._commits.stop(deadline)
        self._sink.close()
        return ended

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

    def checked(self, result: object, check: Callable[[object], Any]) -> Any:
        """Return what a reducer returned: one result, or with several outputs one for each.

        Raises:
            TypeError: it is something else, or names an output that there is not.
        """
        if not isinstance(self._sink, SeveralSink) or result is None:
            return check(result)
        return results_of(result, check, self._sink.names)

    def skipped(self, staged: Staged) -> Mapping[TopicPartition, Sequence[int]]:
        """Return the offsets of undecodable records that the reducer did not get."""
        return staged.skipped

    @property
    def groups(self) -> bool:
        """Whether the sink takes several results in one transaction."""
        return isinstance(self._sink, BatchCommitSink)

    def commit(self, staged: Sequence[Staged], offsets: Sequence[PartitionCommit]) -> None:
        """Make results and offsets visible, all of it or nothing.

        See :meth:`Sink.commit` and :meth:`BatchCommitSink.commit_all`; several where it ``groups``.
        """
        with self._commit_lock:
            if len(staged) == 1:
                self._sink.commit(staged[0].sink, offsets)
            else:
                assert isinstance(self._sink, BatchCommitSink), "one at a time, then"
                self._sink.commit_all([each.sink for each in staged], offsets)

    def discard(self, staged: Staged) -> None:
        """Remove a result that will not be committed."""
        self._sink.discard(staged.sink)

    def move(self, offsets: Sequence[PartitionCommit]) -> None:
        """Move the sink's offsets without data, as a job without a result does. Any thread."""
        with self._commit_lock:
            move_without_data(self._sink, offsets)

    def move_to(self, move: OffsetMove, note: str) -> None:
        """Move one of the sink's offsets forward or back. Any thread; blocks.

        Raises:
            HeadraceError: the sink keeps offsets and cannot move them.
        """
        move_offset(self._sink, move, note)
