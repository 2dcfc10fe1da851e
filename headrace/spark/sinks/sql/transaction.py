"""One transaction of rows and offsets, of one table or of several in a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from headrace.errors import SinkConflictError
from headrace.spark.sinks.contract import CommitConflictError, RowsRefusedError
from headrace.spark.sinks.sql.database import brief, gave_way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa
    from sqlalchemy import Connection

    from headrace.spark.sinks.sql.database import Database
    from headrace.spark.sinks.sql.offsets import Offset, OffsetsTable
    from headrace.spark.sinks.sql.target import Target

log = structlog.get_logger(__name__)

#: How often a transaction is made that gives way to others.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Write:
    """One table's part. ``said`` goes into the offsets' rows; ``rows`` are written in turn."""

    target: Target
    table: OffsetsTable
    offsets: Sequence[Offset]
    said: Mapping[str, Any]
    rows: Sequence[pa.Table]

    def move(self, connection: Connection) -> None:
        """Move the offsets; see :meth:`OffsetsTable.move`."""
        self.table.move(connection, self.offsets, self.said)

    def write(self, connection: Connection) -> None:
        """Write the rows."""
        for rows in self.rows:
            self.target.write(connection, rows)

    def stored(self, connection: Connection) -> Mapping[str, int]:
        """Return the offsets as they are stored now."""
        return self.table.read(connection, [offset.identity for offset in self.offsets])


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
        try:
            _transact(database, writes)
        except SQLAlchemyError as error:
            if _is_stored(database, writes, error, place):
                return
            if isinstance(error, (DataError, IntegrityError)):
                raise RowsRefusedError(f"{place}: {brief(error)}") from error
            if not gave_way(error) or attempt == _ATTEMPTS:
                raise
            log.info("sql_commit_repeated", table=place, error=brief(error))
        else:
            return


def _transact(database: Database, writes: Sequence[Write]) -> None:
    """Move the offsets first: who has lost a partition does not even begin to write."""
    with database.transaction() as connection:
        for write in writes:
            write.move(connection)
        for write in writes:
            write.write(connection)


def _is_stored(
    database: Database, writes: Sequence[Write], error: SQLAlchemyError, place: str
) -> bool:
    """Tell a failed transaction's outcome from the offsets, on another connection.

    Raises:
        CommitConflictError: some are neither where it begins nor where it ends.
        SQLAlchemyError: the database cannot be asked; ``error`` again.
    """
    try:
        with database.transaction() as connection:
            found = [(write, write.stored(connection)) for write in writes]
    except SQLAlchemyError:
        log.exception("sql_outcome_unknown", table=place)
        raise error from None
    each = [
        (offset, stored.get(offset.identity)) for write, stored in found for offset in write.offsets
    ]
    if all(stored == offset.next_offset for offset, stored in each):
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
