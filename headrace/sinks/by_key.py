"""Rows that have a key: how they are written, and what a result of them has to be."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from headrace.config.errors import FieldConflict
from headrace.core.errors import RowsRefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa


class WriteMode(Enum):
    """The way in which a row of the result is written."""

    APPEND = "append"
    """It is inserted."""

    UPSERT = "upsert"
    """It takes the place of the row with the same key, if there is one."""

    MERGE = "merge"
    """It is merged into the row with the same key, if there is one, column by column."""


class Merging(Enum):
    """The value that a column gets where a row with the key is there."""

    SUM = "sum"
    """The new value is added to it; a null adds nothing."""

    MIN = "min"
    """The smaller one stays; a null is none."""

    MAX = "max"
    """The larger one stays; a null is none."""

    LAST = "last"
    """The new value takes its place, a null too."""


class Repeated(Enum):
    """The policy for a key that a result has in several rows."""

    FAIL = "fail"
    """The rows are refused: it is not clear which one should win."""

    LAST = "last"
    """The last of them is written."""


def key_conflicts(
    mode: str, key: Collection[str], merge: Collection[str]
) -> Iterator[FieldConflict]:
    """Yield what of a section's key and merge does not go with its mode, upsert or merge."""
    if not key:
        yield FieldConflict(
            ("key",), f"is missing; mode: {mode} takes the columns that make a row unique"
        )
    if mode == WriteMode.MERGE.value and not merge:
        yield FieldConflict(
            ("merge",),
            "is missing; mode: merge takes sum, min, max or last for each other column",
        )
    for name in sorted({*merge} & {*key}):
        yield FieldConflict(
            ("merge",), f"names {name}, which is in key; leave it out of one of them"
        )


def one_row_of_each(
    place: str, rows: pa.Table, key: Sequence[str], mode: WriteMode, repeated: Repeated
) -> pa.Table:
    """Return a result with one row for each key, in the order of its rows.

    ``place`` is the table as messages name it.

    Raises:
        RowsRefusedError: a key is null in part, or is there twice where that is refused.
    """
    keys = rows.select(list(key))
    distinct = keys.group_by(list(key)).aggregate([]).num_rows
    nulls = sum(column.null_count for column in keys.columns)
    if nulls or (distinct < rows.num_rows and repeated is Repeated.FAIL):
        can_repeat = mode is WriteMode.UPSERT and repeated is Repeated.FAIL
        advice = ", or set repeated: last in the sink for the last row of each"
        raise RowsRefusedError(
            f"{place}: the result has {rows.num_rows} rows and {distinct} keys, {nulls} of them "
            f"null in part; let the reducer make one row for each {', '.join(key)}"
            f"{advice if can_repeat else ''}"
        )
    return rows if distinct == rows.num_rows else rows.take(numbers_of_keys(rows, key, "max"))


def numbers_of_keys(rows: pa.Table, key: Sequence[str], which: str) -> pa.ChunkedArray:
    """Return the number of one row of each key, the ``min`` or ``max``, in ascending order."""
    import pyarrow as pa  # noqa: PLC0415 - who knows of sinks alone needs no pyarrow

    numbered = rows.select(list(key)).append_column("", pa.array(range(rows.num_rows)))
    found = numbered.group_by(list(key)).aggregate([("", which)])
    return found.column(f"_{which}").sort()
