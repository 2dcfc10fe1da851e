"""The table that rows go to: whether a result fits it, and how rows get there."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import NoSuchTableError

from headrace.core.errors import ConfigError, HeadraceError, StartError
from headrace.sinks.origin import ORIGIN
from headrace.sinks.schema import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.dml import Insert

    from headrace.sinks.sql.database import Database, TableName

#: Rows that are Python objects at a time. From 1,000 on more make it no faster.
CHUNK = 2000

#: The dialects whose INSERT can be told what to do with a key that is there.
_UPSERTS: dict[str, Callable[[sa.Table], postgresql.Insert | sqlite.Insert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}


class WriteMode(Enum):
    """What becomes of a row of the result."""

    APPEND = "append"
    """It is inserted."""

    UPSERT = "upsert"
    """It takes the place of the row with the same key, if there is one."""


class RepeatedKeyError(HeadraceError):
    """A result has several rows for one key, or none in a key: which should stay is not said."""


class SqlTarget:
    """One table, as the database describes it.

    Raises:
        ConfigError: the database cannot upsert, or the key does not go with the mode.
    """

    def __init__(
        self,
        database: Database,
        name: TableName,
        mode: WriteMode,
        key: Sequence[str],
        *,
        origin: bool = False,
    ) -> None:
        self._database = database
        self._name = self._found = name
        self._key = tuple(key)
        self._origin = origin
        self.upserts = mode is WriteMode.UPSERT
        self.place = f"{name} in {database.name}"
        if self.upserts and database.dialect not in _UPSERTS:
            raise ConfigError(
                [f"{self.place}: mode upsert takes {' or '.join(_UPSERTS)}; use mode append"]
            )
        if self.upserts != bool(self._key):
            raise ConfigError([f"{self.place}: a key goes with mode upsert, and with no other"])
        if self.upserts and origin:
            raise ConfigError([f"{self.place}: origin goes with mode append, and with no other"])
        self._table: sa.Table | None = None

    def load(self) -> None:
        """Look at the table again. Blocks.

        Raises:
            StartError: it is not there, no constraint makes the key unique, or the column of
                origins is there without being filled, or the other way round.
            SQLAlchemyError: the database cannot be asked.
        """
        with self._database.transaction() as connection:
            self._found = schema, name = self._database.located(connection, self._name)
            try:
                self._table = sa.Table(
                    name, sa.MetaData(), schema=schema, autoload_with=connection, resolve_fks=False
                )
            except NoSuchTableError:
                raise StartError(
                    f"{self.place}: there is no such table; create it with the columns of the "
                    "reducer's result"
                ) from None
            if self.upserts and set(self._key) not in self._unique(connection):
                raise StartError(
                    f"{self.place}: no primary key or unique constraint is on exactly "
                    f"{', '.join(self._key)}; create one, or name its columns in key"
                )
        self._check_origin()

    def _check_origin(self) -> None:
        has_column = ORIGIN in self._loaded.c
        if self._origin and not has_column:
            raise StartError(
                f"{self.place}: there is no column {ORIGIN}, which origin: true fills; ALTER TABLE "
                f"... ADD COLUMN {ORIGIN} VARCHAR(64), and create an index on it"
            )
        if has_column and not self._origin:
            raise StartError(
                f"{self.place}: rows say in {ORIGIN} which records they are of; set origin: true, "
                "so that all of them do"
            )

    def _unique(self, connection: Connection) -> list[set[str | None]]:
        schema, name = self._found
        found = sa.inspect(connection)
        primary = found.get_pk_constraint(name, schema)["constrained_columns"]
        keys: list[set[str | None]] = [{*primary}]
        keys += [{*each["column_names"]} for each in found.get_unique_constraints(name, schema)]
        keys += [
            {*index["column_names"]}
            for index in found.get_indexes(name, schema)
            if index["unique"] and not any("where" in o for o in index.get("dialect_options", {}))
        ]
        return keys

    def check(self, columns: Sequence[str]) -> None:
        """Compare a result's columns with the table's, which is looked at again if they differ.

        Raises:
            SchemaMismatchError: a column is not in the table, or one that it needs is missing.
        """
        if self._table is None or self._problems(columns):
            self.load()
        problems = self._problems(columns)
        if problems:
            raise SchemaMismatchError(
                f"{self.place}: the result does not fit the table: {'; '.join(sorted(problems))}; "
                "change the reducer or the table"
            )

    def _problems(self, columns: Sequence[str]) -> list[str]:
        known = self._loaded.c
        twice = {name for name in columns if columns.count(name) > 1}
        problems = [f"column {name!r} is there twice" for name in twice]
        problems += [f"column {n!r} is not in the table" for n in columns if n not in known]
        needed = {column.name for column in known if _is_needed(column)} | {*self._key}
        return problems + [f"column {n!r} is missing" for n in needed if n not in columns]

    @property
    def _loaded(self) -> sa.Table:
        assert self._table is not None, "load comes first"
        return self._table

    def prepare(self, rows: pa.Table) -> pa.Table:
        """Return the rows as :meth:`write` needs them: times as the columns hold them, by key.

        Raises:
            RepeatedKeyError: a key is there twice, or is null in part.
        """
        for index, field in enumerate(rows.schema):
            if pa.types.is_timestamp(field.type) and field.type.tz is not None:
                kind = self._loaded.c[field.name].type
                zone = "UTC" if getattr(kind, "timezone", False) else None
                timestamps = rows.column(index).cast(pa.timestamp("us", tz="UTC"))
                rows = rows.set_column(
                    index, field.name, timestamps.cast(pa.timestamp("us", tz=zone))
                )
        return self._by_key(rows) if self.upserts else rows

    def _by_key(self, rows: pa.Table) -> pa.Table:
        """Sort by key: writers that lock rows in one order do not wait for each other."""
        keys = rows.select(list(self._key))
        distinct = keys.group_by(list(self._key)).aggregate([]).num_rows
        nulls = sum(column.null_count for column in keys.columns)
        if distinct < rows.num_rows or nulls:
            raise RepeatedKeyError(
                f"{self.place}: the result has {rows.num_rows} rows and {distinct} keys, {nulls} "
                f"of them null in part; let the reducer make one row for each "
                f"{', '.join(self._key)}"
            )
        return self._sorted(rows)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        return rows.sort_by([(name, "ascending") for name in self._key])

    def as_one(self, results: Sequence[pa.Table]) -> Sequence[pa.Table]:
        """Return what :meth:`write` takes for several results, in turn: as few as can be.

        Of rows with one key the last stays, and all are in the order of their keys, because locks
        are taken in one order then, as by writers that have one result. Results whose columns
        differ, as after a change of the reducer, stay apart.
        """
        alike = all(each.schema.equals(results[0].schema) for each in results)
        if not self.upserts or not alike:
            return results
        rows = pa.concat_tables(results)
        numbered = rows.select(list(self._key)).append_column("", pa.array(range(rows.num_rows)))
        last = numbered.group_by(list(self._key)).aggregate([("", "max")]).column("_max")
        return [self._sorted(rows.take(last))]

    def has_rows_without_origin(self, connection: Connection) -> bool:
        """Whether some rows do not say which micro-batch they are of."""
        column = self._loaded.c[ORIGIN]
        wanted = sa.select(column).where(sa.or_(column.is_(None), column == "")).limit(1)
        return connection.execute(wanted).first() is not None

    def count(self, connection: Connection, micro_batches: Sequence[str]) -> int:
        """Return how many rows are of these micro-batches."""
        wanted = sa.select(sa.func.count()).where(self._loaded.c[ORIGIN].in_(micro_batches))
        return int(connection.execute(wanted).scalar_one())

    def delete(self, connection: Connection, micro_batches: Sequence[str]) -> int:
        """Remove the rows of these micro-batches; return how many."""
        of_these = self._loaded.c[ORIGIN].in_(micro_batches)
        return connection.execute(self._loaded.delete().where(of_these)).rowcount

    def write(self, connection: Connection, rows: pa.Table) -> None:
        """Insert or upsert the rows in chunks, in the connection's transaction."""
        statement = self._statement(rows.column_names)
        for chunk in _chunks(rows):
            connection.execute(statement, chunk)

    def _statement(self, columns: Sequence[str]) -> Insert:
        if not self.upserts:
            return self._loaded.insert()
        statement = _UPSERTS[self._database.dialect](self._loaded)
        others = {n: statement.excluded[n] for n in columns if n not in self._key}
        if not others:
            return statement.on_conflict_do_nothing(index_elements=self._key)
        return statement.on_conflict_do_update(index_elements=self._key, set_=others)


def _is_needed(column: sa.Column[Any]) -> bool:
    """Whether an INSERT without the column is bound to fail."""
    filled = column.server_default is not None or column.identity is not None
    counts = column.primary_key and column.autoincrement in {True, "auto"}
    return not (column.nullable or filled or column.computed is not None or counts)


def _chunks(rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    for batch in rows.to_batches(max_chunksize=CHUNK):
        if batch.num_rows:
            yield batch.to_pylist()
