"""The DuckDB file: how it is opened, its transactions, and whose fault an error is."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from headrace.core.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What a refusal quotes of the row.
_DUPLICATE = re.compile(r'[Dd]uplicate key "[^\n]*"')

#: What says that no value of a type can become one of another.
_NO_CAST = "Unimplemented type for cast"

_OF_VALUES = (
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.InvalidInputException,
)


class DuckDbFile:
    """A DuckDB database in a file. Nothing is opened before it is needed. Any thread.

    DuckDB lets one process have the file at a time; in that, several of these are one database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"duckdb://{path}"
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection of its own, without a transaction. Blocks while the file is opened.

        Raises:
            StartError: the file is not there, or cannot be opened.
        """
        cursor = self._opened().cursor()
        try:
            # a TIMESTAMP gets the time of day in UTC, wherever the process is
            cursor.execute("SET TimeZone = 'UTC'")
            yield cursor
        except duckdb.FatalException:
            # the database in memory is of no use any more; the file is read again
            self.close()
            raise
        finally:
            cursor.close()

    @contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Commit what is done inside, or roll all of it back when it raises. Blocks.

        Raises:
            StartError: as for :meth:`cursor`.
        """
        with self.cursor() as cursor:
            cursor.begin()
            yield cursor
            cursor.commit()

    def close(self) -> None:
        """Close the file, if it is open."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._connection is None:
                self._connection = self._open()
            return self._connection

    def _open(self) -> duckdb.DuckDBPyConnection:
        # connect would make an empty one
        if not self.path.is_file():
            raise StartError(
                f"{self.name}: there is no such file; create it with the table that rows go to"
            )
        try:
            return duckdb.connect(str(self.path))
        except duckdb.Error as error:
            raise StartError(
                f"{self.name} cannot be opened: {brief(error)}; DuckDB lets one process have a "
                "file at a time, so give each process a file of its own, or end the other one"
            ) from error


def quoted(name: str) -> str:
    """Return a name as statements have it."""
    return '"{}"'.format(name.replace('"', '""'))


def brief(error: BaseException) -> str:
    """Return the first line of DuckDB's own words, without the key that a row had twice."""
    said = str(error).partition("\n")[0].strip()
    return _DUPLICATE.sub("duplicate key", said)


def is_of_types(error: BaseException) -> bool:
    """Return whether a statement failed for types, whatever the values are."""
    if isinstance(error, duckdb.BinderException | duckdb.NotImplementedException):
        return True
    return isinstance(error, duckdb.ConversionException) and _NO_CAST in str(error)


def is_of_values(error: BaseException) -> bool:
    """Return whether a write that failed may succeed with other values: a row is at fault."""
    return isinstance(error, _OF_VALUES) and not is_of_types(error)


def gave_way(error: BaseException) -> bool:
    """Return whether a transaction was undone in favour of another one of this process."""
    return isinstance(error, duckdb.TransactionException)
