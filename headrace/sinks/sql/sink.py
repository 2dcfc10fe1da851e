"""The SQL sink: rows and offsets in one transaction, the offsets moved on a condition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from headrace.core.columns import load_pandas
from headrace.core.errors import SinkConflictError, StartError
from headrace.sinks.contract import (
    CommitConflictError,
    Guarantee,
    ReplaceRefusedError,
    RowsRefusedError,
    columns_of,
    rows_of,
)
from headrace.sinks.origin import ORIGIN, require_covered
from headrace.sinks.schema import SchemaMismatchError
from headrace.sinks.sql.database import TIMEOUT, Database, TableName, brief, gave_way
from headrace.sinks.sql.offsets import OffsetsTable, OriginsTable
from headrace.sinks.sql.target import SqlTarget, WriteMode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from sqlalchemy import Connection

    from headrace.sinks.contract import OffsetMove, PartitionCommit, Replacement, Result
    from headrace.sinks.micro_batch import MicroBatch, OffsetRange
    from headrace.sinks.sql.offsets import Offset


log = structlog.get_logger(__name__)

#: How often a transaction is made that gives way to others.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Write:
    """One table's part. ``said`` goes into the offsets' rows; ``rows`` are written in turn.

    ``origins`` is where is written down which ranges the micro-batches of these rows are of, by
    their names; None for nowhere.
    """

    target: SqlTarget
    table: OffsetsTable
    offsets: Sequence[Offset]
    said: Mapping[str, Any]
    rows: Sequence[pa.Table] = ()
    origins: OriginsTable | None = None
    ranges: Mapping[str, Sequence[Offset | OffsetRange]] = field(default_factory=dict)

    def move(self, connection: Connection) -> None:
        """Move the offsets; see :meth:`OffsetsTable.move`."""
        self.table.move(connection, self.offsets, self.said)

    def write(self, connection: Connection) -> None:
        """Write the rows, and what they are of."""
        for rows in self.rows:
            self.target.write(connection, rows)
        if self.origins is not None:
            for name, ranges in self.ranges.items():
                self.origins.note(connection, name, ranges)

    def stored(self, connection: Connection) -> Mapping[str, int]:
        """Return the offsets as they are stored now."""
        return self.table.read(connection, [offset.identity for offset in self.offsets])


@dataclass(frozen=True, slots=True)
class Removal(Write):
    """A part that removes what the table has of records from the offsets on.

    ``removed`` gets the number of rows each time the transaction is made; the last one counts.
    """

    removed: list[int] = field(default_factory=list)

    def write(self, connection: Connection) -> None:
        """Remove the rows, and what is noted of them.

        Raises:
            ReplaceRefusedError: the moves do not cover them.
        """
        assert self.origins is not None, "nothing is replaced without"
        replacement, names = self.origins.plan(connection, self.offsets)
        require_covered(self.offsets, replacement)
        self.removed.append(self.origins.remove(connection, names))


def carry_out(database: Database, writes: Sequence[Write]) -> None:
    """Do all of it or nothing. Blocks.

    Raises:
        CommitConflictError: another writer moved some of the offsets.
        LaterOffsetsError: a later version of Headrace wrote some of them.
        RowsRefusedError: a rule of a table, or a column's type, refuses some of the rows.
        SQLAlchemyError: the database refused, or nothing was stored as far as can be told.
    """
    place = ", ".join(write.target.place for write in writes)
    for attempt in range(1, _ATTEMPTS + 1):
        commit = _Commit()
        try:
            _transact(database, writes, commit)
        except SQLAlchemyError as error:
            if _is_stored(database, writes, commit, error, place):
                return
            if isinstance(error, (DataError, IntegrityError)):
                raise RowsRefusedError(f"{place}: {brief(error)}") from error
            if not gave_way(error) or attempt == _ATTEMPTS:
                raise
            log.info("sql_commit_repeated", table=place, error=brief(error))
        else:
            return


@dataclass(slots=True)
class _Commit:
    """How far a transaction got: before COMMIT is asked for, none of it can have been stored."""

    is_asked_for: bool = False


def _transact(database: Database, writes: Sequence[Write], commit: _Commit) -> None:
    """Move the offsets first: who has lost a partition does not even begin to write."""
    with database.transaction() as connection:
        for write in writes:
            write.move(connection)
        for write in writes:
            write.write(connection)
        commit.is_asked_for = True


def _is_stored(
    database: Database,
    writes: Sequence[Write],
    commit: _Commit,
    error: SQLAlchemyError,
    place: str,
) -> bool:
    """Tell a failed transaction's outcome from the offsets, on another connection.

    One that did not come to its COMMIT has stored nothing; what is looked for then is who was
    first.

    Raises:
        CommitConflictError: some are neither where it begins nor where it ends.
        SQLAlchemyError: the database cannot be asked; ``error`` again.
    """
    try:
        with database.transaction() as connection:
            found = [(write, write.stored(connection)) for write in writes]
    except SQLAlchemyError:
        if commit.is_asked_for:
            log.exception("sql_outcome_unknown", table=place)
        raise error from None
    each = [
        (offset, stored.get(offset.identity)) for write, stored in found for offset in write.offsets
    ]
    # one that was not to move tells nothing
    moves = [(offset, stored) for offset, stored in each if offset.start != offset.next_offset]
    is_there = moves and all(stored == offset.next_offset for offset, stored in moves)
    if commit.is_asked_for and is_there:
        log.warning("sql_commit_found_stored", table=place, error=brief(error))
        return True
    conflicts = [
        SinkConflictError(offset.partition, offset.start, stored)
        for offset, stored in each
        if stored is not None and stored != offset.start
    ]
    if conflicts:
        raise CommitConflictError(conflicts) from error
    return False


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A result in this process's memory, and the records it is of.

    ``rows`` is None where the reducer returned none.
    """

    name: str
    rows: pa.Table | None = None
    ranges: Sequence[OffsetRange] = ()


class SqlSink:
    """Writes to one table of a database, exactly once.

    Each partition's next offset is a row of ``offsets_table``, updated in the transaction that
    writes the rows, on the condition that it is where the micro-batch begins. The database lets
    one of two such updates through at a time, so a former owner's changes nothing. ``table`` and
    ``offsets_table`` are ``name`` or ``schema.name``; ``password`` takes the place of one in the
    ``url``; ``member`` is written beside each offset, ``timeout`` bounds a statement, in seconds.
    With ``origin`` each row says which micro-batch it is of, and ``origins_table`` what that was
    made of, so that the rows of a range can be replaced.

    Raises:
        ConfigError: the url cannot be used, or the database cannot do what ``mode`` asks for.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        url: str,
        table: str,
        *,
        password: str | None = None,
        mode: WriteMode = WriteMode.APPEND,
        key: Sequence[str] = (),
        offsets_table: str = "headrace_offsets",
        origin: bool = False,
        origins_table: str = "headrace_origins",
        member: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._database = Database(url, password, timeout)
        name = TableName.of(table)
        self._target = SqlTarget(self._database, name, mode, key, origin=origin)
        self._offsets = OffsetsTable(self._database, TableName.of(offsets_table), name)
        self._origins = (
            OriginsTable(self._database, TableName.of(origins_table), self._target, self._offsets)
            if origin
            else None
        )
        self._member = member

    def open(self) -> None:
        """Connect, look at the table, and create the offsets table where it is missing.

        Raises:
            StartError: the database cannot be reached, or the tables not be used.
        """
        if self._target.upserts:
            load_pandas()
        try:
            self._target.load()
            self._offsets.create()
            if self._origins is not None:
                self._origins.create()
        except SQLAlchemyError as error:
            raise StartError(
                f"{self._target.place} cannot be used: {brief(error)}; fix the database, the "
                "rights of the user or the url"
            ) from error

    def stored_offset(self, identity: str) -> int | None:
        """Return the offset in the offsets table, None without table or row.

        Raises:
            LaterOffsetsError: a later version of Headrace wrote it.
        """
        return self._stored([identity]).get(identity)

    def _stored(self, identities: Sequence[str]) -> dict[str, int]:
        if not self._offsets.exists():
            return {}
        with self._database.transaction() as connection:
            return self._offsets.read(connection, identities)

    def stored_leader_epoch(self, identity: str) -> int | None:
        """Return what was stored with the offset."""
        if not self._offsets.exists():
            return None
        with self._database.transaction() as connection:
            return self._offsets.leader_epoch(connection, identity)

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> StagedRows:
        """Collect the result as an Arrow table. Spark's ``maxResultSize`` bounds its size.

        Raises:
            SchemaMismatchError: the result's columns are not the table's.
            RepeatedKeyError: with mode upsert, a key has several rows.
        """
        columns = [] if result is None else columns_of(result)
        if result is None or not columns:
            return StagedRows(micro_batch.id)
        if ORIGIN in columns:
            raise SchemaMismatchError(
                f"{self._target.place}: the result has a column {ORIGIN}, which is the sink's own; "
                "give it another name"
            )
        if self._origins is None:
            self._target.check(columns)
            return StagedRows(micro_batch.id, self._target.prepare(rows_of(result)))
        self._target.check([*columns, ORIGIN])
        rows = self._target.prepare(rows_of(result))
        origin = pa.repeat(micro_batch.id, rows.num_rows)
        rows = rows.append_column(ORIGIN, origin)
        return StagedRows(micro_batch.id, rows, micro_batch.ranges)

    def commit(self, staged: StagedRows, offsets: Sequence[PartitionCommit]) -> None:
        """Write the rows and move the offsets in one transaction; see :func:`carry_out`."""
        carry_out(self._database, [self._write([staged], offsets)])

    def commit_all(self, staged: Sequence[StagedRows], offsets: Sequence[PartitionCommit]) -> None:
        """Write the rows of several results in one transaction; see :meth:`commit`.

        The offsets' rows name the last of the micro-batches.
        """
        carry_out(self._database, [self._write(staged, offsets)])

    def _write(self, staged: Sequence[StagedRows], offsets: Sequence[PartitionCommit]) -> Write:
        said = {
            "member": self._member,
            "micro_batch": staged[-1].name,
            "stored_at": sa.func.current_timestamp(),
        }
        results = [each.rows for each in staged if each.rows is not None]
        rows = self._target.as_one(results) if len(results) > 1 else results
        alone = len(staged) == 1
        ranges = {
            each.name: offsets if alone else each.ranges
            for each in staged
            if each.rows is not None and each.rows.num_rows
        }
        return Write(self._target, self._offsets, offsets, said, rows, self._origins, ranges)

    @staticmethod
    def commit_together(
        staged: Sequence[tuple[SqlSink, StagedRows]], offsets: Sequence[PartitionCommit]
    ) -> None:
        """Commit what sinks of one database have staged in one transaction, as :meth:`commit`."""
        writes = [sink._write([own], offsets) for sink, own in staged]  # noqa: SLF001 - of this class
        carry_out(staged[0][0]._database, writes)  # noqa: SLF001 - as above

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move the offsets in one transaction; their rows keep the latest note.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            SQLAlchemyError: the database refused, or nothing was stored as far as can be told.
        """
        self._offsets.create()
        said = {"member": self._member, "note": note, "noted_at": sa.func.current_timestamp()}
        carry_out(self._database, [Write(self._target, self._offsets, moves, said)])

    def plan_replace(self, moves: Sequence[OffsetMove]) -> Replacement:
        """Look up what the table has of these records; see :class:`OutputReplacer`.

        Raises:
            ReplaceRefusedError: rows do not say which records they are of.
        """
        origins = self._require_origins()
        with self._database.transaction() as connection:
            return origins.plan(connection, moves)[0]

    def replace(self, moves: Sequence[OffsetMove], note: str) -> int:
        """Remove what the table has of these records in the transaction that moves the offsets.

        Raises:
            CommitConflictError: another writer moved some of the offsets.
            ReplaceRefusedError: as in :meth:`plan_replace`, or whole micro-batches are not covered.
            SQLAlchemyError: the database refused, or nothing was stored as far as can be told.
        """
        origins = self._require_origins()
        self._offsets.create()
        said = {"member": self._member, "note": note, "noted_at": sa.func.current_timestamp()}
        removal = Removal(self._target, self._offsets, moves, said, (), origins)
        carry_out(self._database, [removal])
        return removal.removed[-1]

    def _require_origins(self) -> OriginsTable:
        if self._target.upserts:
            raise ReplaceRefusedError(
                f"{self._target.place}: with mode upsert what a row was before is not kept, so "
                "that none can be taken back; replay with append, which upserts the rows again by "
                "their keys"
            )
        if self._origins is None:
            raise ReplaceRefusedError(
                f"{self._target.place}: the rows do not say which records they are of; set origin: "
                "true in the sink for those to come, and remove these by hand before a replay with "
                "append"
            )
        self._target.load()
        self._origins.create()
        return self._origins

    def discard(self, staged: StagedRows) -> None:
        """Hold nothing: the rows are in memory."""

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
