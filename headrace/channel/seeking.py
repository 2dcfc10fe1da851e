"""Moving a paused partition to another offset, in the channel, the group and the sink."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.channel.callbacks import WorkerAbandoned
from headrace.channel.news import Sought
from headrace.channel.states import PartitionState
from headrace.clock import Deadline
from headrace.config.kinds.targets import Replay
from headrace.errors import NoSuchOffsetError, NotPausedError, ReplayError, SinkOffsetsError
from headrace.processors import BatchProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.news import SeekAsked
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.parts import Parts

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: Seconds to wait for a partition's leader to say what it has.
WATERMARK_TIMEOUT = 5.0


class Seeking:
    """What a worker does when an operator moves a partition. Called by the thread that holds it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def seek(self, owned: OwnedPartition, asked: SeekAsked) -> None:
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
            self._parts.gates.pauses.progress()

    def _seek(self, owned: OwnedPartition, asked: SeekAsked) -> Sought:
        if owned.state is not PartitionState.PAUSED or owned.outstanding or owned.owes_commit:
            raise not_paused(self._parts.name, owned)
        self._check(owned, asked.offset)
        before = owned.position
        in_sink = self._move_sink(owned, asked)
        owned.discard()
        owned.buffer.restart(asked.offset)
        owned.advanced = asked.offset
        owned.attempts = 0
        owned.not_before = 0.0
        owned.last_error = None
        sequence = owned.staging.stage(None)
        self._parts.committer.stage(owned, asked.offset, sequence)
        self._parts.committer.flush()
        if owned.halted or owned.doubt is not None:
            owned.halted, owned.doubt = False, None
            self._parts.fetcher.assign(owned)
        else:
            self._parts.fetcher.seek(owned)
        log.warning(
            "position_sought",
            channel=self._parts.name,
            topic=owned.partition.topic,
            partition=owned.partition.partition,
            epoch=owned.epoch,
            before=before,
            position=asked.offset,
            sink_offset=in_sink,
            by=asked.by,
        )
        return Sought(owned.partition, before, asked.offset, sequence)

    def _check(self, owned: OwnedPartition, offset: int) -> None:
        deadline = Deadline.after(WATERMARK_TIMEOUT, self._parts.clock)
        low, high = self._parts.catalog.watermarks(owned.partition, deadline)
        if not low <= offset <= high:
            raise NoSuchOffsetError(
                f"{owned.partition}: the log has the offsets from {low} to {high}, not {offset}",
                value=str(offset),
                next_step="choose one of those",
            )

    def _move_sink(self, owned: OwnedPartition, asked: SeekAsked) -> int | None:
        """Move the sink's own offset first, as a start goes by it; return where it was.

        Where that fails nothing is changed. Where what follows fails the sink's offset counts, and
        the same seek again does the rest.
        """
        processor = self._parts.callbacks.processor
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

    def _ask_sink(self, owned: OwnedPartition, asked: SeekAsked, function: Callable[[], T]) -> T:
        try:
            return self._parts.callbacks.call(owned, function)
        except Exception as error:
            raise SinkOffsetsError(
                f"{owned.partition}: the sink's offset could not be moved: "
                f"{type(error).__name__}: {error}",
                value=str(asked.offset),
                next_step="nothing was changed; mend the sink and seek again",
            ) from error


def not_paused(channel: str, owned: OwnedPartition) -> NotPausedError:
    """Return the refusal for a partition that does not rest."""
    return NotPausedError(
        f"{owned.partition}: delivery does not rest, it is {owned.state.value}",
        value=str(owned.partition),
        next_step=f"pause the channel {channel} or the partition, and wait until it is paused",
    )


def _undecided(owned: OwnedPartition, asked: SeekAsked, stored: int) -> ReplayError:
    wish = "not said" if asked.replay is None else "to be replaced, which takes a stopped channel"
    return ReplayError(
        f"{owned.partition}: the sink has output of records from {asked.offset} to {stored}, which "
        f"would be read again, and what becomes of it is {wish}",
        value=str(asked.offset),
        next_step="seek with replay append to keep it and have results go there again, or stop the "
        "channel and use headrace offsets reset --replay replace to have it removed",
    )


def _out_of_reach(owned: OwnedPartition, processor: str) -> SinkOffsetsError:
    return SinkOffsetsError(
        f"{owned.partition}: {processor} keeps offsets of its own and has no move_offset, so that "
        "a start would go by those all the same",
        value=processor,
        next_step="change them where the processor keeps them, or give it a move_offset",
    )
