"""Rows in the binary format of PostgreSQL's COPY, in the transaction that moves the offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.extensions.sql.database import brief, gave_way
from headrace.extensions.sql.loaders.copy_format import TEXT, encoding_of, stream
from headrace.extensions.sql.loaders.rows import parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

    from headrace.extensions.sql.database import Database
    from headrace.extensions.sql.inserts import Inserts
    from headrace.extensions.sql.loaders.copy_format import Encoding
    from headrace.extensions.sql.loaders.rows import BoundRows

log = structlog.get_logger(__name__)

#: Fewer rows are bound: a savepoint and a COPY, or a temporary table, would take longer.
FEWEST = 50
FEWEST_STAGED = 500

#: Classes of what says nothing of the rows or of COPY: connections, transactions that failed,
#: resources, operators, the system. Whatever else is refused may pass, or be told more plainly,
#: when the rows are bound.
_OF_OTHERS = ("08", "25", "40", "53", "57", "58")

#: Whether COPY does what INSERT does: not with rules, views, foreign tables or policies.
_COPYABLE = sa.text(
    "SELECT c.relkind IN ('r', 'p') AND NOT c.relhasrules AND NOT row_security_active(c.oid), "
    "has_database_privilege(current_database(), 'TEMPORARY') FROM pg_catalog.pg_class c "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = :schema AND c.relname = :table"
)

#: The columns' types as SQL has them, with the limits of the column and without; and whether text
#: is read like a literal when it is cast, so without a function of its own.
_TYPES = sa.text(
    "SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(a.atttypid, -1), "
    "NOT EXISTS (SELECT 1 FROM pg_catalog.pg_cast k WHERE k.castsource = 'text'::regtype "
    "AND k.casttarget = a.atttypid AND k.castmethod = 'f') "
    "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
    "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = :schema AND c.relname = :table AND a.attnum > 0 AND NOT a.attisdropped"
)


class _NamedType(sa.types.UserDefinedType[Any]):
    """A type by its name in SQL."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        """Return the name of the type."""
        return self.name


@dataclass(frozen=True, slots=True)
class _ColumnType:
    """A column's type as SQL has it, with the column's limits and without."""

    limited: str
    bare: str
    reads_text: bool


class CopiedRows:
    """Puts rows into a table by COPY, and by ``bound`` where that would not do the same.

    Into the table itself where rows are appended as they are. Where the server has to convert a
    column, or a key may be there, into a temporary table of the transaction, from which an INSERT
    takes them. A COPY says too little of what it refuses: its rows are bound then, one by one.
    """

    def __init__(
        self,
        database: Database,
        inserts: Inserts,
        bound: BoundRows,
        types: Mapping[str, _ColumnType],
        *,
        may_stage: bool,
    ) -> None:
        self._database = database
        self._inserts = inserts
        self._bound = bound
        self._types = types
        self._may_stage = may_stage

    @classmethod
    def of(
        cls, database: Database, connection: Connection, inserts: Inserts, bound: BoundRows
    ) -> CopiedRows | None:
        """Return the loader of a table, None if COPY cannot take the place of INSERT there.

        Blocks.
        """
        table = {"schema": inserts.table.schema, "table": inserts.table.name}
        try:
            with connection.begin_nested():
                is_copyable, may_stage = connection.execute(_COPYABLE, table).one()
                found = connection.execute(_TYPES, table).all()
        except SQLAlchemyError as error:  # a server that speaks like PostgreSQL and is another
            log.info("sql_copy_refused", table=inserts.place, error=brief(error))
            return None
        types = {name: _ColumnType(*described) for name, *described in found}
        if not is_copyable:
            return None
        return cls(database, inserts, bound, types, may_stage=may_stage)

    def write(self, connection: Connection, rows: pa.Table) -> None:
        encodings = self._encodings(rows)
        if encodings is None:
            self._bound.write(connection, rows)
            return
        try:
            with connection.begin_nested():
                self._copy(connection, rows, encodings)
        except (SQLAlchemyError, ValueError, pa.ArrowException) as error:
            if isinstance(error, SQLAlchemyError) and not _is_refusal(error):
                raise
            # what Arrow says of a value quotes it
            said = brief(error) if isinstance(error, SQLAlchemyError) else type(error).__name__
            log.info("sql_copy_refused", table=self._inserts.place, error=said)
            self._bound.write(connection, rows)

    def _encodings(self, rows: pa.Table) -> list[Encoding] | None:
        """Return how each column is sent, None where the rows are bound."""
        if rows.num_rows < FEWEST:
            return None
        encodings = []
        for field in rows.schema:
            encoding = encoding_of(field.type, self._inserts.table.c[field.name].type)
            if encoding is None or (
                encoding.sent_as == TEXT and not self._types[field.name].reads_text
            ):
                return None
            encodings.append(encoding)
        can_stage = self._may_stage and rows.num_rows >= FEWEST_STAGED
        return None if self._is_staged(encodings) and not can_stage else encodings

    def _is_staged(self, encodings: Sequence[Encoding]) -> bool:
        return bool(self._inserts.key) or any(each.sent_as is not None for each in encodings)

    def _copy(self, connection: Connection, rows: pa.Table, encodings: Sequence[Encoding]) -> None:
        """Copy the rows into the table, or by way of a temporary one."""
        table = _quoted(self._inserts.table.schema, self._inserts.table.name)
        if not self._is_staged(encodings):
            for chunk in parts_of(rows):
                self._copy_into(connection, table, chunk, encodings)
            return
        stage = f"headrace_{uuid4().hex}"
        staged = _quoted("pg_temp", stage)
        self._create(connection, staged, rows.column_names, encodings)
        statement = self._inserts.of_selected(
            rows.column_names, self._select(stage, rows.column_names, encodings)
        )
        for number, chunk in enumerate(parts_of(rows)):
            if number:
                self._execute(connection, f"TRUNCATE {staged}")
            self._copy_into(connection, staged, chunk, encodings)
            # the table's name is new each time, so that nothing compiled would be used again
            connection.execute(statement, execution_options={"compiled_cache": None})

    def _copy_into(
        self, connection: Connection, table: str, rows: pa.Table, encodings: Sequence[Encoding]
    ) -> None:
        columns = ", ".join(map(_quoted, rows.column_names))
        statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT BINARY)"
        self._database.copy(connection, statement, stream(rows, encodings))

    def _create(
        self,
        connection: Connection,
        stage: str,
        names: Sequence[str],
        encodings: Sequence[Encoding],
    ) -> None:
        """Create the temporary table; the end of the transaction, or of a savepoint, removes it."""
        columns = ", ".join(
            f"{_quoted(name)} {encoding.sent_as or self._types[name].limited}"
            for name, encoding in zip(names, encodings, strict=True)
        )
        self._execute(connection, f"CREATE TEMPORARY TABLE {stage} ({columns}) ON COMMIT DROP")

    def _select(
        self, stage: str, names: Sequence[str], encodings: Sequence[Encoding]
    ) -> sa.Select[Any]:
        """Return the query of what is in the temporary table, as the columns have it."""
        columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in names]
        kinds = [
            None if encoding.sent_as is None else _NamedType(self._types[name].bare)
            for name, encoding in zip(names, encodings, strict=True)
        ]
        return sa.select(
            *(
                column if kind is None else sa.cast(column, kind).label(column.name)
                for column, kind in zip(columns, kinds, strict=True)
            )
        ).select_from(sa.table(stage, *columns, schema="pg_temp"))

    @staticmethod
    def _execute(connection: Connection, statement: str) -> None:
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _is_refusal(error: SQLAlchemyError) -> bool:
    """Return whether the server refused a COPY, or what came of it, in a transaction that lives."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated or gave_way(error):
        return False
    code: str | None = getattr(error.orig, "sqlstate", None)
    return code is not None and not code.startswith(_OF_OTHERS)


def _quoted(*names: str | None) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name is not None)
