"""The data files of a Delta table, with what rewriting some of them has to know."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from headrace.extensions.delta.errors import NotRewritableError
from headrace.extensions.delta.staging import sync
from headrace.sinks.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from deltalake import DeltaTable

#: What a reader has to know of tables of these features is nothing that rewriting could break.
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
_PLAIN_WRITER = 2
_FEATURES_WRITER = 7

#: Partition values whose spelling in a log is sure.
_SPELT = frozenset({str, bool, int, date, type(None)})

#: In memory a text that many rows share stands there once.
_SHARED_TEXT = pa.dictionary(pa.int32(), pa.string())

#: The partition values of a file, by the names of their columns in order: writers differ in theirs.
Values: TypeAlias = tuple[tuple[str, str | None], ...]


def values_of(values: Mapping[str, str | None]) -> Values:
    """Return partition values as they are compared; no text is null, as the protocol has it."""
    return tuple(sorted((name, value or None) for name, value in values.items()))


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table: its name in the table's folder, and what the log says about it."""

    path: str
    size: int
    values: Values

    @property
    def is_ours(self) -> bool:
        """Return whether it lies in the table's folder itself, as ours do, under a plain name."""
        return "/" not in self.path and "%" not in self.path


def require_plain(folder: Path, table: DeltaTable) -> None:
    """Return if the table has no feature that is unknown here; raises NotRewritableError."""
    protocol = table.protocol()
    writer = protocol.min_writer_version
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    known = writer <= _PLAIN_WRITER or (writer == _FEATURES_WRITER and features <= _PLAIN_FEATURES)
    if not known:
        raise NotRewritableError(
            f"{folder}: the table has writer version {writer} with {sorted(features)}, files of "
            "which are not rewritten here"
        )


def data_files(folder: Path, table: DeltaTable) -> list[DataFile]:
    """Return the files of a version of a table.

    Raises:
        NotRewritableError: a partition column has values whose spelling is not sure.
    """
    columns = table.metadata().partition_columns
    found = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return [
        DataFile(each["path"], each["size_bytes"], _values(folder, columns, each)) for each in found
    ]


def file_added(add: Mapping[str, Any]) -> DataFile:
    """Return the file that an action of the log adds."""
    return DataFile(add["path"], add["size"], values_of(add["partitionValues"]))


def _values(folder: Path, columns: Sequence[str], found: Mapping[str, Any]) -> Values:
    return values_of(
        {name: _spell_value(folder, name, found["partition"][name]) for name in columns}
    )


def _spell_value(folder: Path, name: str, value: object) -> str | None:
    if type(value) not in _SPELT:
        raise NotRewritableError(
            f"{folder}: partition column {name!r} has values of {type(value).__name__}, whose "
            "files are not rewritten here"
        )
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def read_file(path: Path) -> pa.Table:
    """Return a file's rows, with the texts of origins shared. Blocks; all in memory."""
    return pq.read_table(path, partitioning=None, read_dictionary=[ORIGIN])


def write_file(
    folder: Path,
    table: DeltaTable,
    contents: Iterable[pa.Table],
    values: Values,
    kind: str,
    *,
    now: float,
    data_change: bool,
) -> AddAction:
    """Write rows of one partition of the table to one file. ``now`` is in seconds. Blocks."""
    path = folder / f"part-{kind}-{uuid.uuid4().hex}.parquet"
    schema = schema_of_files(table, dict(values))
    rows = 0
    try:
        with pq.ParquetWriter(path, schema, compression="snappy") as writer:
            for content in contents:
                writer.write_table(fitted(content, schema))
                rows += content.num_rows
        sync(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return AddAction(
        path.name,
        path.stat().st_size,
        dict(values),
        round(now * 1000),
        data_change=data_change,
        stats=json.dumps({"numRecords": rows}),
    )


def renew(folder: Path, files: Iterable[AddAction]) -> None:
    """Make files young, right before they are committed, however long writing them all took.

    A clean-up of the table, by whichever writer, takes files of no version by age.

    Raises:
        FileNotFoundError: it has taken one already.
    """
    for file in files:
        os.utime(folder / file.path)


def schema_of_files(table: DeltaTable, values: Mapping[str, str | None]) -> pa.Schema:
    """Return the columns that files with these partition values have."""
    return pa.schema(
        [
            field.with_type(_SHARED_TEXT) if field.name == ORIGIN else field
            for field in pa.schema(table.schema().to_arrow())
            if field.name not in values
        ]
    )


def fitted(content: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns in the table's order and types, with nulls for those added later."""
    columns = [
        content.column(field.name).cast(field.type)
        if field.name in content.column_names
        else pa.nulls(content.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
