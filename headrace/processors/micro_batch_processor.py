"""The processor of micro-batches: those of several partitions become one job and one commit."""

from __future__ import annotations

import sys
from bisect import bisect_left
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from headrace.config import MicroBatchRejects
from headrace.config.models.processor import MergingConfig, MicroBatchConfig
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.decoders import CustomDecoder
from headrace.core.errors import ConfigError
from headrace.core.extras import Extra, required
from headrace.core.records import offset_of
from headrace.core.tables import Decode, Decoding, OnUndecodable, Timestamps
from headrace.processors.admission import Admission, AdmissionRules
from headrace.processors.contract import BatchProcessor, BatchResponse, ChannelContext
from headrace.processors.jobs import commits_of
from headrace.processors.micro_batches import MicroBatchRunner
from headrace.processors.pending import MergeLimits, OpenBatches, PendingBatch
from headrace.sinks.channel_sink import ChannelSink
from headrace.sinks.contract import OffsetMove
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import ChannelConfig, CustomDecoding, RejectsConfig
    from headrace.config.models.registry import ReaderSchemaConfig, RegistryConfig
    from headrace.core.call_watch import CallWatch
    from headrace.core.clock import Deadline
    from headrace.core.errors import PartitionError
    from headrace.core.records import Assignment, Batch
    from headrace.processors.engine import Engine
    from headrace.processors.task_merge import MergeRules, TaskMerge
    from headrace.sinks.contract import Sink

log = structlog.get_logger(__name__)


#: The part of ``batch_timeout`` that one Spark job may take. A batch may wait for the job before
#: it, for the merged job it is part of, and for the job it runs in alone when that one failed.
JOB_SHARE = 1 / 3


def decoder_of(named: CustomDecoding | None) -> CustomDecoder | None:
    """Return the decoder that is configured, not loaded yet."""
    return None if named is None else CustomDecoder(named.factory, named.keyword_arguments())


def decode(
    chosen: MicroBatchConfig, rejects: RejectsConfig | None, registry: RegistryConfig | None = None
) -> Decode:
    """Return what the configuration says of decoding. A decoder it names is imported later.

    Of Avro and Protobuf the reader's schema is read now, which may take the ``registry``.

    Raises:
        ConfigError: the reader's schema cannot be used.
        StartError: the registry does not have it, or does not answer, or an extra is missing.
    """
    treating = _treating(rejects)
    if chosen.has_reader:
        framed = reading_decoder("decode", chosen.decode, chosen.reader_schema, registry)
        return Decode(Decoding.CUSTOM, None, treating, framed)
    how = Timestamps(chosen.timestamps)
    if chosen.decode == "json_schema":
        from headrace.formats import json_schema  # noqa: PLC0415 - few channels have a registry

        if registry is None:
            raise ConfigError(["decode: json_schema needs the section registry"])
        framed = json_schema.decoder_of(registry)
        return Decode(Decoding.JSON_SCHEMA, chosen.ddl, treating, framed, how)
    custom = decoder_of(chosen.decoder)
    if custom is None:
        return Decode(Decoding(chosen.decode), chosen.ddl, treating, timestamps=how)
    return Decode(Decoding.CUSTOM, chosen.ddl, treating, custom)


def reading_decoder(
    field: str,
    format_: str,
    schema: ReaderSchemaConfig | None,
    registry: RegistryConfig | None,
) -> CustomDecoder:
    """Return what reads Avro or Protobuf by a schema, which may take the registry now.

    ``field`` is the key that names the format.

    Raises:
        ConfigError: the reader's schema cannot be used.
        StartError: the registry does not have it, or does not answer, or an extra is missing.
    """
    if registry is None or schema is None:
        raise ConfigError([f"{field}: {format_} needs the section registry, and reader_schema"])
    return _reader_of(format_, field)(schema, registry)


def _reader_of(
    format_: str, field: str
) -> Callable[[ReaderSchemaConfig, RegistryConfig], CustomDecoder]:
    """Return what makes decoders of a format; imported late, as few channels have one."""
    if format_ == "avro":
        from headrace.formats.avro import reader as avro  # noqa: PLC0415

        return avro.decoder_of
    with required(Extra.PROTOBUF, f"{field}: protobuf"):
        from headrace.formats.protobuf import reader as protobuf  # noqa: PLC0415
    return protobuf.decoder_of


def _treating(rejects: RejectsConfig | None) -> OnUndecodable:
    """Return what becomes of records that are undecodable."""
    word = rejects.undecodable if isinstance(rejects, MicroBatchRejects) else "fail"
    return OnUndecodable(word)


def merge_limits(channel: ChannelConfig) -> MergeLimits:
    """Return what the configuration says of merging.

    What Spark reads itself is not in our memory, and has no limit in bytes but that of batches.
    """
    chosen = channel.processor
    assert isinstance(chosen, MergingConfig), "another processor merges nothing"
    limits = MergeLimits(chosen.max_records, target=chosen.target_duration)
    return replace(limits, max_bytes=sys.maxsize) if channel.by_reference else limits


def cut(batch: Batch, boundary: int) -> Batch:
    """Return the part of a batch before an offset within it; it may have no records."""
    count = bisect_left(batch.records, boundary, key=offset_of)
    size = batch.size * count // max(1, len(batch))
    return replace(batch, records=batch.records[:count], next_offset=boundary, size=size)


class MicroBatchProcessor(BatchProcessor):
    """Answers batches with ``advance`` once a job's result and their offsets are stored.

    ``engine`` runs the jobs: Spark, or a reducer in this process, which is a job as well here.
    ``sink`` stores what they give; it is the processor's own.

    ``on_next_batch`` prepares the batch on the worker's thread and returns a future. The lane's
    thread takes what waits, up to ``limits``, as one micro-batch: one job, and one commit on a
    thread beside it, whole or not at all; ``admission`` says what is not even taken, and how fast
    the rest is. ``calls`` is the watch over calls that the engine notes, if any; it is opened and
    closed here. A micro-batch that fails is run again batch by batch, so
    that only those fail which fail alone. ``job_timeout`` bounds each job in seconds.

    With ``tasks`` the records of one partition of each topic are processed in the order of their
    times, and are committed and given up together; see :class:`TaskMerge`.

    The futures fail with UndecodableRecordError, SinkConflictError, BatchTimeoutError,
    BatchCancelledError (not a failure of the batch), ReducerError, RowsRefusedError, another
    RetryableError (no record is to blame), or with what the reducer raised.
    """

    #: The channel's own records, and the Arrow table that waits for the lane.
    copies = 2

    in_columns = True

    def __init__(
        self,
        engine: Engine,
        sink: Sink[Any],
        *,
        limits: MergeLimits | None = None,
        job_timeout: float | None = None,
        admission: AdmissionRules | None = None,
        calls: CallWatch | None = None,
        tasks: MergeRules | None = None,
    ) -> None:
        self._engine = engine
        self._calls = calls
        self._sink = ChannelSink(sink)
        self._job_timeout = job_timeout
        self._rules = admission or AdmissionRules()
        self._admission = Admission(self._rules, SYSTEM_CLOCK)
        self._open = OpenBatches(limits or MergeLimits())
        self._context: ChannelContext | None = None
        self._runner: MicroBatchRunner | None = None
        self._merge_rules = tasks
        #: What merges the topics of a task, from :meth:`open` on; None where each is by itself.
        self.tasks: TaskMerge | None = None

    @property
    def context(self) -> ChannelContext:
        """Return the channel served, known from :meth:`open` on."""
        assert self._context is not None, "open comes first"
        return self._context

    def open(self, context: ChannelContext) -> None:
        """Get sink and engine ready. Blocks until jobs can run."""
        self._context = context
        self._admission = Admission(self._rules, context.clock)
        self._runner = MicroBatchRunner(
            self._engine, self._sink, self._open, context, lambda: self._job_timeout
        )
        self._runner.start()
        if self._merge_rules is not None:
            self.tasks = self._merging(self._merge_rules, context)
            self.tasks.start()
        if self._calls is not None:
            self._calls.open(context.channel, context.fail)

    def _merging(self, rules: MergeRules, context: ChannelContext) -> TaskMerge:
        """Return what merges the topics of tasks, not started."""
        from headrace.processors.task_merge import HOLD, TaskMerge  # noqa: PLC0415 - only with tasks

        def hold() -> float:
            # a batch that waits for another topic must not count as one that takes too long
            return HOLD if self._job_timeout is None else min(HOLD, self._job_timeout / 2)

        return TaskMerge(
            f"tasks-{context.channel}",
            rules,
            self._open,
            context.clock,
            on_done=self._on_done,
            on_enforced=context.metrics.enforced.labels(context.channel).inc,
            hold=hold,
            fail=context.fail,
        )

    def on_reconfigured(self, channel: ChannelConfig) -> None:
        """Apply new limits, decoding and time-outs from the next micro-batch on."""
        chosen = channel.processor
        if not isinstance(chosen, MergingConfig):
            return
        self._job_timeout = channel.batch_timeout * JOB_SHARE
        self._open.limit(merge_limits(channel))
        self._admission.follow(AdmissionRules.of(channel))
        if isinstance(chosen, MicroBatchConfig):
            self._engine.set_undecodable(_treating(channel.rejects))

    def stored_offset(self, assignment: Assignment) -> int | None:
        """Return what the sink has stored for the partition."""
        return self._sink.stored_offset(assignment.identity)

    def stored_leader_epoch(self, assignment: Assignment) -> int | None:
        """Return what the sink has stored with it."""
        return self._sink.stored_leader_epoch(assignment.identity)

    def on_assigned(self, assignment: Assignment) -> None:
        """Drop what an earlier assignment of the partition has left."""
        self._open.forget_failure(assignment)
        if self.tasks is not None:
            self.tasks.add(assignment)

    def on_next_batch(self, batch: Batch) -> Future[BatchResponse]:
        """Prepare the batch and queue it. Returns at once; the lane completes the future.

        Where an output of the sink stands within the batch, only the part before that is taken.
        """
        boundary = self._sink.boundary(batch)
        part = batch if boundary is None else cut(batch, boundary)
        if not part.records:
            return self._pass_gap(part)
        whole = None if part is batch else batch
        part, overflow = self._admission.admit(part)
        next_at = self._admission.pace(len(part))
        with self.context.metrics.stage(self.context.channel, "arrow"):
            prepared = self._engine.prepare(part) if part.records else None
            pending = PendingBatch(part, prepared, whole=whole, overflow=overflow, next_at=next_at)
        if self.tasks is not None:
            self.tasks.put(pending)
            return pending.future
        # it is given the future only: with the batch it would keep itself, and the records, alive
        pending.future.add_done_callback(self._on_done)
        self._open.put(pending)
        return pending.future

    def next_batch_at(self) -> float:
        """Return when the lane is about to take the next micro-batch."""
        return 0.0 if self._runner is None else self._runner.pacer.next_batch_at()

    def _pass_gap(self, part: Batch) -> Future[BatchResponse]:
        """Move all outputs past offsets that no record has. Blocks."""
        answer: Future[BatchResponse] = Future()
        self.pass_over(part)
        answer.set_result(BatchResponse.advance(offset=part.next_offset))
        return answer

    def on_exception(
        self,
        assignment: Assignment,
        error: PartitionError | BaseException,  # noqa: ARG002 - the channel's policy decides
        batch: Batch | None,  # noqa: ARG002
    ) -> BatchResponse | None:
        """Accept batches of the partition again: jobs with the failed one are over."""
        self._open.forget_failure(assignment)
        if self.tasks is not None:
            self.tasks.forget_failure(assignment)
        return None

    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        """Drop the partition; its batches are all answered."""
        self._drop(assignment, "the partition was released")
        return None

    def may_still_store(self, assignment: Assignment) -> bool:
        """Return whether a job with a batch of the partition is under way: its commit may have
        begun.
        """
        return self._open.is_in_job(assignment)

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Drop the partition's batches, and cancel a job that has some of them."""
        self._drop(assignment, "the partition was lost")

    def _drop(self, assignment: Assignment, reason: str) -> None:
        self._admission.forget(assignment)
        self._open.withdraw(assignment, reason)
        if self.tasks is not None:
            self.tasks.remove(assignment, reason)

    def pass_over(self, batch: Batch) -> None:
        """Move the sink's offset past a batch that will not be processed. Blocks.

        Raises:
            SinkConflictError: the sink does not stand where the batch begins.
        """
        boundary = self._sink.boundary(batch)
        try:
            while boundary is not None:
                self._sink.move(commits_of([cut(batch, boundary)]))
                batch = replace(batch, start=boundary)
                boundary = self._sink.boundary(batch)
            self._sink.move(commits_of([batch]))
        except CommitConflictError as error:
            raise error.conflicts[0] from error

    def move_offset(self, assignment: Assignment, offset: int, note: str) -> None:
        """Move the sink's offset, forward or back, in a commit of its own. Blocks.

        Raises:
            HeadraceError: the sink keeps offsets and cannot move them.
            CommitConflictError: another writer writes to the sink.
        """
        stored = self._sink.stored_offset(assignment.identity)
        if stored is not None and stored != offset:
            move = OffsetMove(
                assignment.identity,
                assignment.partition,
                stored,
                offset,
                assignment.transactional_id,
            )
            self._sink.move_to(move, note)

    def close(self, deadline: Deadline) -> None:
        """Cancel what runs, commit what is staged, close the sink; answer what is left."""
        self._open.refuse()
        if self.tasks is not None:
            self.tasks.close(deadline)
        if self._calls is not None:
            self._calls.close()
        if self._runner is None:
            self._sink.close()
        elif not self._runner.close(deadline):
            log.error("lane_not_stopped", channel=self.context.channel)
        self._open.withdraw_all("the channel stops")

    def _on_done(self, answer: Future[BatchResponse]) -> None:
        """Cancel the job that a withdrawn batch is part of: its result could not be committed."""
        for name in self._open.jobs_of(answer):
            self._engine.cancel(name)


def micro_batch_processor(
    channel: ChannelConfig, engine: Engine, sink: Sink[Any], calls: CallWatch | None = None
) -> MicroBatchProcessor:
    """Return the processor of a channel's micro-batches, with the channel's limits."""
    return MicroBatchProcessor(
        engine,
        sink,
        limits=merge_limits(channel),
        job_timeout=channel.batch_timeout * JOB_SHARE,
        admission=AdmissionRules.of(channel),
        calls=calls,
    )
