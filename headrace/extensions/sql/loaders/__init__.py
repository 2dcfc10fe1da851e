"""Loaders of rows into a table: one for each way that a database has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.extensions.sql.loaders.rows import BoundRows

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy.engine import Connection

    from headrace.extensions.sql.database import Database
    from headrace.extensions.sql.inserts import Inserts


class Loader(Protocol):
    """Puts rows into one table."""

    def write(self, connection: Connection, rows: pa.Table) -> None:
        """Write the rows in the connection's transaction. Blocks.

        Raises:
            RowsRefusedError: a rule of the table, or a column's type, refuses one of the rows.
            SQLAlchemyError: the database refused.
        """


def loader_for(database: Database, connection: Connection, inserts: Inserts) -> Loader:
    """Return the fastest way into a table that the database, its driver and the table allow.

    What is in the table afterwards does not depend on the way. Blocks.
    """
    bound = BoundRows(inserts, database.longest_statement(connection))
    if database.copies:
        from headrace.extensions.sql.loaders.copy import CopiedRows  # noqa: PLC0415 - takes psycopg

        return CopiedRows.of(database, connection, inserts, bound) or bound
    if database.loads:
        from headrace.extensions.sql.loaders.load import LoadedRows  # noqa: PLC0415 - takes NumPy

        return LoadedRows.of(database, connection, inserts, bound) or bound
    return bound
