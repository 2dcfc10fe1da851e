"""Results in columns: records that are to be produced, without an object for each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.core.records import ResultRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """Results for one topic, in their order. A record is made when it is asked for.

    ``keys`` and ``values`` are bytes, ``headers`` as in :data:`headrace.core.columns.HEADERS`.
    A column that is None is None in each record.
    """

    topic: str
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None = None
    partitions: pa.Array | None = None
    timestamps: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, count: int) -> ResultColumns:
        """Return so many results from a place on."""
        kept = (self.keys, self.values, self.headers, self.partitions, self.timestamps)
        columns = (None if each is None else each.slice(start, count) for each in kept)
        return ResultColumns(self.topic, *columns)

    def __getitem__(self, place: int) -> ResultRecord:
        (record,) = self._records(place, 1)
        return record

    def __iter__(self) -> Iterator[ResultRecord]:
        return self._records(0, len(self))

    def _records(self, start: int, count: int) -> Iterator[ResultRecord]:
        columns = (self.values, self.keys, self.headers, self.partitions, self.timestamps)
        listed: Any = (
            repeat(None, count) if column is None else column.slice(start, count).to_pylist()
            for column in columns
        )
        for value, key, headers, partition, timestamp in zip(*listed, strict=True):
            named = None if not headers else [(each["key"], each["value"]) for each in headers]
            yield ResultRecord(self.topic, value, key, named, partition, timestamp)


#: Results in their order, some of them in columns.
Results: TypeAlias = "Iterable[ResultRecord | ResultColumns]"


def each_of(results: Results) -> Iterator[ResultRecord]:
    """Return the records, one by one."""
    for each in results:
        if isinstance(each, ResultColumns):
            yield from each
        else:
            yield each
