"""Files as records: one line of JSON or one row of Parquet each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.offsets.errors import RequestError
from headrace.spark.sinks.json_rows import UnspeakableTypeError, json_lines
from headrace.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: How every file of Parquet begins.
_PARQUET = b"PAR1"


def read_file(path: Path) -> pa.Table:
    """Return a file's records, with the columns of every micro-batch. Blocks.

    Lines of JSON are values. So are rows of Parquet, as JSON, unless the file has a column
    ``value``: then its columns are those of the records. What a file does not say is: the topic,
    named like the file; partition 0; offsets from 0 on; null for the rest.

    Raises:
        RequestError: the file cannot be read, or a column is of a wrong type.
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
        if not is_parquet:
            return _of_values(_lines(path), path.stem)
        found = pq.read_table(path)
        if "value" in found.column_names:
            return _of_records(found, path.stem)
        return _of_values([line.encode() for line in json_lines(found)], path.stem)
    except (OSError, pa.ArrowException, UnspeakableTypeError) as error:
        raise RequestError([f"{path} cannot be read: {error}"]) from error


def _lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if line.strip()]


def _of_values(values: Sequence[bytes], topic: str) -> pa.Table:
    return _of_records(pa.table({"value": pa.array(values, pa.binary())}), topic)


def _of_records(given: pa.Table, topic: str) -> pa.Table:
    count = given.num_rows
    defaults = {
        "topic": pa.repeat(pa.scalar(topic), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()),
    }
    columns = []
    for field in SCHEMA:
        if field.name in given.column_names:
            columns.append(_cast(given.column(field.name), field))
        else:
            columns.append(defaults.get(field.name, pa.nulls(count, field.type)))
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(
            f"its column {field.name!r} is of type {column.type} and should be {field.type}"
        ) from error
