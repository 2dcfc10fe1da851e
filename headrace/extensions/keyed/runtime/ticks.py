"""Ticks: timers of quiet partitions fire without records, and their offsets are stored again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import structlog

from headrace.core.errors import BatchCancelledError, HeadraceError, SinkConflictError
from headrace.core.records import Batch
from headrace.core.user_text import describe_error
from headrace.extensions.keyed.errors import CorruptStoreError
from headrace.processors.jobs import commits_of
from headrace.processors.pending import PendingBatch
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.core.records import Assignment
    from headrace.extensions.keyed.runtime.current import CurrentChannel
    from headrace.extensions.keyed.runtime.held import HeldPartition, HeldPartitions
    from headrace.extensions.keyed.runtime.parts import KeyedParts
    from headrace.extensions.keyed.runtime.restores import PartitionRestores
    from headrace.processors.contract import BatchResponse, ChannelContext
    from headrace.processors.engine import Engine
    from headrace.processors.pending import OpenBatches, PendingWork
    from headrace.processors.task_merge import TaskMerge

log = structlog.get_logger(__name__)

#: Seconds before a tick that failed is tried again; twice as long each further time.
BACKOFF, MAX_BACKOFF = 1.0, 60.0


class Ticks:
    """Queues empty batches of partitions without open ones. On the processor's own thread."""

    def __init__(  # noqa: PLR0917 - what a tick has to do with
        self,
        parts: KeyedParts,
        current: CurrentChannel,
        held: HeldPartitions,
        restores: PartitionRestores,
        batches: OpenBatches,
        merge: TaskMerge | None,
        engine: Engine,
        context: ChannelContext,
    ) -> None:
        self._merge = merge
        self._state = parts.state
        self._sink = parts.sink
        self._current = current
        self._held = held
        self._restores = restores
        self._batches = batches
        self._engine = engine
        self._context = context

    def tick_all(self, now: float) -> None:
        """Queue a tick of each partition where something is due. ``now`` is monotonic."""
        for held in self._held.that_may_tick(now):
            try:
                self._tick(held)
            except Exception as error:  # noqa: BLE001 - of the store; the thread goes on
                self._put_off(held, error)

    def _tick(self, held: HeldPartition) -> None:
        """Queue an empty batch where timers of a quiet partition are due."""
        assignment, state = held.assignment, self._state
        number = assignment.partition.partition
        if not held.is_current():
            return
        now = int(self._context.clock.time() * 1000)
        quiet = self.quiet_time(held, now)
        time = state.time(number)
        reached = time if quiet is None or time is None else max(time, quiet)
        if not state.due_keys(number, reached, now, besides=set(), most=1):
            return
        # asked for now: batches may have been committed since the look began
        offset = self._offset_of(assignment)
        if offset is None:
            return
        # what a tick that was withdrawn left is of a time when nothing came
        state.take_wanted_time(number)
        if quiet is not None:
            state.advance_time(number, quiet)
        pending = self._pending_tick(assignment, offset)
        pending.future.add_done_callback(lambda answer: self.end_tick(held, offset, answer))
        if not self._batches.put_if_idle(pending):
            # a later tick may not find it so quiet
            state.take_wanted_time(number)

    def _pending_tick(self, assignment: Assignment, offset: int) -> PendingWork:
        """Return work without records: of a partition, or of all those of its task."""
        batch = Batch(assignment, offset, (), offset, 0)
        prepared = self._engine.prepare(batch)
        if self._merge is None:
            return PendingBatch(batch, prepared)
        return self._merge.tick(assignment.partition, prepared)

    def quiet_time(self, held: HeldPartition, now: int) -> int | None:
        """Return what stream time may go on to in a partition whose end was reached, in ms."""
        idle = self._current.settings.quiet_after
        if idle is None or not all(map(_is_at_its_end, held.assignments)):
            return None
        quiet_for = self._context.clock.monotonic() - held.last_batch
        return now - int(idle * 1000) if quiet_for >= idle else None

    def end_tick(self, held: HeldPartition, offset: int, answer: Future[BatchResponse]) -> None:
        """Handle the result of a tick. On the thread that answers it."""
        error = answer.exception() if not answer.cancelled() else None
        if error is None:
            held.failures = 0
        elif isinstance(error, SinkConflictError):
            # unless a batch of ours came before it
            if not self._has_moved(held.assignment, offset):
                self._put_off(held, error)
                self._restores.catch_up(held.assignment)
        elif not isinstance(error, BatchCancelledError):
            self._put_off(held, error)

    def _put_off(self, held: HeldPartition, error: BaseException) -> None:
        """Delay a partition's next tick."""
        if isinstance(error, CorruptStoreError):
            self._restores.rebuild(error)
        wait = min(MAX_BACKOFF, BACKOFF * 2**held.failures)
        held.failures += 1
        held.not_before = self._context.clock.monotonic() + wait
        topic, partition = held.assignment.partition
        expected = isinstance(error, HeadraceError) and not isinstance(error, CorruptStoreError)
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "tick_failed",
            channel=self._context.channel,
            topic=topic,
            partition=partition,
            error=describe_error(error),
            wait=wait,
        )

    def refresh(self, now: float) -> None:
        """Store again where partitions are that are quiet, or paused, for long."""
        held = self._held.take_quiet(now)
        current = [part for each in held if each.is_current() for part in each.assignments]
        offsets = {
            each: offset for each in current if (offset := self._offset_of(each)) is not None
        }
        if not offsets:
            return
        ticks = [Batch(each, offset, (), offset, 0) for each, offset in offsets.items()]
        try:
            self._sink.commit_all([], commits_of(ticks))
        except Exception as error:  # noqa: BLE001 - of the brokers; the thread goes on
            log.warning("offsets_not_refreshed", channel=self._context.channel, error=str(error))
            self._held.refresh_soon(held, now)
            if isinstance(error, CommitConflictError):
                conflicting = {conflict.partition for conflict in error.conflicts}
                for assignment, offset in offsets.items():
                    if assignment.partition in conflicting and not self._has_moved(
                        assignment, offset
                    ):
                        self._restores.catch_up(assignment)

    def _has_moved(self, assignment: Assignment, offset: int) -> bool:
        """Return whether a batch of ours was committed since a tick that begins there was made."""
        return self._offset_of(assignment) != offset

    def _offset_of(self, assignment: Assignment) -> int | None:
        offsets = self._state.progress(assignment.partition.partition).offsets
        return offsets.get(assignment.identity)


def _is_at_its_end(assignment: Assignment) -> bool:
    """Return whether all of a partition was delivered, as far as its end is known."""
    end = assignment.delivery_end
    # marks of transactions are passed by the group's offset, and by no batch
    return end is not None and max(assignment.position, assignment.committed or 0) >= end
