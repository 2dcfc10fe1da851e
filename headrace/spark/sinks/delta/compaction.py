"""Many small files of a Delta table become few, in one commit that changes no row.

delta-rs's own compaction takes no notice of another that ran meanwhile: both are committed, and
rows are there twice (seen with deltalake 1.6.6). This one gives up when a file it has read is no
longer part of the table.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from headrace.errors import HeadraceError
from headrace.spark.sinks.delta.data_files import (
    NotRewritableError,
    data_files,
    read_file,
    renew,
    require_plain,
    write_file,
)
from headrace.spark.sinks.delta.log import LogFiles, added, optimized, removed
from headrace.spark.sinks.delta.table import file_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from deltalake.transaction import AddAction

    from headrace.spark.sinks.delta.data_files import DataFile, Values
    from headrace.spark.sinks.delta.log import Action

#: Bytes that a file grows to: a quarter of what Spark reads as one partition by default.
TARGET_BYTES = 32 << 20


class NotCompactedError(HeadraceError):
    """The table is left as it is; the message says why."""


def compact(folder: Path, scratch: Path, metadata: Mapping[str, str], now: float) -> int:
    """Rewrite small files and commit that. Returns how many went. Blocks; any thread.

    ``scratch`` is a folder of the same file system that nobody reads. ``now`` is in seconds since
    the epoch. One file is in memory at a time.

    Raises:
        NotCompactedError: the table has features or values that are not known here, or another
            writer removed one of the files or changed the table itself.
        DeltaError, OSError, pa.ArrowException: it could not be read or written, or what was made
            is gone. Its rows are the same, and nothing changed as far as can be told.
    """
    table = DeltaTable(folder)
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
        _commit(folder, table.version(), actions, made, scratch)
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


def _files(folder: Path, table: DeltaTable) -> list[DataFile]:
    """Return the files that may be rewritten."""
    try:
        require_plain(folder, table)
        return [file for file in data_files(folder, table) if file.is_ours]
    except NotRewritableError as error:
        raise NotCompactedError(
            f"{error}; compact it with what made it so, and set compact_every to 0"
        ) from error


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Yield the files that become one, by partition.

    A file joins when it is no larger than all smaller ones together, so that each row is rewritten
    a number of times that grows with the logarithm of the table, as in size-tiered compaction.
    """
    by_values: dict[Values, list[DataFile]] = {}
    for file in files:
        by_values.setdefault(file.values, []).append(file)
    for same in by_values.values():
        group: list[DataFile] = []
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


def _merged(folder: Path, table: DeltaTable, group: Sequence[DataFile], now: float) -> AddAction:
    contents = (read_file(folder / file.path) for file in group)
    return write_file(
        folder, table, contents, group[0].values, "compacted", now=now, data_change=False
    )


def _commit(
    folder: Path,
    version: int,
    actions: Sequence[Action],
    made: Sequence[AddAction],
    scratch: Path,
) -> None:
    entries = LogFiles(folder)
    gone = {action["remove"]["path"] for action in actions if "remove" in action}
    while True:
        version += 1
        if entries.checkpoint() >= version:
            raise NotCompactedError(f"{folder}: the table went on by too many commits meanwhile")
        renew(folder, made)
        if entries.add(version, actions, scratch, durable=True):
            return
        for action in entries.read(version) or [{"protocol": {}}]:
            if {"metaData", "protocol"} & action.keys() or (
                "remove" in action and action["remove"]["path"] in gone
            ):
                raise NotCompactedError(f"{folder}: version {version} changed what was compacted")
