"""The approximate number of different values, in columns: a HyperLogLog sketch of each group.

A sketch is kept as bytes that depend on the values alone, not on their order or on how sketches
were merged: the same values have the same row, whatever the cuts, panes and restarts. What the
library makes depends on both, in its estimator and in the order of what it lists.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from datasketches import hll_sketch, hll_union, tgt_hll_type

from headrace.core.errors import HeadraceError
from headrace.extensions.streams.aggregates import DISTINCT_LOG2_REGISTERS, SKETCH_VERSION
from headrace.extensions.streams.kernels.partials import Parts, Sketch
from headrace.extensions.streams.kernels.values import make_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.streams.kernels.groups import Groups
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.kernels.values import Codec, Values

#: The first byte of a sketch counts words of 4 bytes before its data. With fewer than this it lists
#: hashes of 4 bytes, in an order that is free; else it has the registers.
_REGISTERS_PREAMBLE = 10

_WORD = 4


class ApproxDistinct(Sketch):
    """The approximate number of different values: the bytes of a sketch, none without values."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._hashed: Callable[[Any], int | str] = int if codec.numeric else _text_of(codec)

    @property
    def codecs(self) -> Sequence[Codec]:
        return (self._codec,)

    @property
    def identity(self) -> tuple[tuple[np.dtype[Any], Any], ...]:
        return ((np.dtype(object), b""),)

    def extend(
        self, before: Parts, groups: Groups, columns: Sequence[Values], times: Array
    ) -> Parts:
        del times
        rows, sizes = groups.keep(columns[0].valid)
        values = map(self._hashed, columns[0].take(rows).tolist())
        after = before[0].copy()
        for group in np.flatnonzero(sizes).tolist():
            sketch = _sketch_of(after[group])
            for _ in range(sizes[group]):
                sketch.update(next(values))
            after[group] = _bytes_of(sketch)
        return (after,)

    def extend_scan(
        self, before: Parts, groups: Groups, columns: Sequence[Values], times: Array
    ) -> Parts:
        del times
        valid = columns[0].valid[groups.order]
        values = map(self._hashed, columns[0].take(groups.order[valid]).tolist())
        made: list[bytes] = []
        last, kept, sketch = -1, b"", _sketch_of(b"")
        for group, counts in zip(groups.ordered_ids.tolist(), valid.tolist(), strict=True):
            if group != last:
                last, kept = group, before[0][group]
                sketch = _sketch_of(kept)
            if counts:
                sketch.update(next(values))
                changed = _bytes_of(sketch)
                # most values of a large group change nothing, and then there is one object
                kept = kept if changed == kept else changed
            made.append(kept)
        return (make_objects(made),)

    def merge(self, first: Parts, second: Parts) -> Parts:
        merged = np.where(first[0] == b"", second[0], first[0])
        both = (first[0] != b"") & (second[0] != b"")
        for place in np.flatnonzero(both).tolist():
            one, other = first[0][place], second[0][place]
            merged[place] = one if one == other else _bytes_of(_sketch_of(one), _sketch_of(other))
        return (merged,)

    def result(self, parts: Parts) -> pa.Array:
        numbers = [round(_sketch_of(each).get_estimate()) for each in parts[0].tolist()]
        return pa.array(numbers, pa.int64())

    def encode(self, row: tuple[Any, ...]) -> Any:
        return [SKETCH_VERSION, base64.b64encode(row[0]).decode()] if row[0] else []

    def decode(self, value: Any) -> tuple[Any, ...]:
        if not value:
            return (b"",)
        if value[0] != SKETCH_VERSION:
            raise HeadraceError(
                f"a sketch of different values has version {value[0]}, and {SKETCH_VERSION} is read"
            )
        return (base64.b64decode(value[1]),)


def _text_of(codec: Codec) -> Callable[[Any], str]:
    """Return the function that makes the text that is hashed; the library leaves empty ones out."""
    if codec.bytes:
        return lambda value: "=" + value.decode("latin-1")
    return lambda value: f"={value}"


def _sketch_of(kept: bytes) -> Any:
    if kept:
        return hll_sketch.deserialize(kept)
    return hll_sketch(DISTINCT_LOG2_REGISTERS, tgt_hll_type.HLL_8)


def _bytes_of(sketch: Any, *others: Any) -> bytes:
    """Return the bytes of the values of sketches, whatever the order in which they came."""
    union = hll_union(DISTINCT_LOG2_REGISTERS)
    # of a union of several the estimate is made of the registers alone
    for each in (sketch, sketch, *others):
        union.update(each)
    made: bytes = union.get_result(tgt_hll_type.HLL_8).serialize_compact()
    if made[0] >= _REGISTERS_PREAMBLE:
        return made
    begin = made[0] * _WORD
    return made[:begin] + np.sort(np.frombuffer(made, "<u4", offset=begin)).tobytes()
