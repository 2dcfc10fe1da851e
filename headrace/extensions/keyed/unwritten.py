"""Rows that are committed and not in the database yet: each once, however often it changed."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import compress, repeat
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    """

    def __init__(self, clock_prefix: int) -> None:
        self.commits: dict[int, StoredCommit] = {}
        self._clock_prefix = clock_prefix
        self._entries: dict[bytes, bytes | None] = {}
        self._bytes = 0
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
        former = self.find(entries)
        added = compress(entries, map(is_, former, repeat(ABSENT)))
        self._bytes += sum(map(len, filter(None, entries.values())))
        self._bytes -= sum(map(len, filter(None, former)))
        self._bytes += sum(map(len, added)) + _ENTRY_BYTES * former.count(ABSENT)
        self._entries.update(entries)

    def size(self) -> Unwritten:
        """Return how much there is. Any thread."""
        return Unwritten(len(self._entries), self._bytes)

    def names(self) -> list[bytes]:
        """Return the keys of all entries, in any order."""
        return list(self._entries)

    def names_in(self, prefix: bytes) -> list[bytes]:
        """Return the keys of the entries that begin so and are not to be deleted, in any order."""
        return [
            name
            for name, data in self._entries.items()
            if data is not None and name.startswith(prefix)
        ]

    def find(self, names: Sequence[bytes] | Mapping[bytes, object]) -> list[bytes | None]:
        """Return what is to be written of these, ``ABSENT`` for each that is not in the table."""
        return list(map(self._entries.get, names, repeat(ABSENT)))

    def find_range(self, prefix: bytes, first: bytes = b"") -> dict[bytes, bytes | None]:
        """Return the entries that begin so, from a key on, in the order of their keys."""
        names = [name for name in self._entries if name.startswith(prefix) and name >= first]
        return {name: self._entries[name] for name in sorted(names)}

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

    def _is_put(self, entry: bytes) -> bool:
        return self._entries.get(entry) is not None

    def is_deleted(self, name: bytes) -> bool:
        """Return whether an entry is to be deleted. Any thread."""
        return self._entries.get(name, ABSENT) is None

    def remove(self, written: Mapping[bytes, bytes | None]) -> None:
        """Remove entries that were written, but for those that changed meanwhile."""
        known = self._entries
        same = list(map(is_, self.find(written), written.values()))
        gone = list(compress(written, same))
        self._bytes -= _ENTRY_BYTES * len(gone) + sum(map(len, gone))
        self._bytes -= sum(map(len, filter(None, compress(written.values(), same))))
        deque(map(known.__delitem__, gone), maxlen=0)
        if not known:
            self.clear()

    def remove_commits(self, written: Mapping[int, StoredCommit]) -> None:
        """Remove commits that were written, but for those that another one followed."""
        for number, commit in written.items():
            if self.commits.get(number) is commit:
                del self.commits[number]

    def clear(self) -> None:
        """Remove all entries; commits stay."""
        self._entries.clear()
        self._in_order.clear()
        self._since.clear()
        self._bytes = 0
