"""Many small files of a Delta table become few, in one commit that changes no row.

delta-rs's own compaction takes no notice of another that ran meanwhile: both are committed, and
rows are there twice (seen with deltalake 1.6.6). This one gives up when a file it has read is no
longer part of the table.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from headrace.errors import HeadraceError
from headrace.spark.sinks.delta.log import LogFiles, added, optimized, removed
from headrace.spark.sinks.delta.table import file_names
from headrace.spark.sinks.staging import sync

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.spark.sinks.delta.log import Action

#: Bytes that a file grows to: a quarter of what Spark reads as one partition by default.
TARGET_BYTES = 32 << 20

#: What a reader has to know of tables of these features is nothing that rewriting could break.
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
_PLAIN_WRITER = 2
_FEATURES_WRITER = 7

#: Partition values whose spelling in a log is sure.
_SPELT = frozenset({str, bool, int, date, type(None)})

Values: TypeAlias = tuple[tuple[str, str | None], ...]


class NotCompactedError(HeadraceError):
    """The table is left as it is; the message says why."""


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A file of the table: its name in the table's folder, and what the log says about it."""

    path: str
    size: int
    values: Values


def compact(folder: Path, scratch: Path, metadata: Mapping[str, str], now: float) -> int:
    """Rewrite small files and commit that. Returns how many went. Blocks; any thread.

    ``scratch`` is a folder of the same file system that nobody reads. ``now`` is in seconds since
    the epoch. One file is in memory at a time.

    Raises:
        NotCompactedError: the table has features or values that are not known here, or another
            writer removed one of the files or changed the table itself.
        DeltaError, OSError, pa.ArrowException: it could not be read or written. Its rows are the
            same, and nothing changed as far as can be told.
    """
    table = DeltaTable(folder)
    _require_plain(folder, table)
    groups = list(_groups(_files(folder, table)))
    if not groups:
        return 0
    made: list[AddAction] = []
    try:
        made.extend(_merged(folder, table, group, now) for group in groups)
        gone = [file for group in groups for file in group]
        actions = [
            optimized(metadata, now),
            *(removed(file.path, file.size, dict(file.values), now) for file in gone),
            *(added(file, data_change=False) for file in made),
        ]
        for file in made:
            # as in Staging.place: a clean-up takes files of no version by age
            os.utime(folder / file.path)
        _commit(folder, table.version(), actions, {file.path for file in gone}, scratch)
    except BaseException:
        _remove_unnamed(folder, made)
        raise
    return len(gone)


def _remove_unnamed(folder: Path, made: Sequence[AddAction]) -> None:
    """Remove what the table does not have. A commit that failed may have been made all the same."""
    # a table that cannot be read may have all of them: they stay until a later clean-up
    with suppress(Exception):
        named = file_names(DeltaTable(folder))
        for file in made:
            if file.path not in named:
                (folder / file.path).unlink(missing_ok=True)


def _require_plain(folder: Path, table: DeltaTable) -> None:
    protocol = table.protocol()
    writer = protocol.min_writer_version
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    known = writer <= _PLAIN_WRITER or (writer == _FEATURES_WRITER and features <= _PLAIN_FEATURES)
    if not known:
        raise NotCompactedError(
            f"{folder}: the table has writer version {writer} with {sorted(features)}, files of "
            f"which are not rewritten here; compact it with what made it so, and set compact_every "
            "to 0"
        )


def _files(folder: Path, table: DeltaTable) -> list[SmallFile]:
    """Return the files that lie in the table's folder itself, as ours do."""
    columns = table.metadata().partition_columns
    found = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    return [
        SmallFile(each["path"], each["size_bytes"], _values(folder, columns, each))
        for each in found
        if "/" not in each["path"] and "%" not in each["path"]
    ]


def _values(folder: Path, columns: Sequence[str], found: Mapping[str, Any]) -> Values:
    return tuple((name, _spelt(folder, name, found["partition"][name])) for name in columns)


def _spelt(folder: Path, name: str, value: object) -> str | None:
    if type(value) not in _SPELT:
        raise NotCompactedError(
            f"{folder}: partition column {name!r} has values of {type(value).__name__}, which is "
            "not compacted; set compact_every to 0"
        )
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _groups(files: Sequence[SmallFile]) -> Iterator[list[SmallFile]]:
    """Yield the files that become one, by partition.

    A file joins when it is no larger than all smaller ones together, so that each row is rewritten
    a number of times that grows with the logarithm of the table, as in size-tiered compaction.
    """
    by_values: dict[Values, list[SmallFile]] = {}
    for file in files:
        by_values.setdefault(file.values, []).append(file)
    for same in by_values.values():
        group: list[SmallFile] = []
        size = 0
        for file in sorted(same, key=lambda each: each.size):
            if file.size > max(size, 2 * group[0].size if group else 0) or (
                size + file.size > TARGET_BYTES
            ):
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if len(group) > 1:
            yield group


def _merged(folder: Path, table: DeltaTable, group: Sequence[SmallFile], now: float) -> AddAction:
    values = dict(group[0].values)
    schema = pa.schema(
        [field for field in pa.schema(table.schema().to_arrow()) if field.name not in values]
    )
    path = folder / f"part-compacted-{uuid.uuid4().hex}.parquet"
    rows = 0
    try:
        with pq.ParquetWriter(path, schema, compression="snappy") as writer:
            for file in group:
                content = pq.read_table(folder / file.path, partitioning=None)
                writer.write_table(_fitted(content, schema))
                rows += content.num_rows
        sync(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return AddAction(
        path.name,
        path.stat().st_size,
        values,
        round(now * 1000),
        data_change=False,
        stats=json.dumps({"numRecords": rows}),
    )


def _fitted(content: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns in the table's order and types, with nulls for those added later."""
    columns = [
        content.column(field.name).cast(field.type)
        if field.name in content.column_names
        else pa.nulls(content.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _commit(
    folder: Path, version: int, actions: Sequence[Action], gone: set[str], scratch: Path
) -> None:
    entries = LogFiles(folder)
    while True:
        version += 1
        if entries.checkpoint() >= version:
            raise NotCompactedError(f"{folder}: the table went on by too many commits meanwhile")
        if entries.add(version, actions, scratch, durable=True):
            return
        for action in entries.read(version) or [{"protocol": {}}]:
            if {"metaData", "protocol"} & action.keys() or (
                "remove" in action and action["remove"]["path"] in gone
            ):
                raise NotCompactedError(f"{folder}: version {version} changed what was compacted")
