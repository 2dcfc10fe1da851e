"""Consecutive records that are no list: among them offsets whose records are read elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias, overload

from headrace.core.errors import HeadraceError
from headrace.core.records import offset_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.core.records import Record


class CompactRun(Sequence["Record"]):
    """Consecutive records of one partition that are kept without an object for each. Immutable.

    There is at least one. Slices without a step are runs as well, and copy nothing.
    """

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> CompactRun: ...

    @abstractmethod
    def __getitem__(self, index: int | slice) -> Record | CompactRun: ...

    @property
    @abstractmethod
    def start(self) -> int:
        """Return the first one's offset."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """Return the offset after the last one."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Return what the records take together, in bytes."""

    @abstractmethod
    def offsets(self) -> Sequence[int]:
        """Return the offset of each record, in order."""

    @abstractmethod
    def fitting(self, max_records: int, max_bytes: int) -> int:
        """Return how many records from the front are within both limits, 0 if not even one is."""

    @abstractmethod
    def may_precede(self, other: Run) -> bool:
        """Return whether the two can be one run; ``other`` comes later in the same partition."""

    @abstractmethod
    def followed_by(self, other: Run) -> CompactRun:
        """Return both as one; only where :meth:`may_precede` says so."""

    @abstractmethod
    def headers(self, name: str) -> Iterator[list[tuple[str, bytes | None]]]:
        """Yield as :func:`headers_in` does."""


@dataclass(frozen=True, slots=True)
class UnreadRecord:
    """A record of which only the offset is known; see :class:`headrace.core.records.Record`.

    ``size`` is what one like it takes, in bytes. Whether there is one at the offset at all is
    known only when it is read: compaction and transactions leave gaps.
    """

    at: int
    size: int

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return (0, 0)

    def topic(self) -> NoReturn:
        self._refuse("topic")

    def partition(self) -> NoReturn:
        self._refuse("partition")

    def key(self) -> NoReturn:
        self._refuse("key")

    def value(self) -> NoReturn:
        self._refuse("value")

    def headers(self) -> NoReturn:
        self._refuse("headers")

    def __len__(self) -> int:
        return self.size

    def _refuse(self, what: str) -> NoReturn:
        raise HeadraceError(
            f"the {what} of the record at {self.at} was not read: the channel's source is "
            "by_reference; use source: by_value where a processor needs records"
        )


class OffsetRun(CompactRun):
    """All offsets from ``start`` up to ``next_offset``, as if they were records.

    ``each`` is what one record takes, in bytes.
    """

    __slots__ = ("_offsets", "each")

    def __init__(self, start: int, next_offset: int, each: int) -> None:
        self._offsets = range(start, next_offset)
        self.each = each

    @property
    def start(self) -> int:
        return self._offsets.start

    @property
    def next_offset(self) -> int:
        return self._offsets.stop

    @property
    def size(self) -> int:
        return len(self) * self.each

    def offsets(self) -> Sequence[int]:
        return self._offsets

    def fitting(self, max_records: int, max_bytes: int) -> int:
        return min(len(self), max_records, max_bytes // self.each)

    def may_precede(self, other: Run) -> bool:
        """Return whether ``other`` begins where this one ends: what is by reference has no gaps."""
        return isinstance(other, OffsetRun) and other.start == self.next_offset

    def followed_by(self, other: Run) -> OffsetRun:
        assert isinstance(other, OffsetRun), "a source has records or references, not both"
        assert other.start == self.next_offset, f"{other.start} does not follow {self.next_offset}"
        return OffsetRun(
            self.start, other.next_offset, -(-(self.size + other.size) // (len(self) + len(other)))
        )

    def headers(self, name: str) -> Iterator[list[tuple[str, bytes | None]]]:
        del name
        return iter(())

    @overload
    def __getitem__(self, index: int) -> UnreadRecord: ...

    @overload
    def __getitem__(self, index: slice) -> OffsetRun: ...

    def __getitem__(self, index: int | slice) -> UnreadRecord | OffsetRun:
        if isinstance(index, int):
            return UnreadRecord(self._offsets[index], self.each)
        part = self._offsets[index]
        if part.step != 1:
            raise ValueError("a run has no gaps; take a slice without a step")
        return OffsetRun(part.start, part.stop, self.each)

    def __len__(self) -> int:
        return len(self._offsets)

    def __repr__(self) -> str:
        return f"OffsetRun({self.start}, {self.next_offset}, each={self.each})"


def headers_in(records: Sequence[Record], name: str) -> Iterator[list[tuple[str, bytes | None]]]:
    """Yield the headers of records that have one of this name and were read, in order.

    Of records whose headers of this name say the same, one at least.
    """
    if isinstance(records, CompactRun):
        yield from records.headers(name)
        return
    seen: set[bytes | None] = set()
    for record in records:
        headers = record.headers()
        if headers:
            new = {data for each, data in headers if each == name and data not in seen}
            if new:
                seen |= new
                yield headers


def places_in(records: Sequence[Record], offsets: Sequence[int]) -> list[int]:
    """Return for each offset how many records come before it; both are in order.

    Looks at each record at most once, and at two where no offset is missing between the records.
    """
    if not offsets:
        return []
    first, last = offset_of(records[0]), offset_of(records[-1])
    if last - first + 1 == len(records):
        return [min(max(each - first, 0), len(records)) for each in offsets]
    known = records.offsets() if isinstance(records, CompactRun) else [*map(offset_of, records)]
    return [bisect_left(known, each) for each in offsets]


#: Consecutive records of one partition.
Run: TypeAlias = "list[Record] | CompactRun"
