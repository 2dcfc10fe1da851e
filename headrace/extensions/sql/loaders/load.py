"""Rows as text for the LOAD DATA of MariaDB and MySQL, in the transaction that moves offsets."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.core.errors import RowsRefusedError
from headrace.extensions.sql.columns import number_of
from headrace.extensions.sql.database import brief, gave_way
from headrace.extensions.sql.loaders.load_format import encoding_of, lines
from headrace.extensions.sql.loaders.rows import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.engine import Connection

    from headrace.extensions.sql.database import Database
    from headrace.extensions.sql.inserts import Inserts
    from headrace.extensions.sql.loaders.load_format import Encoding
    from headrace.extensions.sql.loaders.rows import BoundRows

log = structlog.get_logger(__name__)

#: Fewer rows are bound: a savepoint, a count of warnings, or a temporary table, would take longer.
FEWEST = 100
FEWEST_STAGED = 500

#: What says nothing of the rows: a full disk or table, a statement that was ended, took too long or
#: lost its connection, a server that stops.
_OF_OTHERS = frozenset({1021, 1041, 1053, 1114, 1317, 1927, 1969, 2006, 2013, 3024})

#: Whether the server reads local data, and the table is one: an INSERT into a view is bound.
_LOADABLE = sa.text(
    "SELECT @@local_infile AND TABLE_TYPE = 'BASE TABLE' FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :table"
)


class LoadedRows:
    """Puts rows into a table by LOAD DATA, and by ``bound`` where that would not do the same.

    Into the table itself where rows are appended; else into a temporary one, from which an INSERT
    takes them in the order of their keys as the database has it. Of local data the server cuts what
    does not fit, and leaves out what a rule refuses, with a warning for each: where it gives any,
    all is undone and the rows are bound, so that one that is refused is found.
    """

    def __init__(self, database: Database, inserts: Inserts, bound: BoundRows) -> None:
        self._database = database
        self._inserts = inserts
        self._bound = bound

    @classmethod
    def of(
        cls, database: Database, connection: Connection, inserts: Inserts, bound: BoundRows
    ) -> LoadedRows | None:
        """Return the loader of a table, None if LOAD DATA cannot take the place of INSERT there.

        Blocks.
        """
        schema = inserts.table.schema or database.default_schema(connection)
        names = {"schema": schema, "table": inserts.table.name}
        if not connection.execute(_LOADABLE, names).scalar_one_or_none():
            return None
        loader = cls(database, inserts, bound)
        if not inserts.key:
            return loader
        try:
            with loader._staged(connection, inserts.key):
                return loader
        except SQLAlchemyError as error:  # a user without the right to make temporary tables
            log.info("sql_copy_refused", table=inserts.place, error=brief(error))
            return None

    def write(self, connection: Connection, rows: pa.Table) -> None:
        self._bound.require_sendable(rows)
        encodings = self._encodings(rows)
        if encodings is None:
            self._bound.write(connection, rows)
            return
        try:
            with connection.begin_nested():
                self._load(connection, rows, encodings)
        except (SQLAlchemyError, RowsRefusedError, ValueError, pa.ArrowException) as error:
            if isinstance(error, SQLAlchemyError) and not _is_refusal(error):
                raise
            # what Arrow says of a value quotes it
            has_words = isinstance(error, SQLAlchemyError | RowsRefusedError)
            said = brief(error) if has_words else type(error).__name__
            log.info("sql_copy_refused", table=self._inserts.place, error=said)
            self._bound.write(connection, rows)

    def _encodings(self, rows: pa.Table) -> list[Encoding] | None:
        """Return how each column is written, None where the rows are bound."""
        if rows.num_rows < (FEWEST_STAGED if self._inserts.key else FEWEST):
            return None
        dialect = self._database.engine.dialect
        encodings = [
            encoding_of(field.type, self._inserts.table.c[field.name], dialect)
            for field in rows.schema
        ]
        known = [each for each in encodings if each is not None]
        return known if len(known) == len(encodings) else None

    def _load(self, connection: Connection, rows: pa.Table, encodings: Sequence[Encoding]) -> None:
        """Load the rows into the table, or by way of a temporary one."""
        if not self._inserts.key:
            table = _quoted(self._inserts.table.schema, self._inserts.table.name)
            for chunk in parts_of(rows):
                self._load_into(connection, table, chunk, encodings)
            return
        names = rows.column_names
        for chunk in parts_of(rows):
            with self._staged(connection, names) as stage:
                self._load_into(connection, _quoted(stage), chunk, encodings)
                columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in names]
                query = sa.select(*columns).select_from(sa.table(stage))
                ordered = query.order_by(*map(sa.column, (*self._inserts.key, stage)))
                statement = self._inserts.of_selected(names, ordered)
                # the table's name is new each time, so that nothing compiled would be used again
                connection.execute(statement, execution_options={"compiled_cache": None})

    @contextmanager
    def _staged(self, connection: Connection, names: Sequence[str]) -> Iterator[str]:
        """Make a temporary table in the block that has these columns, and numbers its rows.

        Yield its name, which is that of the column of numbers, too. It does not end with the
        transaction, as little as making it ends that.
        """
        stage = f"headrace_{uuid4().hex}"
        table = _quoted(self._inserts.table.schema, self._inserts.table.name)
        made = f"{_quoted(stage)} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"
        alike = f"SELECT {', '.join(map(_quoted, names))} FROM {table} LIMIT 0"  # noqa: S608 - quoted
        self._execute(
            connection,
            f"CREATE TEMPORARY TABLE {_quoted(stage)} ({made}) ENGINE=InnoDB AS {alike}",
        )
        try:
            yield stage
        finally:
            with suppress(SQLAlchemyError):  # with its connection it is gone as well
                self._execute(connection, f"DROP TEMPORARY TABLE {_quoted(stage)}")

    def _load_into(
        self, connection: Connection, table: str, rows: pa.Table, encodings: Sequence[Encoding]
    ) -> None:
        """Load rows; RowsRefusedError where the server did not take all of them as they are."""
        fields, sets = [], []
        for number, (name, encoding) in enumerate(zip(rows.column_names, encodings, strict=True)):
            if encoding.read_by is None:
                fields.append(_quoted(name))
            else:
                fields.append(f"@headrace_{number}")
                sets.append(f"{_quoted(name)} = {encoding.read_by}(@headrace_{number})")
        statement = (
            f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET utf8mb4 "
            f"FIELDS TERMINATED BY x'09' ESCAPED BY x'5c' LINES TERMINATED BY x'0a' "
            f"({', '.join(fields)})"
        )
        if sets:
            statement += f" SET {', '.join(sets)}"
        taken = self._database.copy(connection, statement, lines(rows, encodings))
        warnings = connection.exec_driver_sql("SELECT @@warning_count").scalar_one()
        if taken != rows.num_rows or warnings:
            raise RowsRefusedError(
                f"{taken} rows of {rows.num_rows} were taken, with {warnings} warnings"
            )

    @staticmethod
    def _execute(connection: Connection, statement: str) -> None:
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _is_refusal(error: SQLAlchemyError) -> bool:
    """Return whether the server refused a statement, in a transaction that lives."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated or gave_way(error):
        return False
    number = number_of(error)
    return number is not None and number not in _OF_OTHERS


def _quoted(*names: str | None) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in names if name is not None)
