"""Rows as parameters of an INSERT, which every database and driver takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from headrace.core.errors import RowsRefusedError
from headrace.extensions.sql.columns import (
    bound_type,
    bytes_of_rows,
    is_beyond,
    is_of_values,
    naming,
    parameter_of,
)
from headrace.extensions.sql.database import brief

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    import pyarrow as pa
    from sqlalchemy.engine import Connection

    from headrace.extensions.sql.inserts import Inserts

#: Rows that are Python objects at a time. From 1,000 on more make it no faster.
CHUNK = 2000

#: What one statement that loads rows has, so that none takes as long as a statement may.
_ROWS_AT_ONCE = 100_000
_BYTES_AT_ONCE = 64 << 20


class BoundRows:
    """Puts rows into a table as parameters of an INSERT, and tells which column was refused.

    The server takes no more than ``longest_statement`` bytes at once, None where it has no limit.
    """

    def __init__(self, inserts: Inserts, longest_statement: int | None = None) -> None:
        self._inserts = inserts
        self._longest_statement = longest_statement

    def write(self, connection: Connection, rows: pa.Table) -> None:
        self.require_sendable(rows)
        statement = self._inserts.of_values(rows.schema)
        for chunk in self._chunks(rows):
            try:
                connection.execute(statement, chunk)
            except Exception as error:
                if not is_of_values(error):
                    raise
                raise RowsRefusedError(
                    f"{self._inserts.place}: "
                    f"{self._culprit(connection, rows.schema, chunk, error)}{brief(error)}"
                ) from error

    def require_sendable(self, rows: pa.Table) -> None:
        """Raise RowsRefusedError for a row that the server would end the connection for."""
        if self._longest_statement is None or not rows.num_rows:
            return
        sizes = bytes_of_rows(rows)
        largest = 0 if sizes is None else pc.max(sizes).as_py()
        if largest >= self._longest_statement:
            raise RowsRefusedError(
                f"{self._inserts.place}: a row of {largest} bytes is more than the server takes at "
                f"once (max_allowed_packet, {self._longest_statement}); let the reducer make a "
                "smaller one, or raise that limit"
            )

    def _chunks(self, rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
        for batch in rows.to_batches(max_chunksize=CHUNK):
            if not batch.num_rows:
                continue
            columns = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                with naming(self._inserts.place, name):
                    columns.append(column.to_pylist())
            names = batch.schema.names
            yield [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _culprit(
        self,
        connection: Connection,
        kinds: pa.Schema,
        chunk: Sequence[dict[str, Any]],
        error: BaseException,
    ) -> str:
        """Return the name of the column whose value was refused, where it can be told."""
        number = parameter_of(error)
        if number is not None and number <= len(kinds):
            return f"column {kinds.names[number - 1]!r}: "
        dialect = connection.dialect
        for field in kinds:
            column = self._inserts.table.c[field.name]
            bound = bound_type(column, field.type, self._inserts.dialect)
            process = bound.dialect_impl(dialect).bind_processor(dialect)
            try:
                if process is not None:
                    for row in chunk:
                        process(row[field.name])
            except Exception:  # noqa: BLE001 - what it says is told already
                return f"column {field.name!r}: "
            if any(is_beyond(column.type, row[field.name], dialect.name) for row in chunk):
                return f"column {field.name!r}: "
        return ""


def parts_of(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in parts that are small enough for one statement."""
    each = max(1, rows.nbytes // max(1, rows.num_rows))
    size = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // each))
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)
