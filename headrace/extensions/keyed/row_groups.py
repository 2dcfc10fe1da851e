"""Groups of a state's rows, by what their keys begin with: the stores of a topology."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from headrace.extensions.keyed.changed_rows import AFTER, FORMER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.extensions.keyed.changed_rows import ChangedRows

    Array = np.ndarray[Any, np.dtype[Any]]


class GroupSize(NamedTuple):
    """The size of a group's rows; ``bytes`` are those of keys and rows, as they are stored."""

    rows: int = 0
    bytes: int = 0

    def plus(self, other: GroupSize) -> GroupSize:
        """Return the sums of both."""
        return GroupSize(self.rows + other.rows, self.bytes + other.bytes)


#: The size of a group without rows.
NO_ROWS = GroupSize()


class Growth(NamedTuple):
    """The amounts by which changes make a partition's rows more: all of them, and by group."""

    size: GroupSize
    groups: Mapping[str, GroupSize]


class RowGroups:
    """Groups of rows, each by its name and what its keys begin with. Any thread.

    ``overhead`` are the bytes of a stored row beside its key and its value. A key that begins with
    none of these is in no group.
    """

    def __init__(self, prefixes: Mapping[str, bytes], overhead: int) -> None:
        self._prefixes = dict(prefixes)
        self._overhead = overhead

    def find(self, key: bytes) -> str | None:
        """Return the group of a key, None of one that is in none."""
        prefixes = self._prefixes.items()
        return next((name for name, prefix in prefixes if key.startswith(prefix)), None)

    def growth(self, changes: ChangedRows) -> dict[int, Growth]:
        """Return the growth of each partition, of rows that have and had a state alone."""
        numbers, names = changes.column("partition").to_numpy(), changes.column("key")
        own = pc.binary_length(names).to_numpy().astype(np.int64) + self._overhead
        before, after = (
            pc.fill_null(pc.binary_length(changes.column(name)), -1).to_numpy().astype(np.int64)
            for name in (FORMER[0], AFTER[0])
        )
        rows = (after >= 0).astype(np.int64) - (before >= 0)
        sizes = np.where(after >= 0, after + own, 0) - np.where(before >= 0, before + own, 0)
        masks = {
            name: pc.starts_with(names, prefix).to_numpy(zero_copy_only=False)
            for name, prefix in self._prefixes.items()
        }
        found: dict[int, Growth] = {}
        for number in np.unique(numbers).tolist():
            here = numbers == number
            groups = {name: _sum(rows, sizes, here & mask) for name, mask in masks.items()}
            found[number] = Growth(_sum(rows, sizes, here), groups)
        return found


def _sum(rows: Array, sizes: Array, mask: Array) -> GroupSize:
    return GroupSize(int(rows[mask].sum()), int(sizes[mask].sum()))


def summed_groups(several: Iterable[Mapping[str, GroupSize]]) -> dict[str, GroupSize]:
    """Return the sums of sizes by group."""
    found: dict[str, GroupSize] = {}
    for each in several:
        for name, size in each.items():
            found[name] = found.get(name, NO_ROWS).plus(size)
    return found
