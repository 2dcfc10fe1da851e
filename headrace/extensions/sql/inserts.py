"""The statements that put rows into one table, by what becomes of a key that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from headrace.extensions.sql.columns import MYSQL_DIALECTS, bound_type
from headrace.sinks.by_key import Merging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from sqlalchemy.sql.dml import Insert

#: The dialects whose INSERT can be told what to do with a key that is there, as they name it.
_ON_CONFLICT: dict[str, Callable[[sa.TableClause], postgresql.Insert | sqlite.Insert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}

#: The dialects that upsert.
UPSERTING = (*_ON_CONFLICT, *sorted(MYSQL_DIALECTS))


def merged(
    merging: Merging, stored: sa.ColumnElement[Any], new: sa.ColumnElement[Any], dialect: str
) -> sa.ColumnElement[Any]:
    """Return the value that a column gets where a row with the key is there."""
    is_sqlite = dialect == "sqlite"
    both: sa.ColumnElement[Any]
    match merging:
        case Merging.LAST:
            return new
        case Merging.SUM:
            both = stored.op("+")(new)
        case Merging.MIN:
            both = (sa.func.min if is_sqlite else sa.func.least)(stored, new)
        case Merging.MAX:
            both = (sa.func.max if is_sqlite else sa.func.greatest)(stored, new)
    return sa.func.coalesce(both, stored, new)


class Inserts:
    """The INSERTs of one table. With a ``key`` a row takes the place of the one that has its key,
    column by column as ``merge`` says, where it says something.

    ``place`` is the table and its database as messages name them.
    """

    def __init__(
        self,
        place: str,
        table: sa.Table,
        dialect: str,
        key: Sequence[str],
        merge: Mapping[str, Merging],
    ) -> None:
        self.place = place
        self.table = table
        self.dialect = dialect
        self.key = tuple(key)
        self.merge = merge

    def of_values(self, kinds: pa.Schema) -> Insert:
        """Return the INSERT of rows whose values are given as parameters, by the columns' names."""
        columns = [
            sa.column(field.name, bound_type(self.table.c[field.name], field.type, self.dialect))
            for field in kinds
        ]
        return self._insert(columns)

    def of_selected(self, names: Sequence[str], selected: sa.Select[tuple[object, ...]]) -> Insert:
        """Return the INSERT of what a query selects for columns of these names."""
        return self._insert([sa.column(name) for name in names]).from_select(names, selected)

    def _insert(self, columns: Sequence[sa.ColumnClause[object]]) -> Insert:
        table = sa.table(self.table.name, *columns, schema=self.table.schema)
        if not self.key:
            return sa.insert(table)
        if self.dialect in MYSQL_DIALECTS:
            return self._on_duplicate_key(mysql.insert(table))
        statement = _ON_CONFLICT[self.dialect](table)
        others = self._stored(table, statement.excluded)
        if not others:
            return statement.on_conflict_do_nothing(index_elements=self.key)
        return statement.on_conflict_do_update(index_elements=self.key, set_=others)

    def _on_duplicate_key(self, statement: mysql.Insert) -> Insert:
        """Return the INSERT that has something to change for each key that is there: itself."""
        table = statement.table
        others = self._stored(table, statement.inserted) or {self.key[0]: table.c[self.key[0]]}
        return statement.on_duplicate_key_update(others)

    def _stored(
        self, table: sa.FromClause, new: sa.sql.base.ReadOnlyColumnCollection[str, Any]
    ) -> dict[str, sa.ColumnElement[Any]]:
        """Return what each column beside the key gets where a row with the key is there."""
        return {
            name: merged(self.merge.get(name, Merging.LAST), stored, new[name], self.dialect)
            for name, stored in table.c.items()
            if name not in self.key
        }
