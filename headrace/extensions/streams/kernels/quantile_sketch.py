"""Approximate quantiles, in columns: a histogram of each group, whose buckets grow with the values.

A bucket has the values that are within the error of one number, and the histogram counts them. So
it depends on the values alone, and the same values have the same row, whatever the cuts, panes and
restarts. Of more buckets than a histogram has, the lowest become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import CollapsingLowestDenseStore

from headrace.core.errors import HeadraceError
from headrace.extensions.streams.aggregates import (
    QUANTILE_BUCKETS,
    QUANTILE_ERROR,
    SKETCH_VERSION,
)
from headrace.extensions.streams.kernels.partials import Parts, Sketch
from headrace.extensions.streams.kernels.values import Values, make_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.kernels.groups import Groups
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.kernels.values import Codec

_MAPPING = LogarithmicMapping(QUANTILE_ERROR)


class _Histogram:
    """The counts of a group's values: above 0, below 0, and of 0. One that is kept is no longer
    changed.
    """

    __slots__ = ("above", "below", "sketch")

    def __init__(
        self,
        above: CollapsingLowestDenseStore | None = None,
        below: CollapsingLowestDenseStore | None = None,
        zeros: float = 0.0,
    ) -> None:
        self.above = above or CollapsingLowestDenseStore(QUANTILE_BUCKETS)
        self.below = below or CollapsingLowestDenseStore(QUANTILE_BUCKETS)
        self.sketch = BaseDDSketch(_MAPPING, self.above, self.below, zeros)

    @property
    def zeros(self) -> float:
        """Return how many values are 0."""
        return float(self.sketch.count - self.above.count - self.below.count)

    def quantile(self, at: float) -> float:
        """Return the value that a part of the values is not above."""
        found = self.sketch.get_quantile_value(at)
        assert found is not None, "one is kept only with values"
        return float(found)

    def document(self) -> list[Any]:
        """Return the counts as JSON has them."""
        return [int(self.zeros), *(_counts(each) for each in (self.above, self.below))]


def _copied(kept: _Histogram | None) -> _Histogram:
    """Return what others are added to: a copy, or one without values."""
    if kept is None:
        return _Histogram()
    return _Histogram(_copy_of(kept.above), _copy_of(kept.below), kept.zeros)


def _copy_of(store: CollapsingLowestDenseStore) -> CollapsingLowestDenseStore:
    copied = CollapsingLowestDenseStore(QUANTILE_BUCKETS)
    copied.copy(store)
    return copied


def _counts(store: CollapsingLowestDenseStore) -> list[int]:
    """Return the keys of buckets that have values, each followed by their number."""
    found: list[int] = []
    for place, count in enumerate(store.bins):
        if count:
            found += (place + store.offset, int(count))
    return found


def _histogram_of(document: Sequence[Any]) -> _Histogram:
    """Return the histogram that :meth:`_Histogram.document` wrote."""
    zeros, above, below = document
    return _Histogram(_store_of(above), _store_of(below), float(zeros))


def _store_of(counts: Sequence[int]) -> CollapsingLowestDenseStore:
    store = CollapsingLowestDenseStore(QUANTILE_BUCKETS)
    # from the highest on, so that nothing is moved to a lower bucket
    for key, count in zip(counts[-2::-2], counts[::-2], strict=True):
        store.add(key, float(count))
    return store


class ApproxQuantiles(Sketch):
    """Approximate quantiles: a histogram, None without values. ``is_list`` makes a list of them."""

    def __init__(self, codec: Codec, at: Sequence[float], *, is_list: bool) -> None:
        self._codec, self._at, self._is_list = codec, at, is_list

    @property
    def codecs(self) -> Sequence[Codec]:
        return (self._codec,)

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((np.dtype(object), None),)

    def find_faults(self, columns: Sequence[pa.Array]) -> Mapping[int, str]:
        values = Values(columns[0], self._codec).floats
        # NaN is not below it either
        places = np.flatnonzero(~(np.abs(values) <= _MAPPING.max_possible)).tolist()
        return {at: f"{values[at]} has no bucket among quantiles" for at in places}

    def extend(
        self, before: Parts, groups: Groups, columns: Sequence[Values], times: Array
    ) -> Parts:
        del times
        rows, sizes = groups.keep(columns[0].valid)
        values = iter(columns[0].floats[rows].tolist())
        after = before[0].copy()
        for group in np.flatnonzero(sizes).tolist():
            after[group] = _copied(after[group])
            for _ in range(sizes[group]):
                after[group].sketch.add(next(values))
        return (after,)

    def extend_scan(
        self, before: Parts, groups: Groups, columns: Sequence[Values], times: Array
    ) -> Parts:
        del times
        valid = columns[0].valid[groups.order].tolist()
        values = columns[0].floats[groups.order].tolist()
        made: list[_Histogram | None] = []
        last = -1
        kept: _Histogram | None = None
        for group, counts, value in zip(groups.ordered_ids.tolist(), valid, values, strict=True):
            if group != last:
                last, kept = group, before[0][group]
            if counts:
                kept = _copied(kept)
                kept.sketch.add(value)
            made.append(kept)
        return (make_objects(made),)

    def merge(self, first: Parts, second: Parts) -> Parts:
        merged = first[0].copy()
        pairs = zip(first[0].tolist(), second[0].tolist(), strict=True)
        for place, (one, other) in enumerate(pairs):
            if one is None:
                merged[place] = other
            elif other is not None:
                merged[place] = _copied(one)
                merged[place].sketch.merge(other.sketch)
        return (merged,)

    def result(self, parts: Parts) -> pa.Array:
        found = [
            None if each is None else [each.quantile(at) for at in self._at]
            for each in parts[0].tolist()
        ]
        if self._is_list:
            return pa.array([each or [] for each in found], pa.list_(pa.float64()))
        return pa.array([None if each is None else each[0] for each in found], pa.float64())

    def encode(self, row: tuple[Any, ...]) -> Any:
        return [] if row[0] is None else [SKETCH_VERSION, *row[0].document()]

    def decode(self, value: Any) -> tuple[Any, ...]:
        if not value:
            return (None,)
        if value[0] != SKETCH_VERSION:
            raise HeadraceError(
                f"a histogram of quantiles has version {value[0]}, and {SKETCH_VERSION} is read"
            )
        return (_histogram_of(value[1:]),)
