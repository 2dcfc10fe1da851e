"""The table that rows go to: whether a result fits it, and how rows get there."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

from headrace.core.errors import ConfigError, ResultMisfitError, StartError
from headrace.extensions.sql.columns import (
    is_bindable,
    is_exact,
    is_of_types,
    is_of_values,
    naming,
    samples,
)
from headrace.extensions.sql.database import TableName, brief, explained
from headrace.extensions.sql.inserts import UPSERTING, Inserts
from headrace.extensions.sql.loaders import loader_for
from headrace.sinks.by_key import (
    Merging,
    Repeated,
    WriteMode,
    numbers_of_keys,
    one_row_of_each,
)
from headrace.sinks.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from sqlalchemy.engine import Connection
    from sqlalchemy.engine.interfaces import ReflectedIndex

    from headrace.extensions.sql.database import Database
    from headrace.extensions.sql.loaders import Loader

#: PostgreSQL's unique constraints that are looked at when the transaction ends, or may be.
_DEFERRABLE = sa.text(
    "SELECT c.conname, array_agg(a.attname::text) FROM pg_catalog.pg_constraint c "
    "JOIN pg_catalog.pg_class t ON t.oid = c.conrelid "
    "JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace "
    "JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY (c.conkey) "
    "WHERE n.nspname = :schema AND t.relname = :table AND c.condeferrable "
    "AND c.contype IN ('p', 'u') GROUP BY c.oid, c.conname"
)

#: The columns that a unique index compares by more than their bytes, or by less.
_COMPARED_OTHERWISE = {
    "postgresql": (
        "SELECT a.attname FROM pg_catalog.pg_index i "
        "JOIN pg_catalog.pg_class t ON t.oid = i.indrelid "
        "JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace "
        "CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indcollation::oid[], i.indclass::oid[]) "
        "AS k (attnum, coll, class) "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.attnum "
        "LEFT JOIN pg_catalog.pg_collation c ON c.oid = k.coll "
        "LEFT JOIN pg_catalog.pg_opclass o ON o.oid = k.class "
        "WHERE i.indisunique AND n.nspname = :schema AND t.relname = :table "
        "AND (c.collisdeterministic IS FALSE OR o.opcdefault IS FALSE)"
    ),
    "sqlite": (
        "SELECT x.name FROM pragma_index_list(:table, :schema) i, "
        "pragma_index_xinfo(i.name, :schema) x "
        'WHERE i."unique" AND x."key" AND x.name IS NOT NULL AND x.coll <> \'BINARY\''
    ),
}

#: MariaDB's JSON columns: text that has to be JSON. MySQL's have a type of their own.
_JSON_CHECKS = sa.text(
    "SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "
    "WHERE CONSTRAINT_SCHEMA = :schema AND TABLE_NAME = :table"
)
_JSON_CHECK = re.compile(r"json_valid\(`(.+)`\)", re.IGNORECASE)

#: The columns whose values can be added.
_SUMMED = (sa.Integer, sa.Numeric, sa.Float, sa.Interval, postgresql.INTERVAL)

#: The dialects that say of an INSERT how they would carry it out, and do nothing.
_EXPLAINING = frozenset({"postgresql", "sqlite"})


class SqlTarget:
    """One table, as the database describes it.

    Raises:
        ConfigError: the database cannot upsert, or the key or another option does not go with the
            mode.
    """

    def __init__(
        self,
        database: Database,
        name: TableName,
        mode: WriteMode,
        key: Sequence[str],
        *,
        merge: Mapping[str, Merging] | None = None,
        repeated: Repeated = Repeated.FAIL,
        origin: bool = False,
    ) -> None:
        self._database = database
        self._name = self._found = name
        self._key = tuple(key)
        self._origin = origin
        self._merge = dict(merge or {})
        self._repeated = repeated
        self.mode = mode
        self.has_key = mode is not WriteMode.APPEND
        self.place = f"{name} in {database.name}"
        if self.has_key and database.dialect not in UPSERTING:
            raise ConfigError(
                [f"{self.place}: mode {mode.value} takes {' or '.join(UPSERTING)}; use mode append"]
            )
        if self.has_key != bool(self._key):
            raise ConfigError([f"{self.place}: a key goes with mode upsert or merge alone"])
        if (mode is WriteMode.MERGE) != bool(self._merge) or {*self._key} & {*self._merge}:
            raise ConfigError(
                [f"{self.place}: merge goes with mode merge alone, and has no column of the key"]
            )
        if repeated is not Repeated.FAIL and mode is not WriteMode.UPSERT:
            raise ConfigError([f"{self.place}: repeated: last goes with mode upsert alone"])
        if self.has_key and origin:
            raise ConfigError([f"{self.place}: origin goes with mode append, and with no other"])
        self._table: sa.Table | None = None
        self._inserts: Inserts | None = None
        self._loader: Loader | None = None
        self._taken: deque[pa.Schema] = deque(maxlen=8)
        self._alike: frozenset[str] = frozenset()

    def load(self) -> None:
        """Read the table's definition again. Blocks.

        Raises:
            StartError: it is not there, no constraint makes the key unique, or the column of
                origins is there without being filled, or the other way round.
            SQLAlchemyError: the database cannot be asked.
        """
        with self._database.transaction() as connection:
            self._taken.clear()
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
            self._database.require_transactions(connection, TableName(schema, name))
            self._note_json(connection)
            self._inserts = Inserts(
                self.place, self._table, self._database.dialect, self._key, self._merge
            )
            self._loader = loader_for(self._database, connection, self._inserts)
            self._require_immediate(connection)
            self._alike = self._compared_otherwise(connection)
            if self.has_key:
                self._check_key(self._unique(connection))
        self._check_origin()
        self._check_merge()

    def _check_key(self, unique: Sequence[set[str | None]]) -> None:
        """Raise if rows with one key would not be found by it, or others by another constraint."""
        if set(self._key) not in unique:
            raise StartError(
                f"{self.place}: no primary key or unique constraint is on exactly "
                f"{', '.join(self._key)}; create one, or name its columns in key"
            )
        if not self._database.is_mysql:
            return
        others = [
            ", ".join(sorted(map(str, columns)))
            for columns in unique
            if not {*self._key} <= columns and not columns & self._counted
        ]
        if others:
            raise StartError(
                f"{self.place}: {self._database.dialect} would replace rows that are equal in "
                f"{others[0]}, too, which are unique and not in key; use mode append, or drop that "
                "constraint"
            )

    @property
    def _counted(self) -> set[str]:
        """Return the columns that MariaDB and MySQL number by themselves."""
        return {
            column.name
            for column in self._loaded.c
            if self._database.is_mysql and column.autoincrement is True
        }

    def _check_merge(self) -> None:
        """Raise if a column has no sum, or is none of the table's."""
        for name, merging in self._merge.items():
            if name not in self._loaded.c:
                raise StartError(
                    f"{self.place}: there is no column {name}, which merge names"
                    f"{_twin(name, self._loaded.c.keys())}"
                )
            kind = self._loaded.c[name].type
            if merging is Merging.SUM and not isinstance(kind, _SUMMED):
                raise StartError(
                    f"{self.place}: merge: {name}: sum takes a column of numbers, and {name} is "
                    f"{_type_name(kind)}; use min, max or last"
                )

    def _note_json(self, connection: Connection) -> None:
        """Set the type of the text columns that MariaDB keeps JSON in."""
        if not getattr(connection.dialect, "is_mariadb", False):
            return
        schema, table = self._found
        names = {"schema": schema or self._database.default_schema(connection), "table": table}
        for clause in connection.execute(_JSON_CHECKS, names).scalars():
            found = _JSON_CHECK.fullmatch(clause)
            if found is not None and found[1] in self._loaded.c:
                self._loaded.c[found[1]].type = sa.JSON()

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

    def _require_immediate(self, connection: Connection) -> None:
        """Raise if PostgreSQL would refuse each upsert, as a constraint on the key may wait."""
        if not self.has_key or self._database.dialect != "postgresql":
            return
        found = connection.execute(_DEFERRABLE, {"schema": self._found[0], "table": self._found[1]})
        for name, columns in found:
            if set(columns) == set(self._key):
                raise StartError(
                    f"{self.place}: the constraint {name} on {', '.join(self._key)} is DEFERRABLE, "
                    "by which PostgreSQL upserts nothing; ALTER TABLE ... DROP CONSTRAINT it and "
                    "ADD one that is not, or use mode append"
                )

    def _compared_otherwise(self, connection: Connection) -> frozenset[str]:
        """Return the columns that a unique index compares by a rule of its own."""
        query = _COMPARED_OTHERWISE.get(self._database.dialect) if self.has_key else None
        if query is None:
            return frozenset()
        schema, table = self._found
        names = {"schema": schema or "main", "table": table}
        return frozenset(connection.execute(sa.text(query), names).scalars())

    def _unique(self, connection: Connection) -> list[set[str | None]]:
        schema, name = self._found
        found = sa.inspect(connection)
        primary = found.get_pk_constraint(name, schema)["constrained_columns"]
        keys: list[set[str | None]] = [{*primary}] if primary else []
        if self._database.is_mysql:  # constraints are indexes, and only those tell of prefixes
            indexes = [each for each in found.get_indexes(name, schema) if each["unique"]]
            return keys + [{*_whole_columns(each)} for each in indexes]
        keys += [{*each["column_names"]} for each in found.get_unique_constraints(name, schema)]
        keys += [
            {*index["column_names"]}
            for index in found.get_indexes(name, schema)
            if index["unique"] and not any("where" in o for o in index.get("dialect_options", {}))
        ]
        return keys

    def check(self, columns: Sequence[str], kinds: pa.Schema | None = None) -> None:
        """Compare a result's columns with the table's, which is looked at again if they differ.

        ``kinds`` has their types, as far as they are known. What is asked of the database is how it
        would carry out a statement with a value of each type: nothing is written. Blocks.

        Raises:
            ResultMisfitError: a column is not in the table, one that it needs is missing, or
                one takes no value of its type.
            SQLAlchemyError: the database cannot be asked.
        """
        if self._table is None or self._problems(columns):
            self.load()
        problems = self._problems(columns)
        if not problems and kinds is not None and kinds not in self._taken:
            problems = self._nested_keys(kinds) or self._refused(kinds)
            if problems:  # the table may have been changed meanwhile
                self.load()
                problems = (
                    self._problems(columns) or self._nested_keys(kinds) or self._refused(kinds)
                )
            if not problems:
                self._taken.append(kinds)
        if problems:
            raise ResultMisfitError(
                f"{self.place}: the result does not fit the table: {'; '.join(sorted(problems))}; "
                "change the reducer or the table"
            )

    def _nested_keys(self, kinds: pa.Schema) -> list[str]:
        """Return a sentence for each column of the key whose values have no equality in Arrow."""
        return [
            f"column {field.name!r} of the key is {field.type}; have the reducer make text of it"
            for field in kinds
            if field.name in self._key and pa.types.is_nested(field.type)
        ]

    def _refused(self, kinds: pa.Schema) -> list[str]:
        """Return a sentence for each column that takes no value of its type."""
        if self._database.dialect not in _EXPLAINING:
            return list(self._not_bindable(kinds))
        known = [(f, found) for f in map(self._as_bound, kinds) if (found := samples(f.type))]
        with self._database.transaction() as connection:
            if self._refusal(connection, [(field, found[0]) for field, found in known]) is None:
                return []
            problems = []
            for field, found in known:
                said = [self._refusal(connection, [(field, sample)]) for sample in found]
                if None not in said:
                    kind = self._loaded.c[field.name].type
                    problems.append(
                        f"column {field.name!r} of type {_type_name(kind)} takes no "
                        f"{field.type} ({said[0]})"
                    )
        return problems

    def _not_bindable(self, kinds: pa.Schema) -> Iterator[str]:
        """Yield a sentence for each column that no value of its type can be given to."""
        dialect = self._database.engine.dialect
        for field in map(self._as_bound, kinds):
            column = self._loaded.c[field.name]
            if column.computed is not None:
                yield f"column {field.name!r} is generated"
            elif not is_bindable(column, field.type, dialect):
                kind = _type_name(column.type)
                yield f"column {field.name!r} of type {kind} takes no {field.type}"

    def _as_bound(self, field: pa.Field) -> pa.Field:
        """Return a result's field as :meth:`prepare` makes it."""
        if pa.types.is_timestamp(field.type):
            return field.with_type(self._timestamp(field))
        return field

    def _refusal(
        self, connection: Connection, row: Sequence[tuple[pa.Field, object]]
    ) -> str | None:
        """Return what is said of one row's types, None where they fit. Nothing is written."""
        assert self._inserts is not None, "load comes first"
        statement = self._inserts.of_values(pa.schema([field for field, _ in row])).inline()
        values = {field.name: sample for field, sample in row}
        try:
            with connection.begin_nested(), explained(connection):
                connection.execute(statement, values).close()
        except Exception as error:
            if is_of_types(error):
                return brief(error)
            if not is_of_values(error):
                raise
        return None

    def _problems(self, columns: Sequence[str]) -> list[str]:
        known = self._loaded.c
        twice = {name for name in columns if columns.count(name) > 1}
        problems = [f"column {name!r} is there twice" for name in twice]
        problems += [
            f"column {n!r} is not in the table{_twin(n, known.keys())}"
            for n in columns
            if n not in known
        ]
        needed = {column.name for column in known if _is_needed(column)} | {
            *self._key,
            *self._merge,
        }
        problems += [f"column {n!r} is missing" for n in needed if n not in columns]
        if self.has_key:
            problems += [
                f"column {n!r} counts rows by itself; leave it out of the result"
                for n in {*columns} & self._counted - {*self._key}
            ]
        if self._merge:
            unsaid = {*columns} & {*known.keys()} - {*self._key, *self._merge}
            problems += [f"column {n!r} is neither in key nor in merge" for n in unsaid]
        return problems

    @property
    def _loaded(self) -> sa.Table:
        assert self._table is not None, "load comes first"
        return self._table

    def prepare(self, rows: pa.Table) -> pa.Table:
        """Return the rows as :meth:`write` needs them: times as the columns hold them, by key.

        Raises:
            RowsRefusedError: a key is there twice, or is null in part.
        """
        for index, field in enumerate(rows.schema):
            if pa.types.is_timestamp(field.type):
                kind = self._timestamp(field)
                with naming(self.place, field.name):
                    timestamps = rows.column(index).cast(pa.timestamp("us", tz=field.type.tz))
                rows = rows.set_column(index, field.name, timestamps.cast(kind))
        return self._by_key(rows) if self.has_key else rows

    def _timestamp(self, field: pa.Field) -> pa.DataType:
        """Return the type of a column of times as it is written: moments in UTC."""
        if field.type.tz is None:
            return pa.timestamp("us")
        kind = self._loaded.c[field.name].type
        return pa.timestamp("us", tz="UTC" if getattr(kind, "timezone", False) else None)

    def _by_key(self, rows: pa.Table) -> pa.Table:
        """Sort by key: writers that lock rows in one order do not wait for each other."""
        return self._sorted(one_row_of_each(self.place, rows, self._key, self.mode, self._repeated))

    def _last_of(self, rows: pa.Table) -> pa.Table:
        """Return the last row of each key, in the order of the rows."""
        return rows.take(numbers_of_keys(rows, self._key, "max"))

    def _sorted(self, rows: pa.Table) -> pa.Table:
        """Sort by the columns of the key whose equality is the database's, the others' order kept.

        Rows that only the database takes for the same one stay in the order of the log, so that the
        last of them stays in the table.
        """
        exact = [name for name in self._ordered_key if self._is_exact(name, rows.column(name))]
        if not exact:
            return rows
        numbers = pa.array(range(rows.num_rows), pa.int64())
        keys = rows.select(exact).append_column("", numbers)
        order = [(name, "ascending") for name in (*exact, "")]
        return rows.take(pc.sort_indices(keys, sort_keys=order))

    @property
    def _ordered_key(self) -> list[str]:
        """Return the key in the order of the table's columns, in which no two members differ."""
        return [column.name for column in self._loaded.c if column.name in self._key]

    def _is_exact(self, name: str, values: pa.ChunkedArray) -> bool:
        """Return whether the database tells values of a key apart exactly where Arrow does."""
        if name in self._alike:
            return False
        is_sqlite = self._database.dialect == "sqlite"
        return is_exact(self._loaded.c[name].type, values, bounded=not is_sqlite)

    def as_one(self, results: Sequence[pa.Table]) -> Sequence[pa.Table]:
        """Return what :meth:`write` takes for several results, in turn: as few as can be.

        Of rows with one key the last stays, or each is merged after the one before it. The first
        part has all keys in their order, because locks are taken in one order then, as by writers
        that have one result. Where the database has an equality of its own, all are written in the
        order of the log. Results whose columns differ, as after a change of the reducer, stay
        apart.
        """
        alike = all(each.schema.equals(results[0].schema) for each in results)
        if self.mode is WriteMode.APPEND or not alike:
            return results
        rows = pa.concat_tables(results)
        are_exact = all(self._is_exact(name, rows.column(name)) for name in self._key)
        if self.mode is WriteMode.MERGE:
            return list(self._split_repeated(rows)) if are_exact else results
        return [self._sorted(self._last_of(rows) if are_exact else rows)]

    def _split_repeated(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield the first row of each key, then the second one where it has one, and so on."""
        while rows.num_rows:
            first = numbers_of_keys(rows, self._key, "min")
            yield self._sorted(rows.take(first))
            rows = rows.filter(pc.invert(pc.is_in(pa.array(range(rows.num_rows)), first)))

    def has_rows_without_origin(self, connection: Connection) -> bool:
        """Return whether some rows do not say which micro-batch they are of."""
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
        """Insert or upsert the rows, in the connection's transaction."""
        assert self._loader is not None, "load comes first"
        self._loader.write(connection, rows)


def _whole_columns(index: ReflectedIndex) -> list[str]:
    """Return what an index of MariaDB or MySQL compares, with the length where it is a prefix."""
    options = index.get("dialect_options", {})
    lengths: Mapping[str, int] = next(
        (found for name, found in options.items() if name.endswith("_length")), {}
    )
    names = [str(name) for name in index["column_names"]]
    return [f"{name}({lengths[name]})" if name in lengths else name for name in names]


def _twin(name: str, known: Sequence[str]) -> str:
    """Return which column differs from a name in case alone, if there is one."""
    found = [each for each in known if each.casefold() == name.casefold()]
    return f" (which has {found[0]!r})" if found else ""


def _is_needed(column: sa.Column[Any]) -> bool:
    """Return whether an INSERT without the column is bound to fail."""
    filled = column.server_default is not None or column.identity is not None
    counts = column.primary_key and column.autoincrement in {True, "auto"}
    return not (column.nullable or filled or column.computed is not None or counts)


def _type_name(kind: sa.types.TypeEngine[Any]) -> str:
    try:
        return str(kind)
    except SQLAlchemyError:  # one that the dialect has no word for
        return type(kind).__name__
