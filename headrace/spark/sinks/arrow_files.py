"""A table in memory as Parquet files, laid out as Spark's partitioned writer does."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from headrace.columns import constant, integer
from headrace.errors import HeadraceError
from headrace.spark.sinks.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

#: How a partition value of null is spelt in the name of a folder.
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

_MOMENT = pa.timestamp("us", tz="UTC")

#: Arrow's types that Delta's tables do not have, and those that hold the same there.
_PLAIN: dict[Callable[[pa.DataType], bool], pa.DataType] = {
    pa.types.is_uint8: pa.int16(),
    pa.types.is_uint16: pa.int32(),
    pa.types.is_uint32: pa.int64(),
    pa.types.is_uint64: pa.decimal128(20, 0),
    pa.types.is_float16: pa.float32(),
    pa.types.is_large_string: pa.string(),
    pa.types.is_string_view: pa.string(),
    pa.types.is_large_binary: pa.binary(),
    pa.types.is_binary_view: pa.binary(),
    pa.types.is_fixed_size_binary: pa.binary(),
    pa.types.is_date64: pa.date32(),
}


class UnstorableColumnError(HeadraceError):
    """A column of a result cannot be stored in a table as it is."""


def plain(table: pa.Table) -> pa.Table:
    """Return the table with types that Delta and Spark know, and the same values.

    Raises:
        UnstorableColumnError: there is none for a column, or it would lose part of a value.
    """
    fields = [field.with_type(_plain(field.type)) for field in table.schema]
    columns = [_cast(field, column) for field, column in zip(fields, table.columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def with_origin(table: pa.Table, origin: str | None) -> pa.Table:
    """Return the table with the column of origins, whose text is in memory once; None: as it is."""
    if origin is None:
        return table
    rows = pa.repeat(integer(0, pa.int32()), table.num_rows)
    text = pa.repeat(constant(pa.string(), origin.encode()), 1)
    return table.append_column(ORIGIN, pa.DictionaryArray.from_arrays(rows, text))


def schema_json(table: pa.Table) -> str:
    """Return the schema of a plain table in the JSON that Delta and Spark share.

    Raises:
        UnstorableColumnError: Delta has no such type.
    """
    for field in table.schema:
        if pa.types.is_null(field.type):
            raise _unstorable(field, "it has no type, because every value is null")
        try:
            Schema.from_arrow(pa.schema([field]))
        except Exception as error:
            raise _unstorable(field, "a table has no such type") from error
    text: str = Schema.from_arrow(table.schema).to_json()
    return text


def write_files(folder: Path, table: pa.Table, partition_by: Sequence[str]) -> None:
    """Write a plain table, one file for each combination of partition values.

    Raises:
        UnstorableColumnError: a column to partition by is missing or of no use for that.
    """
    missing = [name for name in partition_by if name not in table.column_names]
    if missing:
        raise UnstorableColumnError(
            f"the result has no column {missing[0]!r} to partition by; it has "
            f"{', '.join(table.column_names)}"
        )
    for values, rows in _parts(table, partition_by):
        target = folder.joinpath(*map(_folder, partition_by, values))
        target.mkdir(parents=True)
        pq.write_table(rows, target / "part.parquet")


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us") if kind.tz is None else _MOMENT
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        return pa.list_(_plain(kind.value_type))
    return next((plain for is_of, plain in _PLAIN.items() if is_of(kind)), kind)


def _cast(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise _unstorable(field, f"it would have to become {field.type}: {error}") from error


def _unstorable(field: pa.Field, why: str) -> UnstorableColumnError:
    return UnstorableColumnError(
        f"column {field.name!r} ({field.type}) cannot be stored: {why}; have the reducer cast it"
    )


def _parts(
    table: pa.Table, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield the partition values and the other columns of each part; nothing of no rows."""
    if table.num_rows == 0:
        return
    if not partition_by:
        yield (), table
        return
    names = list(partition_by)
    numbers = pa.table({f"k{at}": table.column(name) for at, name in enumerate(names)})
    rows = numbers.append_column("row", pa.array(range(table.num_rows)))
    groups = rows.group_by(numbers.column_names).aggregate([("row", "list")])
    keys = zip(*(groups.column(name).to_pylist() for name in numbers.column_names), strict=True)
    others = table.drop_columns(names)
    for values, positions in zip(keys, groups.column("row_list"), strict=True):
        yield values, others.take(positions.values)


def _folder(name: str, value: object) -> str:
    return f"{quote(name, safe='')}={quote(_spelt(name, value), safe='')}"


def _spelt(name: str, value: object) -> str:
    match value:
        case None | "":
            return NULL_VALUE
        case bool():
            return str(value).lower()
        case datetime(tzinfo=None):
            return value.isoformat(sep=" ")
        case datetime():
            return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(sep=" ")
        case str() | int() | float() | date():
            return str(value)
        case bytes() | list() | dict():
            kind = type(value).__name__
            raise UnstorableColumnError(
                f"column {name!r} holds {kind}, which the table cannot be partitioned by; leave "
                "it out of partition_by"
            )
        case _:
            return f"{value:f}"
