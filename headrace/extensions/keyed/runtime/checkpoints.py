"""Checkpoints of a state beside its commits: how far the store follows the changelog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.extensions.keyed.errors import CorruptStoreError
from headrace.extensions.keyed.runtime.state_topics import LOOK_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.core.records import TopicPartition
    from headrace.extensions.keyed.runtime.held import HeldPartitions
    from headrace.extensions.keyed.runtime.parts import KeyedParts
    from headrace.extensions.keyed.runtime.restores import PartitionRestores
    from headrace.extensions.keyed.runtime.state_topics import StateTopics
    from headrace.kafka import KafkaTopicCatalog
    from headrace.processors.contract import ChannelContext

log = structlog.get_logger(__name__)

#: Seconds between two tries to write what the store has not taken.
WRITE_INTERVAL = 5.0

#: Quiet partitions that are looked at in one turn: each takes three requests, and timers wait.
QUIET_LOOKS = 32


class Checkpoints:
    """Notes how far the store follows the changelog, and has the store and the input be in order.

    On the processor's own thread, and :meth:`note` at a release as well.
    """

    def __init__(  # noqa: PLR0917 - what a checkpoint has to do with
        self,
        parts: KeyedParts,
        held: HeldPartitions,
        topics: StateTopics,
        restores: PartitionRestores,
        catalog: KafkaTopicCatalog,
        context: ChannelContext,
    ) -> None:
        self._state = parts.state
        self._store = parts.store
        self._sink = parts.sink
        self._held = held
        self._topics = topics
        self._restores = restores
        self._catalog = catalog
        self._context = context
        self._purged: dict[TopicPartition, int] = {}
        self._write_at = self._clear_at = 0.0
        self._looked_at = -1

    def note(self, deadline: Deadline) -> None:
        """Store how far the store follows the changelog, if its topics are what they were.

        What was committed is written before that, most of it while commits go on.
        """
        self._state.flush()
        try:
            patience = Deadline.after(deadline.at_most(LOOK_TIMEOUT), self._context.clock)
            self._topics.check_topics(patience, closely=True)
            if self._topics.blocked is not None:
                # where another topic ends says nothing of ours
                return
            changelog = self._topics.changelog
            lost = self._sink.checkpoint(
                changelog.topic_id, self._catalog, deadline, self._held.is_ours
            )
        except HeadraceError as error:
            log.warning("state_not_noted", channel=self._context.channel, error=str(error))
            return
        for number, reason in lost.items():
            self._strand(number, reason)

    def look_at_quiet(self, before: float, deadline: Deadline) -> None:
        """Pause quiet partitions whose changelogs have lost rows. Blocks.

        Those are quiet of which no batch came since ``before``; some are looked at in each turn.
        """
        if self._topics.blocked is not None:
            return
        quiet = self._held.quiet_numbers(before)
        later = [number for number in quiet if number > self._looked_at]
        earlier = [number for number in quiet if number <= self._looked_at]
        topic_id = self._topics.changelog.topic_id
        for number in [*later, *earlier][:QUIET_LOOKS]:
            self._looked_at = number
            try:
                reason = self._sink.find_lost(number, topic_id, self._catalog, deadline)
            except HeadraceError as error:
                log.warning("state_not_noted", channel=self._context.channel, error=str(error))
                return
            if reason is not None:
                self._strand(number, reason)

    def _strand(self, number: int, reason: str) -> None:
        """Pause a partition whose changelog has not all rows."""
        held = self._held.find(number)
        if held is not None:
            self._topics.strand(held.assignment, reason)

    def write_on(self, now: float) -> None:
        """Write to the store what is much or was refused before, and clear what it does not need.

        Half of what may be unwritten is much: so a commit seldom has to wait for it.
        """
        problem = self._state.problem
        if isinstance(problem, CorruptStoreError) and self._store.is_corrupt:
            self._restores.rebuild(problem)
        elif now >= self._write_at and (problem is not None or self._state.unwritten.is_over(0.5)):
            is_written = self._state.flush()
            self._write_at = now if is_written else now + WRITE_INTERVAL
        if now >= self._clear_at:
            try:
                self._sink.clear_index()
            except Exception as error:  # noqa: BLE001 - of the store; the thread goes on
                self._clear_at = now + WRITE_INTERVAL
                log.warning("index_not_cleared", channel=self._context.channel, error=str(error))
                if isinstance(error, CorruptStoreError):
                    self._restores.rebuild(error)

    def purge(self, topics: Collection[str], deadline: Deadline) -> None:
        """Delete what is processed of topics: no start can ask for it any more."""
        offsets = {}
        for assignment in self._held.restored_assignments():
            if assignment.partition.topic not in topics:
                continue
            offsets_of = self._state.progress(assignment.partition.partition).offsets
            stored = offsets_of.get(assignment.identity)
            if stored is None or assignment.committed is None or not assignment.is_current():
                continue
            # the group's own offset follows, and must not come to point at what is gone
            offset = min(stored, assignment.committed)
            if offset > self._purged.get(assignment.partition, 0):
                offsets[assignment.partition] = offset
        if not offsets:
            return
        try:
            self._catalog.delete_before(offsets, deadline)
        except HeadraceError as error:
            log.warning("input_not_purged", channel=self._context.channel, error=str(error))
        else:
            self._purged.update(offsets)
