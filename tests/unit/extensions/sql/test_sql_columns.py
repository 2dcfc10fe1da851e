"""Values that columns take; whose fault a refusal is, and when it is reported."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import DBAPIError

from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.extensions.sql.columns import is_of_values
from headrace.extensions.sql.database import brief, gave_way
from headrace.sinks.micro_batch import MicroBatch
from tests.unit.extensions.sql.sql_tables import Base, share
from tests.unit.extensions.sql.sql_values import assert_answered_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.extensions.sql.sink import SqlSink

_KINDS = ["BOOLEAN", "INTEGER", "REAL", "NUMERIC", "DECIMAL(5,2)", "TEXT", "VARCHAR(3)", "BLOB"]
_KINDS += ["DATE", "TIME", "TIMESTAMP", "JSON", "UUID", "WEIRD", "", "INTEGER PRIMARY KEY"]


def _write(sink: SqlSink, rows: pa.Table, start: int = 0) -> None:
    staged = sink.stage(MicroBatch("one", "c", ()), rows)
    sink.commit(staged, [share(0, start, start + 1)])


@pytest.fixture
def opened(base: Base, sinks: Callable[..., SqlSink]) -> Callable[[str], SqlSink]:
    """Open a sink on a table of such columns."""

    def open_one(columns: str) -> SqlSink:
        base.run(f"CREATE TABLE c ({columns})")
        sink = sinks("c")
        sink.open()
        return sink

    return open_one


@pytest.mark.filterwarnings("ignore:The default date:DeprecationWarning")
@pytest.mark.parametrize("kind", _KINDS)
def test_each_value_in_each_column_is_stored_or_answered_for(
    opened: Callable[[str], SqlSink], kind: str
) -> None:
    """A refusal is a row's fault, or that of a type, which is told of each of its values."""
    assert_answered_for(opened(f"v {kind}"), kind)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("BOOLEAN", pa.array([5]), "column 'v': Value 5 is not None, True, or False"),
        ("TIMESTAMP", pa.array([2**62], pa.timestamp("us")), "column 'v': "),
        ("INTEGER", pa.array([1, 2**63], pa.uint64()), "column 'v': Python int too large"),
        ("TEXT", pa.array([2**64 - 1], pa.uint64()), "column 'v': Python int too large"),
        ("JSON", pa.array(["{bad"]), "column 'v': Expecting property name"),
        ("JSON", pa.array(["[NaN]"]), "column 'v': NaN is no JSON"),
        ("JSON", pa.array([{"a": float("nan")}]), "column 'v': "),
    ],
)
def test_a_value_that_python_refuses_is_the_row_s_fault(
    opened: Callable[[str], SqlSink], kind: str, value: pa.Array, says: str
) -> None:
    """The error says the column, and nothing is stored."""
    sink = opened(f"v {kind}")
    with pytest.raises(RowsRefusedError, match=says):
        _write(sink, pa.table({"v": value}))
    assert sink.stored_offset("id/0") is None


class NoRows:
    """A result whose job must not run."""

    def __init__(self, fields: list[dict[str, Any]]) -> None:
        self.columns = [each["name"] for each in fields]
        self.schema = self
        self._fields = fields

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802 - as in Spark
        """Return the types as Spark does."""
        return {"type": "struct", "fields": self._fields}


@pytest.mark.parametrize(
    ("kind", "spark", "says"),
    [
        ("TEXT", "decimal(10,2)", "of type TEXT takes no decimal128(10, 2)"),
        ("DATE", "string", "of type DATE takes no string"),
        ("JSON", {"type": "struct", "fields": [{"name": "at", "type": "timestamp"}]}, "takes no"),
        ("TEXT", {"type": "array", "elementType": "long"}, "takes no list<"),
        ("TEXT", {"type": "map", "keyType": "string", "valueType": "long"}, "takes no map<"),
    ],
)
def test_a_type_that_a_column_does_not_take_is_told_before_the_job(
    opened: Callable[[str], SqlSink], kind: str, spark: Any, says: str
) -> None:
    """The result is refused by its types alone: its rows are never asked for."""
    sink = opened(f"v {kind}")
    result: Any = NoRows([{"name": "v", "type": spark}])
    with pytest.raises(ResultMisfitError) as caught:
        sink.stage(MicroBatch("one", "c", ()), result)
    assert says in str(caught.value)
    assert "c in sqlite" in str(caught.value)


def test_a_column_that_is_changed_takes_the_type_from_then_on(
    base: Base, opened: Callable[[str], SqlSink]
) -> None:
    """The table is looked at again, so that a refusal does not last."""
    sink = opened("v TEXT")
    rows = pa.table({"v": pa.array([Decimal("1.50")], pa.decimal128(5, 2))})
    with pytest.raises(ResultMisfitError):
        _write(sink, rows)
    base.run("DROP TABLE c", "CREATE TABLE c (v NUMERIC)")
    _write(sink, rows)
    assert base.rows("c") == [(1.5,)]


def test_json_text_is_stored_as_it_is(base: Base, opened: Callable[[str], SqlSink]) -> None:
    """Once, not as a string in JSON; a null is SQL's, and JSON's is the text."""
    sink = opened("n INTEGER, v JSON")
    texts = ['{"a": [1,2]}', '"x"', "null", None]
    _write(sink, pa.table({"n": range(4), "v": pa.array(texts)}))
    _write(sink, pa.table({"n": [4, 5], "v": pa.array([{"a": None}, None])}), 1)
    assert base.rows("c") == [*enumerate(texts), (4, '{"a": null}'), (5, None)]


@pytest.mark.parametrize(
    ("columns", "result", "says"),
    [
        ("id INTEGER", ["id", "ID"], "column 'ID' is not in the table (which has 'id')"),
        ("id INTEGER, n INTEGER AS (id + 1)", ["id", "n"], "column 'n'"),
        ("id INTEGER", ["id", "id"], "column 'id' is there twice"),
    ],
)
def test_columns_that_no_row_can_fill_are_named(
    opened: Callable[[str], SqlSink], columns: str, result: list[str], says: str
) -> None:
    """Twins that differ in case, columns that are computed: told with column and table."""
    sink = opened(columns)
    rows = pa.Table.from_arrays([pa.array([1])] * len(result), names=result)
    with pytest.raises(ResultMisfitError) as caught:
        _write(sink, rows)
    assert says in str(caught.value)


def test_a_view_that_takes_no_rows_is_told_once(base: Base, sinks: Callable[..., SqlSink]) -> None:
    """It is refused before anything is written, with the database's own words."""
    base.run("CREATE VIEW v AS SELECT id FROM t")
    sink = sinks("v")
    sink.open()
    with pytest.raises(ResultMisfitError, match="cannot modify v because it is a view"):
        _write(sink, pa.table({"id": [1]}))


def test_moments_of_nanoseconds_are_the_row_s_fault_where_they_do_not_fit(
    opened: Callable[[str], SqlSink],
) -> None:
    """A column has microseconds; what would be cut is refused by the column's name."""
    sink = opened("v TIMESTAMP")
    _write(sink, pa.table({"v": pa.array([1000], pa.timestamp("ns"))}))
    with pytest.raises(RowsRefusedError, match="column 'v'"):
        _write(sink, pa.table({"v": pa.array([1], pa.timestamp("ns"))}), 1)


@pytest.mark.parametrize(
    ("number", "state", "of_values", "is_repeated"),
    [
        (1366, None, True, False),
        (3819, "HY000", True, False),
        (3140, "22032", True, False),
        (1644, "45000", True, False),
        (9999, "22999", True, False),
        (1213, None, False, True),
        (1213, "40001", False, True),
        (1205, "HY000", False, True),
        (2006, None, False, False),
        (1045, "28000", False, False),
    ],
)
def test_errors_of_mysql_are_told_by_number_and_state(
    number: int, state: str | None, of_values: bool, is_repeated: bool
) -> None:
    """Drivers have the number always, and some of them the state."""
    original = Exception(number, "what the server says")
    original.sqlstate = state  # type: ignore[attr-defined]
    error = DBAPIError("INSERT", None, original)
    assert is_of_values(error) is of_values
    assert gave_way(error) is is_repeated
    assert brief(error) == f"what the server says ({number})"


@pytest.mark.parametrize(
    ("state", "is_repeated"),
    [("40P01", True), ("40001", True), ("55P03", True), ("57014", False), ("23505", False)],
)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_states_of_postgresql_are_read_as_each_driver_keeps_them(
    driver: str, state: str, *, is_repeated: bool
) -> None:
    """A transaction that gave way is told from other errors, whichever driver reports it."""
    original = Exception({"C": state} if driver == "pg8000" else "what the server says")
    if driver != "pg8000":
        name = "sqlstate" if driver == "psycopg" else "pgcode"
        setattr(original, name, state)
    error = DBAPIError("INSERT", None, original)
    assert gave_way(error) is is_repeated
    assert is_of_values(error) is (state == "23505")
