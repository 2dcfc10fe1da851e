"""The actions of an operator on a partition: find an offset, seek to it, skip a record."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.channel.callbacks import WorkerAbandoned
from headrace.channel.events import RecordSkipped, SeekRequested, SeekResult
from headrace.channel.offset_reset import WATERMARK_TIMEOUT
from headrace.channel.skips import Skip
from headrace.channel.states import PartitionState
from headrace.core.clock import Deadline
from headrace.core.errors import (
    Refusal,
    RefusedError,
)
from headrace.core.positions import At, Earliest, Latest, Replay, ShiftBy, Target, To
from headrace.core.user_text import describe_error
from headrace.processors import BatchProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.callbacks import Callbacks
    from headrace.channel.commits import Committer
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.partition_manager import PartitionManager
    from headrace.channel.pauses import DeliveryGate
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.skips import Skips
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import TopicCatalog


T = TypeVar("T")

log = structlog.get_logger(__name__)


class SeekControl:
    """A worker's steps when an operator moves a partition. Called by the thread that holds it."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        callbacks: Callbacks,
        catalog: TopicCatalog,
        committer: Committer,
        delivery_gate: DeliveryGate,
        fetcher: Fetcher,
    ) -> None:
        self._environment = environment
        self._callbacks = callbacks
        self._catalog = catalog
        self._committer = committer
        self._delivery_gate = delivery_gate
        self._fetcher = fetcher

    def seek(self, owned: OwnedPartition, asked: SeekRequested) -> None:
        """Move it, and tell who asked what came of it."""
        if not asked.outcome.set_running_or_notify_cancel():
            return
        try:
            asked.outcome.set_result(self._seek(owned, asked))
        except WorkerAbandoned:
            asked.outcome.set_exception(CancelledError())
            raise
        except Exception as error:  # noqa: BLE001 - who asked hears of it
            asked.outcome.set_exception(error)
        finally:
            self._delivery_gate.pauses.progress()

    def _seek(self, owned: OwnedPartition, asked: SeekRequested) -> SeekResult:
        if (
            owned.life.state is not PartitionState.PAUSED
            or owned.progress.outstanding
            or owned.pending_commits.has_pending_commit
        ):
            raise not_paused(self._environment.name, owned)
        self._check(owned, asked.offset)
        before = owned.position
        in_sink = self._move_sink(owned, asked)
        is_fetched = owned.log_doubt.doubt is None and not owned.log_doubt.halted
        owned.restart_at(asked.offset)
        owned.retries.note_error(None)
        sequence = self._committer.enqueue(owned, asked.offset)
        self._committer.flush()
        if is_fetched:
            self._fetcher.seek(owned)
        else:
            self._fetcher.assign(owned)
        log.warning(
            "seek_applied",
            **owned.life.log_fields,
            before=before,
            position=asked.offset,
            sink_offset=in_sink,
            by=asked.by,
        )
        return SeekResult(owned.partition, before, asked.offset, sequence)

    def _check(self, owned: OwnedPartition, offset: int) -> None:
        deadline = Deadline.after(WATERMARK_TIMEOUT, self._environment.clock)
        low, high = self._catalog.watermarks(owned.partition, deadline)
        if not low <= offset <= high:
            raise RefusedError(
                Refusal.NO_SUCH_OFFSET,
                f"{owned.partition}: the log has the offsets from {low} to {high}, not {offset}",
                value=str(offset),
                next_step="choose one of those",
            )

    def _move_sink(self, owned: OwnedPartition, asked: SeekRequested) -> int | None:
        """Move the sink's own offset first, as a start goes by it; return where it was.

        Where that fails nothing is changed. Where what follows fails the sink's offset counts, and
        the same seek again does the rest.
        """
        processor = self._callbacks.processor
        stored = self._ask_sink(owned, asked, lambda: processor.stored_offset(owned))
        if stored is None or stored == asked.offset:
            return stored
        if type(processor).move_offset is BatchProcessor.move_offset:
            raise _out_of_reach(owned, type(processor).__name__)
        if asked.offset < stored and asked.replay is not Replay.APPEND:
            raise _undecided(owned, asked, stored)
        note = f"seek by {asked.by}"
        self._ask_sink(owned, asked, lambda: processor.move_offset(owned, asked.offset, note))
        return stored

    def _ask_sink(
        self, owned: OwnedPartition, asked: SeekRequested, function: Callable[[], T]
    ) -> T:
        try:
            return self._callbacks.require(owned, function)
        except Exception as error:
            raise RefusedError(
                Refusal.SINK_OFFSETS,
                f"{owned.partition}: the sink's offset could not be moved: {describe_error(error)}",
                value=str(asked.offset),
                next_step="nothing was changed; fix the sink and seek again",
            ) from error


def not_paused(channel: str, owned: OwnedPartition) -> RefusedError:
    """Return the refusal for a partition that does not rest."""
    return RefusedError(
        Refusal.NOT_PAUSED,
        f"{owned.partition}: delivery does not rest, it is {owned.life.state.value}",
        value=str(owned.partition),
        next_step=f"pause the channel {channel} or the partition, and wait until it is paused",
    )


def _undecided(owned: OwnedPartition, asked: SeekRequested, stored: int) -> RefusedError:
    wish = "not said" if asked.replay is None else "to be replaced, which takes a stopped channel"
    return RefusedError(
        Refusal.REPLAY,
        f"{owned.partition}: the sink has output of records from {asked.offset} to {stored}, which "
        f"would be read again, and what becomes of it is {wish}",
        value=str(asked.offset),
        next_step="seek with replay append to keep it and have results go there again, or stop the "
        "channel and use headrace offsets reset --replay replace to have it removed",
    )


def _out_of_reach(owned: OwnedPartition, processor: str) -> RefusedError:
    return RefusedError(
        Refusal.SINK_OFFSETS,
        f"{owned.partition}: {processor} keeps offsets of its own and has no move_offset, so that "
        "a start would go by those all the same",
        value=processor,
        next_step="change them where the processor keeps them, or give it a move_offset",
    )


class PartitionControl:
    """Safe on any thread. What blocks says so; nothing blocks for longer than its deadline."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        catalog: TopicCatalog,
        delivery_gate: DeliveryGate,
        manager: PartitionManager,
        scheduler: Scheduler,
        skips: Skips,
    ) -> None:
        self._environment = environment
        self._catalog = catalog
        self._delivery_gate = delivery_gate
        self._manager = manager
        self._scheduler = scheduler
        self._skips = skips

    # --- moving -----------------------------------------------------------------------------

    def seek(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        by: str,
        deadline: Deadline,
        replay: Replay | None = None,
    ) -> SeekResult:
        """Move a paused partition to ``offset``; see ``InboundKafkaChannel.seek``. Blocks."""
        owned = self._resting(partition)
        outcome: Future[SeekResult] = Future()
        owned.post(SeekRequested(offset, by, outcome, replay))
        self._scheduler.touch(owned)
        self._delivery_gate.pauses.wait(lambda: outcome.done() or owned.life.final, deadline)
        if outcome.cancel() or not outcome.done():
            raise _unfinished(partition, owned, offset)
        try:
            result = outcome.result(0)
        except CancelledError:
            raise _unfinished(partition, owned, offset) from None
        stored = self._delivery_gate.pauses.wait(
            lambda: owned.pending_commits.stored >= result.sequence or owned.life.final, deadline
        )
        if not stored or owned.pending_commits.stored < result.sequence:
            raise RefusedError(
                Refusal.UNFINISHED,
                f"{partition} was moved to {offset}, but that is not known to be committed",
                value=str(offset),
                next_step="look at its committed offset, and seek again if it is another",
            )
        return result

    def find(self, target: Target, partition: TopicPartition, deadline: Deadline) -> int:
        """Return what a target means; see ``InboundKafkaChannel.find``. Blocks."""
        owned = self._resting(partition)
        low, high = self._catalog.watermarks(partition, deadline)
        match target:
            case Earliest():
                wanted = low
            case Latest():
                wanted = high
            case To(offset):
                wanted = offset
            case ShiftBy(count):
                wanted = owned.position + count
            case At(timestamp):
                found = self._catalog.offset_at(partition, timestamp, deadline)
                wanted = high if found is None else found
        return max(low, min(wanted, high))

    # --- skipping ---------------------------------------------------------------------------

    def skip(
        self, partition: TopicPartition, offset: int, *, reason: str, by: str, force: bool = False
    ) -> Skip:
        """Leave one record out from now on; see ``InboundKafkaChannel.skip``. Does not block."""
        owned = self._require_known(partition)
        if offset < max(owned.committed or 0, owned.progress.processed_offset):
            raise RefusedError(
                Refusal.COMMITTED_ALREADY,
                f"{partition}: the record at {offset} is done with, {owned.committed} is committed",
                value=str(offset),
                next_step="there is nothing left to skip; to read it again, pause and seek",
            )
        end = owned.high_watermark
        # the watermark is looked at now and then only, and may lag behind what was fetched
        if end is not None and offset >= max(end, owned.progress.buffer.fetch_offset):
            raise RefusedError(
                Refusal.NO_SUCH_OFFSET,
                f"{partition}: the log ends at {end}, there is no record {offset} yet",
                value=str(offset),
                next_step="the status has the first record of the batch that fails (batch_offset)",
            )
        if not force:
            _require_in_batch(owned, offset)
        skip = Skip(partition, offset, reason, by)
        self._skips.add(owned, skip)
        owned.post(RecordSkipped())
        self._scheduler.touch(owned)
        log.warning(
            "skip_requested",
            channel=self._environment.name,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            reason=reason,
            by=by,
        )
        return skip

    # --- parts ------------------------------------------------------------------------------

    def _require_held(self, partition: TopicPartition) -> OwnedPartition:
        owned = self._manager.held(partition)
        if owned is None:
            raise _not_held(f"{partition} is not held by this process", partition)
        return owned

    def _require_known(self, partition: TopicPartition) -> OwnedPartition:
        """Return a held partition of which it is known whose log it is: skips belong to that."""
        owned = self._require_held(partition)
        if owned.life.topic_id is None:
            raise RefusedError(
                Refusal.NOT_HELD,
                f"{partition} is only being taken over",
                value=str(partition),
                next_step="ask again in a moment, when it has started",
            )
        return owned

    def _resting(self, partition: TopicPartition) -> OwnedPartition:
        owned = self._require_held(partition)
        if not owned.rests or owned.life.state is not PartitionState.PAUSED:
            raise not_paused(self._environment.name, owned)
        return owned


def _require_in_batch(owned: OwnedPartition, offset: int) -> None:
    """Raise unless an offset belongs to the batch that is out, or that failed and is retried.

    Raises:
        RefusedError: it is not.
    """
    batch = owned.batch
    if batch is not None and batch[0] <= offset < batch[1]:
        return
    if batch is None:
        found = "no batch is out, and none has failed"
    else:
        found = f"the batch that is out or fails has the records {batch[0]} to {batch[1] - 1}"
    raise RefusedError(
        Refusal.NOT_IN_BATCH,
        f"{owned.partition}: {found}; {offset} is none of them",
        value=str(offset),
        next_step="skip one of the batch that fails, or have this one skipped all the same by "
        "force: true (--force)",
    )


def _not_held(message: str, partition: TopicPartition) -> RefusedError:
    next_step = "ask the member that owns it; headrace group says which"
    return RefusedError(Refusal.NOT_HELD, message, value=str(partition), next_step=next_step)


def _unfinished(partition: TopicPartition, owned: OwnedPartition, offset: int) -> RefusedError:
    if owned.life.final:
        return _not_held(f"{partition} ended while it was to be moved", partition)
    return RefusedError(
        Refusal.UNFINISHED,
        f"{partition} was not moved to {offset} in time",
        value=str(offset),
        next_step="see what the partition is doing with headrace status, and seek again",
    )
