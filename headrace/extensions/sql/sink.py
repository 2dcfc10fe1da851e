"""The SQL sink: rows and offsets in one transaction, the offsets moved on a condition."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import sleep
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from headrace.core.clock import Deadline
from headrace.core.columns import load_pandas
from headrace.core.errors import RowsRefusedError, SinkFailedError, StartError
from headrace.extensions.sql.columns import is_of_values
from headrace.extensions.sql.database import TIMEOUT, Database, TableName, brief, gave_way
from headrace.extensions.sql.offsets import OffsetsTable, OriginsTable
from headrace.extensions.sql.target import SqlTarget
from headrace.sinks.by_key import Repeated, WriteMode
from headrace.sinks.contract import (
    Guarantee,
    Sink,
    are_moved,
    columns_of,
    require_starts,
    rows_of,
    schema_of,
)
from headrace.sinks.errors import ReplaceRefusedError
from headrace.sinks.origin import ORIGIN, require_covered, require_no_origin
from headrace.sinks.pauses import pause_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from sqlalchemy import Connection

    from headrace.sinks.by_key import Merging
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Replacement, Result
    from headrace.sinks.micro_batch import MicroBatch, OffsetRange


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Write:
    """One table's part of a transaction, at the ``place`` that messages name.

    ``said`` goes into the rows of the offsets that are moved, and ``write`` does the rest.
    """

    place: str
    table: OffsetsTable
    offsets: Sequence[OffsetMove]
    said: Mapping[str, Any]
    write: Callable[[Connection], object]


def carry_out(database: Database, writes: Sequence[Write]) -> None:
    """Execute all of the writes or nothing. Blocks.

    A transaction that gave way to another one is made again, for as long as one statement may take.

    Raises:
        CommitConflictError: another writer moved some of the offsets.
        StartError: a later version of Headrace wrote some of them.
        RowsRefusedError: a rule of a table, or a column's type, refuses some of the rows.
        SQLAlchemyError: the database refused, or nothing was stored as far as can be told.
    """
    place = ", ".join(write.place for write in writes)
    deadline = Deadline.after(database.timeout)
    for attempt in count(1):
        # before COMMIT is asked for, nothing can have been stored
        is_commit_asked_for = False
        try:
            with database.transaction() as connection:
                ordered = _in_order(connection, writes)
                # the offsets first: who has lost a partition does not even begin to write
                for write in ordered:
                    write.table.move(connection, write.offsets, write.said)
                for write in ordered:
                    write.write(connection)
                is_commit_asked_for = True
        except SQLAlchemyError as error:
            if _is_stored(database, writes, error, place, may_be=is_commit_asked_for):
                return
            if is_of_values(error):
                raise RowsRefusedError(f"{place}: {brief(error)}") from error
            if not gave_way(error) or not deadline.remaining:
                raise
            log.warning("sql_commit_repeated", table=place, attempt=attempt, error=brief(error))
            sleep(min(pause_after(attempt), deadline.remaining))
        else:
            return


def _in_order(connection: Connection, writes: Sequence[Write]) -> list[Write]:
    """Return the writes in the order of their tables, which is the same for all members.

    Channels may name their outputs in any order; two that took the locks of two tables in different
    ones would wait for each other.
    """
    return sorted(writes, key=lambda write: write.table.target(connection))


def _is_stored(
    database: Database,
    writes: Sequence[Write],
    error: SQLAlchemyError,
    place: str,
    *,
    may_be: bool,
) -> bool:
    """Return a failed transaction's outcome, read from the offsets on another connection.

    One that cannot have stored anything has not; what is looked for then is who was first. If the
    database cannot be asked, ``error`` is raised again.
    """
    try:
        with database.transaction() as connection:
            found = [
                (offset, write.table.offset(connection, offset.identity))
                for write in writes
                for offset in write.offsets
            ]
    except SQLAlchemyError:
        if may_be:
            log.exception("sql_outcome_unknown", table=place)
        raise error from None
    if may_be and are_moved(found):
        log.warning("sql_commit_found_stored", table=place, error=brief(error))
        return True
    require_starts(found)
    return False


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A result in this process's memory, and the records it is of.

    ``rows`` is None where the reducer returned none.
    """

    name: str
    rows: pa.Table | None = None
    ranges: Sequence[OffsetRange] = ()


class SqlSink(Sink[StagedRows]):
    """Writes to one table of a database, exactly once.

    Each partition's next offset is a row of ``offsets_table``, updated in the transaction that
    writes the rows, on the condition that it is where the micro-batch begins. The database lets
    one of two such updates through at a time, so a former owner's changes nothing. ``table`` and
    ``offsets_table`` are ``name`` or ``schema.name``; ``password`` takes the place of one in the
    ``url``; ``merge`` says what mode merge does with a column, ``repeated`` what mode upsert does
    with a key in several rows of a result; ``member`` is written beside each offset, ``timeout``
    bounds a statement, in seconds. With ``origin`` each row says which micro-batch it is of, and
    ``origins_table`` what that was made of, so that the rows of a range can be replaced.

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
        merge: Mapping[str, Merging] | None = None,
        repeated: Repeated = Repeated.FAIL,
        offsets_table: str = "headrace_offsets",
        origin: bool = False,
        origins_table: str = "headrace_origins",
        member: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._database = Database(url, password, timeout)
        name = TableName.of(table)
        self._target = SqlTarget(
            self._database, name, mode, key, merge=merge, repeated=repeated, origin=origin
        )
        self._offsets = OffsetsTable(self._database, TableName.of(offsets_table), name)
        self._origins = (
            OriginsTable(self._database, TableName.of(origins_table), self._target, self._offsets)
            if origin
            else None
        )
        self._member = member

    def open(self) -> None:
        if self._target.has_key:
            load_pandas()
        with self._require_usable():
            self._target.load()
            self._offsets.create()
            if self._origins is not None:
                self._origins.create()

    def check(self) -> str:
        """Return a sentence on the table once it was looked at. Creates nothing. Blocks.

        Raises:
            StartError: the database cannot be asked, or the table cannot be written as configured.
        """
        try:
            with self._require_usable():
                self._target.load()
        finally:
            self._database.close()
        return f"{self._target.place}: the table is as the sink needs it"

    @contextmanager
    def _require_usable(self) -> Iterator[None]:
        """Turn an error of the database into one that stops a start."""
        try:
            yield
        except SQLAlchemyError as error:
            raise StartError(
                f"{self._target.place} cannot be used: {brief(error)}; fix the database, the "
                "rights of the user or the url"
            ) from error

    def stored_offset(self, identity: str) -> int | None:
        if not self._offsets.exists():
            return None
        with self._database.transaction() as connection:
            return self._offsets.offset(connection, identity)

    def stored_leader_epoch(self, identity: str) -> int | None:
        if not self._offsets.exists():
            return None
        with self._database.transaction() as connection:
            return self._offsets.leader_epoch(connection, identity)

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> StagedRows:
        """Collect the result as an Arrow table. Spark's ``maxResultSize`` bounds its size."""
        columns = [] if result is None else columns_of(result)
        if result is None or not columns:
            return StagedRows(micro_batch.id)
        require_no_origin(self._target.place, columns)
        has_origin = self._origins is not None
        expected = [*columns, ORIGIN] if has_origin else columns
        self._check(expected, schema_of(result))
        rows = rows_of(result)
        self._check(expected, rows.schema)
        rows = self._target.prepare(rows)
        if has_origin:
            rows = rows.append_column(ORIGIN, pa.repeat(micro_batch.id, rows.num_rows))
        return StagedRows(micro_batch.id, rows, micro_batch.ranges)

    def _check(self, columns: Sequence[str], kinds: pa.Schema | None) -> None:
        try:
            self._target.check(columns, kinds)
        except SQLAlchemyError as error:
            raise SinkFailedError(
                f"{self._target.place} cannot be asked: {brief(error)}"
            ) from error

    def commit(self, staged: StagedRows, offsets: Sequence[PartitionCommit]) -> None:
        self.commit_all([staged], offsets)

    def commit_all(self, staged: Sequence[StagedRows], offsets: Sequence[PartitionCommit]) -> None:
        """Write the rows of several results in one transaction; see :func:`carry_out`.

        The offsets' rows name the last of the micro-batches.
        """
        carry_out(self._database, [self._write(staged, offsets)])

    def _write(self, staged: Sequence[StagedRows], offsets: Sequence[PartitionCommit]) -> Write:
        results = [each.rows for each in staged if each.rows is not None]
        as_one = self._target.as_one(results) if len(results) > 1 else results

        def write(connection: Connection) -> None:
            for rows in as_one:
                self._target.write(connection, rows)
            for each in staged:
                if self._origins is not None and each.rows is not None and each.rows.num_rows:
                    ranges = offsets if len(staged) == 1 else each.ranges
                    self._origins.note(connection, each.name, ranges)

        said = {"micro_batch": staged[-1].name, "stored_at": sa.func.current_timestamp()}
        return self._moving(offsets, said, write)

    def _moving(
        self,
        offsets: Sequence[OffsetMove],
        said: Mapping[str, Any],
        write: Callable[[Connection], object],
    ) -> Write:
        said = {"member": self._member, **said}
        return Write(self._target.place, self._offsets, offsets, said, write)

    @staticmethod
    def commit_together(
        staged: Sequence[tuple[SqlSink, StagedRows]], offsets: Sequence[PartitionCommit]
    ) -> None:
        """Commit what sinks of one database have staged in one transaction, as :meth:`commit`."""
        writes = [sink._write([own], offsets) for sink, own in staged]  # noqa: SLF001 - of this class
        carry_out(staged[0][0]._database, writes)  # noqa: SLF001 - of this class

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move the offsets in one transaction; their rows keep the latest note."""
        self._move_offsets(moves, note, lambda _: None)

    def _move_offsets(
        self, moves: Sequence[OffsetMove], note: str, write: Callable[[Connection], object]
    ) -> None:
        self._offsets.create()
        said = {"note": note, "noted_at": sa.func.current_timestamp()}
        carry_out(self._database, [self._moving(moves, said, write)])

    def plan_replace(self, moves: Sequence[OffsetMove]) -> Replacement:
        origins = self._require_origins()
        with self._database.transaction() as connection:
            return origins.plan(connection, moves)[0]

    def replace(self, moves: Sequence[OffsetMove], note: str) -> int:
        origins = self._require_origins()
        removed: list[int] = []  # each time the transaction is made

        def remove(connection: Connection) -> None:
            replacement, names = origins.plan(connection, moves)
            require_covered(moves, replacement)
            removed.append(origins.remove(connection, names))

        self._move_offsets(moves, note, remove)
        return removed[-1]

    def _require_origins(self) -> OriginsTable:
        if self._target.mode is WriteMode.UPSERT:
            raise ReplaceRefusedError(
                f"{self._target.place}: with mode upsert what a row was before is not kept, so "
                "that none can be taken back; replay with append, which upserts the rows again by "
                "their keys"
            )
        if self._target.mode is WriteMode.MERGE:
            raise ReplaceRefusedError(
                f"{self._target.place}: with mode merge what a row was before is not kept, so that "
                "nothing can be taken back; remove the rows by hand and read all records of them "
                "again, because a replay with append adds to the sums that are there"
            )
        if self._origins is None:
            raise ReplaceRefusedError(
                f"{self._target.place}: the rows do not say which records they are of; set origin: "
                "true in the sink for those to come, and remove these by hand before a replay with "
                "append"
            )
        self._target.load()
        self._offsets.create()
        self._origins.create()
        return self._origins

    def close(self) -> None:
        self._database.close()
