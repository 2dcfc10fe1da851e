"""Rows as records of the changelog: the state is the value, all else is in a header."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import HEADERS, ColumnRun
from headrace.core.records import ResultRecord
from headrace.core.result_columns import ResultColumns
from headrace.extensions.keyed.row import KeyRow, LoadedRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.core.records import Record

#: The header of a record that has the key's timers, and its quarantine.
EXTRA_HEADER = "headrace-timers"


def row_of(record: Record) -> KeyRow | None:
    """Return the row that a record has, None for a deletion."""
    value = record.value()
    if value is None:
        return None
    extra = next((data for name, data in record.headers() or () if name == EXTRA_HEADER), None)
    return KeyRow.read(value, extra)


def record_of(topic: str, number: int, key: bytes, row: KeyRow | None) -> ResultRecord:
    """Return a record for partition ``number``, a tombstone where there is no row."""
    if row is None:
        return ResultRecord(topic, None, key, None, number)
    headers = None if row.extra is None else [(EXTRA_HEADER, row.extra)]
    return ResultRecord(topic, row.value, key, headers, number)  # type: ignore[arg-type]


def loaded_rows(records: Sequence[Record]) -> Iterator[LoadedRows]:
    """Yield what records say of keys, in their order."""
    if not isinstance(records, ColumnRun):
        rows = [(key, row_of(record)) for record in records if (key := record.key()) is not None]
        yield LoadedRows(
            [key for key, _ in rows],
            [None if row is None else row.value for _, row in rows],
            [None if row is None else row.extra for _, row in rows],
        )
        return
    for piece in records.pieces:
        has_keys = piece.column("key").null_count == 0
        named = piece if has_keys else piece.filter(piece.column("key").is_valid())
        keys, values, headers = (named.column(name) for name in ("key", "value", "headers"))
        extras = None
        if headers.null_count < len(headers):
            extras = list(map(_extra_in, headers.to_pylist()))
        yield LoadedRows(keys.to_pylist(), values.to_pylist(), extras)


def _extra_in(headers: Iterable[Mapping[str, Any]] | None) -> bytes | None:
    """Return what a record has beside the state."""
    named = (each["value"] for each in headers or () if each["key"] == EXTRA_HEADER)
    return next(named, None) or None


def changelog_columns(topic: str, rows: pa.Table) -> ResultColumns:
    """Return rows for the changelog; a deletion is a tombstone.

    ``rows`` begin with the columns partition, key, state and extra.
    """
    partition, key, state, extra = (
        column.chunk(0) if column.num_chunks else column.combine_chunks()
        for column in rows.columns[:4]
    )
    if extra.null_count == len(extra):
        return ResultColumns(topic, key, state, None, partition)
    has_extra = extra.is_valid()
    state = pc.if_else(pc.and_(state.is_null(), has_extra), b"", state)
    there = extra.drop_null()
    names = pa.array([EXTRA_HEADER] * len(there), pa.string())
    pairs = pa.StructArray.from_arrays([names, there], fields=list(HEADERS.value_type))
    ends = pa.array(np.r_[0, np.cumsum(has_extra.to_numpy(zero_copy_only=False))], pa.int32())
    return ResultColumns(topic, key, state, pa.ListArray.from_arrays(ends, pairs), partition)
