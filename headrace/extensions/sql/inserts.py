"""The statements that put rows into one table, by what becomes of a key that is there."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from headrace.extensions.sql.columns import bound_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from sqlalchemy.sql.dml import Insert

#: The dialects whose INSERT can be told what to do with a key that is there.
UPSERTS: dict[str, Callable[[sa.TableClause], postgresql.Insert | sqlite.Insert]] = {
    "postgresql": postgresql.insert,
    "sqlite": sqlite.insert,
}


class Merging(Enum):
    """The value that a column gets where a row with the key is there."""

    SUM = "sum"
    """The new value is added to it; a null adds nothing."""

    MIN = "min"
    """The smaller one stays; a null is none."""

    MAX = "max"
    """The larger one stays; a null is none."""

    LAST = "last"
    """The new value takes its place, a null too."""

    def of(
        self, stored: sa.ColumnElement[Any], new: sa.ColumnElement[Any], dialect: str
    ) -> sa.ColumnElement[Any]:
        """Return the value that is stored."""
        is_sqlite = dialect == "sqlite"
        both: sa.ColumnElement[Any]
        match self:
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
        statement = UPSERTS[self.dialect](table)
        names = [column.name for column in columns if column.name not in self.key]
        if not names:
            return statement.on_conflict_do_nothing(index_elements=self.key)
        others = {
            name: self.merge.get(name, Merging.LAST).of(
                table.c[name], statement.excluded[name], self.dialect
            )
            for name in names
        }
        return statement.on_conflict_do_update(index_elements=self.key, set_=others)
