"""Records by reference: offsets whose records somebody else reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias, overload

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.records import Record


class UnreadError(HeadraceError):
    """Somebody asked for what a record holds, of which only the offset is known."""


@dataclass(frozen=True, slots=True)
class UnreadRecord:
    """A record of which only the offset is known; see :class:`headrace.records.Record`.

    ``size`` is what one like it takes, in bytes. Whether there is one at the offset at all is
    known only when it is read: compaction and transactions leave gaps.
    """

    at: int
    size: int

    def offset(self) -> int:
        """Return the offset."""
        return self.at

    def timestamp(self) -> tuple[int, int]:
        """Return that there is none: it was not read."""
        return (0, 0)

    def topic(self) -> NoReturn:
        """Refuse."""
        self._refuse("topic")

    def partition(self) -> NoReturn:
        """Refuse."""
        self._refuse("partition")

    def key(self) -> NoReturn:
        """Refuse."""
        self._refuse("key")

    def value(self) -> NoReturn:
        """Refuse."""
        self._refuse("value")

    def headers(self) -> NoReturn:
        """Refuse."""
        self._refuse("headers")

    def __len__(self) -> int:
        return self.size

    def _refuse(self, what: str) -> NoReturn:
        raise UnreadError(
            f"the {what} of the record at {self.at} was not read: the channel's source is "
            "by_reference; use source: by_value where a processor needs records"
        )


class OffsetRun(Sequence[UnreadRecord]):
    """All offsets from ``start`` up to ``next_offset``, as if they were records. Immutable.

    ``each`` is what one record takes, in bytes. Slices without a step are runs as well.
    """

    __slots__ = ("_offsets", "each")

    def __init__(self, start: int, next_offset: int, each: int) -> None:
        self._offsets = range(start, next_offset)
        self.each = each

    @property
    def start(self) -> int:
        """The first offset."""
        return self._offsets.start

    @property
    def next_offset(self) -> int:
        """The offset behind the last one."""
        return self._offsets.stop

    @property
    def size(self) -> int:
        """What the records take together, in bytes."""
        return len(self) * self.each

    def followed_by(self, other: OffsetRun) -> OffsetRun:
        """Return both as one; ``other`` begins where this one ends."""
        assert other.start == self.next_offset, f"{other.start} does not follow {self.next_offset}"
        return OffsetRun(
            self.start, other.next_offset, -(-(self.size + other.size) // (len(self) + len(other)))
        )

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


#: Consecutive records of one partition: at hand, or by reference.
Run: TypeAlias = "list[Record] | OffsetRun"
