"""Rows by group: which group each is of, and the rows of each group in the order of arrival."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.extensions.streams.kernels.records import Array

#: Bits of a number that is made of several.
BITS = 62

#: Cells for each row up to which groups are found by counting all that could be.
_DENSE = 8


class Groups:
    """Groups of rows that have the same number: ``numbers`` are those of the groups, ascending."""

    def __init__(self, of_rows: Array, bound: int) -> None:
        """Group rows by numbers from 0 up to ``bound``, left out."""
        if bound <= _DENSE * len(of_rows) + 1024:
            sizes = np.bincount(of_rows, minlength=bound)
            self.numbers: Array = np.flatnonzero(sizes)
            positions = np.empty(bound, np.int64)
            positions[self.numbers] = np.arange(len(self.numbers))
            self.ids: Array = positions[of_rows]
            self.sizes: Array = sizes[self.numbers]
        else:
            self.numbers, self.ids, self.sizes = np.unique(
                of_rows, return_inverse=True, return_counts=True
            )

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def order(self) -> Array:
        """Return the rows group by group, in each as they arrived."""
        rows = len(self.ids)
        # sorting numbers takes a fifth of what a stable sort of positions does
        keys = self.ids * rows + np.arange(rows)
        keys.sort()
        return keys % max(rows, 1)

    @cached_property
    def starts(self) -> Array:
        """Return where each group begins in :attr:`order`."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def ordered_ids(self) -> Array:
        """Return the group of each row of :attr:`order`."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def keep(self, mask: Array) -> tuple[Array, Array]:
        """Return the rows of ``mask`` group by group, and how many of them each group has."""
        rows = self.order[mask[self.order]]
        return rows, np.bincount(self.ids[rows], minlength=len(self))

    def highest(self, values: Array) -> Array:
        """Return the highest of ``values`` in each group."""
        return np.asarray(np.maximum.reduceat(values[self.order], self.starts))


def accumulate_highest(values: Array, segments: Array) -> Array:
    """Return the highest value up to each row within its segment; segments ascend.

    ``values`` are from 0 up to the number of rows, so that the two together fit 64 bits.
    """
    step = len(values) + 1
    return np.asarray(np.maximum.accumulate(segments * step + values) - segments * step)


def distinct(numbers: Array) -> Array:
    """Return the different ones of whole numbers, in ascending order."""
    if len(numbers):
        lowest = numbers.min()
        if numbers.max() - lowest <= _DENSE * len(numbers) + 1024:
            return np.asarray(np.flatnonzero(np.bincount(numbers - lowest)) + lowest)
    return np.unique(numbers)


def find_places(among: Array, numbers: Array) -> Array:
    """Return the place of each number among ascending ones, which have all of them."""
    if not len(among):
        return np.empty(0, np.int64)
    lowest, highest = int(among[0]), int(among[-1])
    if highest - lowest == len(among) - 1:
        return np.asarray(numbers - lowest)
    if highest - lowest > _DENSE * len(numbers) + 1024:
        return np.asarray(np.searchsorted(among, numbers))
    places = np.empty(highest - lowest + 1, np.int64)
    places[among - lowest] = np.arange(len(among))
    return np.asarray(places[numbers - lowest])


def sort_pairs(keys: Array, times: Array) -> Array:
    """Return the order by key and time; what is equal in both stays as it is."""
    size = len(keys)
    if not size:
        return np.empty(0, np.int64)
    lowest = int(times.min())
    place = size.bit_length()
    bits = (int(times.max()) - lowest).bit_length()
    if bits + place + int(keys.max()).bit_length() > BITS:
        return np.lexsort((times, keys))
    # numbers are sorted several times faster than places by them
    numbers = (keys << (bits + place)) | ((times - lowest) << place) | np.arange(size)
    numbers.sort()
    return np.asarray(numbers & ((1 << place) - 1))
