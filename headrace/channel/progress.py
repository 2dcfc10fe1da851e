"""The progress of one partition: its offsets, its buffered records, and the batches that are out.

Offsets keep this order, each meaning the next record to read:

``committed <= processed_offset <= position <= fetch_offset <= high_watermark``

``committed`` is known to be stored, ``processed_offset`` was declared done by the processor,
``position`` is delivered next, ``fetch_offset`` (of the buffer) is fetched next, and
``high_watermark`` is where the log ends. The watermark is looked at now and then only, so that what
was fetched since may be past it. A move back (``OwnedPartition.restart_at``) has ``committed``
follow with the next commit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.channel.buffer import NextBatch, PartitionBuffer, divide, split
from headrace.core.records import made_at, offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from headrace.channel.buffer import BatchSlice
    from headrace.channel.settings import LiveSettings
    from headrace.core.records import Batch
    from headrace.processors import BatchResponse


@dataclass(slots=True)
class Outstanding:
    """A batch that was handed out, and where its answer will be. ``deadline`` is monotonic.

    One that ``passes`` was not handed to the processor, because all its records are left out.
    """

    batch: Batch
    cut: BatchSlice
    answer: Future[BatchResponse]
    deadline: float
    passes: bool = False


class Progress:
    """Offsets and records of an owned partition.

    The fetcher fills ``buffer`` and notes the end of the log; the rest is changed by the thread
    that holds the partition. Everything may be read on any thread.
    """

    def __init__(self, settings: LiveSettings, *, copies: int, bound: float) -> None:
        self.buffer = PartitionBuffer(bound)
        self.next_batch = NextBatch(settings, copies)
        self.pending: deque[BatchSlice] = deque()
        self.outstanding: deque[Outstanding] = deque()
        self.handing_out: BatchSlice | None = None
        self.processed_offset = 0
        self.high_watermark: int | None = None
        self.caught_up_at: float | None = None
        self.newest: float | None = None
        self._settings = settings
        self._settling: BatchSlice | None = None
        self._idle_since: float | None = None
        self._gap_end: int | None = None

    # --- read on any thread ---------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Return the next offset to deliver."""
        try:
            return self.pending[0].start
        except IndexError:
            return self.buffer.position

    def leader_epoch_at(self, offset: int) -> int | None:
        """Return a leader epoch under which the log was seen to lead to an offset."""
        return self.buffer.leader_epoch if offset <= self.buffer.fetch_offset else None

    @property
    def oldest_out(self) -> BatchSlice | None:
        """Return the oldest batch that is out, handed out or answered just now; None if none is."""
        # in the order in which a batch goes through them: one that moves on meanwhile is not missed
        handing_out = self.handing_out
        try:
            out = self.outstanding[0].cut
        except IndexError:
            out = None
        return self._settling or out or handing_out

    @property
    def suspect_records(self) -> int:
        """Return the records among which one that fails is being looked for."""
        return sum(len(cut.records) for cut in self.unanswered() if cut.failures)

    def unanswered(self) -> list[BatchSlice]:
        """Return what was cut from the buffer and is not answered, the oldest first."""
        # mostly nothing is there, and with many partitions it is asked often
        if not (self.outstanding or self.handing_out or self.pending):
            return []
        out = [item.cut for item in tuple(self.outstanding)]
        cuts = (*out, self.handing_out, *tuple(self.pending))
        return [cut for cut in cuts if cut is not None]

    def held_bytes(self) -> int:
        """Return the bytes of records fetched that are not answered."""
        held = self.buffer.size
        # mostly nothing is there, and with many partitions it is asked often
        if self.outstanding:
            out = sum(item.cut.size for item in tuple(self.outstanding))
            held += self.next_batch.copies * out
        if self.pending:
            held += sum(cut.size for cut in tuple(self.pending))
        return held

    @property
    def idle_at(self) -> float | None:
        """Return when it has been idle for so long that the processor is told; None: it is not
        idle.
        """
        idle_since = self._idle_since
        return None if idle_since is None else idle_since + self._settings.config.idle_time

    @property
    def is_answered(self) -> bool:
        """Return whether the oldest batch that is out has its answer."""
        return bool(self.outstanding) and self.outstanding[0].answer.done()

    @property
    def answer_due(self) -> float | None:
        """Return when the oldest batch that is out is overdue (monotonic), None if none is out."""
        return self.outstanding[0].deadline if self.outstanding else None

    # --- the fetcher only -----------------------------------------------------------------------

    def note_end(self, end: int, now: float) -> None:
        """Record where the log ends, at ``now`` in seconds since the epoch."""
        self.high_watermark = end
        if self.buffer.fetch_offset >= end:
            self.caught_up_at = now

    # --- the holder only ------------------------------------------------------------------------

    def take_batch(self) -> BatchSlice | None:
        """Return the next batch to deliver; ``deliver`` follows."""
        limits = self.next_batch.cut()
        if not self.pending:
            self.handing_out = self.buffer.cut(limits)
        else:
            # noted before it leaves ``pending``: other threads ask at any moment which batch it is
            self.handing_out, rest = split(self.pending[0], limits)
            self.pending.popleft()
            if rest is not None:
                self.pending.appendleft(rest)
        return self.handing_out

    def deliver(self, item: Outstanding) -> None:
        """Record that the batch taken last is out."""
        self.outstanding.append(item)
        self.handing_out = None

    def begin_idle(self, now: float) -> None:
        """Record since when nothing is out, if nothing is."""
        if not self.outstanding:
            self._idle_since = now

    def end_idle(self) -> None:
        """Reset the idle time, because the processor is notified."""
        self._idle_since = None

    @contextmanager
    def settles(self) -> Iterator[Outstanding]:
        """Yield the oldest batch that is out, removed; its answer is applied in the block."""
        self._settling = self.outstanding[0].cut
        try:
            yield self.outstanding.popleft()
        finally:
            self._settling = None

    def process_to(self, offset: int, batch: Batch | None) -> None:
        """Advance the processed offset; ``batch`` is the one that was answered so."""
        self.processed_offset = offset
        if batch is None:
            return
        count = len(batch)
        if offset < batch.next_offset:
            count = bisect_left(batch.records, offset, key=offset_of)
        if count:
            self.newest = made_at(batch.records[count - 1])

    def note_gap(self, end: int, generation: int) -> None:
        """Record that nothing readable is left before ``end`` in that generation of the buffer."""
        if generation == self.buffer.generation:
            self._gap_end = end

    def take_gap(self) -> int | None:
        """Return the end of a gap once everything before it is done with, None otherwise.

        One that lies before what is done with was passed by the batches after it.
        """
        end = self._gap_end
        if end is None or self.outstanding or self.pending:
            return None
        is_passed = end <= self.processed_offset
        if not is_passed and self.processed_offset != self.buffer.position:
            return None
        self._gap_end = None
        return None if is_passed else end

    def withdraw(self) -> list[BatchSlice]:
        """Withdraw all outstanding batches and cancel their futures; return their records."""
        cuts = [item.cut for item in self.outstanding]
        for item in self.outstanding:
            item.answer.cancel()
            item.batch.span.end(outcome="withdrawn")
        self.outstanding.clear()
        return cuts

    def discard(self, *, leader_is_known: bool = True) -> None:
        """Drop all records that are not handed out; the position stays where it is.

        ``leader_is_known``: whether the log leads there as under the leader epoch known so far.
        """
        epoch = self.buffer.leader_epoch if leader_is_known else None
        self.drop_to(self.position, epoch)

    def discard_read_ahead(self) -> None:
        """Drop what is not cut into a batch yet; batches that wait for a retry are kept."""
        self._gap_end = None
        self.buffer.restart(self.buffer.position)

    def drop_to(self, position: int, leader_epoch: int | None) -> None:
        """Drop all records that are not handed out, and go on at ``position``."""
        self._gap_end = None
        self.pending.clear()
        self.buffer.restart(position, leader_epoch)

    def go_back_to(self, target: int, retained: Iterable[BatchSlice]) -> bool:
        """Deliver the buffered records from ``target`` on.

        ``retained`` are records just taken back, which the pending ones and the buffer continue.

        Returns:
            whether they cover it; if not, nothing is changed.
        """
        cuts = [*retained, *self.pending]
        covered = cuts[0].start if cuts else self.buffer.position
        if not covered <= target <= self.buffer.position:
            return False
        self.pending.clear()
        self.pending.extend(part for cut in cuts if (part := _from(cut, target)) is not None)
        return True


def _from(cut: BatchSlice, target: int) -> BatchSlice | None:
    """Return what of ``cut`` lies at ``target`` or after, None if nothing does."""
    if cut.next_offset <= target:
        return None
    if cut.start >= target:
        return cut
    count = bisect_left(cut.records, target, key=offset_of)
    if count == len(cut.records):
        return None
    if count == 0:
        return replace(cut, start=target)
    return replace(divide(cut, count)[1], start=target)
