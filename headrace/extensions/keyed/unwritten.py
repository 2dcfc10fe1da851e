"""Rows that are committed and not in the database yet: each once, however often it changed."""

from __future__ import annotations

from collections import defaultdict
from itertools import compress, repeat
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.extensions.keyed.store import StoredCommit

#: Entries that may be committed and not written, and their bytes, before nothing more is committed.
MOST_UNWRITTEN = 200_000
MOST_UNWRITTEN_BYTES = 64 << 20

#: What an entry costs beside its bytes, about.
_ENTRY_BYTES = 200


class _Absent(bytes):
    """A type of its own, so that no entry has the one value of it."""


#: Stands for an entry that a table does not have: None is one that is to be deleted.
ABSENT: Final = _Absent()


class Unwritten(NamedTuple):
    """The amount that is committed and not in the database yet: rows, and entries of the index."""

    entries: int = 0
    bytes: int = 0

    def is_over(self, share: float = 1) -> bool:
        """Return whether it is this share of what may be, or more."""
        is_many = self.entries >= MOST_UNWRITTEN * share
        return is_many or self.bytes >= MOST_UNWRITTEN_BYTES * share


class UnwrittenTable:
    """Entries that the database is to get, by its keys; None for a deletion. One thread at a time.

    ``commits`` has of which commit the rows of partitions are once all of them are written. The
    first ``clock_prefix`` bytes of an entry of the index say of which partition and clock it is.
    Those that are being written stay until they are, next to what is put meanwhile.
    """

    def __init__(self, clock_prefix: int) -> None:
        self.commits: dict[int, StoredCommit] = {}
        self._clock_prefix = clock_prefix
        self._entries: dict[bytes, bytes | None] = {}
        self._writing: dict[bytes, bytes | None] = {}
        self._bytes = self._writing_bytes = 0
        # odd while entries change their place
        self._moves = 0
        # by partition and clock: those in order, and those that came since they were sorted; both
        # may have some that are in the table no more
        self._in_order: dict[bytes, list[bytes]] = {}
        self._since: defaultdict[bytes, list[bytes]] = defaultdict(list)

    def put(self, rows: Mapping[bytes, bytes | None], timers: Mapping[bytes, bytes | None]) -> None:
        """Add rows, and entries of the index of timers, in place of those that are there."""
        self._add(rows)
        self._add(timers)
        for entry, data in timers.items():
            if data is not None:
                self._since[entry[: self._clock_prefix]].append(entry)

    def _add(self, entries: Mapping[bytes, bytes | None]) -> None:
        """Add entries and count their bytes; there is no call of Python's for each."""
        former = list(map(self._entries.get, entries, repeat(ABSENT)))
        added = list(compress(entries, map(is_, former, repeat(ABSENT))))
        self._bytes += sum(map(len, filter(None, entries.values())))
        self._bytes -= sum(map(len, filter(None, former)))
        self._bytes += sum(map(len, added)) + _ENTRY_BYTES * len(added)
        self._entries.update(entries)

    def size(self) -> Unwritten:
        """Return how much there is. Any thread."""
        entries = len(self._entries) + len(self._writing)
        return Unwritten(entries, self._bytes + self._writing_bytes)

    def begin_writing(self) -> Mapping[bytes, bytes | None]:
        """Return all entries, which are to be written; :meth:`end_writing` comes next."""
        assert not self._writing, "one after the other"
        self._moves += 1
        self._writing, self._writing_bytes = self._entries, self._bytes
        self._entries, self._bytes = {}, 0
        self._moves += 1
        return self._writing

    def end_writing(self, *, is_written: bool) -> None:
        """Remove what was to be written, or put it back under what was put meanwhile."""
        self._moves += 1
        former, self._writing, self._writing_bytes = self._writing, {}, 0
        if is_written:
            self._forget_written()
        else:
            later, self._entries = self._entries, former
            self._bytes = sum(_bytes_of(*entry) for entry in former.items())
            self._add(later)
        self._moves += 1

    def _forget_written(self) -> None:
        """Keep the order of those timers alone that are to be written."""
        for order in (self._in_order, self._since):
            for prefix, found in list(order.items()):
                if kept := [entry for entry in found if self._entries.get(entry) is not None]:
                    order[prefix] = kept
                else:
                    del order[prefix]

    def _several(self) -> list[dict[bytes, bytes | None]]:
        """Return the entries, those that count where both have one at the end."""
        return [self._writing, self._entries] if self._writing else [self._entries]

    def names_in(self, prefix: bytes) -> list[bytes]:
        """Return the keys of the entries that begin so, in any order.

        Those of deletions are left out, but for what is being written and was deleted since then.
        """
        return [
            name
            for entries in self._several()
            for name, data in entries.items()
            if data is not None and name.startswith(prefix)
        ]

    def find(self, names: Sequence[bytes] | Mapping[bytes, object]) -> list[bytes | None]:
        """Return what is to be written of these, ``ABSENT`` for each that is not in the table."""
        found = list(map(self._entries.get, names, repeat(ABSENT)))
        if not self._writing:
            return found
        former = map(self._writing.get, names, repeat(ABSENT))
        return [old if new is ABSENT else new for new, old in zip(found, former, strict=True)]

    def peek(
        self, names: Sequence[bytes], cached: Callable[[bytes, bytes], bytes]
    ) -> list[bytes | None] | None:
        """Return what :meth:`find` does, of others what ``cached`` has; None: one is in neither.

        Any thread, while nothing is put. A row that is cached is so as it was written, before it
        leaves the table.
        """
        before = self._moves
        found = self.find(names)
        found = [
            cached(name, ABSENT) if data is ABSENT else data
            for name, data in zip(names, found, strict=True)
        ]
        # what moved meanwhile may have been looked for where it was no more
        is_sure = before == self._moves and before % 2 == 0
        return found if is_sure and not any(each is ABSENT for each in found) else None

    def find_range(self, prefix: bytes, first: bytes = b"") -> dict[bytes, bytes | None]:
        """Return the entries that begin so, from a key on, in the order of their keys."""
        found = {
            name: data
            for entries in self._several()
            for name, data in entries.items()
            if name.startswith(prefix) and name >= first
        }
        return dict(sorted(found.items()))

    def timers(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the timers of a partition and clock that are to be written, the earliest first."""
        found = self._in_order.setdefault(prefix, [])
        if more := self._since.pop(prefix, None):
            # two runs that are mostly in order, one after the other, which sorting makes use of
            found += more
            found.sort()
        gone = next((at for at, each in enumerate(found) if self._is_put(each)), len(found))
        # timers end in their order: else a look would pass all that did since the last flush
        del found[:gone]
        last = None
        for entry in found:
            if entry != last and self._is_put(entry):
                yield entry
            last = entry

    def _find_one(self, name: bytes) -> bytes | None:
        return self._entries.get(name, self._writing.get(name, ABSENT))

    def _is_put(self, entry: bytes) -> bool:
        found = self._find_one(entry)
        return found is not None and found is not ABSENT

    def is_deleted(self, name: bytes) -> bool:
        """Return whether an entry is to be deleted. Any thread."""
        return self._find_one(name) is None

    def remove(self, names: Iterable[bytes]) -> None:
        """Remove entries; none is being written."""
        assert not self._writing, "writes would bring them back"
        for name in names:
            self._bytes -= _bytes_of(name, self._entries.pop(name, None))

    def remove_commits(self, written: Mapping[int, StoredCommit]) -> None:
        """Remove commits that were written, but for those that another one followed."""
        for number, commit in written.items():
            if self.commits.get(number) is commit:
                del self.commits[number]

    def clear(self) -> None:
        """Remove all entries; commits stay."""
        self.begin_writing()
        self.end_writing(is_written=True)


def _bytes_of(name: bytes, data: bytes | None) -> int:
    """Return what an entry costs, about."""
    return _ENTRY_BYTES + len(name) + len(data or b"")
