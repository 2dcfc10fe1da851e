"""The table that rows go to: whether a result fits it, and the statement that writes rows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from headrace.core.errors import ResultMisfitError, RowsRefusedError, StartError
from headrace.extensions.duckdb.file import brief, is_of_types, quoted
from headrace.sinks.by_key import Merging, Repeated, WriteMode, one_row_of_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.extensions.duckdb.file import DuckDbFile

#: The name by which statements read the rows of a result.
_ROWS = "headrace_rows"

#: The types whose values can be added, by how DuckDB's names of them begin.
_SUMMED = (
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
    *("FLOAT", "DOUBLE", "DECIMAL", "INTERVAL"),
)

_COLUMNS = (
    "SELECT column_name, data_type, NOT is_nullable AND column_default IS NULL "
    "FROM duckdb_columns() WHERE database_name = current_database() "
    "AND schema_name = ? AND table_name = ? ORDER BY column_index"
)

_TABLES = (
    "SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() "
    "AND schema_name = ? AND table_name = ?"
)


def merged(merging: Merging, stored: str, new: str) -> str:
    """Return the value that a column gets where a row with the key is there, in SQL."""
    both = {
        Merging.SUM: f"{stored} + {new}",
        Merging.MIN: f"least({stored}, {new})",
        Merging.MAX: f"greatest({stored}, {new})",
    }
    return new if merging is Merging.LAST else f"coalesce({both[merging]}, {stored}, {new})"


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its type in DuckDB's words, and whether each row has to have a value for it."""

    name: str
    kind: str
    is_needed: bool


class DuckDbTable:
    """One table of a file, as the database describes it. ``name`` is ``table`` or ``schema.table``.

    Names of columns are compared as DuckDB does, without regard to case.
    """

    def __init__(
        self,
        file: DuckDbFile,
        name: str,
        *,
        mode: WriteMode,
        key: Sequence[str],
        merge: Mapping[str, Merging],
        repeated: Repeated,
    ) -> None:
        self._file = file
        schema, _, table = name.rpartition(".")
        self._names = (schema or "main", table)
        self.full_name = ".".join(self._names)
        self.place = f"{name} in {file.name}"
        self._mode, self._repeated = mode, repeated
        self.has_key = mode is not WriteMode.APPEND
        self._key, self._merge = tuple(key), dict(merge)
        self._columns: dict[str, _Column] | None = None
        self._taken: deque[pa.Schema] = deque(maxlen=8)

    def load(self) -> None:
        """Read the table's definition again. Blocks.

        Raises:
            StartError: it is not there, no constraint makes the key unique, or a column cannot be
                merged.
            duckdb.Error: the database cannot be asked.
        """
        with self._file.cursor() as cursor:
            if not cursor.execute(_TABLES, self._names).fetchall():
                raise StartError(
                    f"{self.place}: there is no such table; create it with the columns of the "
                    "reducer's result"
                )
            found = cursor.execute(_COLUMNS, self._names).fetchall()
            self._columns = {name.lower(): _Column(name, *rest) for name, *rest in found}
            self._taken.clear()
            self._check_key(cursor)
        self._check_merge()

    def _check_key(self, cursor: duckdb.DuckDBPyConnection) -> None:
        for name in self._key:
            if name.lower() not in self._loaded:
                raise StartError(f"{self.place}: there is no column {name}, which key names")
        if not self._key:
            return
        key = ", ".join(map(quoted, self._key))
        try:
            cursor.execute(
                f"EXPLAIN INSERT INTO {self._quoted} ({key}) SELECT {key} FROM {self._quoted} "  # noqa: S608 - quoted
                f"ON CONFLICT ({key}) DO NOTHING"
            )
        except duckdb.BinderException as error:
            raise StartError(
                f"{self.place}: no primary key or unique constraint is on exactly "
                f"{', '.join(self._key)}; create one, or name its columns in key"
            ) from error

    def _check_merge(self) -> None:
        for name, merging in self._merge.items():
            column = self._loaded.get(name.lower())
            if column is None:
                raise StartError(f"{self.place}: there is no column {name}, which merge names")
            is_list = column.kind.endswith("]")
            if merging is Merging.SUM and (is_list or not column.kind.startswith(_SUMMED)):
                raise StartError(
                    f"{self.place}: merge: {name}: sum takes a column of numbers, and {name} is "
                    f"{column.kind}; use min, max or last"
                )

    @property
    def _loaded(self) -> dict[str, _Column]:
        assert self._columns is not None, "load comes first"
        return self._columns

    @property
    def _quoted(self) -> str:
        return ".".join(map(quoted, self._names))

    def check(self, columns: Sequence[str], kinds: pa.Schema | None) -> None:
        """Compare a result's columns with the table's, which is looked at again if they differ.

        ``kinds`` has their types, as far as they are known. Nothing is written. Blocks.

        Raises:
            ResultMisfitError: a column is not in the table, one that it needs is missing, or
                one takes no value of its type.
            duckdb.Error: the database cannot be asked.
        """
        if self._columns is None or [*self._problems(columns)]:
            self.load()
        problems = [*self._problems(columns)]
        if not problems and kinds is not None and kinds not in self._taken:
            problems = [*self._refused(kinds)]
            if problems:  # the table may have been changed meanwhile
                self.load()
                problems = [*self._problems(columns)] or [*self._refused(kinds)]
            if not problems:
                self._taken.append(kinds)
        if problems:
            raise ResultMisfitError(
                f"{self.place}: the result does not fit the table: {'; '.join(sorted(problems))}; "
                "change the reducer or the table"
            )

    def _problems(self, columns: Sequence[str]) -> Iterator[str]:
        lower = [name.lower() for name in columns]
        for name in sorted({each for each in lower if lower.count(each) > 1}):
            yield f"column {name!r} is there twice"
        for name in columns:
            if name.lower() not in self._loaded:
                yield f"column {name!r} is not in the table"
        needed = {each.name for each in self._loaded.values() if each.is_needed}
        for name in sorted({*needed, *self._key, *self._merge}):
            if name.lower() not in lower:
                yield f"column {name!r} is missing"
        if self._merge:
            said = {name.lower() for name in (*self._key, *self._merge)}
            for name in columns:
                if name.lower() in self._loaded and name.lower() not in said:
                    yield f"column {name!r} is neither in key nor in merge"

    def _refused(self, kinds: pa.Schema) -> Iterator[str]:
        """Yield a sentence for each column that takes no value of its type."""
        for field in kinds:
            column = self._loaded[field.name.lower()]
            if field.name in self._key and pa.types.is_nested(field.type):
                yield (
                    f"column {field.name!r} of the key is {field.type}; have the reducer make text "
                    "of it"
                )
                continue
            said = self._refusal(field)
            if said is not None:
                yield (
                    f"column {field.name!r} of type {column.kind} takes no {field.type} ({said})"
                )

    def _refusal(self, field: pa.Field) -> str | None:
        """Return what is said of a column's type, None where it fits."""
        with self._file.cursor() as cursor:
            try:
                cursor.register(_ROWS, pa.schema([field]).empty_table())
                cursor.execute(f"EXPLAIN {self._insert([field.name], ())}")
            except duckdb.Error as error:
                if is_of_types(error):
                    return brief(error)
                raise
        return None

    def prepare(self, rows: pa.Table) -> pa.Table:
        """Return the rows as :meth:`write` takes them.

        Raises:
            RowsRefusedError: a key is there twice, or is null in part, or a time has parts of a
                second that its column has not.
            ResultMisfitError: no value of a column's type can become one of the table's.
        """
        for index, field in enumerate(rows.schema):
            if not pa.types.is_timestamp(field.type) or field.type.unit != "ns":
                continue
            if self._loaded[field.name.lower()].kind == "TIMESTAMP_NS":
                continue
            try:
                times = rows.column(index).cast(pa.timestamp("us", field.type.tz))
            except pa.ArrowInvalid as error:
                raise RowsRefusedError(
                    f"{self.place}: column {field.name!r}: {error}; leave the nanoseconds out in "
                    "the reducer, or make the column TIMESTAMP_NS"
                ) from error
            rows = rows.set_column(index, field.name, times)
        self._require_casts(rows)
        if not self.has_key:
            return rows
        return one_row_of_each(self.place, rows, self._key, self._mode, self._repeated)

    def _require_casts(self, rows: pa.Table) -> None:
        """Raise if no value of a column can become one of the table's; one value of each is tried.

        DuckDB finds that out with the first value only.
        """
        with self._file.cursor() as cursor:
            for field, column in zip(rows.schema, rows.columns, strict=True):
                some = column.drop_null().slice(0, 1)
                if not len(some):
                    continue
                kind = self._loaded[field.name.lower()].kind
                cursor.register(_ROWS, pa.table({"value": some}))
                try:
                    cast = f"SELECT CAST(value AS {kind}) FROM {_ROWS}"  # noqa: S608 - DuckDB's own words
                    cursor.execute(cast).fetchall()
                except duckdb.Error as error:
                    if is_of_types(error):
                        raise ResultMisfitError(
                            f"{self.place}: the result does not fit the table: column "
                            f"{field.name!r} of type {kind} takes no {field.type} "
                            f"({brief(error)}); change the reducer or the table"
                        ) from error

    def write(self, cursor: duckdb.DuckDBPyConnection, rows: pa.Table) -> None:
        """Insert, upsert or merge rows in the cursor's transaction. Blocks; raises duckdb.Error."""
        if not rows.num_rows:
            return
        cursor.register(_ROWS, rows)
        cursor.execute(self._insert(rows.column_names, self._key))

    def _insert(self, columns: Sequence[str], key: Sequence[str]) -> str:
        """Return the statement that writes the registered rows; without ``key`` it appends."""
        names = ", ".join(map(quoted, columns))
        insert = f"INSERT INTO {self._quoted} ({names}) SELECT {names} FROM {_ROWS}"  # noqa: S608 - quoted
        if not key:
            return insert
        keys = {name.lower() for name in key}
        target = quoted(self._names[1])
        merges = {name.lower(): merging for name, merging in self._merge.items()}
        changes = [
            f"{own} = {merged(merging, f'{target}.{own}', f'excluded.{own}')}"
            for name in columns
            if name.lower() not in keys
            for own, merging in [(quoted(name), merges.get(name.lower(), Merging.LAST))]
        ]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"{insert} ON CONFLICT ({', '.join(map(quoted, key))}) DO {action}"
