"""The processor of channels with state: partitions rest until it is there, and quiet ones tick."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from typing_extensions import override

from headrace.core.clock import Deadline
from headrace.core.errors import SinkConflictError
from headrace.extensions.keyed.errors import CorruptStoreError
from headrace.extensions.keyed.runtime.checkpoints import Checkpoints
from headrace.extensions.keyed.runtime.current import CurrentChannel
from headrace.extensions.keyed.runtime.held import HeldPartitions
from headrace.extensions.keyed.runtime.restores import PartitionRestores, move_aside
from headrace.extensions.keyed.runtime.standbys import Standbys
from headrace.extensions.keyed.runtime.state_topics import START_TIMEOUT, StateTopics
from headrace.extensions.keyed.runtime.ticks import BACKOFF, Ticks
from headrace.extensions.keyed.state_reader import StateReader
from headrace.processors.admission import AdmissionRules
from headrace.processors.contract import BatchResponse
from headrace.processors.micro_batch_processor import MicroBatchProcessor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config import ChannelConfig
    from headrace.core.call_watch import CallWatch
    from headrace.core.errors import PartitionError
    from headrace.core.records import Assignment, Batch
    from headrace.extensions.keyed.restore import RestoreProgress
    from headrace.extensions.keyed.runtime.parts import KeyedParts
    from headrace.extensions.keyed.standby_reader import StandbyReader
    from headrace.kafka import KafkaTopicCatalog
    from headrace.processors.contract import ChannelContext, GroupTasks
    from headrace.processors.engine import Engine
    from headrace.processors.pending import MergeLimits
    from headrace.processors.task_merge import MergeRules

#: Seconds between two looks for timers that are due without records.
TICK_INTERVAL = 0.25

#: Seconds in which the brokers have to say where the changelog of a released partition ends.
_NOTE_TIMEOUT = 2.0

#: Seconds in which brokers have to delete what is processed of a topic of ours.
PURGE_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class OpenedParts:
    """The parts of a processor that exist while it is open."""

    catalog: KafkaTopicCatalog
    topics: StateTopics
    restores: PartitionRestores
    ticks: Ticks
    checkpoints: Checkpoints
    standbys: Standbys
    thread: threading.Thread


class KeyedProcessor(MicroBatchProcessor):
    """A micro-batch processor whose partitions have state.

    A partition that is assigned rests until its state is there. Ticks, empty batches of partitions
    without open ones, fire what is due without records. ``engine`` folds, the sink of ``parts``
    commits, and both share their state.
    """

    def __init__(
        self,
        engine: Engine,
        parts: KeyedParts,
        channel: ChannelConfig,
        *,
        limits: MergeLimits,
        job_timeout: float,
        calls: CallWatch | None = None,
        tasks: MergeRules | None = None,
    ) -> None:
        super().__init__(
            engine,
            parts.sink,
            limits=limits,
            job_timeout=job_timeout,
            admission=AdmissionRules.of(channel),
            calls=calls,
            tasks=tasks,
        )
        self.parts = parts
        topics = channel.topics if tasks is None else tasks.topics
        self.held = HeldPartitions(parts.state, parts.store, topics)
        self.current = CurrentChannel(channel)
        self._opened: OpenedParts | None = None
        self._stopping = threading.Event()
        self._reader = StateReader(
            parts.state,
            parts.store,
            self.held.numbers,
            self._restoring,
            counts=parts.sink.counts,
            phases=parts.phases,
            topics_of=self.held.topics_of,
            operators=parts.operators,
            copies=self._copies,
        )

    # --- the channel's life -----------------------------------------------------------------

    @property
    def opened(self) -> OpenedParts:
        """Return the parts that exist from :meth:`open` on."""
        assert self._opened is not None, "open comes first"
        return self._opened

    @override
    def open(self, context: ChannelContext) -> None:
        parts, current, held = self.parts, self.current, self.held
        catalog = parts.catalog()
        try:
            topics = StateTopics.open(current, catalog, parts.sink, context)
            parts.sink.require = topics.require
            parts.store.settle()
            try:
                parts.store.open()
            except CorruptStoreError as error:
                move_aside(parts.store, context.channel, error)
            super().open(context)
        except BaseException:
            parts.store.close()
            catalog.close()
            raise
        restores = PartitionRestores(parts, current, held, topics, catalog, self._open, context)
        ticks = Ticks(parts, current, held, restores, self._open, self.tasks, self._engine, context)
        checkpoints = Checkpoints(parts, held, topics, restores, catalog, context)
        standbys = Standbys(current, held, restores, parts.store, context)
        name = f"ticks-{context.channel}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._opened = OpenedParts(catalog, topics, restores, ticks, checkpoints, standbys, thread)
        restores.restorer.start()
        thread.start()

    @override
    def close(self, deadline: Deadline) -> None:
        self._stopping.set()
        opened = self._opened
        ended = opened is None or deadline.joined(opened.thread)
        super().close(deadline)
        ended = (opened is None or opened.restores.restorer.stop(deadline)) and ended
        if ended and opened is not None:
            opened.catalog.close()
        if ended:
            self.parts.store.close()

    @override
    def on_reconfigured(self, channel: ChannelConfig) -> None:
        # first: a reducer may refuse other limits, and then nothing is taken over
        self.parts.follow(channel)
        super().on_reconfigured(channel)
        self.current.follow(channel)
        if self.tasks is not None:
            self.tasks.wait_for(self.current.settings.task_idle)

    def _run(self) -> None:
        """Tick, note and purge until the processor closes. On a thread of its own."""
        clock, opened = self.context.clock, self.opened
        topics, ticks, checkpoints = opened.topics, opened.ticks, opened.checkpoints
        last_checkpoint = clock.monotonic()
        every = self.current.settings.internal.purge_input
        purge_at = inf if every is None else clock.monotonic() + every
        while not self._stopping.wait(TICK_INTERVAL):
            now = clock.monotonic()
            checkpoints.write_on(now)
            opened.standbys.settle(now)
            if topics.blocked is None:
                ticks.tick_all(now)
                ticks.refresh(now)
            if now >= last_checkpoint + self.current.settings.state.checkpoint:
                checkpoints.note(Deadline.after(START_TIMEOUT, clock))
                checkpoints.look_at_quiet(last_checkpoint, Deadline.after(START_TIMEOUT, clock))
                last_checkpoint = now
            if every is not None and now >= purge_at and topics.blocked is None:
                purge_at = now + every
                purged = self.current.settings.purged_topics(self.current.channel)
                checkpoints.purge(purged, Deadline.after(PURGE_TIMEOUT, clock))

    # --- partitions -------------------------------------------------------------------------

    @override
    def on_rebalanced(self, tasks: GroupTasks) -> None:
        self.opened.standbys.note_group(tasks)

    @override
    def on_assigned(self, assignment: Assignment) -> None:
        super().on_assigned(assignment)
        self.opened.restores.begin(assignment, self.context.clock.monotonic())

    @override
    def on_next_batch(self, batch: Batch) -> Future[BatchResponse]:
        number = batch.partition.partition
        if self.held.note_batch(number, self.context.clock.monotonic()):
            return super().on_next_batch(batch)
        # one that was cut just before the partition came to rest
        answer: Future[BatchResponse] = Future()
        answer.set_result(BatchResponse.revert(wait=BACKOFF))
        return answer

    @override
    def on_exception(
        self,
        assignment: Assignment,
        error: PartitionError | BaseException,
        batch: Batch | None,
    ) -> BatchResponse | None:
        answer = super().on_exception(assignment, error, batch)
        if isinstance(error, CorruptStoreError):
            self.opened.restores.rebuild(error)
        elif isinstance(error, SinkConflictError):
            self.opened.restores.look_up_offsets(assignment)
            self.opened.restores.restore(assignment)
        return answer

    @override
    def on_pause(self, assignment: Assignment) -> None:
        self.held.set_paused(assignment, paused=True)

    @override
    def on_resume(self, assignment: Assignment) -> None:
        self.held.set_paused(assignment, paused=False)

    @override
    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        answer = super().on_stream_termination(assignment)
        self.opened.checkpoints.note(Deadline.after(_NOTE_TIMEOUT, self.context.clock))
        self.opened.restores.end(assignment)
        return answer

    @override
    def on_partition_lost(self, assignment: Assignment) -> None:
        self.opened.restores.end(assignment)
        super().on_partition_lost(assignment)

    # --- what others may see ----------------------------------------------------------------

    @override
    def state_reader(self) -> StateReader:
        return self._reader

    def _copies(self) -> StandbyReader | None:
        return None if self._opened is None else self._opened.restores.standbys

    def _restoring(self) -> Mapping[int, RestoreProgress]:
        return {} if self._opened is None else self._opened.restores.restorer.progress()
