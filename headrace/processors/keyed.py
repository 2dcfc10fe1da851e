"""The processor of channels with state: partitions rest until it is there, and quiet ones tick."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

import structlog
from typing_extensions import override

from headrace.config import KafkaSinkConfig, KeyedProcessorConfig, KeyedRejects, single_sinks
from headrace.config.derived import changelog_name, facts_key
from headrace.config.models.processor import FIXED_KEYS
from headrace.core.call_watch import CallWatch
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import (
    BatchCancelledError,
    HeadraceError,
    ImportPathError,
    KafkaUnavailableError,
    OwnershipLostError,
    RetryableError,
    SinkConflictError,
    StartError,
)
from headrace.core.extras import Extra, required
from headrace.core.imports import load_callable, make
from headrace.core.letter_headers import LetterHeaders
from headrace.core.records import Batch, TopicPartition, identity_of
from headrace.core.user_text import describe_error
from headrace.extensions.arrow.engine import ArrowEngine
from headrace.extensions.keyed.api import Phases
from headrace.extensions.keyed.codecs import DECODERS
from headrace.extensions.keyed.first_records import FirstRecords
from headrace.extensions.keyed.fold import fold_of
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.phases import PhaseReader
from headrace.extensions.keyed.restore import Restorer
from headrace.extensions.keyed.rows import RowSettings, time_of_field
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import KeyedSink, SinkTopics
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.state_reader import StateReader
from headrace.extensions.keyed.store import CorruptStoreError, RocksStore
from headrace.extensions.keyed.tables import DEAD_LETTERS
from headrace.extensions.keyed.topics import (
    check_changelog,
    gone_changelog,
    lost_rows,
    open_changelog,
    require_key,
    split_keys,
    truncated_rows,
)
from headrace.kafka import KafkaRecordSource, KafkaTopicCatalog, ResultTransactions
from headrace.kafka.clients import client_properties
from headrace.kafka.columnar import ColumnarRecordSource
from headrace.kafka.columnar.library import LibraryMissingError
from headrace.kafka.columnar.producer import ColumnProducer
from headrace.kafka.ports import ChangelogMark
from headrace.kafka.transaction_log import holder_of
from headrace.processors.admission import AdmissionRules
from headrace.processors.contract import BatchResponse
from headrace.processors.jobs import commits_of
from headrace.processors.micro_batch_processor import (
    JOB_SHARE,
    MicroBatchProcessor,
    decoder_of,
    merge_limits,
)
from headrace.processors.pending import PendingBatch
from headrace.sinks.contract import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace.config import ChannelConfig, KafkaConfig
    from headrace.core.decoders import CustomDecoder
    from headrace.core.errors import PartitionError
    from headrace.core.records import Assignment
    from headrace.extensions.keyed.api import KeyedReducer
    from headrace.extensions.keyed.restore import RestoreProgress
    from headrace.extensions.keyed.tables import TableFunction
    from headrace.extensions.keyed.topics import Changelog
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.kafka.ports import RecordSource, TopicInfo
    from headrace.processors.contract import ChannelContext
    from headrace.processors.engine import Engine
    from headrace.processors.pending import MergeLimits

log = structlog.get_logger(__name__)

#: Seconds between two looks for timers that are due without records.
TICK_INTERVAL = 0.25

#: Seconds after which the offset of a quiet partition is stored again, and so its stream time:
#: brokers forget those of a group without members a while after the last commit, a week by default.
#: So the store is noted to be as new, too. The first time comes soon: the last one may be long ago.
REFRESH_INTERVAL, FIRST_REFRESH = 3600.0, 60.0

#: Seconds between two tries to write what the store has not taken.
WRITE_INTERVAL = 5.0

#: Seconds in which the brokers have to say what the changelog is, at the start.
START_TIMEOUT = 30.0

#: Seconds in which the brokers have to say where the changelog of a released partition ends.
_NOTE_TIMEOUT = 2.0

#: Seconds in which brokers have to delete what is processed of a topic of ours.
PURGE_TIMEOUT = 10.0

#: Seconds in which the brokers have to say which topics there are, before a commit.
_LOOK_TIMEOUT = 5.0

#: Looks in a row in which a topic has to be missing, as of a channel's topics.
LOOKS = 2

#: Why a partition rests.
_RESTORED = "its state is restored"

#: Seconds before a tick that failed is tried again; twice as long each further time.
_BACKOFF, _MAX_BACKOFF = 1.0, 60.0


class StateAtRiskError(RetryableError):
    """Nothing is committed: the topics with the state are not what they were. Somebody has to act.

    All partitions rest meanwhile, so that nothing is tried again.
    """


@dataclass(frozen=True, slots=True)
class KeyedParts:
    """What a channel with state is made of. Its clients are opened with the processor.

    ``follow`` has the next micro-batch folded as a configuration says.
    """

    follow: Callable[[ChannelConfig], None]
    sink: KeyedSink
    state: LayeredState
    store: RocksStore
    catalog: Callable[[], KafkaTopicCatalog]
    source: Callable[[], RecordSource]
    holder: Callable[[TopicPartition], str]
    phases: Phases | None = None


@dataclass(slots=True)
class _Held:
    """One partition of ours. Times are of the monotonic clock; ``attempt`` counts its restores."""

    assignment: Assignment
    is_restored: bool = False
    attempt: int = 0
    is_paused: bool = False
    last_batch: float = 0.0
    failures: int = 0
    not_before: float = 0.0
    refresh_at: float = 0.0

    def may_tick(self, now: float) -> bool:
        """Whether timers may fire without records."""
        return self.is_restored and not self.is_paused and now >= self.not_before


class KeyedProcessor(MicroBatchProcessor):
    """A micro-batch processor whose partitions have state.

    A partition that is assigned rests until its state is there. Ticks, empty batches of partitions
    without open ones, fire what is due without records. ``engine`` folds, ``sink`` commits, and
    both share ``state``.
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
    ) -> None:
        super().__init__(
            engine,
            cast("Any", parts.sink),
            limits=limits,
            job_timeout=job_timeout,
            admission=AdmissionRules.of(channel),
            calls=calls,
        )
        self._parts = parts
        self._channel = channel
        self._guard = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._restorer: Restorer | None = None
        self._reader = StateReader(
            parts.state,
            parts.store,
            self._numbers,
            self._restoring,
            counts=lambda: parts.sink.totals,
            phases=parts.phases,
        )
        self._catalog: KafkaTopicCatalog | None = None
        self._changelog: Changelog | None = None
        self._purged: dict[TopicPartition, int] = {}
        # why nothing may be delivered at all, and of single partitions
        self._blocked: str | None = None
        self._stranded: dict[int, str] = {}
        self._misses = 0
        self._write_at = self._clear_at = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def _settings(self) -> KeyedProcessorConfig:
        return _settings_of(self._channel)

    # --- the channel's life -----------------------------------------------------------------

    @override
    def open(self, context: ChannelContext) -> None:
        parts, internal = self._parts, self._settings.internal
        self._catalog = catalog = parts.catalog()
        try:
            self._changelog = open_changelog(
                catalog,
                self._channel.group,
                self._channel.topics[0],
                Deadline.after(START_TIMEOUT, context.clock),
                create=internal.create,
                replication_factor=internal.replication_factor,
                max_row=self._settings.state.max_row,
                grows=self._settings.key in FIXED_KEYS,
            )
            self._require_same(Deadline.after(START_TIMEOUT, context.clock))
            parts.sink.require = self._require_topics
            try:
                parts.store.open()
            except CorruptStoreError as error:
                self._move_aside(context.channel, error)
            super().open(context)
        except BaseException:
            parts.store.close()
            self._catalog = None
            catalog.close()
            raise
        self._restorer = Restorer(
            context.channel,
            self._changelog,
            parts.store,
            source=parts.source,
            catalog=catalog,
            clock=context.clock,
            is_busy=self._is_busy,
            ready=self._restored,
            corrupt=self._rebuild,
            troubled=self._restore_troubled,
            refuse=self._refuse_to_restore,
            stalled=self._restore_stalled,
            holder=parts.holder,
        )
        self._restorer.start()
        name = f"ticks-{context.channel}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @override
    def close(self, deadline: Deadline) -> None:
        self._stopping.set()
        ended = self._thread is None or deadline.joined(self._thread)
        super().close(deadline)
        ended = (self._restorer is None or self._restorer.stop(deadline)) and ended
        if ended and self._catalog is not None:
            self._catalog.close()
        if ended:
            self._parts.store.close()

    @override
    def on_reconfigured(self, channel: ChannelConfig) -> None:
        # first: a reducer may refuse other limits, and then nothing is taken over
        self._parts.follow(channel)
        super().on_reconfigured(channel)
        self._channel = channel

    # --- topics -----------------------------------------------------------------------------

    def _require_same(self, deadline: Deadline) -> None:
        """Return if key and number of partitions are those of when state was first committed.

        Raises:
            StartError: they are not, or no broker answered.
        """
        assert self._catalog is not None, "opened before"
        assert self._changelog is not None, "as above"
        topic, group = self._channel.topics[0], self._channel.group
        info = self._catalog.describe([topic], deadline)[topic]
        cluster = self._catalog.cluster_id(deadline)
        names = [identity_of(cluster, group, info.topic_id, n) for n in range(info.partitions)]
        stored = self._parts.sink.last_stored(names, deadline)
        marks = [each.changelog for each in stored.values() if each.changelog is not None]
        if (key := facts_key(self._channel)) is not None:
            require_key(marks, key, self._changelog.topic)
        others = {each.partitions for each in marks} - {info.partitions}
        if others and self._settings.key not in FIXED_KEYS:
            words = split_keys(topic, info.partitions, min(others), self._changelog.topic)
            raise StartError(words)

    def _require_topics(self) -> None:
        """Return if the state's topics are what they were when it was last committed. Blocks.

        Asked before each commit, after its records were read: so none is committed that a producer
        put where its key belongs by another number of partitions.

        Raises:
            StateAtRiskError: they are not; nothing more is delivered.
            KafkaUnavailableError: the brokers did not answer.
        """
        self._look_at_topics(Deadline.after(_LOOK_TIMEOUT, self.context.clock))
        if self._blocked is not None:
            raise StateAtRiskError(self._blocked)

    def _look_at_topics(self, deadline: Deadline, *, closely: bool = False) -> None:
        """Have all rest while the state's topics are not what they were; ``closely``: settings too.

        What a setting would have deleted is there again once it is as it was.
        """
        assert self._catalog is not None, "open comes first"
        assert self._changelog is not None, "as above"
        changelog, topic, group = self._changelog, self._channel.topics[0], self._channel.group
        found = self._catalog.describe([topic, changelog.topic], deadline)
        there, read = found.get(changelog.topic), found.get(topic)
        reason = None
        if there is None:
            # one broker may know less than the others
            self._misses += 1
            if self._misses < LOOKS:
                raise KafkaUnavailableError(f"topic {changelog.topic} was not found; looking again")
            reason = gone_changelog(changelog)
        else:
            self._misses = 0
            if there.topic_id != changelog.topic_id:
                reason = gone_changelog(changelog, there.topic_id)
            elif self._settings.key in FIXED_KEYS:
                if closely:
                    self._have_as_many(there, read, deadline)
            elif read is not None and read.partitions != changelog.partitions:
                reason = split_keys(topic, read.partitions, changelog.partitions, changelog.topic)
            elif closely or self._blocked is not None:
                try:
                    settings = self._catalog.settings(changelog.topic, deadline)
                    check_changelog(changelog.topic, group, settings)
                except KafkaUnavailableError:
                    raise
                except StartError as error:
                    reason = str(error)
        self._block(reason)

    def _have_as_many(self, there: TopicInfo, read: TopicInfo | None, deadline: Deadline) -> None:
        """Give the changelog of keys that are those of partitions as many as the input has."""
        assert self._catalog is not None, "open comes first"
        create = self._settings.internal.create
        if read is None or there.partitions >= read.partitions or not create:
            return
        try:
            self._catalog.grow(there.name, read.partitions, deadline)
        except HeadraceError as error:
            log.warning("topic_not_grown", topic=there.name, error=str(error))
        else:
            log.info("topic_grown", topic=there.name, partitions=read.partitions)

    def _block(self, reason: str | None) -> None:
        """Have all partitions rest for a reason, or go on where there is none any more."""
        with self._guard:
            if self._blocked == reason:
                return
            self._blocked = reason
        if reason is None:
            self.context.stranded.resume()
            return
        topic = self._channel.topics[0]
        log.error(
            "state_at_risk",
            channel=self.context.channel,
            topic=topic,
            partition=None,
            reason=reason,
        )
        self.context.stranded.pause(reason)

    def _strand(self, assignment: Assignment, reason: str | None) -> None:
        """Have one partition rest until somebody acted, or no longer."""
        topic, number = assignment.partition
        with self._guard:
            if self._stranded.get(number) == reason:
                return
            if reason is None:
                del self._stranded[number]
            else:
                self._stranded[number] = reason
        if reason is None:
            self.context.stranded.resume(partition=assignment.partition)
            return
        log.error(
            "state_at_risk",
            channel=self.context.channel,
            topic=topic,
            partition=number,
            reason=reason,
        )
        self.context.stranded.pause(reason, partition=assignment.partition)

    def _refuse_to_restore(
        self, assignment: Assignment, bounds: tuple[int, int], truncated: int | None
    ) -> str | None:
        """Return why the changelog has not all rows of a partition. On the restorer's thread."""
        assert self._changelog is not None, "open comes first"
        number, changelog, sink = assignment.partition.partition, self._changelog, self._parts.sink
        if self._blocked is not None:
            return self._blocked
        mark, reason = sink.mark(number), None
        if self._parts.state.progress(number).number:
            position = self._parts.store.position(number)
            if truncated is None:
                reason = lost_rows(changelog, number, mark, position, bounds)
            if reason is None and position is None:
                truncated = self._truncated_at(number, mark)
            if reason is None and truncated is not None:
                reason = truncated_rows(changelog, number, truncated)
        self._strand(assignment, reason)
        key = facts_key(self._channel)
        if reason is None and mark is None:
            (low, high), count = bounds, changelog.partitions
            sink.set_mark(number, ChangelogMark(changelog.topic_id, low, count, high > low, key))
        elif reason is None and mark is not None and mark.key is None:
            sink.set_mark(number, replace(mark, key=key))
        return reason

    def _truncated_at(self, number: int, mark: ChangelogMark | None) -> int | None:
        """Return where rows ended that a changelog does not lead to any more, None where it does.

        By the offset alone, without a store. On the restorer's thread; blocks.
        """
        assert self._catalog is not None, "open comes first"
        assert self._changelog is not None, "as above"
        if mark is None or mark.end is None or mark.leader_epoch is None:
            return None
        deadline = Deadline.after(_LOOK_TIMEOUT, self.context.clock)
        at = TopicPartition(self._changelog.topic, number), mark.end, mark.leader_epoch
        return mark.end if self._catalog.truncated_at(*at, deadline)[0] else None

    # --- partitions -------------------------------------------------------------------------

    @override
    def on_assigned(self, assignment: Assignment) -> None:
        super().on_assigned(assignment)
        now = self.context.clock.monotonic()
        held = _Held(assignment, last_batch=now, refresh_at=now + FIRST_REFRESH)
        with self._guard:
            self._held[assignment.partition.partition] = held
        self._restore(assignment)

    def _restore(self, assignment: Assignment) -> None:
        """Have a partition rest until its state is there."""
        assert self._restorer is not None, "open comes first"
        attempt = self._rest(assignment)
        if attempt is not None:
            self._restorer.begin(assignment, attempt)

    def _rest(self, assignment: Assignment) -> int | None:
        """Have nothing of a partition delivered or read; None where it was given up meanwhile.

        Return what is to be handed to :meth:`_restored`.
        """
        number = assignment.partition.partition
        with self._guard:
            held = self._held.get(number)
            if held is None or held.assignment is not assignment:
                return None
            held.is_restored = False
            held.attempt += 1
            attempt = held.attempt
            self._parts.state.release(number)
        self.context.restoring.pause(_RESTORED, partition=assignment.partition)
        return attempt

    def _is_busy(self, number: int) -> bool:
        """Whether rows of a partition may still be written that its changelog may be without.

        A job that is folded has nothing staged yet. It is looked for first: what it committed and
        the store has not taken is staged once it is over.
        """
        return self._open.has_job_of(number) or self._parts.state.has_staged(number)

    def _restore_troubled(self, assignment: Assignment, attempt: int, problem: str | None) -> None:
        """Have the status say what a restore waits for. On the restorer's thread."""
        with self._guard:
            held = self._held.get(assignment.partition.partition)
            if held is None or held.assignment is not assignment or held.attempt != attempt:
                return
        note = _RESTORED if problem is None else f"{_RESTORED}, and that waits: {problem}"
        self.context.restoring.pause(note, partition=assignment.partition)

    def _restore_stalled(self, assignment: Assignment, attempt: int, reason: str | None) -> None:
        """Have the status say that a restore comes no nearer to its end; None: it goes on."""
        with self._guard:
            held = self._held.get(assignment.partition.partition)
            if held is None or held.assignment is not assignment or held.attempt != attempt:
                return
        if reason is None:
            self.context.stranded.resume(partition=assignment.partition)
        else:
            self.context.stranded.pause(reason, partition=assignment.partition)

    def _restored(self, assignment: Assignment, attempt: int) -> None:
        """Have a partition go on, unless it came to rest again. On the restorer's thread."""
        number = assignment.partition.partition
        with self._guard:
            held = self._held.get(number)
            if held is None or held.assignment is not assignment or held.attempt != attempt:
                return
            lacks_offset = self._lacks_offset(number)
            if not lacks_offset:
                held.is_restored = True
                self._parts.state.admit(number)
        if not lacks_offset:
            self._parts.state.note_commit(number)
            self.context.restoring.resume(partition=assignment.partition)
            return
        reason = (
            f"{self._parts.sink.changelog} has the state of partition {number}, and nothing says "
            "which records it is of: the brokers forgot the offset, or the input is another topic "
            "of the same name. Stop the channel; headrace state forget begins again, and headrace "
            "state import says where to go on"
        )
        log.error(
            "state_without_offset",
            channel=self.context.channel,
            topic=assignment.partition.topic,
            partition=number,
            reason=reason,
        )
        self.context.stranded.pause(reason, partition=assignment.partition)
        self.context.restoring.pause(reason, partition=assignment.partition)

    def _lacks_offset(self, number: int) -> bool:
        """Whether there is state, and no offset: from which record on would it be told twice?"""
        if self._parts.state.progress(number).offset is not None:
            return False
        return next(self._parts.store.rows(number), None) is not None

    @override
    def on_next_batch(self, batch: Batch) -> Future[BatchResponse]:
        with self._guard:
            held = self._held[batch.partition.partition]
            held.last_batch = self.context.clock.monotonic()
            held.refresh_at = held.last_batch + REFRESH_INTERVAL
            is_restored = held.is_restored
        if is_restored:
            return super().on_next_batch(batch)
        # one that was cut just before the partition came to rest
        answer: Future[BatchResponse] = Future()
        answer.set_result(BatchResponse.revert(wait=_BACKOFF))
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
            self._rebuild(error)
        elif isinstance(error, SinkConflictError):
            self._parts.sink.stored_offset(assignment.identity)
            self._restore(assignment)
        return answer

    def _rebuild(self, error: CorruptStoreError) -> None:
        """Begin again with an empty store: all partitions are restored from the changelog."""
        assert self._restorer is not None, "open comes first"
        if self._parts.store.is_corrupt:
            self._restorer.begin_again(lambda: self._remake(error))

    def _remake(self, error: CorruptStoreError) -> list[tuple[Assignment, int]] | None:
        """Move the store aside, and return what is to be restored. On the restorer's thread.

        Partitions come to rest before that, and none is restored before this returns. None: that
        was done already. What is committed and was not written goes to the new store, so that no
        restore waits for it.
        """
        if not self._parts.store.is_corrupt:
            return None
        with self._guard:
            held = [each.assignment for each in self._held.values()]
        attempts = [(assignment, self._rest(assignment)) for assignment in held]
        self._move_aside(self.context.channel, error)
        self._parts.sink.write_again()
        return [(assignment, attempt) for assignment, attempt in attempts if attempt is not None]

    def _move_aside(self, channel: str, error: CorruptStoreError) -> None:
        moved = self._parts.store.move_aside()
        log.error("state_store_corrupt", channel=channel, moved_to=moved, error=str(error))

    @override
    def on_pause(self, assignment: Assignment) -> None:
        self._set_paused(assignment, paused=True)

    @override
    def on_resume(self, assignment: Assignment) -> None:
        self._set_paused(assignment, paused=False)

    def _set_paused(self, assignment: Assignment, *, paused: bool) -> None:
        with self._guard:
            held = self._held.get(assignment.partition.partition)
            if held is not None and held.assignment is assignment:
                held.is_paused = paused

    @override
    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        answer = super().on_stream_termination(assignment)
        self._checkpoint(Deadline.after(_NOTE_TIMEOUT, self.context.clock))
        self._forget(assignment)
        return answer

    @override
    def on_partition_lost(self, assignment: Assignment) -> None:
        self._forget(assignment)
        super().on_partition_lost(assignment)

    def _forget(self, assignment: Assignment) -> None:
        assert self._restorer is not None, "open comes first"
        number = assignment.partition.partition
        with self._guard:
            held = self._held.get(number)
            if held is None or held.assignment is not assignment:
                return
            del self._held[number]
            self._stranded.pop(number, None)
        self._parts.state.release(number)
        self._restorer.end(assignment)
        for rests in (self.context.stranded, self.context.restoring):
            rests.resume(partition=assignment.partition)

    # --- what others may see ----------------------------------------------------------------

    @override
    def state_reader(self) -> StateReader:
        return self._reader

    def _numbers(self) -> list[int]:
        with self._guard:
            return list(self._held)

    def _restoring(self) -> Mapping[int, RestoreProgress]:
        return {} if self._restorer is None else self._restorer.progress()

    # --- ticks ------------------------------------------------------------------------------

    def _run(self) -> None:
        last_checkpoint = self.context.clock.monotonic()
        every = self._settings.internal.purge_input
        purge_at = inf if every is None else self.context.clock.monotonic() + every
        while not self._stopping.wait(TICK_INTERVAL):
            now = self.context.clock.monotonic()
            self._see_to_store(now)
            if self._blocked is None:
                self._tick_all(now)
                self._refresh(now)
            if now >= last_checkpoint + self._settings.state.checkpoint:
                last_checkpoint = now
                self._checkpoint(Deadline.after(START_TIMEOUT, self.context.clock))
            if every is not None and now >= purge_at and self._blocked is None:
                purge_at = now + every
                self._purge(Deadline.after(PURGE_TIMEOUT, self.context.clock))

    def _tick_all(self, now: float) -> None:
        with self._guard:
            held = [each for each in self._held.values() if each.may_tick(now)]
        for each in held:
            try:
                self._tick(each)
            except Exception as error:  # noqa: BLE001 - of the store; the thread goes on
                self._put_off(each, error)

    def _see_to_store(self, now: float) -> None:
        """Have the store take what it did not take before, and be without what it need not have.

        No commit has to come for it.
        """
        problem = self._parts.state.problem
        if isinstance(problem, CorruptStoreError) and self._parts.store.is_corrupt:
            self._rebuild(problem)
        elif problem is not None and now >= self._write_at:
            self._write_at = now + WRITE_INTERVAL
            self._parts.sink.write_again()
        if now >= self._clear_at:
            try:
                self._parts.sink.clear_index()
            except Exception as error:  # noqa: BLE001 - of the store; the thread goes on
                self._clear_at = now + WRITE_INTERVAL
                log.warning("index_not_cleared", channel=self.context.channel, error=str(error))
                if isinstance(error, CorruptStoreError):
                    self._rebuild(error)

    def _tick(self, held: _Held) -> None:
        """Queue an empty batch where timers of a quiet partition are due."""
        assignment, state = held.assignment, self._parts.state
        number = assignment.partition.partition
        if not assignment.is_current():
            return
        now = int(self.context.clock.time() * 1000)
        quiet = self._quiet_time(held, now)
        time = state.time(number)
        reached = time if quiet is None or time is None else max(time, quiet)
        if not state.due_keys(number, reached, now, besides=set(), most=1):
            return
        # asked for now: batches may have been committed since the look began
        offset = state.progress(number).offset
        if offset is None:
            return
        # what a tick that was withdrawn left is of a time when nothing came
        state.take_wanted_time(number)
        if quiet is not None:
            state.advance_time(number, quiet)
        batch = Batch(assignment, offset, (), offset, 0)
        pending = PendingBatch(batch, self._engine.prepare(batch))
        pending.future.add_done_callback(lambda answer: self._ticked(held, offset, answer))
        if not self._open.put_if_idle(pending):
            # a later tick may not find it so quiet
            state.take_wanted_time(number)

    def _quiet_time(self, held: _Held, now: int) -> int | None:
        """Return what stream time may go on to in a partition whose end was reached, in ms."""
        idle, assignment = self._settings.idle, held.assignment
        end = assignment.high_watermark
        # marks of transactions are passed by the group's offset, and by no batch
        reached = max(assignment.position, assignment.committed or 0)
        if idle is None or end is None or reached < end:
            return None
        quiet_for = self.context.clock.monotonic() - held.last_batch
        return now - int(idle * 1000) if quiet_for >= idle else None

    def _refresh(self, now: float) -> None:
        """Store again where partitions are that are quiet, or paused, for long."""
        with self._guard:
            held = [e for e in self._held.values() if e.is_restored and now >= e.refresh_at]
            for each in held:
                each.refresh_at = now + REFRESH_INTERVAL
        current = [each.assignment for each in held if each.assignment.is_current()]
        offsets = {
            each: offset
            for each in current
            if (offset := self._parts.state.progress(each.partition.partition).offset) is not None
        }
        if not offsets:
            return
        ticks = [Batch(each, offset, (), offset, 0) for each, offset in offsets.items()]
        try:
            self._parts.sink.commit_all([], commits_of(ticks))
        except Exception as error:  # noqa: BLE001 - of the brokers; the thread goes on
            log.warning("offsets_not_refreshed", channel=self.context.channel, error=str(error))
            with self._guard:
                for each in held:
                    each.refresh_at = now + FIRST_REFRESH
            if isinstance(error, CommitConflictError):
                conflicting = {conflict.partition for conflict in error.conflicts}
                for assignment, offset in offsets.items():
                    if assignment.partition in conflicting and not self._has_moved(
                        assignment, offset
                    ):
                        self._catch_up(assignment)

    def _has_moved(self, assignment: Assignment, offset: int) -> bool:
        """Whether a batch of ours was committed since a tick was made that begins there."""
        return self._parts.state.progress(assignment.partition.partition).offset != offset

    def _catch_up(self, assignment: Assignment) -> None:
        """Have a partition restored of which the brokers have a commit that we know nothing of.

        It may be one of ours that was in doubt. It rests before it is asked for: what is folded
        from older rows must not come to be committed after it. A job under way will conflict too.
        """
        assert self._restorer is not None, "open comes first"
        if self._open.is_in_job(assignment):
            return
        attempt = self._rest(assignment)
        if attempt is None:
            return
        try:
            # one that began before the rest has read
            if not self._open.is_in_job(assignment):
                self._parts.sink.stored_offset(assignment.identity)
        except Exception as error:  # noqa: BLE001 - of the brokers; the next tick conflicts again
            log.warning(
                "offset_not_known",
                channel=self.context.channel,
                partition=assignment.partition.partition,
                error=str(error),
            )
        self._restorer.begin(assignment, attempt)

    def _ticked(self, held: _Held, offset: int, answer: Future[BatchResponse]) -> None:
        error = answer.exception() if not answer.cancelled() else None
        if error is None:
            held.failures = 0
        elif isinstance(error, SinkConflictError):
            # unless a batch of ours came before it
            if not self._has_moved(held.assignment, offset):
                self._put_off(held, error)
                self._catch_up(held.assignment)
        elif not isinstance(error, (BatchCancelledError, OwnershipLostError)):
            self._put_off(held, error)

    def _put_off(self, held: _Held, error: BaseException) -> None:
        if isinstance(error, CorruptStoreError):
            self._rebuild(error)
        wait = min(_MAX_BACKOFF, _BACKOFF * 2**held.failures)
        held.failures += 1
        held.not_before = self.context.clock.monotonic() + wait
        topic, partition = held.assignment.partition
        expected = isinstance(error, HeadraceError) and not isinstance(error, CorruptStoreError)
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "tick_failed",
            channel=self.context.channel,
            topic=topic,
            partition=partition,
            error=describe_error(error),
            wait=wait,
        )

    def _purge(self, deadline: Deadline) -> None:
        """Delete what is processed of the input: no start can ask for it any more."""
        assert self._catalog is not None, "open comes first"
        with self._guard:
            held = [each.assignment for each in self._held.values() if each.is_restored]
        offsets = {}
        for assignment in held:
            stored = self._parts.state.progress(assignment.partition.partition).offset
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
            log.warning("input_not_purged", channel=self.context.channel, error=str(error))
        else:
            self._purged.update(offsets)

    def _checkpoint(self, deadline: Deadline) -> None:
        assert self._changelog is not None, "open comes first"
        assert self._catalog is not None
        try:
            patience = Deadline.after(deadline.at_most(_LOOK_TIMEOUT), self.context.clock)
            self._look_at_topics(patience, closely=True)
            if self._blocked is not None:
                # where another topic ends says nothing of ours
                return
            cut = self._parts.sink.checkpoint(
                self._changelog.topic_id, self._catalog, deadline, self._is_ours
            )
        except HeadraceError as error:
            log.warning("state_not_noted", channel=self.context.channel, error=str(error))
            return
        for number, low in cut.items():
            with self._guard:
                held = self._held.get(number)
            mark = self._parts.sink.mark(number)
            if held is not None and mark is not None:
                self._strand(
                    held.assignment, lost_rows(self._changelog, number, mark, None, (low, low))
                )

    def _is_ours(self, partition: int) -> bool:
        with self._guard:
            held = self._held.get(partition)
        return held is not None and held.assignment.is_current()


def _settings_of(channel: ChannelConfig) -> KeyedProcessorConfig:
    chosen = channel.processor
    assert isinstance(chosen, KeyedProcessorConfig), "another processor is another class"
    return chosen


def build_keyed(
    channel: ChannelConfig,
    spark: Callable[[], SparkRuntime],
    member: str,
    kafka: KafkaConfig,
    folder: Path,
) -> KeyedProcessor:
    """Build the processor of a channel with state, whose store is in ``folder``.

    Raises:
        StartError: the reducer cannot be imported or made.
    """
    chosen = _settings_of(channel)
    properties = client_properties(kafka)
    topics = _topics(channel)
    letters = LetterHeaders(channel.rejects.headers, channel.group)
    decoder = decoder_of(chosen.decoder)
    if decoder is not None:
        decoder.load()
    outputs = tuple(name for name in topics.outputs if name != DEAD_LETTERS)
    reducer = _reducer(chosen, outputs)
    phases = _phases(chosen, reducer)
    phase_of = (
        None if phases is None else PhaseReader(channel.group, phases, DECODERS[chosen.encoding])
    )
    store = RocksStore(folder / "db", chosen.state.cache, phase_of)
    state = LayeredState(store)
    times = None if chosen.time == "record" else time_of_field(chosen.time)
    if chosen.time_function is not None:
        times = load_callable(chosen.time_function)

    calls = CallWatch(folder / "call")
    fold_calls: CallWatch | WorkerCalls = calls
    if chosen.engine != "arrow":
        with required(Extra.SPARK, f"the engine of group {channel.group}"):
            from headrace.extensions.spark.keyed import KeyedSparkEngine  # noqa: PLC0415 - an extra
            from headrace.extensions.spark.reducer import send_by_value  # noqa: PLC0415 - as above
            from headrace.extensions.spark.worker_calls import WorkerCalls  # noqa: PLC0415 - as above
        fold_calls = worker_calls = WorkerCalls(calls, folder)

    def folding(channel: ChannelConfig) -> tuple[TableFunction, RowSettings]:
        settings = _fold_settings(channel, outputs, letters, decoder)
        # what reads a field of JSON returns in any case
        watched = None if chosen.time_function is None else calls
        rows = RowSettings(chosen.key, times, settings.unreadable, letters, watched)
        return fold_of(reducer, settings, cast("CallWatch", fold_calls)), rows

    sink = KeyedSink(
        ResultTransactions(properties, channel.group, member, columns=ColumnProducer),
        state,
        topics,
        SYSTEM_CLOCK,
        FirstRecords(chosen.code),
    )
    function = KeyedFunction(*folding(channel), state, SYSTEM_CLOCK)
    engine: Engine
    if chosen.engine == "arrow":
        engine = ArrowEngine(function, calls=calls)
    else:
        if decoder is not None:
            send_by_value(decoder.factory)
        engine = KeyedSparkEngine(spark(), function.reduce, reducer, worker_calls)
    parts = KeyedParts(
        lambda now: function.follow(*folding(now)),
        sink,
        state,
        store,
        # a transaction that is committed is marked in the changelog a moment later than where the
        # offset is: what is restored ends after it, where logs end, and is waited for
        catalog=lambda: KafkaTopicCatalog(
            {**properties, "isolation.level": "read_uncommitted"}, channel.group
        ),
        source=lambda: _changelog_source(properties, channel.group),
        holder=lambda partition: holder_of(properties, partition),
        phases=phases,
    )
    return KeyedProcessor(
        engine,
        parts,
        channel,
        limits=merge_limits(channel),
        job_timeout=channel.batch_timeout * JOB_SHARE,
        calls=calls,
    )


def _reducer(chosen: KeyedProcessorConfig, outputs: Sequence[str]) -> KeyedReducer[Any, Any, Any]:
    """Return the reducer; where it says in ``outputs`` what it writes to, the channel has that."""
    found = _loaded(chosen)
    missing = sorted(set(getattr(found, "outputs", ())) - set(outputs))
    if missing:
        there = f"the outputs are {', '.join(outputs)}" if outputs else "the channel has no sink"
        raise ImportPathError(
            f"{chosen.code!r} writes to {missing[0]!r}, and {there}; give sink an output of that "
            "name, of type kafka"
        )
    return found


def _phases(chosen: KeyedProcessorConfig, reducer: object) -> Phases | None:
    """Return how a reducer has its states counted, None where it does not."""
    found = getattr(reducer, "phases", None)
    if found is None or isinstance(found, Phases):
        return found
    kind = type(found).__name__
    raise ImportPathError(
        f"{chosen.code!r} has a {kind} in its attribute phases; it has to be headrace.keyed.Phases"
    )


def _loaded(chosen: KeyedProcessorConfig) -> KeyedReducer[Any, Any, Any]:
    if chosen.reducer is not None:
        return cast("KeyedReducer[Any, Any, Any]", load_callable(chosen.reducer, *_ARGUMENTS))
    assert chosen.factory is not None, "the configuration demands one of them"
    made = make(chosen.factory, chosen.keyword_arguments())
    if not callable(made):
        kind = type(made).__name__
        raise ImportPathError(
            f"{chosen.factory!r} returned a {kind}; it must return a function of "
            f"({', '.join(_ARGUMENTS)})"
        )
    return cast("KeyedReducer[Any, Any, Any]", made)


#: What a keyed reducer is called with.
_ARGUMENTS = ("key", "state", "facts", "now")


def _topics(channel: ChannelConfig) -> SinkTopics:
    """Return where outputs go, by their names; one that has no name is ``out``."""
    outputs: dict[str, str] = {}
    for steps, sink in single_sinks(channel.sink).items():
        assert isinstance(sink, KafkaSinkConfig), "the configuration demands it"
        assert sink.topic is not None, "as above"
        outputs["out" if len(steps) == 1 else str(steps[-1])] = sink.topic
    if channel.rejects.topic is not None:
        outputs[DEAD_LETTERS] = channel.rejects.topic
    return SinkTopics(changelog_name(channel.group, channel.topics[0]), outputs)


def _fold_settings(
    channel: ChannelConfig,
    outputs: tuple[str, ...],
    letters: LetterHeaders,
    decoder: CustomDecoder | None,
) -> FoldSettings:
    chosen, rejects = _settings_of(channel), channel.rejects
    assert isinstance(rejects, KeyedRejects), "the configuration has the processor's"
    return FoldSettings(
        outputs=outputs,
        keys=chosen.keys,
        value=chosen.value,
        state=chosen.encoding,
        undecodable=rejects.undecodable,
        failing=rejects.failing,
        grace=_milliseconds(chosen.grace),
        late=rejects.late or "skip",
        ttl=_milliseconds(chosen.ttl),
        max_row=chosen.state.max_row,
        letters=letters,
        decoder=decoder,
    )


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


#: Bytes of a changelog that are fetched ahead while it is restored.
_PREFETCH = 32 << 20


def _changelog_source(properties: Mapping[str, Any], group: str) -> RecordSource:
    """Return what reads a changelog: in columns where that is compiled, which is faster."""
    committed = {**properties, "isolation.level": "read_committed"}
    try:
        return ColumnarRecordSource(committed, group, _PREFETCH)
    except LibraryMissingError:
        return KafkaRecordSource(committed, group, _PREFETCH)
