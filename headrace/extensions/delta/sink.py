"""The Delta sink: files are written aside, one transaction shows them and moves the offsets."""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headrace.config.errors import dotted
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.columns import load_pandas
from headrace.core.errors import ConfigError, SinkFailedError, StartError
from headrace.core.files import existing
from headrace.extensions.delta.conflicts import NOT_REPLACED, merge_conflicts
from headrace.extensions.delta.errors import OvertakenError
from headrace.extensions.delta.maintenance import MaintenanceConfig, MaintenanceThread
from headrace.extensions.delta.merged_files import TableMerge
from headrace.extensions.delta.replacement import find_output, without_output
from headrace.extensions.delta.schema import (
    SchemaChanges,
    check_schema,
    delta_schema,
)
from headrace.extensions.delta.staging import (
    FileStaging,
    StagedFiles,
    local_folder,
    sync,
)
from headrace.extensions.delta.table import (
    APPENDS,
    RETENTION_PROPERTY,
    Change,
    KeptTable,
    LogFiles,
    added,
    adds,
    check_retention,
    commit_info,
    moved,
    shows,
)
from headrace.sinks.contract import Guarantee, Sink, columns_of, conflicts_in
from headrace.sinks.errors import ReplaceRefusedError
from headrace.sinks.origin import ORIGIN, origin_text, require_covered, require_no_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from deltalake import Field

    from headrace.extensions.delta.merged_files import Rewriting
    from headrace.extensions.delta.merging import MergeRule
    from headrace.extensions.delta.table import CheckedTable
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Replacement, Result
    from headrace.sinks.micro_batch import MicroBatch

log = structlog.get_logger(__name__)

#: How often a commit is tried when other writers come first. Each time one of them has got on, so
#: that it takes a crowd to use them up.
_COMMIT_ATTEMPTS = 100

#: How often output is replaced when other writers come first: each time the table is read again.
_REPLACE_ATTEMPTS = 10

#: How a table is kept unless something else is said.
DEFAULT_MAINTENANCE = MaintenanceConfig()

#: What a commit says about itself in the table's history.
MICRO_BATCH_KEY = "headrace_micro_batch"
MEMBER_KEY = "headrace_member"
OFFSETS_KEY = "headrace_offsets"


class DeltaSink(Sink[StagedFiles]):
    """Appends to one Delta table in a local folder, exactly once.

    Each partition's next offset is a ``Transaction`` in the table's log, under the partition's
    identity, and moves in the same commit as the data. A commit is the log's next entry, made only
    if no other writer made it, after the offsets were checked against all entries before.
    docs/sinks/delta.md has every crash point.

    ``partition_by`` names columns of the result; ``durable`` forces files to disk before the
    offsets count as stored; ``member`` is written beside each commit, to tell who made it.
    ``maintenance`` says how the table is kept small from ``open`` to ``close``, on another thread,
    and ``schema_changes`` what follows when a result's columns are not the table's. With ``origin``
    each row says in a column of its own which records it is of, so that they can be replaced. With
    ``merge`` rows are merged into those with their keys, in place of being added.

    Raises:
        ConfigError: ``path`` is not a local folder, or ``merge`` does not go with the others.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        path: str | Path,
        *,
        partition_by: Sequence[str] = (),
        durable: bool = True,
        member: str | None = None,
        maintenance: MaintenanceConfig = DEFAULT_MAINTENANCE,
        schema_changes: SchemaChanges = SchemaChanges.REFUSE,
        origin: bool = False,
        merge: MergeRule | None = None,
    ) -> None:
        self._folder = local_folder(path)
        if merge is not None:
            _require_no_conflict(self._folder, merge, partition_by, origin=origin)
        self._partition_by = tuple(partition_by)
        self._durable = durable
        self._schema_changes = schema_changes
        self._origin = origin
        self._merge = None if merge is None else TableMerge(self._folder, merge, partition_by)
        self._metadata = {} if member is None else {MEMBER_KEY: member}
        self._staging = FileStaging(self._folder, durable=durable)
        self._lock = threading.Lock()
        self._table: KeptTable | None = None
        self._config = maintenance
        self._maintenance_thread = MaintenanceThread(
            self._folder, self._staging.own, maintenance, self._metadata
        )

    def open(self) -> None:
        self._staging.open()
        if self._partition_by or self._merge is not None:
            load_pandas()
        with self._lock:
            table = self._kept_table()
        if table is not None:
            self._check_offsets(table)
            self._check_layout(table)
        self._maintenance_thread.start()

    def check(self) -> str:
        """Return a sentence on the table, or the folder that will have it. Creates nothing. Blocks.

        Raises:
            StartError: the folder cannot be written, or the table is not one for this sink.
        """
        folder = existing(self._folder)
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise StartError(f"{folder} is no folder that this user can write to")
        with self._lock:
            table = self._kept_table()
        if table is None:
            return f"{self._folder}: a table is created with the first rows"
        self._check_offsets(table)
        self._check_layout(table)
        return f"{self._folder}: the table is as the sink needs it"

    def stored_offset(self, identity: str) -> int | None:
        with self._lock:
            table = self._kept_table()
            if table is None:
                return None
            table.refresh()
            self._check_offsets(table)
            return table.offset(identity)

    def stored_leader_epoch(self, identity: str) -> int | None:
        with self._lock:
            table = self._kept_table()
            return None if table is None else table.leader_epoch(identity)

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> StagedFiles:
        """Write the result as Parquet files that no reader of the table sees.

        Raises:
            ResultMisfitError: a table cannot have its columns; nothing was computed.
            RowsRefusedError: a column cannot be stored as it is.
        """
        if result is None:
            return StagedFiles(micro_batch.id)
        require_no_origin(self._folder, columns_of(result))
        if self._merge is not None:
            return self._merge.stage(micro_batch.id, result)
        origin = origin_text(micro_batch.ranges) if self._origin else None
        return self._staging.write(micro_batch.id, result, self._partition_by, origin)

    def commit(self, staged: StagedFiles, offsets: Sequence[PartitionCommit]) -> None:
        """Move the files into place and commit them with the offsets, or change nothing visible.

        Without a table, a result creates it; None has nowhere to store offsets and stores none,
        so that until the first result the group's commit stays the only record.

        Raises:
            SinkFailedError: a commit of several that failed left the files half in place, or some
                of them are gone.
            StartError: a later version of Headrace writes to the table, or it forgets offsets.
        """
        self.commit_all([staged], offsets)

    def commit_all(self, staged: Sequence[StagedFiles], offsets: Sequence[PartitionCommit]) -> None:
        with self._lock:
            if (self._kept_table() or self._create(staged)) is None:
                return
            said = {MICRO_BATCH_KEY: ",".join(each.name for each in staged)}
            has_rows = any(each.rows is not None and each.rows.num_rows for each in staged)
            if self._merge is not None and has_rows:
                self._commit_merged(self._merge, staged, offsets, said)
            else:
                self._commit(staged, offsets, said)
        for each in staged:
            self._staging.remove(each)

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        with self._lock:
            self._commit([], moves, {OFFSETS_KEY: note})

    def plan_replace(self, moves: Sequence[OffsetMove]) -> Replacement:
        """Read one column of every file to find the table's rows of these records."""
        self._require_replaceable()
        with self._lock:
            return find_output(self._folder, self._reopened(), moves).replacement

    def replace(self, moves: Sequence[OffsetMove], note: str) -> int:
        """Remove what the table has in the commit that moves the offsets.

        Files with other rows, too, are written again without these. Readers of the version before
        find all files until the table's retention is over.
        """
        self._require_replaceable()
        with self._lock:
            for _ in range(_REPLACE_ATTEMPTS):
                rows = self._try_replace(moves, note)
                if rows is not None:
                    return rows
        raise self._others_first(_REPLACE_ATTEMPTS)

    def _require_replaceable(self) -> None:
        if self._merge is not None:
            raise ReplaceRefusedError(f"{self._folder}: {NOT_REPLACED}")

    def _try_replace(self, moves: Sequence[OffsetMove], note: str) -> int | None:
        """Replace once. Return None where another writer was first."""
        table = self._reopened()
        checked = table.checked(moves)
        output = find_output(self._folder, table, moves)
        require_covered(moves, output.replacement)
        staged = StagedFiles(f"replace-{uuid.uuid4().hex[:8]}")
        is_done = False
        try:
            gone = without_output(self._folder, table, output, SYSTEM_CLOCK.time(), staged.placed)
            said = {OFFSETS_KEY: note}
            is_done = self._try_commit(checked, [staged], moves, said, Change("DELETE", gone))
        finally:
            if not is_done:
                self._staging.remove(staged, placed=True)
        return output.replacement.rows if is_done else None

    def _reopened(self) -> KeptTable:
        """Open the table, so that its files are those of the newest version."""
        self._table = None
        table = self._kept_table()
        if table is None:
            raise ReplaceRefusedError(f"{self._folder}: there is no table; there is nothing to do")
        self._check_offsets(table)
        return table

    def _commit(
        self,
        staged: Sequence[StagedFiles],
        offsets: Sequence[OffsetMove],
        metadata: Mapping[str, str],
    ) -> None:
        for _ in range(_COMMIT_ATTEMPTS):
            if self._try_commit(
                self._require_following(staged, offsets), staged, offsets, metadata
            ):
                return
        raise self._others_first(_COMMIT_ATTEMPTS)

    def _commit_merged(
        self,
        merge: TableMerge,
        staged: Sequence[StagedFiles],
        offsets: Sequence[OffsetMove],
        metadata: Mapping[str, str],
    ) -> None:
        """Commit as :meth:`_commit`, with files that have the merged rows.

        They are written again where another writer changed the files that they were made of.
        """
        files = StagedFiles(f"merge-{uuid.uuid4().hex[:8]}")
        rows: pa.Table | None = None
        rewriting: Rewriting | None = None
        is_done = False
        try:
            for _ in range(_COMMIT_ATTEMPTS):
                checked = self._require_following(staged, offsets)
                if rows is None:  # results fit each other once they fit the table
                    rows = merge.fold(staged)
                if rewriting is None or not rewriting.holds(checked.table):
                    self._staging.remove(files, placed=True)
                    files = StagedFiles(files.name)
                    now = SYSTEM_CLOCK.time()
                    rewriting = merge.rewrite(checked.table, rows, now, files.placed)
                if self._try_commit(checked, [files], offsets, metadata, rewriting.change):
                    is_done = True
                    return
        finally:
            if not is_done:
                self._staging.remove(files, placed=True)
        raise self._others_first(_COMMIT_ATTEMPTS)

    def _others_first(self, attempts: int) -> SinkFailedError:
        return SinkFailedError(
            f"{self._folder}: other writers were first {attempts} times; let fewer members write "
            "to this table, or larger micro-batches"
        )

    def discard(self, staged: StagedFiles) -> None:
        self._staging.remove(staged, placed=True)

    def close(self) -> None:
        """End the maintenance and remove this process's staging folder. Blocks for 5 s at most."""
        self._maintenance_thread.stop()
        self._staging.close()

    def _check_offsets(self, table: KeptTable) -> None:
        table.check_format()
        check_retention(self._folder, table.properties)

    def _check_layout(self, table: KeptTable) -> None:
        columns = table.opened.metadata().partition_columns
        if tuple(columns) != self._partition_by:
            raise StartError(
                f"{self._folder}: the table is partitioned by {columns}, the sink is set to "
                f"{list(self._partition_by)}; set partition_by to the table's columns"
            )
        if self._merge is not None:
            may_lack = self._schema_changes is SchemaChanges.ADD_COLUMNS
            self._merge.check(table, may_lack=may_lack)
        elif table.has_origins and not self._origin:
            raise StartError(
                f"{self._folder}: the table's rows say in {ORIGIN} which records they are of; set "
                "origin: true, so that all of them do"
            )

    def _kept_table(self) -> KeptTable | None:
        """Return the table as it was last seen, None if there is none."""
        if self._table is None:
            with suppress(TableNotFoundError):
                self._table = KeptTable(self._folder)
        return self._table

    def _create(self, staged: Sequence[StagedFiles]) -> KeptTable | None:
        """Create the table empty, so that data only ever comes through the checked commit."""
        schemas = [each.schema for each in staged if each.schema is not None]
        if not schemas:
            return None
        try:
            DeltaTable.create(
                self._folder,
                schema=delta_schema(schemas[0]),
                mode="ignore",
                partition_by=list(self._partition_by) or None,
                configuration=self._config.properties(new=True),
            )
        except DeltaError:
            if not DeltaTable.is_deltatable(str(self._folder)):
                raise
            log.info("delta_table_created_elsewhere", table=str(self._folder))
        if self._durable:
            entries = LogFiles(self._folder)
            for path in (self._folder, entries.entry(0), entries.folder):
                sync(path)
        return self._kept_table()

    def _require_following(
        self, staged: Sequence[StagedFiles], offsets: Sequence[OffsetMove]
    ) -> CheckedTable:
        """Return the table once it says that every offset is where the micro-batches begin."""
        table = self._kept_table()
        assert table is not None, "a table that was there is gone"
        if self._merge is not None:
            self._merge.follow_files(table)
        schemas = dict.fromkeys(each.schema for each in staged)
        while True:
            if RETENTION_PROPERTY in table.properties or conflicts_in(table.found(offsets)):
                table.refresh()
            self._check_offsets(table)
            widening = [schema for schema in schemas if self._new_columns(table, schema)]
            checked = table.checked(offsets)
            if not widening:
                return checked
            for schema in widening:  # at a version of which the rest is to be checked, too
                self._widen(table, schema)

    def _new_columns(self, table: KeptTable, schema: str | None) -> list[Field]:
        return check_schema(self._folder, table.opened, schema, self._schema_changes)

    def _widen(self, table: KeptTable, schema: str | None) -> None:
        """Add columns to the table, in a version of its own; another member may be first."""
        columns = self._new_columns(table, schema)  # another of the results may have brought them
        if not columns:
            return
        names = [column.name for column in columns]
        try:
            DeltaTable(self._folder).alter.add_columns(columns)
        except DeltaError:
            table.refresh()
            if self._new_columns(table, schema):
                raise
        else:
            log.info("delta_columns_added", table=str(self._folder), columns=names)
            table.refresh()

    def _try_commit(
        self,
        checked: CheckedTable,
        staged: Sequence[StagedFiles],
        offsets: Sequence[OffsetMove],
        metadata: Mapping[str, str],
        change: Change = APPENDS,
    ) -> bool:
        """Commit once. Return False where another writer was first, whose commit is known now.

        It is the version after the one that was checked.
        Of files that leave the table by the ``change`` ``staged`` has what stays.
        """
        table, before, now = checked.table, checked.version, SYSTEM_CLOCK.time()
        moves = table.moves(offsets, with_origins=self._origin and MICRO_BATCH_KEY in metadata)
        try:
            said = {**metadata, **self._metadata}
            actions = [
                commit_info(change.operation, said, now),
                *change.gone,
                *(moved(identity, version, now) for identity, version in moves.items()),
                *(added(file) for file in self._staging.place(staged)),
            ]
            if not table.put(before, actions, moves, self._staging.own, durable=self._durable):
                table.refresh()
                return False
        except OvertakenError:
            self._staging.keep(staged)
            raise
        except BaseException as error:
            if not self._is_stored(before + 1, staged, offsets, error):
                raise
        self._maintenance_thread.went_on(before, table.version)
        return True

    def _is_stored(
        self,
        version: int,
        staged: Sequence[StagedFiles],
        offsets: Sequence[OffsetMove],
        error: BaseException,
    ) -> bool:
        """Return a failed commit's outcome, read from the table itself, opened again.

        It was to make this ``version``.
        """
        self._table = None
        try:
            table = self._table = KeptTable(self._folder)
            placed = [file for each in staged for file in each.placed]
            entry = LogFiles(self._folder).read(version)
            stored = adds(entry, placed) or shows(table, placed, offsets)
        except Exception:
            self._staging.keep(staged)
            log.exception("delta_outcome_unknown", table=str(self._folder))
            raise error from None
        if stored:
            self._staging.keep(staged)
            log.warning("delta_commit_found_stored", table=str(self._folder), error=str(error))
        return stored


def _require_no_conflict(
    folder: Path, merge: MergeRule, partition_by: Sequence[str], *, origin: bool
) -> None:
    conflicts = merge_conflicts(merge.key, merge.columns, partition_by, origin=origin)
    if problems := [f"{folder}: {dotted(at)} {what}" for at, what in conflicts]:
        raise ConfigError(problems)
