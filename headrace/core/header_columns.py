"""Headers of records in columns, with others added after them, without an object for each."""

from __future__ import annotations

from array import array
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import HEADERS, integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A header's name, and the value that all records get, or those of each in their order.
AddedHeader: TypeAlias = "tuple[str, bytes | Sequence[bytes | None] | None]"


def add_headers(own: pa.ListArray, added: Sequence[AddedHeader]) -> pa.ListArray:
    """Return the headers of records with others after them. Both as :data:`HEADERS`.

    A record that has no list of its own has one then.
    """
    later = _columns_of_headers(added, len(own))
    lengths = pc.fill_null(pc.list_value_length(own), integer(0, pa.int32()))
    if not pc.any(pc.not_equal(lengths, integer(0, pa.int32()))).as_py():
        return later
    return _joined(own.flatten(), lengths.to_pylist(), later.values, len(added))


def _columns_of_headers(added: Sequence[AddedHeader], records: int) -> pa.ListArray:
    """Return these headers for each record."""
    each = len(added)
    names = pa.array([name for name, _ in added], pa.string())
    columns = [_column(values, records) for _, values in added]
    places, start = array("q", bytes(8 * each * records)), 0
    for number, column in enumerate(columns):
        # one value stands for all, or there is one for each
        steps = [start] * records if len(column) == 1 else range(start, start + records)
        places[number::each] = array("q", steps)
        start += len(column)
    fields = [
        names.take(_numbers(pa.int64(), array("q", range(each)) * records)),
        pa.concat_arrays(columns).take(_numbers(pa.int64(), places)),
    ]
    ends = array("i", range(0, each * records + 1, each))
    return _lists(ends, pa.StructArray.from_arrays(fields, fields=[*HEADERS.value_type]))


def _column(values: bytes | Sequence[bytes | None] | None, records: int) -> pa.Array:
    """Return one value for all records, or one for each."""
    if values is None or isinstance(values, bytes):
        return pa.array([values], pa.binary())
    if len(values) != records:
        raise ValueError(f"{len(values)} values of a header for {records} records")
    return pa.array(values, pa.binary())


def _joined(
    own: pa.StructArray, lengths: Sequence[int], later: pa.StructArray, each: int
) -> pa.ListArray:
    """Return lists: as many headers of ``own`` as ``lengths`` say, then ``each`` of the others."""
    starts = accumulate(lengths, initial=0)
    firsts = range(len(own), len(own) + len(later), each)
    places: Iterable[Iterable[int]] = (
        chain(range(start, start + length), range(first, first + each))
        for start, length, first in zip(starts, lengths, firsts, strict=False)
    )
    both = pa.concat_arrays([own, later])
    found = both.take(_numbers(pa.int64(), array("q", chain.from_iterable(places))))
    counts = map(sum, zip(lengths, repeat(each), strict=False))
    return _lists(array("i", accumulate(counts, initial=0)), found)


def _lists(ends: array[int], headers: pa.StructArray) -> pa.ListArray:
    """Return lists of headers, each of which ends where the next begins."""
    return pa.ListArray.from_arrays(_numbers(pa.int32(), ends), headers, type=HEADERS)


def _numbers(kind: pa.DataType, numbers: array[int]) -> pa.Array:
    """Return numbers that an array has, without a copy."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
