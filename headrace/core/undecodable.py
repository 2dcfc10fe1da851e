"""Undecodable records in columns, and the dead letters that are made of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.header_columns import add_headers
from headrace.core.records import TopicPartition
from headrace.core.result_columns import ResultColumns
from headrace.core.tables import SCHEMA, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.core.header_columns import AddedHeader

#: The columns of a record that its letter is made of.
_COLUMNS = pa.schema(
    [SCHEMA.field(name) for name in ("key", "value", "offset", "timestamp", "headers")]
)

#: The columns that name a record's partition.
_PARTITION = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class UndecodableRecords:
    """Records of one partition that are left out of a micro-batch, in the order of their offsets.

    ``rows`` has them as a batch's table has records, and there is a reason for each.
    """

    rows: pa.Table = field(repr=False)
    offsets: Sequence[int]
    reasons: Sequence[str]

    def __len__(self) -> int:
        return len(self.offsets)

    def between(self, start: int, end: int) -> UndecodableRecords:
        """Return those from an offset on, before another."""
        first, last = (bisect_left(self.offsets, each) for each in (start, end))
        return UndecodableRecords(
            self.rows.slice(first, last - first),
            self.offsets[first:last],
            self.reasons[first:last],
        )

    def timestamps(self) -> list[int]:
        """Return their times in milliseconds, -1 for a record that has none."""
        micros = self.rows.column("timestamp").cast(pa.int64()).to_pylist()
        return [-1 if each is None else each // 1000 for each in micros]


if TYPE_CHECKING:
    #: Those of a micro-batch.
    Undecodable = Mapping[TopicPartition, UndecodableRecords]


class UndecodableRows(Mapping[TopicPartition, UndecodableRecords]):
    """The undecodable records among a batch's rows, by partition.

    They are sorted, and their reasons found, when they are first asked for, which is by the thread
    that commits: who decodes does not wait for reasons. ``rows`` is a table as it comes from a
    batch, ``said`` what their decoder said of each; ``reason_of`` returns the reason that this is,
    with the record's value. One thread at a time.
    """

    def __init__(
        self, rows: pa.Table, said: Sequence[str], reason_of: Callable[[bytes | None, str], str]
    ) -> None:
        self._rows = rows
        self._said = said
        self._reason_of = reason_of

    def __getitem__(self, partition: TopicPartition) -> UndecodableRecords:
        return self._records[partition]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @cached_property
    def _records(self) -> Mapping[TopicPartition, UndecodableRecords]:
        keys = [(name, "ascending") for name in (*_PARTITION, "offset")]
        order = pc.sort_indices(self._rows, sort_keys=keys)
        rows = self._rows.take(order).combine_chunks()
        said = map(self._said.__getitem__, order.to_pylist())
        reasons = [*map(self._reason_of, rows.column("value").to_pylist(), said)]
        offsets = rows.column("offset").to_pylist()
        where = zip(*(rows.column(name).to_pylist() for name in _PARTITION), strict=True)
        rows = rows.select(_COLUMNS.names).cast(_COLUMNS)
        found, start = {}, 0
        for key, run in groupby(where):
            end = start + sum(1 for _ in run)
            found[TopicPartition(*key)] = UndecodableRecords(
                rows.slice(start, end - start), offsets[start:end], reasons[start:end]
            )
            start = end
        return found


def letters_of(
    topic: str, found: Sequence[tuple[UndecodableRecords, Sequence[AddedHeader]]]
) -> ResultColumns:
    """Return dead letters of records for a topic, each with its own headers and those added."""
    rows = pa.concat_tables([records.rows for records, _ in found]).combine_chunks()
    key, value = (whole(rows.column(name)) for name in ("key", "value"))
    headers = [
        add_headers(whole(records.rows.column("headers")), added) for records, added in found
    ]
    return ResultColumns(topic, key, value, pa.concat_arrays(headers))


def offsets_of(records: Undecodable) -> dict[TopicPartition, Sequence[int]]:
    """Return the offsets of records, by partition."""
    return {where: found.offsets for where, found in records.items()}
