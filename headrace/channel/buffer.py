"""The records of one partition that were fetched and not yet handed out."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.records import Record

#: Bytes a fetched record takes besides its key, value and headers: the message object, the two
#: bytes objects' heads and the slots in lists. Measured as the growth of RSS over a million
#: records of librdkafka 2.16's Python client.
RECORD_OVERHEAD = 320

#: Records of a chunk whose keys and headers are weighed; the others are taken to be like them.
_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of one partition as one fetch brought them.

    ``size`` is in bytes and counts what the objects themselves take.
    """

    records: list[Record]
    first_offset: int
    next_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a batch may grow, and how long (seconds) its first record may wait for it."""

    max_records: int
    max_bytes: int
    linger: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The records of a batch. ``start`` is the position they continue from; ``size`` in bytes."""

    start: int
    records: list[Record]
    next_offset: int
    size: int


def chunk_of(records: list[Record]) -> Chunk:
    """Weigh consecutive records of one partition; values exactly, keys and headers by sample."""
    count = len(records)
    size = sum(map(len, records)) + count * RECORD_OVERHEAD
    sample = records[:: max(1, count // _SAMPLE)]
    size += sum(map(_extra, sample)) * count // len(sample)
    first, last = records[0].offset(), records[-1].offset()
    assert first is not None
    assert last is not None
    return Chunk(records, first, last + 1, size)


def _extra(record: Record) -> int:
    headers = record.headers() or ()
    return len(record.key() or b"") + sum(len(name) + len(data or b"") for name, data in headers)


def fitting(records: Sequence[Record], size: int, max_records: int, max_bytes: int) -> int:
    """Return how many of ``records``, which weigh ``size`` together, fit from the front."""
    count = min(len(records), max_records)
    if size <= max_bytes:
        return count
    extra = (size - sum(map(len, records))) // len(records)
    sums = list(accumulate(len(record) + extra for record in records[:count]))
    return bisect_right(sums, max_bytes)


def split(cut: Cut, limits: Limits) -> tuple[Cut, Cut | None]:
    """Split a batch so that its front keeps ``limits``; the front has at least one record."""
    count = max(1, fitting(cut.records, cut.size, limits.max_records, limits.max_bytes))
    if count == len(cut.records):
        return cut, None
    return divide(cut, count)


def divide(cut: Cut, count: int) -> tuple[Cut, Cut]:
    """Split a batch behind its first ``count`` records; both parts have some."""
    front, rest = cut.records[:count], cut.records[count:]
    border = rest[0].offset()
    assert border is not None
    share = cut.size * count // len(cut.records)
    return (
        Cut(cut.start, front, border, share),
        Cut(border, rest, cut.next_offset, cut.size - share),
    )


class PartitionBuffer:
    """A queue of chunks that one fetcher fills and one worker at a time empties.

    Each restart raises the *generation*; chunks of an older one are refused, because they were
    fetched from a position that is no longer wanted. ``position`` is where the next cut starts.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._chunks: deque[tuple[float, Chunk]] = deque()
        self._expected = 0
        self.generation = 0
        self.position = 0
        self.records = 0
        self.size = 0

    def restart(self, position: int) -> None:
        """Drop everything and go on at ``position`` in a new generation."""
        with self._lock:
            self._chunks.clear()
            self.records = self.size = 0
            self.generation += 1
            self.position = self._expected = position

    @property
    def expected(self) -> int:
        """The lowest offset the next chunk may begin with: where to fetch it from."""
        return self._expected

    def aim(self) -> tuple[int, int]:
        """Return the generation and the offset to fetch its next chunk from."""
        with self._lock:
            return self.generation, self._expected

    def shed(self, generation: int) -> bool:
        """Drop unread records, to fetch them again from ``position``; False if there are none."""
        with self._lock:
            if generation != self.generation or not self._chunks:
                return False
            self._chunks.clear()
            self.records = self.size = 0
            self.generation += 1
            self._expected = self.position
            return True

    def append(self, generation: int, chunk: Chunk, now: float) -> bool:
        """Add a fetched chunk; False if it is stale and was refused."""
        with self._lock:
            if generation != self.generation or chunk.first_offset < self._expected:
                return False
            self._chunks.append((now, chunk))
            self.records += len(chunk.records)
            self.size += chunk.size
            self._expected = chunk.next_offset
            return True

    def pass_gap(self, generation: int, end: int) -> bool:
        """Note that nothing readable lies before ``end``: markers, aborted or compacted records.

        The next cut still starts where the last one ended, as a sink's stored offset does.

        Returns:
            whether there is a gap that no record at hand precedes.
        """
        with self._lock:
            if generation != self.generation or end <= self._expected:
                return False
            self._expected = end
            return not self._chunks

    def due(self, limits: Limits) -> float | None:
        """Return when a batch can be cut, in monotonic seconds; 0.0 for at once, None for never."""
        with self._lock:
            if not self._chunks:
                return None
            if self.records >= limits.max_records or self.size >= limits.max_bytes:
                return 0.0
            return self._chunks[0][0] + limits.linger

    def cut(self, limits: Limits) -> Cut | None:
        """Take the next batch: at least one record, however large, None if there is none."""
        with self._lock:
            records: list[Record] = []
            start, size = self.position, 0
            while self._chunks:
                arrived, chunk = self._chunks[0]
                count = fitting(
                    chunk.records,
                    chunk.size,
                    limits.max_records - len(records),
                    limits.max_bytes - size,
                )
                if count == 0 and records:
                    break
                size += self._take(arrived, chunk, max(1, count), records)
                if len(records) >= limits.max_records or size >= limits.max_bytes:
                    break
            if not records:
                return None
            if not self._chunks:
                self.position = self._expected
            self.records -= len(records)
            self.size -= size
            return Cut(start, records, self.position, size)

    def _take(self, arrived: float, chunk: Chunk, count: int, into: list[Record]) -> int:
        """Move the chunk's first ``count`` records; return their size."""
        if count == len(chunk.records):
            self._chunks.popleft()
            into.extend(chunk.records)
            self.position = chunk.next_offset
            return chunk.size
        whole = Cut(chunk.first_offset, chunk.records, chunk.next_offset, chunk.size)
        front, rest = divide(whole, count)
        left = Chunk(rest.records, rest.start, rest.next_offset, rest.size)
        self._chunks[0] = (arrived, left)
        into.extend(front.records)
        self.position = front.next_offset
        return front.size
