"""The Delta sink: files are written aside, one transaction shows them and moves the offsets."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import structlog
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from headrace.errors import SinkConflictError, StartError
from headrace.spark.sinks.contract import CommitConflictError, Guarantee
from headrace.spark.sinks.delta_format import check_format, format_note
from headrace.spark.sinks.schema import check_schema, delta_schema
from headrace.spark.sinks.staging import StagedFiles, Staging, local_folder, sync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.sinks.contract import OffsetMove, PartitionCommit
    from headrace.spark.sinks.result import Result

    Offset: TypeAlias = PartitionCommit | OffsetMove

log = structlog.get_logger(__name__)

#: How often a commit is tried when writers that touch none of our partitions come first. delta-rs
#: rebases on most of them by itself, up to 15 times a call.
_COMMIT_ATTEMPTS = 5

#: Commits that a handle takes in before the table is opened anew. A kept handle grows with each one
#: more than one that is opened: in a soak with three commits a second the process grew by some 8 kB
#: for each, where opening a table of 12,000 files takes 4 MB, and 0.05 to 0.08 s.
COMMITS_KEPT = 1_000

#: What a commit says about itself in the table's history.
MICRO_BATCH_KEY = "headrace_micro_batch"
MEMBER_KEY = "headrace_member"
OFFSETS_KEY = "headrace_offsets"


class DeltaSink:
    """Appends to one Delta table in a local folder, exactly once.

    Each partition's next offset is a ``Transaction`` in the table's log, under the partition's
    identity, and moves in the same commit as the data. The offsets are checked on the very handle
    that commits: delta-rs refuses a commit whose handle missed another writer's move of the same
    identity, but takes a lower offset from a handle that saw it. docs/sinks.md has every crash
    point. ``partition_by`` names columns of the result; ``durable`` forces files to disk before
    the offsets count as stored; ``member`` is written beside each commit, to tell who made it.

    Raises:
        ConfigError: ``path`` is not a local folder.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: Sequence[str] = (),
        durable: bool = True,
        member: str | None = None,
    ) -> None:
        self._folder = local_folder(path)
        self._partition_by = tuple(partition_by)
        self._durable = durable
        self._metadata = {} if member is None else {MEMBER_KEY: member}
        self._staging = Staging(self._folder, durable=durable)
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._opened_at = 0

    def open(self) -> None:
        """Make the folder, remove what dead processes left staged, look at the table.

        Raises:
            StartError: the folder cannot be written, or holds a table of another layout or of a
                later version of Headrace.
        """
        self._staging.open()
        with self._lock:
            table = self._handle()
        if table is None:
            return
        check_format(self._folder, table)
        if tuple(table.metadata().partition_columns) != self._partition_by:
            raise StartError(
                f"{self._folder}: the table is partitioned by "
                f"{table.metadata().partition_columns}, the sink is set to "
                f"{list(self._partition_by)}; set partition_by to the table's columns"
            )

    def stored_offset(self, identity: str) -> int | None:
        """Return the offset in the newest version of the table, None without table or entry.

        Raises:
            LaterFormatError: a later version of Headrace writes to the table.
        """
        with self._lock:
            table = self._handle()
            if table is None:
                return None
            table = self._refreshed(table)
            check_format(self._folder, table)
            return _offset(table, identity)

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> StagedFiles:
        """Have the result written as Parquet files that no reader of the table sees."""
        if result is None:
            return StagedFiles(micro_batch.id)
        return self._staging.write(micro_batch.id, result, self._partition_by)

    def commit(self, staged: StagedFiles, offsets: Sequence[PartitionCommit]) -> None:
        """Move the files into place and commit them with the offsets, or change nothing visible.

        Without a table, a result creates it; None has nowhere to store offsets and stores none,
        so that until the first result the group's commit stays the only record.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            LaterFormatError: a later version of Headrace writes to the table.
            SchemaMismatchError: the result's columns are not the table's.
            DeltaError: the table could not be written; nothing was stored as far as can be told.
        """
        with self._lock:
            table = self._handle() or self._create(staged)
            if table is None:
                return
            check_schema(self._folder, table, staged.schema)
            self._commit(staged, offsets, {MICRO_BATCH_KEY: staged.name})
        self._staging.remove(staged)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move the offsets in one commit without data, which the table's history keeps.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            DeltaError: the table could not be written; nothing was stored as far as can be told.
        """
        with self._lock:
            self._commit(StagedFiles(f"offsets-{uuid.uuid4().hex[:8]}"), moves, {OFFSETS_KEY: note})

    def _commit(
        self, staged: StagedFiles, offsets: Sequence[Offset], metadata: Mapping[str, str]
    ) -> None:
        attempts = 1
        while not self._try(self._checked(offsets), staged, offsets, metadata, attempts):
            attempts += 1

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
                return self._opened()
            except TableNotFoundError:
                return None
        return self._table

    def _opened(self) -> DeltaTable:
        table = self._table = DeltaTable(self._folder)
        self._opened_at = table.version()
        return table

    def _refreshed(self, table: DeltaTable) -> DeltaTable:
        """Bring a handle up to the newest version; open a new one where its log is gone.

        Or where it took in so many commits that it has grown.
        """
        try:
            table.update_incremental()
        except DeltaError:
            log.warning("delta_handle_reopened", table=str(self._folder), exc_info=True)
            return self._opened()
        return self._opened() if table.version() - self._opened_at >= COMMITS_KEPT else table

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
        if self._durable:
            sync(self._folder)
            self._sync_log(range(1))
        return self._handle()

    def _checked(self, offsets: Sequence[Offset]) -> DeltaTable:
        """Return the handle once it says that every offset is where the micro-batch begins."""
        table = self._handle()
        assert table is not None, "a table that was there is gone"
        if _conflicts(table, offsets):
            table = self._refreshed(table)
        check_format(self._folder, table)
        conflicts = _conflicts(table, offsets)
        if conflicts:
            raise CommitConflictError(conflicts)
        return table

    def _try(
        self,
        table: DeltaTable,
        staged: StagedFiles,
        offsets: Sequence[Offset],
        metadata: Mapping[str, str],
        attempts: int,
    ) -> bool:
        """Commit once. Return False where another check on a new handle may help."""
        before = table.version()
        try:
            table.create_write_transaction(
                [*self._staging.place(staged)],
                mode="append",
                schema=table.schema(),
                partition_by=list(self._partition_by) or None,
                commit_properties=CommitProperties(
                    custom_metadata={**metadata, **self._metadata},
                    app_transactions=[
                        *(Transaction(o.identity, o.next_offset) for o in offsets),
                        *format_note(table),
                    ],
                ),
            )
        except BaseException as error:  # a panic in delta-rs is no Exception
            if self._is_stored(staged, offsets, error):
                return True
            if not isinstance(error, CommitFailedError) or attempts == _COMMIT_ATTEMPTS:
                raise
            log.info("delta_commit_conflict", table=str(self._folder), error=str(error))
            return False
        self._after_commit(table, before)
        return True

    def _is_stored(
        self, staged: StagedFiles, offsets: Sequence[Offset], error: BaseException
    ) -> bool:
        """Tell a failed commit call's outcome from the table itself, through a new handle."""
        self._table = None
        try:
            table = self._opened()
        except Exception:
            staged.keep()
            log.exception("delta_outcome_unknown", table=str(self._folder))
            raise error from None
        stored = all(_offset(table, o.identity) == o.next_offset for o in offsets)
        if stored:
            staged.keep()
            log.warning("delta_commit_found_stored", table=str(self._folder), error=str(error))
        return stored

    def _after_commit(self, table: DeltaTable, before: int) -> None:
        """Bring the handle up to the commit it made, or its own next one would conflict."""
        try:
            table = self._refreshed(table)
            if self._durable:
                self._sync_log(range(before + 1, table.version() + 1))
        except Exception:
            self._table = None
            log.exception("delta_refresh_failed", table=str(self._folder))

    def _sync_log(self, versions: range) -> None:
        folder = self._folder / "_delta_log"
        for version in versions:
            sync(folder / f"{version:020}.json")
        sync(folder)


def _offset(table: DeltaTable, identity: str) -> int | None:
    version: int | None = table.transaction_version(identity)
    return version


def _conflicts(table: DeltaTable, offsets: Sequence[Offset]) -> list[SinkConflictError]:
    stored = [(offset, _offset(table, offset.identity)) for offset in offsets]
    return [
        SinkConflictError(offset.partition, offset.start, found)
        for offset, found in stored
        if found not in {None, offset.start}
    ]
