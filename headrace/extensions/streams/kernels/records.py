"""Records of an operator as columns, in the order of arrival, and the operator time at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

#: An array of numpy.
Array: TypeAlias = npt.NDArray[Any]

#: An operator time before any record.
NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Records:
    """Records in the order of arrival: key, time in ms, and the columns that the operator takes.

    ``codes`` are positions in ``names``, which are distinct; no key is null. A column is an Arrow
    array, or for a Python function an array of objects.
    """

    codes: Array
    names: pa.Array
    times: Array
    columns: tuple[Any, ...] = ()

    @classmethod
    def of(cls, keys: Sequence[bytes] | pa.Array, times: Any, *columns: Any) -> Records:
        """Return records of plain keys, which are numbered here."""
        array = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
        encoded = array.dictionary_encode()
        return cls(
            encoded.indices.to_numpy(), encoded.dictionary, np.asarray(times, np.int64), columns
        )

    def __len__(self) -> int:
        return len(self.times)

    def slice(self, start: int, stop: int) -> Records:
        """Return the records from ``start`` up to ``stop``, with the same names."""
        columns = tuple(column[start:stop] for column in self.columns)
        return Records(self.codes[start:stop], self.names, self.times[start:stop], columns)


def take_records(records: Records, at: Array) -> Records:
    """Return the records at places, with the same names."""
    columns = tuple(
        column.take(pa.array(at))
        if isinstance(column, (pa.Array, pa.ChunkedArray))
        else np.asarray(column, object)[at]
        for column in records.columns
    )
    return Records(records.codes[at], records.names, records.times[at], columns)


def operator_times(before: int, times: Array) -> Array:
    """Return the operator time with each record: the highest of ``before`` and the times up to it.

    ``before`` is :data:`NO_TIME` or the operator time of the records before these.
    """
    running = np.maximum.accumulate(times)
    return np.maximum(running, before, out=running)


def expand(first: Array, last: Array) -> tuple[Array, Array]:
    """Return each number from ``first`` up to ``last``, left out, and which range it is of.

    A range whose last is below its first is empty.
    """
    sizes = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum(sizes) - sizes
    return which, np.arange(len(which)) + np.repeat(first - starts, sizes)
