"""Fetched records of one partition that are not handed out yet, and the next batch of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from math import inf
from threading import Lock
from typing import TYPE_CHECKING

from headrace.channel.settings import Limits
from headrace.core.record_runs import CompactRun
from headrace.core.records import offset_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.channel.settings import LiveSettings
    from headrace.core.record_runs import Run
    from headrace.core.records import Record


class NextBatch:
    """The limits of one batch, by configuration, by the processor's wish and by memory.

    ``copies`` is how often a processor has what is handed out in memory.
    """

    def __init__(self, settings: LiveSettings, copies: int) -> None:
        self.copies = copies
        now = settings.now
        self._share = now.limits.max_bytes * (now.max_in_flight * copies + 1)
        self._settings = settings
        self._wish: Limits | None = None

    @property
    def share(self) -> int:
        """Return the partition's part of the memory budget in bytes."""
        return self._share

    def set_share(self, share: int) -> None:
        """Limit batches to another part of the budget. For the fetcher."""
        self._share = share

    def wish(self, max_records: int | None, max_bytes: int | None) -> None:
        """Limit the next batch only, as the processor asked; the channel's limits still hold."""
        if max_records is not None or max_bytes is not None:
            self._wish = self._settings.now.limits.bounded(max_records, max_bytes)

    def waits_for(self) -> Limits:
        """Return with how much a batch does not wait for more.

        It and those in flight with it then fit into the share.
        """
        most = self._wished_limits()
        in_share = self._share // (self._settings.now.max_in_flight * self.copies + 1)
        if most.max_bytes <= in_share:
            return most
        return Limits(most.max_records, in_share, most.linger)

    def cut(self) -> Limits:
        """Return the limits of what is cut now; a wish is fulfilled with that.

        What was fetched is in memory however many batches it is handed out in. Only a processor
        that copies it has to be given less, for the copies to fit into the share.
        """
        limits = self._wished_limits() if self.copies == 1 else self.waits_for()
        self._wish = None
        return limits

    def _wished_limits(self) -> Limits:
        return self._wish or self._settings.now.limits


#: Bytes a fetched record takes besides its key, value and headers: the message 144, the heads of
#: two bytes objects 66, the topic's name, which each record has for itself, 49 and its length, a
#: slot in a list 8, and each of these rounded up to 16. Measured as the growth of the resident
#: memory by a million records of librdkafka 2.16's Python client: 315 where the topic's name has 9
#: letters; the rest is for longer ones.
RECORD_OVERHEAD = 340

#: Records of a chunk whose keys and headers are weighed; the others are taken to be like them.
_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Consecutive records of one partition: of a batch, or as fetches brought them.

    ``start`` is the position they continue from. ``size`` is in bytes and counts what the objects
    themselves take. ``failures`` counts the deliveries that failed with these records in them
    before they became a part of their own: more than 0 in a part of a batch that was given up and
    divided.
    """

    start: int
    records: Run
    next_offset: int
    size: int
    failures: int = 0


def chunk_of(records: Run) -> BatchSlice:
    """Measure consecutive records of one partition: values exactly, keys and headers by sample."""
    if isinstance(records, CompactRun):
        return BatchSlice(records.start, records, records.next_offset, records.size)
    count = len(records)
    size = sum(map(len, records)) + count * RECORD_OVERHEAD + round(count * _mean_extra(records))
    return BatchSlice(offset_of(records[0]), records, offset_of(records[-1]) + 1, size)


def _mean_extra(records: Sequence[Record]) -> float:
    """Return what keys and headers of one record take, by a sample."""
    sample = records[:: max(1, len(records) // _SAMPLE)]
    return sum(map(_extra, sample)) / len(sample)


def _extra(record: Record) -> int:
    size = len(record.key() or b"")
    for name, data in record.headers() or ():
        size += len(name) + len(data or b"")
    return size


def fitting(records: Sequence[Record], size: int, max_records: int, max_bytes: int) -> int:
    """Return how many of ``records``, which weigh ``size`` together, fit from the front."""
    count = min(len(records), max_records)
    if size <= max_bytes:
        return count
    if isinstance(records, CompactRun):
        return records.fitting(count, max_bytes)
    # more than these cannot fit, and a long chunk is cut many times
    front = records[: min(count, max_bytes // RECORD_OVERHEAD + 1)]
    extra = RECORD_OVERHEAD + _mean_extra(front)
    sums = list(accumulate(len(record) + extra for record in front))
    return bisect_right(sums, max_bytes)


def split(cut: BatchSlice, limits: Limits) -> tuple[BatchSlice, BatchSlice | None]:
    """Split a batch so that its front keeps ``limits``; the front has at least one record."""
    count = max(1, fitting(cut.records, cut.size, limits.max_records, limits.max_bytes))
    if count == len(cut.records):
        return cut, None
    return divide(cut, count)


def divide(cut: BatchSlice, count: int) -> tuple[BatchSlice, BatchSlice]:
    """Split a batch after its first ``count`` records; both parts have some."""
    front, rest = cut.records[:count], cut.records[count:]
    border = offset_of(rest[0])
    share = cut.size * count // len(cut.records)
    if isinstance(front, CompactRun):
        # the front of several pieces has fewer of them: not all that a piece takes is in its rows
        share = min(share, front.size)
    return (
        BatchSlice(cut.start, front, border, share, cut.failures),
        BatchSlice(border, rest, cut.next_offset, cut.size - share, cut.failures),
    )


def _may_join(front: Run, rest: Run) -> bool:
    """Return whether both can be one."""
    if isinstance(front, CompactRun):
        return front.may_precede(rest)
    return not isinstance(rest, CompactRun)


def _join_runs(front: Run, rest: Run) -> Run:
    """Return both as one; ``front`` is not to be used any more."""
    if isinstance(front, CompactRun):
        return front.followed_by(rest)
    front.extend(rest)
    return front


class BufferedRecords(Enum):
    """The outcome of offering a chunk to a buffer."""

    REFUSED = "refused"
    """It was fetched for an older generation, or lies before the end of the buffer."""

    WAITS = "waits"
    """It is kept, and the next batch is due when it was before."""

    SOONER = "sooner"
    """It is kept, and the next batch may be due sooner for it."""


class PartitionBuffer:
    """A queue of chunks that one fetcher fills and one worker at a time empties.

    Each restart raises the *generation*; chunks of an older one are refused, because they were
    fetched from a position that is no longer wanted. ``position`` is where the next cut starts.
    Nothing at ``bound`` or after it is wanted.
    """

    def __init__(self, bound: float = inf) -> None:
        self.bound = bound
        self._lock = Lock()
        self._chunks: deque[tuple[float, BatchSlice]] = deque()
        self._fetch_offset = 0
        #: The newest leader epoch of what was fetched, under which the log led to all of that.
        self.leader_epoch: int | None = None
        self.generation = 0
        self.position = 0
        self.records = 0
        self.size = 0

    def restart(self, position: int, leader_epoch: int | None = None) -> None:
        """Drop everything and go on at ``position`` in a new generation.

        ``leader_epoch`` is one under which the log was seen to lead there.
        """
        with self._lock:
            self.leader_epoch = leader_epoch
            self._chunks.clear()
            self.records = self.size = 0
            self.generation += 1
            self.position = self._fetch_offset = position

    @property
    def fetch_offset(self) -> int:
        """Return the lowest offset the next chunk may begin with: where to fetch it from."""
        return self._fetch_offset

    @property
    def complete(self) -> bool:
        """Return whether everything before the bound was fetched."""
        return self._fetch_offset >= self.bound

    def first(self) -> Record | None:
        """Return the record that the next cut begins with, None where none is held."""
        with self._lock:
            return self._chunks[0][1].records[0] if self._chunks else None

    def aim(self) -> tuple[int, int, int | None]:
        """Return the generation, the offset to fetch its next chunk from, and its leader epoch."""
        with self._lock:
            return self.generation, self._fetch_offset, self.leader_epoch

    def shed(self, generation: int) -> bool:
        """Drop unread records, to fetch them again from ``position``; False if there are none."""
        with self._lock:
            if generation != self.generation or not self._chunks:
                return False
            self._chunks.clear()
            self.records = self.size = 0
            self.generation += 1
            self._fetch_offset = self.position
            return True

    def before_bound(self, records: Run) -> Run:
        """Return those of consecutive records that are wanted: the list itself where all are."""
        end = records.next_offset if isinstance(records, CompactRun) else offset_of(records[-1]) + 1
        if end <= self.bound:
            return records
        return records[: bisect_left(records, self.bound, key=offset_of)]

    def append(
        self,
        generation: int,
        chunk: BatchSlice,
        now: float,
        limits: Limits | None = None,
        leader_epoch: int | None = None,
    ) -> BufferedRecords:
        """Add a fetched chunk, unless it is stale.

        With ``limits``, those of the next batch, it is joined with what waits for that batch. A
        full chunk can then be cut without touching its records, which are in the processor's
        cache now and, by then, no longer.
        """
        with self._lock:
            if generation != self.generation or chunk.start < self._fetch_offset:
                return BufferedRecords.REFUSED
            due_before = bool(self._chunks), self._full(limits)
            self.records += len(chunk.records)
            self.size += chunk.size
            self._fetch_offset = chunk.next_offset
            if leader_epoch is not None:
                self.leader_epoch = leader_epoch
            rest = chunk if limits is None else self._join(chunk, limits)
            if rest is not None:
                self._chunks.append((now, rest))
            return (
                BufferedRecords.WAITS
                if due_before == (True, self._full(limits))
                else BufferedRecords.SOONER
            )

    def _full(self, limits: Limits | None) -> bool:
        """Return whether a batch can be cut without waiting for more."""
        return limits is not None and (
            self.records >= limits.max_records or self.size >= limits.max_bytes or self.complete
        )

    def _join(self, chunk: BatchSlice, limits: Limits) -> BatchSlice | None:
        """Move what fits from ``chunk`` to the last one; return the rest, None if there is none."""
        if not self._chunks:
            return chunk
        arrived, last = self._chunks[-1]
        room = limits.max_records - len(last.records)
        if room <= 0 or last.size + chunk.size > limits.max_bytes:
            return chunk
        if not _may_join(last.records, chunk.records):
            return chunk
        rest = None
        if room < len(chunk.records):
            chunk, rest = divide(chunk, room)
        records, size = _join_runs(last.records, chunk.records), last.size + chunk.size
        if isinstance(records, CompactRun) and records.size < size:
            # pieces that were made into one weigh less
            self.size -= size - records.size
            size = records.size
        self._chunks[-1] = arrived, BatchSlice(last.start, records, chunk.next_offset, size)
        return rest

    def pass_gap(self, generation: int, end: int) -> int | None:
        """Advance past a gap up to ``end``: markers, aborted or compacted records.

        The next cut still starts where the last one ended, as a sink's stored offset does. What
        lies after the bound is not passed.

        Returns:
            where a gap ends that no buffered record precedes; None if there is none such.
        """
        with self._lock:
            end = int(min(end, self.bound))
            if generation != self.generation or end <= self._fetch_offset:
                return None
            self._fetch_offset = end
            return None if self._chunks else end

    def due(self, limits: Limits) -> float | None:
        """Return when a batch can be cut, in monotonic seconds; 0.0 for at once, None for never."""
        with self._lock:
            if not self._chunks:
                return None
            if self._full(limits):
                return 0.0
            return self._chunks[0][0] + limits.linger

    def cut(self, limits: Limits) -> BatchSlice | None:
        """Remove and return the next batch: at least one record, however large; None if empty."""
        with self._lock:
            records: Run = []
            start, size = self.position, 0
            while self._chunks and len(records) < limits.max_records and size < limits.max_bytes:
                chunk = self._chunks[0][1]
                count = fitting(
                    chunk.records,
                    chunk.size,
                    limits.max_records - len(records),
                    limits.max_bytes - size,
                )
                if records and (count == 0 or not _may_join(records, chunk.records)):
                    break
                arrived, taken = self._chunks.popleft()
                if (count := max(1, count)) < len(taken.records):
                    taken, rest = divide(taken, count)
                    self._chunks.appendleft((arrived, rest))
                self.position = taken.next_offset
                size += taken.size
                records = _join_runs(records, taken.records) if records else taken.records
            if not records:
                return None
            if not self._chunks:
                self.position = self._fetch_offset
            self.records -= len(records)
            self.size -= size
            return BatchSlice(start, records, self.position, size)
