"""One transaction of rows and offsets, of one table or of several in a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from headrace.errors import SinkConflictError
from headrace.spark.sinks.contract import CommitConflictError, RowsRefusedError
from headrace.spark.sinks.origin import require_covered
from headrace.spark.sinks.sql.database import brief, gave_way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa
    from sqlalchemy import Connection

    from headrace.spark.micro_batch import OffsetRange
    from headrace.spark.sinks.sql.database import Database
    from headrace.spark.sinks.sql.offsets import Offset, OffsetsTable
    from headrace.spark.sinks.sql.origins import OriginsTable
    from headrace.spark.sinks.sql.target import Target

log = structlog.get_logger(__name__)

#: How often a transaction is made that gives way to others.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Write:
    """One table's part. ``said`` goes into the offsets' rows; ``rows`` are written in turn.

    ``origins`` is where is written down which ranges the micro-batches of these rows are of, by
    their names; None for nowhere.
    """

    target: Target
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
