"""Records in columns: Arrow arrays that hold what was fetched, without an object for each record.

Records can be read one by one all the same: they are made when they are looked at.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import accumulate, chain, groupby, repeat
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.record_runs import CompactRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.core.record_runs import Run
    from headrace.core.records import TopicPartition

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

#: The columns of a piece of a run. ``timestamp`` is in milliseconds since the Unix epoch and -1
#: where the broker kept none, ``timestamp_type`` as Kafka numbers it.
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("timestamp_type", pa.int8()),
        ("headers", HEADERS),
    ]
)

#: Arrow's usual allocator keeps what it freed in each thread that builds columns; no budget knows
#: of that. The system's gives it back and is as fast here.
POOL = pa.system_memory_pool()


def constant(kind: pa.DataType, data: bytes) -> pa.Scalar:
    """Return the value that Arrow keeps as these bytes.

    ``pa.scalar`` and ``pa.array``, and functions that are given a number of Python's, import pandas
    at their first call: that takes a second and more, on the thread that has a batch in hand.
    """
    buffers = [None, pa.py_buffer(data)]
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        buffers.insert(1, pa.py_buffer(struct.pack("=2i", 0, len(data))))
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        buffers.insert(1, pa.py_buffer(struct.pack("=2q", 0, len(data))))
    return pa.Array.from_buffers(kind, 1, buffers)[0]


def integer(value: int, kind: pa.DataType) -> pa.Scalar:
    """Return a whole number, as :func:`constant` does."""
    return constant(kind, value.to_bytes(kind.bit_width // 8, sys.byteorder, signed=True))


def load_pandas() -> None:
    """Import pandas through pyarrow now, because building columns and grouping rows needs it later.

    Blocks for a second and more, the first time; before a channel is ready no batch waits for it.
    """
    pa.array([b""], pa.binary())
    import_module("pyarrow.acero")


_NO_BYTES = integer(0, pa.int32())

#: Bytes that a piece takes beside what is in its columns: their buffers and the objects around
#: them. Measured as the growth of the resident memory by 100,000 pieces of one record each.
PIECE_OVERHEAD = 6_800

#: Records that are made together when a run is walked through: few enough to be in the
#: processor's cache when they are looked at.
_BLOCK = 1000

#: A run of more pieces than this has its small ones, of fewer records and bytes than that, made
#: into one: a batch that waits for records which come one by one would have thousands.
_MANY_PIECES = 64
_SMALL_PIECE = 1000
_SMALL_BYTES = 1 << 20


class _Block:
    """Some rows of a piece as lists, one for each column, made when first asked for.

    ``length`` has the values' bytes, 0 for a tombstone.
    """

    __slots__ = ("_rows", "length", "partition", *SCHEMA.names)

    def __init__(self, rows: pa.RecordBatch, partition: TopicPartition) -> None:
        self._rows = rows
        self.partition = partition

    def __getattr__(self, name: str) -> list[Any]:
        """Fill a slot that is empty; from then on it is found without this call."""
        if name == "length":
            column = pc.fill_null(pc.binary_length(self._rows.column("value")), _NO_BYTES)
        elif name in SCHEMA.names:
            column = self._rows.column(name)
        else:
            raise AttributeError(name)
        values: list[Any] = column.to_pylist()
        setattr(self, name, values)
        return values


class ColumnRecord:
    """One row as a record; see :class:`headrace.core.records.Record`."""

    __slots__ = ("_at", "_block")

    def __init__(self, block: _Block, at: int) -> None:
        self._block = block
        self._at = at

    def topic(self) -> str:
        return self._block.partition.topic

    def partition(self) -> int:
        return self._block.partition.partition

    def offset(self) -> int:
        offset: int = self._block.offset[self._at]
        return offset

    def key(self) -> bytes | None:
        key: bytes | None = self._block.key[self._at]
        return key

    def value(self) -> bytes | None:
        value: bytes | None = self._block.value[self._at]
        return value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        headers: list[dict[str, Any]] | None = self._block.headers[self._at]
        return None if headers is None else [(each["key"], each["value"]) for each in headers]

    def timestamp(self) -> tuple[int, int]:
        return self._block.timestamp_type[self._at], self._block.timestamp[self._at]

    def __len__(self) -> int:
        length: int = self._block.length[self._at]
        return length

    def __repr__(self) -> str:
        return f"ColumnRecord({self._block.partition}, {self.offset()})"


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets and bytes of a run, known without a look into it."""

    start: int
    next_offset: int
    size: int


class ColumnRun(CompactRun):
    """Records in one or more pieces, each a RecordBatch of :data:`SCHEMA` with some rows.

    Offsets rise from row to row and from piece to piece. A slice keeps the memory of the pieces
    that it is cut from. ``extent`` spares a look where the caller knows it.
    """

    def __init__(
        self,
        partition: TopicPartition,
        pieces: Sequence[pa.RecordBatch],
        extent: Extent | None = None,
    ) -> None:
        self.partition = partition
        self.pieces = tuple(pieces)
        self._known = extent

    @cached_property
    def _ends(self) -> list[int]:
        """Return how many records there are up to the end of each piece."""
        return list(accumulate(piece.num_rows for piece in self.pieces))

    @property
    def extent(self) -> Extent:
        """Return offsets and bytes; of columns in slices, what is in the slice."""
        if self._known is None:
            start: int = self.pieces[0].column("offset")[0].as_py()
            last: int = self.pieces[-1].column("offset")[-1].as_py()
            size = sum(piece.nbytes + PIECE_OVERHEAD for piece in self.pieces)
            self._known = Extent(start, last + 1, size)
        return self._known

    @property
    def start(self) -> int:
        return self.extent.start

    @property
    def next_offset(self) -> int:
        return self.extent.next_offset

    @property
    def size(self) -> int:
        return self.extent.size

    def offsets(self) -> Sequence[int]:
        return [each for piece in self.pieces for each in piece.column("offset").to_pylist()]

    def fitting(self, max_records: int, max_bytes: int) -> int:
        counts = range(1, min(len(self), max_records) + 1)
        return bisect_right(counts, max_bytes, key=lambda count: self[:count].size)

    def may_precede(self, other: Run) -> bool:
        """Return whether ``other`` is in columns, too; gaps are in the offsets."""
        return isinstance(other, ColumnRun)

    def followed_by(self, other: Run) -> ColumnRun:
        assert isinstance(other, ColumnRun), "a source has columns or not, not both"
        pieces = self.pieces + other.pieces
        if len(pieces) > _MANY_PIECES and len(fewer := _fewer(pieces)) < len(pieces):
            return ColumnRun(self.partition, fewer)
        front, rest = self.extent, other.extent
        extent = Extent(front.start, rest.next_offset, front.size + rest.size)
        return ColumnRun(self.partition, pieces, extent)

    def headers(self, name: str) -> Iterator[list[tuple[str, bytes | None]]]:
        wanted = constant(pa.string(), name.encode())
        for piece in self.pieces:
            column = piece.column("headers")
            # most often there are none, which the column knows
            if column.null_count == len(column):
                continue
            flat = column.flatten()
            is_named = pc.equal(flat.field("key"), wanted)
            rows = pc.list_parent_indices(column).filter(is_named).to_pylist()
            said = flat.field("value").filter(is_named).dictionary_encode().indices.to_pylist()
            first = dict(zip(reversed(said), reversed(rows), strict=True))
            for row in sorted(set(first.values())):
                yield [(each["key"], each["value"]) for each in column[row].as_py()]

    @overload
    def __getitem__(self, index: int) -> ColumnRecord: ...

    @overload
    def __getitem__(self, index: slice) -> ColumnRun: ...

    def __getitem__(self, index: int | slice) -> ColumnRecord | ColumnRun:
        if isinstance(index, int):
            at = range(len(self))[index]
            return next(self._records(next(self._between(at, at + 1))))
        part = range(len(self))[index]
        if part.step != 1:
            raise ValueError("a run has no gaps; take a slice without a step")
        return ColumnRun(self.partition, list(self._between(part.start, part.stop)))

    def _between(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these records, piece by piece."""
        place = bisect_right(self._ends, start)
        while start < stop:
            piece, end = self.pieces[place], self._ends[place]
            rows = min(stop, end) - start
            whole = rows == piece.num_rows
            yield piece if whole else piece.slice(start - end + piece.num_rows, rows)
            start += rows
            place += 1

    def __iter__(self) -> Iterator[ColumnRecord]:
        return chain.from_iterable(map(self._records, self._blocks()))

    def _blocks(self) -> Iterator[pa.RecordBatch]:
        for piece in self.pieces:
            yield from (piece.slice(at, _BLOCK) for at in range(0, piece.num_rows, _BLOCK))

    def _records(self, rows: pa.RecordBatch) -> Iterator[ColumnRecord]:
        block = _Block(rows, self.partition)
        return map(ColumnRecord, repeat(block), range(rows.num_rows))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __repr__(self) -> str:
        return f"ColumnRun({self.partition}, {len(self)} records, {len(self.pieces)} pieces)"


def _fewer(pieces: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows with small pieces that are neighbours copied into one."""
    found: list[pa.RecordBatch] = []
    for small, group in groupby(
        pieces, lambda piece: piece.num_rows < _SMALL_PIECE and piece.nbytes < _SMALL_BYTES
    ):
        neighbours = list(group)
        if small:
            neighbours = pa.Table.from_batches(neighbours).combine_chunks(POOL).to_batches()
        found += neighbours
    return found
