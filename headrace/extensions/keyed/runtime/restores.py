"""Partitions rest until their state is there: after they are assigned, and where it is in doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace.extensions.keyed.positions import StorePositions
from headrace.extensions.keyed.restore import Restorer
from headrace.extensions.keyed.standby_reader import StandbyReader
from headrace.extensions.keyed.topics import lost_rows, truncated_rows, unplaced_rows
from headrace.kafka.ports import ChangelogMark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.records import Assignment, TopicPartition
    from headrace.extensions.keyed.errors import CorruptStoreError
    from headrace.extensions.keyed.runtime.current import CurrentChannel
    from headrace.extensions.keyed.runtime.held import HeldPartitions
    from headrace.extensions.keyed.runtime.parts import KeyedParts
    from headrace.extensions.keyed.runtime.state_topics import StateTopics
    from headrace.extensions.keyed.store import RocksStore
    from headrace.kafka import KafkaTopicCatalog
    from headrace.processors.contract import ChannelContext
    from headrace.processors.pending import OpenBatches

log = structlog.get_logger(__name__)

#: Why a partition rests.
_RESTORED = "its state is restored"


def move_aside(store: RocksStore, channel: str, error: CorruptStoreError) -> None:
    """Restart with an empty store, and log where the former one is."""
    moved = store.move_aside()
    log.error("state_store_corrupt", channel=channel, moved_to=moved, error=str(error))


class PartitionRestores:
    """Has partitions rest, restores them, and has them go on. Any thread.

    Methods that the restorer calls are on its thread.
    """

    def __init__(  # noqa: PLR0917 - what a restore has to do with
        self,
        parts: KeyedParts,
        current: CurrentChannel,
        held: HeldPartitions,
        topics: StateTopics,
        catalog: KafkaTopicCatalog,
        batches: OpenBatches,
        context: ChannelContext,
    ) -> None:
        self._parts = parts
        self._current = current
        self._held = held
        self._topics = topics
        self._batches = batches
        self._context = context
        self.standbys = StandbyReader(
            context.channel,
            StorePositions(context.channel, topics.changelog, parts.store, catalog, context.clock),
            parts.store,
            source=parts.source,
            clock=context.clock,
            is_busy=self.is_busy,
            is_held=lambda number: held.find(number) is not None,
            is_blocked=lambda: topics.blocked is not None,
            corrupt=self.rebuild,
        )
        self.restorer = Restorer(
            context.channel,
            topics.changelog,
            parts.store,
            source=parts.source,
            catalog=catalog,
            clock=context.clock,
            is_busy=self.is_busy,
            ready=self._restored,
            corrupt=self.rebuild,
            troubled=self._note_problem,
            refuse=self._refusal_of,
            stalled=self._note_stall,
            holder=parts.holder,
            standbys=self.standbys,
        )

    def begin(self, assignment: Assignment, now: float) -> None:
        """Hold a partition that was assigned, and pause it until its state is restored.

        A task is restored once all its partitions are held. One that is paused before it is held is
        never paused after the last one has had all of them restored.
        """
        missing = self._held.missing(assignment)
        if missing:
            self._wait_for(missing, assignment)
        if self._held.add(assignment, now):
            if len(self._held.parts_of(assignment)) > 1:
                # each was looked up by itself as it started
                self._try_to_look_up(assignment)
            self.restore(assignment)

    def _wait_for(self, missing: Sequence[TopicPartition], assignment: Assignment) -> None:
        """Pause a partition, which its task is not whole without."""
        note = f"it waits for {', '.join(map(str, missing))}"
        self._context.restoring.pause(note, partition=assignment.partition)

    def restore(self, assignment: Assignment) -> None:
        """Pause a partition, and those of its task, until their state is restored."""
        attempt = self._pause_partition(assignment)
        if attempt is not None:
            self.restorer.begin(self._first_of(assignment), attempt)

    def _first_of(self, assignment: Assignment) -> Assignment:
        """Return the assignment by which a partition's task is restored."""
        held = self._held.find(assignment.partition.partition)
        return assignment if held is None else held.assignment

    def _pause_partition(self, assignment: Assignment) -> int | None:
        """Pause delivery and reads of a partition and its task; None if it was given up meanwhile.

        Return the attempt by which it goes on.
        """
        attempt = self._held.rest(assignment)
        if attempt is not None:
            self._pause_all(assignment, _RESTORED)
        return attempt

    def _pause_all(self, assignment: Assignment, note: str) -> None:
        for each in self._held.parts_of(assignment):
            self._context.restoring.pause(note, partition=each.partition)

    def catch_up(self, assignment: Assignment) -> None:
        """Restore a partition of which the brokers have a commit that is unknown here.

        It may be one of ours that was in doubt. It rests before it is asked for: what is folded
        from older rows must not come to be committed after it. A job under way will conflict too.
        """
        if self._batches.is_in_job(assignment):
            return
        attempt = self._pause_partition(assignment)
        if attempt is None:
            return
        # one that began before the rest has read
        if not self._batches.is_in_job(assignment):
            self._try_to_look_up(assignment)
        self.restorer.begin(self._first_of(assignment), attempt)

    def look_up_offsets(self, assignment: Assignment) -> None:
        """Read where the brokers have a partition, and those of its task. Blocks.

        Raises:
            HeadraceError: they did not say.
        """
        parts = self._held.parts_of(assignment) or [assignment]
        self._parts.sink.begin([each.identity for each in parts])

    def _try_to_look_up(self, assignment: Assignment) -> None:
        """Read where the brokers have a task; a commit of it conflicts where that is not known."""
        try:
            self.look_up_offsets(assignment)
        except Exception as error:  # noqa: BLE001 - of the brokers; the next tick conflicts again
            log.warning(
                "offset_not_known",
                channel=self._context.channel,
                partition=assignment.partition.partition,
                error=str(error),
            )

    def end(self, assignment: Assignment) -> None:
        """Leave a partition as it is: it is no longer ours, and what is left of its task waits."""
        number = assignment.partition.partition
        removed = self._held.remove(assignment)
        if removed is None:
            return
        first, left = removed
        self._topics.forget(number)
        self._parts.state.release(number)
        self.restorer.end(first)
        for rests in (self._context.stranded, self._context.restoring):
            rests.resume(partition=assignment.partition)
        for each in left:
            self._context.stranded.resume(partition=each.partition)
            self._wait_for([assignment.partition], each)
            if not self._held.parts_of(each):
                # it ended meanwhile
                self._context.restoring.resume(partition=each.partition)

    # --- a store that is corrupt ------------------------------------------------------------

    def rebuild(self, error: CorruptStoreError) -> None:
        """Restart with an empty store: all partitions are restored from the changelog."""
        if self._parts.store.is_corrupt:
            self.restorer.begin_again(lambda: self._remake(error))

    def _remake(self, error: CorruptStoreError) -> list[tuple[Assignment, int]] | None:
        """Move the store aside, and return what is to be restored. On the restorer's thread.

        Partitions come to rest before that, and none is restored before this returns. None: that
        was done already.
        """
        if not self._parts.store.is_corrupt:
            return None
        attempts = [(each, self._pause_partition(each)) for each in self._held.first_assignments()]
        move_aside(self._parts.store, self._context.channel, error)
        # it takes the error of the former one away
        self._parts.state.flush()
        return [(assignment, attempt) for assignment, attempt in attempts if attempt is not None]

    # --- asked and told by the restorer -----------------------------------------------------

    def is_busy(self, number: int) -> bool:
        """Return whether rows of a partition may still be written that its changelog lacks.

        A job that is folded has nothing staged yet. It is looked for first: what it has staged is
        there once it is over.
        """
        return self._batches.has_job_of(number) or self._parts.state.has_staged(number)

    def _refusal_of(
        self, assignment: Assignment, bounds: tuple[int, int], truncated: int | None
    ) -> str | None:
        """Return why the changelog has not all rows of a partition."""
        number, changelog, sink = (
            assignment.partition.partition,
            self._topics.changelog,
            self._parts.sink,
        )
        if self._topics.blocked is not None:
            return self._topics.blocked
        mark, reason = sink.mark(number), None
        if self._parts.state.progress(number).number:
            position = self._parts.store.position(number)
            if truncated is None:
                reason = lost_rows(changelog, number, mark, position, bounds)
            if reason is None and position is None:
                truncated = self._topics.truncated_at(number, mark)
            if reason is None and truncated is not None:
                reason = truncated_rows(changelog, number, truncated)
        self._topics.strand(assignment, reason)
        key = self._current.settings.state_key(self._current.channel)
        if reason is None and mark is None:
            (low, high), count = bounds, changelog.partitions
            sink.set_mark(number, ChangelogMark(changelog.topic_id, low, count, high > low, key))
        elif reason is None and mark is not None and mark.key is None:
            sink.set_mark(number, replace(mark, key=key))
        return reason

    def _note_problem(self, assignment: Assignment, attempt: int, problem: str | None) -> None:
        """Show in the status what a restore waits for."""
        if not self._held.is_attempt(assignment, attempt):
            return
        note = _RESTORED if problem is None else f"{_RESTORED}, and that waits: {problem}"
        self._pause_all(assignment, note)

    def _note_stall(self, assignment: Assignment, attempt: int, reason: str | None) -> None:
        """Show in the status that a restore makes no progress; None: it does again."""
        if not self._held.is_attempt(assignment, attempt):
            return
        if reason is None:
            self._context.stranded.resume(partition=assignment.partition)
        else:
            self._context.stranded.pause(reason, partition=assignment.partition)

    def _restored(self, assignment: Assignment, attempt: int) -> None:
        """Resume a restored partition, unless it was paused again."""
        number = assignment.partition.partition
        is_admitted = self._held.admit(assignment, attempt)
        if is_admitted is None:
            return
        if is_admitted:
            self._parts.state.note_commit(number)
            if (position := self._parts.store.position(number)) is not None:
                self._parts.sink.set_end(number, position)
            for each in self._held.parts_of(assignment):
                self._context.restoring.resume(partition=each.partition)
            return
        reason = unplaced_rows(self._topics.changelog, number)
        log.error(
            "state_without_offset",
            channel=self._context.channel,
            topic=assignment.partition.topic,
            partition=number,
            reason=reason,
        )
        self._context.stranded.pause(reason, partition=assignment.partition)
        self._pause_all(assignment, reason)
