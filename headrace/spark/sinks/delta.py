"""The Delta sink: Spark writes files aside, one transaction shows them and moves the offsets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from headrace.errors import SinkConflictError, StartError
from headrace.spark.sinks.contract import CommitConflictError, Guarantee
from headrace.spark.sinks.schema import check_schema, delta_schema
from headrace.spark.sinks.staging import StagedFiles, Staging, local_folder, sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.sinks.contract import PartitionCommit

log = structlog.get_logger(__name__)

#: How often a commit is tried when writers that touch none of our partitions come first. delta-rs
#: rebases on most of them by itself, up to 15 times a call.
_COMMIT_ATTEMPTS = 5


class DeltaSink:
    """Appends to one Delta table in a local folder, exactly once.

    Each partition's next offset is a ``Transaction`` in the table's log, under the partition's
    identity, and moves in the same commit as the data. The offsets are checked on the very handle
    that commits: delta-rs refuses a commit whose handle missed another writer's move of the same
    identity, but takes a lower offset from a handle that saw it. docs/sinks.md has every crash
    point. ``partition_by`` names columns of the result; ``durable`` forces files to disk before
    the offsets count as stored.

    Raises:
        ConfigError: ``path`` is not a local folder.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self, path: str | Path, *, partition_by: Sequence[str] = (), durable: bool = True
    ) -> None:
        self._folder = local_folder(path)
        self._partition_by = tuple(partition_by)
        self._durable = durable
        self._staging = Staging(self._folder, durable=durable)
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None

    def open(self) -> None:
        """Make the folder, remove what dead processes left staged, look at the table.

        Raises:
            StartError: the folder cannot be written, or holds a table of another layout.
        """
        self._staging.open()
        with self._lock:
            table = self._handle()
        if table is not None and tuple(table.metadata().partition_columns) != self._partition_by:
            raise StartError(
                f"{self._folder}: the table is partitioned by "
                f"{table.metadata().partition_columns}, the sink is set to "
                f"{list(self._partition_by)}; set partition_by to the table's columns"
            )

    def stored_offset(self, identity: str) -> int | None:
        """Return the offset in the newest version of the table, None without table or entry."""
        with self._lock:
            table = self._handle()
            if table is None:
                return None
            table.update_incremental()
            return _offset(table, identity)

    def stage(self, micro_batch: MicroBatch, result: DataFrame | None) -> StagedFiles:
        """Have Spark write the result as Parquet files that no reader of the table sees."""
        if result is None:
            return StagedFiles(micro_batch.id)
        return self._staging.write(micro_batch.id, result, self._partition_by)

    def commit(self, staged: StagedFiles, offsets: Sequence[PartitionCommit]) -> None:
        """Move the files into place and commit them with the offsets, or change nothing visible.

        Without a table, a result creates it; None has nowhere to store offsets and stores none,
        so that until the first result the group's commit stays the only record.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            SchemaMismatchError: the result's columns are not the table's.
            DeltaError: the table could not be written; nothing was stored as far as can be told.
        """
        with self._lock:
            table = self._handle() or self._create(staged)
            if table is None:
                return
            check_schema(self._folder, table, staged.schema)
            for attempt in range(1, _COMMIT_ATTEMPTS + 1):
                table = self._checked(table, offsets)
                if self._try(table, staged, offsets, last=attempt == _COMMIT_ATTEMPTS):
                    break
                table = self._table = DeltaTable(self._folder)
        self._staging.remove(staged)

    def discard(self, staged: StagedFiles) -> None:
        """Remove the files, staged or already in place, unless they may be part of the table."""
        self._staging.remove(staged, placed=True)

    def close(self) -> None:
        """Remove this process's staging folder."""
        self._staging.close()

    def _handle(self) -> DeltaTable | None:
        """Return the kept handle, opening it if there is a table."""
        if self._table is None:
            try:
                self._table = DeltaTable(self._folder)
            except TableNotFoundError:
                return None
        return self._table

    def _create(self, staged: StagedFiles) -> DeltaTable | None:
        """Create the table empty, so that data only ever comes through the checked commit."""
        if staged.schema is None:
            return None
        try:
            DeltaTable.create(
                self._folder,
                schema=delta_schema(staged.schema),
                mode="ignore",
                partition_by=list(self._partition_by) or None,
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(str(self._folder)):
                raise
            log.info("delta_table_created_elsewhere", table=str(self._folder))
        return self._handle()

    def _checked(self, table: DeltaTable, offsets: Sequence[PartitionCommit]) -> DeltaTable:
        """Return the handle once it says that every offset is where the micro-batch begins."""
        if _conflicts(table, offsets):
            table.update_incremental()
            conflicts = _conflicts(table, offsets)
            if conflicts:
                raise CommitConflictError(conflicts)
        return table

    def _try(
        self,
        table: DeltaTable,
        staged: StagedFiles,
        offsets: Sequence[PartitionCommit],
        *,
        last: bool,
    ) -> bool:
        """Commit once. Return False where a new handle and another check may help."""
        try:
            table.create_write_transaction(
                [*self._staging.place(staged)],
                mode="append",
                schema=table.schema(),
                partition_by=list(self._partition_by) or None,
                commit_properties=CommitProperties(
                    custom_metadata={"headrace_micro_batch": staged.name},
                    app_transactions=[Transaction(o.identity, o.next_offset) for o in offsets],
                ),
            )
        except Exception as error:
            self._table = None
            if self._is_stored(staged, offsets, error):
                return True
            if last or not isinstance(error, CommitFailedError):
                raise
            log.info("delta_commit_conflict", table=str(self._folder), error=str(error))
            return False
        self._after_commit(table)
        return True

    def _is_stored(
        self, staged: StagedFiles, offsets: Sequence[PartitionCommit], error: Exception
    ) -> bool:
        """Tell a failed commit call's outcome from the table itself, through a fresh handle."""
        try:
            fresh = DeltaTable(self._folder)
        except Exception:
            staged.keep()
            log.exception("delta_outcome_unknown", table=str(self._folder))
            raise error from None
        stored = all(_offset(fresh, o.identity) == o.next_offset for o in offsets)
        if stored:
            staged.keep()
            log.warning("delta_commit_found_stored", table=str(self._folder), error=str(error))
        return stored

    def _after_commit(self, table: DeltaTable) -> None:
        """Bring the handle up to the commit it made, or its own next one would conflict."""
        try:
            table.update_incremental()
            if self._durable:
                sync_folder(self._folder / "_delta_log", f"{table.version():020}.json")
        except Exception:
            self._table = None
            log.exception("delta_refresh_failed", table=str(self._folder))


def _offset(table: DeltaTable, identity: str) -> int | None:
    version: int | None = table.transaction_version(identity)
    return version


def _conflicts(table: DeltaTable, offsets: Sequence[PartitionCommit]) -> list[SinkConflictError]:
    stored = [(offset, _offset(table, offset.identity)) for offset in offsets]
    return [
        SinkConflictError(offset.partition, offset.start, found)
        for offset, found in stored
        if found not in {None, offset.start}
    ]
