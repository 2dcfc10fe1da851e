"""The columns of a table: how values are bound to them, and whose fault a refusal is.

What no value of a type can change is told by the types, before anything is written; whatever else
is refused is the fault of a row.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from headrace.core.errors import RowsRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: What MySQL's protocol is spoken with. Both names are used for MariaDB.
MYSQL_DIALECTS = frozenset({"mysql", "mariadb"})

#: Classes of PostgreSQL's codes that speak of values: data, constraints, WITH CHECK OPTION, limits
#: such as an index entry's size, routines of the table's owner, and what triggers raise.
_OF_VALUES = ("22", "23", "44", "54", "38", "39", "P0")

#: What it says where a value's type fits for no value, or only for some: a list is sent by what is
#: in it.
_OF_TYPES = frozenset({"42804", "42846"})

#: What it says of a statement that no row can change: types, columns that are always generated,
#: views that take no rows, what it has not. The other codes of class 42 are rights and names.
_OF_STATEMENTS = _OF_TYPES | {"428C9", "42883", "42809", "55000", "0A000"}

#: The same classes in MySQL and MariaDB: 22 and 23, and 45 for what triggers raise.
_OF_VALUES_IN_MYSQL = ("22", "23", "45")

#: Their numbers for values where the state is a general one, or the driver does not hand it on:
#: truncated values, wrong ones, CHECK constraints, WITH CHECK OPTION, the size of a row or of what
#: is sent, types without a conversion, triggers.
_NUMBERS_OF_VALUES = frozenset(
    {1118, 1153, 1264, 1265, 1292, 1366, 1367, 1369, 1406, 1411, 1416, 1441, 1644, 1690}
    | {3140, 3819, 4025, 4038, 4078, 4079}
)

#: What Python and the drivers raise, without a word of the database's, for a value.
_OF_PYTHON = (
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
)


class JsonText(sa.types.UserDefinedType[str]):
    """Text that is JSON already, for databases that would store any text in such a column."""

    cache_ok = True

    def __init__(self, name: str = "JSON") -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        """Return the name of the type."""
        return self.name

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[str | None], str | None]:  # noqa: ARG002 - the same for all
        """Return what looks at each value; it raises ValueError for text that is no JSON."""

        def checked(text: str | None) -> str | None:
            if text is not None:
                json.loads(text, parse_constant=_refuse)
            return text

        return checked


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def json_of(value: object) -> str:
    """Return a structure as JSON, which has no word for numbers that are none."""
    return json.dumps(value, allow_nan=False)


def bound_type(column: sa.Column[Any], kind: pa.DataType, dialect: str) -> sa.types.TypeEngine[Any]:
    """Return the type by which values of an Arrow type are given to a column.

    Text goes to PostgreSQL as text, and its columns read it as they read a literal. A null is SQL's
    null for each column; JSON's is the text, or comes inside of a structure.
    """
    own = column.type
    if isinstance(own, sa.ARRAY) and isinstance(own.item_type, sa.JSON) and _is_of_texts(kind):
        item = JsonText(own.item_type.__visit_name__)
        return type(own)(item, dimensions=own.dimensions)
    if is_text(kind):
        if dialect == "postgresql" and (isinstance(own, sa.Enum) or not isinstance(own, sa.String)):
            return sa.types.NullType()
        if isinstance(own, sa.JSON):
            return JsonText()
    return type(own)(none_as_null=True) if isinstance(own, sa.JSON) else own


def is_bindable(column: sa.Column[Any], kind: pa.DataType, dialect: sa.Dialect) -> bool:
    """Return whether some value of an Arrow type can be given to a column, as far as Python knows.

    For databases that cannot be asked. A structure or a list has no form but JSON there, and of a
    number Python would make as many zero bytes.
    """
    if pa.types.is_nested(kind) and not isinstance(column.type, sa.JSON | sa.ARRAY):
        return False
    if isinstance(column.type, _BINARY_TYPES) and not is_binary(kind):
        return False
    process = bound_type(column, kind, dialect.name).dialect_impl(dialect).bind_processor(dialect)
    found = samples(kind)
    return process is None or not found or any(_passes(process, each) for each in found)


def _passes(process: Callable[[Any], Any], value: object) -> bool:
    try:
        process(value)
    except _OF_PYTHON:
        return False
    return True


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type are text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return any(
        is_one(kind)
        for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _is_of_texts(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type are lists of texts, or lists of such lists."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return is_text(kind.value_type) or _is_of_texts(kind.value_type)
    return False


def is_exact(column: sa.types.TypeEngine[Any], values: pa.ChunkedArray, *, bounded: bool) -> bool:
    """Return whether a column tells values apart where Arrow does, and nowhere else.

    With ``bounded`` a text column cuts spaces that are past its length. What rounds, pads or
    compares by rules of its own is not exact: NUMERIC, floating point, CHAR, CITEXT.
    """
    kind = values.type
    if is_text(kind):
        if not bounded:
            return isinstance(column, sa.String) and not isinstance(column, sa.Enum)
        length = getattr(column, "length", None)
        longest = pc.max(pc.utf8_length(values.cast(pa.large_string()))).as_py() or 0
        return type(column) in {sa.TEXT, sa.VARCHAR} and (length is None or longest <= length)
    if pa.types.is_timestamp(kind):
        return (
            isinstance(column, sa.DateTime)
            and bool(getattr(column, "timezone", False)) is (kind.tz is not None)
            and _has_microseconds(column)
        )
    pairs = (
        (pa.types.is_integer, sa.Integer),
        (pa.types.is_boolean, sa.Boolean),
        (pa.types.is_date32, sa.Date),
        (pa.types.is_binary, sa.LargeBinary),
    )
    return any(is_one(kind) and isinstance(column, own) for is_one, own in pairs)


def _has_microseconds(column: sa.types.TypeEngine[Any]) -> bool:
    if isinstance(column, mysql.DATETIME | mysql.TIMESTAMP):
        return column.fsp == _MICROSECONDS
    return getattr(column, "precision", None) in {None, _MICROSECONDS}


#: The digits of a second's fraction.
_MICROSECONDS = 6

#: What SQLAlchemy takes for bytes: BINARY and VARBINARY are no LargeBinary.
_BINARY_TYPES = (sa.LargeBinary, sa.BINARY, sa.VARBINARY)


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type are bytes, or all null."""
    return any(
        is_one(kind)
        for is_one in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_null,
        )
    )


def bytes_of_rows(rows: pa.Table) -> pa.ChunkedArray | None:
    """Return the bytes that text and binary values of each row take in a statement, at the least.

    None without such columns. Binary values are sent as two digits for each byte.
    """
    total = None
    for column in rows.columns:
        takes_two = is_binary(column.type) and not pa.types.is_null(column.type)
        if takes_two or pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            sizes = pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), 0)
            sizes = pc.multiply(sizes, 2) if takes_two else sizes
            total = sizes if total is None else pc.add(total, sizes)
    return total


_SAMPLES: tuple[tuple[Callable[[pa.DataType], bool], tuple[Any, ...]], ...] = (
    (pa.types.is_boolean, (True,)),
    (pa.types.is_integer, (1, 0)),
    (pa.types.is_floating, (1.0, 0.5)),
    (pa.types.is_decimal, (Decimal(1), Decimal("0.5"))),
    (is_text, ("1", "x", "null")),
    (pa.types.is_binary, (b"1",)),
    (pa.types.is_large_binary, (b"1",)),
    (pa.types.is_fixed_size_binary, (b"1",)),
    (pa.types.is_date, (date(2020, 1, 1),)),
    (pa.types.is_time, (time(1, 2),)),
    (pa.types.is_duration, (timedelta(1),)),
)


def samples(kind: pa.DataType) -> Sequence[Any]:
    """Return values of an Arrow type as its rows have them in Python; none of a type not known."""
    if pa.types.is_dictionary(kind):
        return samples(kind.value_type)
    if pa.types.is_timestamp(kind):
        return (datetime(2020, 1, 1, tzinfo=None if kind.tz is None else UTC),)
    if pa.types.is_struct(kind):
        fields = [(field.name, samples(field.type)) for field in kind]
        return ({name: found[0] if found else None for name, found in fields},)
    if pa.types.is_map(kind):
        keys, values = samples(kind.key_type), samples(kind.item_type)
        return ([(key, values[0] if values else None) for key in keys[:1]],)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return tuple([value] for value in samples(kind.value_type))
    return next((found for is_one, found in _SAMPLES if is_one(kind)), ())


@contextmanager
def naming(place: str, column: str) -> Iterator[None]:
    """Add table and column to errors raised for a value, as a RowsRefusedError."""
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        raise RowsRefusedError(
            f"{place}: column {column!r}: {error}; leave the value out in the reducer, or let it "
            "make another one"
        ) from error


def is_of_values(error: BaseException) -> bool:
    """Return whether a write that failed may succeed with other values: a row is at fault.

    What the types refuse is told before, so that a type that is refused here is so for some values.
    """
    if isinstance(error, DBAPIError):
        code = state_of(error)
        if isinstance(error, DataError | IntegrityError) or code in _OF_TYPES:
            return True
        number = number_of(error)
        if number is not None:
            return number in _NUMBERS_OF_VALUES or code.startswith(_OF_VALUES_IN_MYSQL)
        if parameter_of(error) is not None:
            return True
        return code.startswith(_OF_VALUES) if code else _is_of_binding(error)
    if isinstance(error, StatementError):
        return isinstance(error.orig, _OF_PYTHON)
    return isinstance(error, _OF_PYTHON) and not isinstance(error, SQLAlchemyError)


def is_of_types(error: BaseException) -> bool:
    """Return whether a statement with a sample value failed for the value's type, or for the
    column.
    """
    if isinstance(error, DBAPIError):
        code = state_of(error)
        return code in _OF_STATEMENTS if code else _is_of_binding(error) or _is_generated(error)
    return is_of_values(error)


#: Where PostgreSQL says that it was reading a value for a column. What a type says of text
#: that it cannot read has any code: HSTORE's had none of its own before PostgreSQL 16.
_PARAMETER = re.compile(r"portal (?:\"[^\"]*\" )?parameter \$(\d+)")


def parameter_of(error: BaseException) -> int | None:
    """Return which value of a statement PostgreSQL could not read, from 1; None: it says none."""
    diagnosis = getattr(getattr(error, "orig", None), "diag", None)
    found = _PARAMETER.search(getattr(diagnosis, "context", None) or "")
    return None if found is None else int(found[1])


def is_beyond(column: sa.types.TypeEngine[Any], value: object, dialect: str) -> bool:
    """Return whether a value is one that its column has no place for, where none is named."""
    if isinstance(value, bool) or value is None:
        return False
    if dialect == "sqlite":
        return isinstance(value, int) and not -_LONG <= value < _LONG
    if dialect in MYSQL_DIALECTS:  # the server names the column, and the driver refuses no others
        return isinstance(value, float) and not math.isfinite(value)
    return _is_beyond(column, value)


def _is_beyond(column: sa.types.TypeEngine[Any], value: object) -> bool:
    if isinstance(column, sa.Integer) and isinstance(value, int | float | Decimal):
        limit = next((n for kind, n in _LIMITS if isinstance(column, kind)), _INT)
        return not -limit <= value < limit
    if isinstance(column, sa.String) and isinstance(value, str):
        return column.length is not None and len(value.rstrip(" ")) > column.length
    if isinstance(column, sa.Numeric) and isinstance(value, int | float | Decimal):
        digits = None if column.precision is None else column.precision - (column.scale or 0)
        return digits is not None and not isinstance(column, sa.Float) and abs(value) >= 10**digits
    return False


#: One more than the largest number of a column of so many bytes.
_SHORT, _INT, _LONG = 1 << 15, 1 << 31, 1 << 63
_LIMITS = ((sa.SmallInteger, _SHORT), (sa.BigInteger, _LONG))


def number_of(error: BaseException) -> int | None:
    """Return the number that MySQL or MariaDB gave an error, None of any other database."""
    original = getattr(error, "orig", None)
    return original.args[0] if original is not None and is_numbered(original) else None


def is_numbered(original: BaseException) -> bool:
    """Return whether a driver's error has number and text, as those of MySQL's protocol have."""
    match original.args:
        case (int(), str()):
            return True
        case _:
            return False


def state_of(error: DBAPIError) -> str:
    """Return the SQL state that an error has, under whichever name its driver keeps it."""
    original = error.orig
    for name in ("sqlstate", "pgcode"):  # of psycopg2 the latter
        if found := getattr(original, name, None):
            return str(found)
    match getattr(original, "args", ()):
        case ({"C": str(found)},):  # of pg8000
            return found
    return ""


def _is_of_binding(error: DBAPIError) -> bool:
    """Return whether a driver could not hand a value over; the database was not asked."""
    said = str(error.orig)
    return said.startswith(
        ("Error binding parameter", "cannot adapt type", "cannot dump")
    ) or said.endswith(("can not be used with MySQL", "can not be used as parameter"))


def _is_generated(error: DBAPIError) -> bool:
    said = str(error.orig)
    return said.startswith(("cannot INSERT into generated column", "cannot modify"))
