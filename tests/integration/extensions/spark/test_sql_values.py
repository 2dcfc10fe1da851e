"""Values of all kinds in PostgreSQL's columns: stored, or refused as a row's or a type's fault."""

from __future__ import annotations

import re
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.errors import ResultMisfitError, RowsRefusedError, SinkFailedError, StartError
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import WriteMode
from headrace.sinks.micro_batch import MicroBatch
from tests.integration.extensions.spark.test_sql_postgres import run
from tests.postgres import PostgresServer, postgres_server
from tests.unit.extensions.sql.sql_tables import share
from tests.unit.extensions.sql.sql_values import assert_answered_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COLUMN_TYPES = [
    "BOOLEAN",
    "SMALLINT",
    "INT",
    "BIGINT",
    "REAL",
    "FLOAT8",
    "NUMERIC",
    "NUMERIC(5,2)",
    "TEXT",
    "VARCHAR(3)",
    "CHAR(5)",
    "BYTEA",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "INTERVAL",
    "JSON",
    "JSONB",
    "INT[]",
    "TEXT[]",
    "JSONB[]",
    "UUID",
    "INET",
    "CITEXT",
    "mood",
    "MONEY",
    "BIT(3)",
    "int4range",
    "dom",
    "HSTORE",
    "TSQUERY",
    "TSVECTOR",
    "REGCLASS",
]

OTHER_TYPES = (
    "CREATE EXTENSION citext",
    "CREATE EXTENSION hstore",
    "CREATE TYPE mood AS ENUM ('x', 'y')",
    "CREATE DOMAIN dom AS TEXT CHECK (length(value) < 3)",
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server for all tests; each has a database of its own."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    """An empty database's address."""
    return server.new_database()


@pytest.fixture
def sink(url: str) -> Iterator[SqlSink]:
    """A sink on the table ``t``, which is made later and opened by the test."""
    with closing(SqlSink(url, "t")) as sink:
        yield sink


def _write(sink: SqlSink, rows: pa.Table) -> None:
    sink.commit(sink.stage(MicroBatch("one", "c", ()), rows), [share(0, 0, 1)])


def test_each_value_in_each_column_is_stored_or_answered_for(url: str) -> None:
    """A refusal is a row's fault, or that of a type, which is told of each of its values."""
    run(
        url, *OTHER_TYPES, *(f"CREATE TABLE t{n} (v {kind})" for n, kind in enumerate(COLUMN_TYPES))
    )
    for number in range(len(COLUMN_TYPES)):
        with closing(SqlSink(url, f"t{number}")) as sink:
            sink.open()
            assert_answered_for(sink, f"t{number}")


def test_text_is_read_by_the_column(url: str, sink: SqlSink) -> None:
    """JSON is no string in JSON, and a literal of any type is what the server takes it for."""
    columns = {
        "j": ("JSONB", '{"a": [1, 2]}', {"a": [1, 2]}),
        "k": ("JSON", "null", None),
        "n": ("JSONB", None, None),
        "b": ("BOOLEAN", "yes", True),
        "l": ("TEXT[]", "{a,b}", ["a", "b"]),
        "m": ("mood", "y", "y"),
    }
    run(
        url,
        *OTHER_TYPES,
        f"CREATE TABLE t ({', '.join(f'{n} {c[0]}' for n, c in columns.items())})",
    )
    sink.open()
    _write(sink, pa.table({n: pa.array([c[1]], pa.string()) for n, c in columns.items()}))

    found = run(url, "SELECT j, b, l, m::text, jsonb_typeof(j), json_typeof(k), n IS NULL FROM t")
    assert found == [({"a": [1, 2]}, True, ["a", "b"], "y", "object", "null", True)]


@pytest.mark.parametrize("kind", ["JSON[]", "JSONB[]"])
@pytest.mark.parametrize("count", [1, 3000])
def test_text_in_an_array_of_json_is_read_as_in_a_column(
    url: str, sink: SqlSink, kind: str, count: int
) -> None:
    """Few rows and many store the same; broken JSON in it is the row's fault, and null is SQL's."""
    run(url, f"CREATE TABLE t (v {kind}, w {kind})")
    sink.open()
    texts = [['{"a": [1, 2]}', '"x"', "null", None], None, []]
    structures = [[{"a": 1}, None], [], None]
    rows = {"v": pa.array(texts * count), "w": pa.array(structures * count)}
    _write(sink, pa.table(rows))
    shown = run(url, "SELECT DISTINCT v::text, w::text FROM t")
    found = {tuple(each and each.replace(": ", ":") for each in row) for row in shown}
    assert found == {
        (r'{"{\"a\":[1, 2]}","\"x\"","null",NULL}', r'{"{\"a\":1}","null"}'),
        (None, "{}"),
        ("{}", None),
    }
    broken = sink.stage(MicroBatch("two", "c", ()), pa.table({"v": pa.array([["{bad"]])}))
    with pytest.raises(RowsRefusedError, match="column 'v'"):
        sink.commit(broken, [share(0, 1, 2)])


def test_structures_are_json_and_their_absence_is_sql_s_null(url: str, sink: SqlSink) -> None:
    """A structure, a list, a number: as they are; a null in one is JSON's."""
    run(url, "CREATE TABLE t (n INT, j JSONB)")
    sink.open()
    _write(sink, pa.table({"n": [1, 2], "j": pa.array([{"a": None, "b": [1]}, None])}))
    assert run(url, "SELECT n, j::text FROM t ORDER BY n") == [
        (1, '{"a": null, "b": [1]}'),
        (2, None),
    ]


_CHECKED = [
    "CREATE TABLE u (v TEXT)",
    "CREATE VIEW t AS SELECT * FROM u WHERE v < 'b' WITH CHECK OPTION",
]
_RAISING = "$$ BEGIN RAISE EXCEPTION 'no such city'; END $$"
_REFUSING = [
    "CREATE TABLE t (v TEXT)",
    f"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS {_RAISING}",
    "CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
]


@pytest.mark.parametrize(
    ("made", "values", "says"),
    [
        (["CREATE TABLE t (v JSONB)"], ["{not json"], "invalid input syntax for type json"),
        (["CREATE TABLE t (v JSONB)"], ['"\\ud800"'], "invalid input syntax"),
        (["CREATE TABLE t (v JSONB)"], ["[" * 100_000], "stack depth limit"),
        (["CREATE TABLE t (v VARCHAR(3))"], ["four"], "column 'v': value too long"),
        (["CREATE TABLE t (v INT)"], [2**40], "column 'v': integer out of range"),
        (["CREATE TABLE t (v SMALLINT)"], [2**20], "column 'v': smallint out of range"),
        (["CREATE TABLE t (v BIGINT)"], [Decimal(2**70)], "column 'v': "),
        (["CREATE TABLE t (v NUMERIC(5,2))"], [Decimal("12345.5")], "column 'v': numeric field"),
        (["CREATE EXTENSION hstore", "CREATE TABLE t (v HSTORE)"], ["a=>"], "column 'v': "),
        (["CREATE TABLE t (v TSQUERY)"], ["a &"], "column 'v': no operand in tsquery"),
        (["CREATE TABLE t (v REGCLASS)"], ["nowhere"], "column 'v': relation"),
        (["CREATE TABLE t (v TEXT PRIMARY KEY)"], ["incompressible"], "index row"),
        (_CHECKED, ["c"], "check option"),
        (_REFUSING, ["c"], "no such city"),
    ],
)
def test_a_value_that_the_server_refuses_is_the_row_s_fault(
    url: str, sink: SqlSink, made: list[str], values: list[str], says: str
) -> None:
    """Broken JSON, text too long for its column or an index, rules of views and triggers."""
    if values == ["incompressible"]:
        values = ["".join(chr(0x4E00 + n * 7919 % 20000) for n in range(9000))]
    run(url, *made)
    sink.open()
    with pytest.raises(RowsRefusedError, match=says):
        _write(sink, pa.table({"v": values}))


@pytest.mark.parametrize(
    ("made", "result", "says"),
    [
        ('CREATE TABLE t (id INT, "Name" TEXT)', {"name": ["x"]}, "(which has 'Name')"),
        (
            "CREATE TABLE t (id INT, n INT GENERATED ALWAYS AS (id + 1) STORED)",
            {"n": [1]},
            'column "n"',
        ),
        ("CREATE TABLE t (id INT GENERATED ALWAYS AS IDENTITY)", {"id": [1]}, 'column "id"'),
        ("CREATE VIEW t AS SELECT 1 AS id UNION SELECT 2", {"id": [1]}, "cannot insert into view"),
        ("CREATE TABLE t (at TIMESTAMP)", {"at": [1]}, "takes no int64"),
        ("CREATE TABLE t (j JSONB)", {"j": [b"x"]}, "takes no binary"),
    ],
)
def test_a_column_that_no_row_can_fill_is_named_with_its_table(
    url: str, sink: SqlSink, made: str, result: dict[str, Any], says: str
) -> None:
    """Twins by case, generated columns, views, types: before anything is written."""
    run(url, made)
    sink.open()
    with pytest.raises(ResultMisfitError, match=re.escape(says)) as caught:
        sink.stage(MicroBatch("one", "c", ()), pa.table(result))
    assert "t in postgresql://" in str(caught.value)


def test_a_right_that_is_missing_is_no_type_s_fault(url: str) -> None:
    """A missing right is neither a row's fault nor a column's, and is tried again."""
    role = "DO $$ BEGIN CREATE ROLE reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
    run(url, role, "CREATE TABLE t (id INT)", "GRANT SELECT ON t TO reader")
    run(url, "GRANT CREATE ON SCHEMA public TO reader")
    with closing(SqlSink(url.replace("postgres@", "reader@"), "t")) as sink:
        sink.open()
        with pytest.raises(SinkFailedError, match="permission denied"):
            sink.stage(MicroBatch("one", "c", ()), pa.table({"id": [1]}))


def test_a_key_by_a_deferrable_constraint_stops_the_start(url: str) -> None:
    """Each upsert would fail: the constraint is named, and what to do."""
    run(url, "CREATE TABLE t (id INT, CONSTRAINT late UNIQUE (id) DEFERRABLE)")
    with (
        closing(SqlSink(url, "t", mode=WriteMode.UPSERT, key=["id"])) as sink,
        pytest.raises(StartError, match="constraint late on id is DEFERRABLE"),
    ):
        sink.open()
    with closing(SqlSink(url, "t")) as sink:
        sink.open()
