from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.errors import ResultMisfitError, RowsRefusedError, StartError
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.duckdb.sink import DuckDbSink
from headrace.sinks.by_key import Merging, Repeated, WriteMode
from headrace.sinks.contract import OffsetMove, PartitionCommit
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.extensions.duckdb.sink import StagedRows

_ROOT = Path(__file__).resolve().parents[4]

CREATE = "CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR)"


class Base:
    """A DuckDB file, and what its readers see."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with duckdb.connect(str(self.path)) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    def rows(self, table: str = "t") -> list[tuple[Any, ...]]:
        """Return a table's rows in order."""
        return self.run(f"SELECT * FROM {table} ORDER BY 1")


@pytest.fixture
def base(tmp_path: Path) -> Base:
    """Create a file with an empty table."""
    base = Base(tmp_path / "base.duckdb")
    base.run(CREATE)
    return base


@pytest.fixture
def sinks(base: Base) -> Iterator[Callable[..., DuckDbSink]]:
    """Open sinks on a table; close them at the end."""
    made: list[DuckDbSink] = []

    def make(table: str = "t", **options: Any) -> DuckDbSink:
        made.append(DuckDbSink(base.path, table, **options))
        made[-1].open()
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def staged(sink: DuckDbSink, rows: pa.Table | Sequence[dict[str, Any]]) -> StagedRows:
    """Return rows as staged."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
    return sink.stage(MicroBatch("one", "main", ()), table)


def share(number: int, start: int, next_offset: int) -> PartitionCommit:
    """Return one partition's share of a commit."""
    return PartitionCommit(f"id/{number}", TopicPartition("t", number), start, next_offset)


def test_a_file_of_another_process_is_refused_at_the_start(
    base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """The message says that one process has the file at a time."""
    sinks()
    code = (
        "import sys; from pathlib import Path; "
        "from headrace.extensions.duckdb.sink import DuckDbSink; "
        "DuckDbSink(Path(sys.argv[1]), 't').open()"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(base.path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=_ROOT,
    )
    assert other.returncode == 1
    assert "DuckDB lets one process have a file at a time" in other.stderr


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """A start and a look at it make no database without the table."""
    path = tmp_path / "none.duckdb"
    for ask in (DuckDbSink(path, "t").open, DuckDbSink(path, "t").check):
        with pytest.raises(StartError, match="there is no such file; create it"):
            ask()
    assert not path.exists()


def test_a_file_of_another_kind_is_refused_at_the_start(tmp_path: Path) -> None:
    """A file that is no DuckDB database is refused in DuckDB's words."""
    path = tmp_path / "text.duckdb"
    path.write_text("id,name\n" * 1000, encoding="utf-8")
    with pytest.raises(StartError, match="cannot be opened: "):
        DuckDbSink(path, "t").open()


@pytest.mark.parametrize(
    ("create", "table", "options", "problem"),
    [
        ("SELECT 1", "u", {}, "u in .*: there is no such table"),
        ("CREATE VIEW u AS SELECT * FROM t", "u", {}, "there is no such table"),
        ("SELECT 1", "other.t", {}, "there is no such table"),
        ("CREATE TABLE u (id INTEGER)", "u", {"key": ["id"]}, "no primary key or unique constr"),
        ("CREATE TABLE u (id INTEGER UNIQUE)", "u", {"key": ["no"]}, "no column no, which key"),
        (
            "CREATE TABLE u (a INTEGER, b INTEGER, UNIQUE (a, b))",
            "u",
            {"key": ["a"]},
            "no primary key or unique constraint is on exactly a",
        ),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_at_the_start(
    create: str, table: str, options: dict[str, Any], problem: str, base: Base
) -> None:
    """A missing table, a view, and a key that no constraint makes unique."""
    base.run(create)
    mode = WriteMode.UPSERT if options else WriteMode.APPEND
    with pytest.raises(StartError, match=problem):
        DuckDbSink(base.path, table, mode=mode, **options).open()


@pytest.mark.parametrize("key", [["a", "b"], ["b", "a"], ["A", "B"]])
@pytest.mark.parametrize("how", ["UNIQUE (a, b)", "PRIMARY KEY (b, a)", "index"])
def test_a_key_is_found_in_any_order_and_case(
    key: list[str], how: str, base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """A primary key, a unique constraint or a unique index on exactly its columns will do."""
    constraint = "" if how == "index" else f", {how}"
    base.run(
        f"CREATE TABLE u (a INTEGER, b INTEGER, n INTEGER{constraint})",
        "CREATE UNIQUE INDEX i ON u (a, b)" if how == "index" else "SELECT 1",
    )
    sink = sinks("u", mode=WriteMode.UPSERT, key=key)
    columns = dict.fromkeys(key, 1)
    sink.commit(staged(sink, [{**columns, "n": 1}]), [share(0, 0, 1)])
    sink.commit(staged(sink, [{**columns, "n": 2}]), [share(0, 1, 2)])
    sink.close()
    assert base.rows("u") == [(1, 1, 2)]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"id": 1, "nmae": "a"}], "column 'nmae' is not in the table"),
        ([{"name": "a"}], "column 'id' is missing"),
        ([{"id": {"a": 1}}], "column 'id' of type INTEGER takes no struct"),
        ([{"id": [1]}], "column 'id' of type INTEGER takes no list"),
        ([{"id": datetime(2020, 1, 1, tzinfo=UTC)}], "column 'id' of type INTEGER takes no times"),
        (pa.table({"id": [1], "ID": [1]}), "column 'id' is there twice"),
        (
            pa.table({"id": [1], "name": pa.array([0], pa.decimal256(50, 2))}),
            "column 'name' of type VARCHAR takes no decimal256",
        ),
    ],
)
def test_a_result_that_does_not_fit_is_told_before_anything_is_written(
    rows: Any, problem: str, base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """Names and types are of the reducer's making, and no row's fault."""
    sink = sinks()
    with pytest.raises(ResultMisfitError, match=problem):
        staged(sink, rows)
    sink.close()
    assert base.rows() == []


def test_a_generated_column_takes_no_values(base: Base, sinks: Callable[..., DuckDbSink]) -> None:
    """That is told before anything is written."""
    base.run("CREATE TABLE u (id INTEGER, twice INTEGER GENERATED ALWAYS AS (id * 2))")
    sink = sinks("u")
    with pytest.raises(ResultMisfitError, match="generated column"):
        staged(sink, [{"id": 1, "twice": 2}])


def test_a_column_added_to_the_table_is_seen(base: Base, sinks: Callable[..., DuckDbSink]) -> None:
    """A result that did not fit fits once the table was changed by the process."""
    sink = sinks()
    with pytest.raises(ResultMisfitError):
        staged(sink, [{"id": 1, "more": 2}])
    base.run("ALTER TABLE t ADD COLUMN more INTEGER")
    sink.commit(staged(sink, [{"id": 1, "more": 2}]), [share(0, 0, 1)])
    sink.close()
    assert base.rows() == [(1, None, 2)]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("INTEGER", "x", "Could not convert string"),
        ("TINYINT", 300, "out of range"),
        ("INTEGER CHECK (v < 5)", 7, "CHECK constraint failed"),
        ("INTEGER NOT NULL", None, "NOT NULL constraint failed"),
        ("JSON", "{", "Malformed JSON"),
        ("ENUM ('a', 'b')", "c", "Could not convert string"),
        ("UUID", "none", "Could not convert string"),
        ("DECIMAL(4, 2)", 1234.0, "Could not cast value"),
        ("DATE", "tomorrow", "date"),
    ],
)
def test_a_value_that_is_refused_is_its_rows_fault(
    column: str, value: object, said: str, base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """The commit stores nothing and the offset stays; other rows can follow."""
    base.run(f"CREATE TABLE u (id INTEGER, v {column})")
    sink = sinks("u")
    with pytest.raises(RowsRefusedError, match=said):
        sink.commit(staged(sink, [{"id": 1, "v": value}]), [share(0, 0, 10)])
    assert sink.stored_offset("id/0") is None
    sink.commit(sink.stage(MicroBatch("two", "main", ()), None), [share(0, 0, 10)])
    assert sink.stored_offset("id/0") == 10
    sink.close()
    assert base.rows("u") == []


def test_a_key_that_is_there_is_not_quoted(base: Base, sinks: Callable[..., DuckDbSink]) -> None:
    """The message has the constraint's kind, and no value of the row."""
    base.run("CREATE TABLE u (name VARCHAR PRIMARY KEY)", "INSERT INTO u VALUES ('hunter2')")
    sink = sinks("u")
    with pytest.raises(RowsRefusedError, match="primary key") as caught:
        sink.commit(staged(sink, [{"name": "hunter2"}]), [share(0, 0, 10)])
    assert "hunter2" not in str(caught.value)


def test_a_moment_is_stored_as_the_time_of_day_in_utc(
    base: Base, sinks: Callable[..., DuckDbSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TIMESTAMP does not depend on the zone of the process, a TIMESTAMPTZ is the moment."""
    monkeypatch.setenv("TZ", "America/New_York")
    base.run("CREATE TABLE u (day TIMESTAMP, moment TIMESTAMPTZ, nanos TIMESTAMP_NS)")
    sink = sinks("u")
    moment = datetime(2020, 1, 1, 12, tzinfo=UTC)
    berlin = pa.array([moment], pa.timestamp("us", "Europe/Berlin"))
    nanos = pa.array([1_577_880_000_000_000_001], pa.timestamp("ns"))
    sink.commit(
        staged(sink, pa.table({"day": berlin, "moment": berlin, "nanos": nanos})),
        [share(0, 0, 1)],
    )
    with pytest.raises(RowsRefusedError, match="column 'day'"):
        staged(sink, pa.table({"day": nanos}))
    sink.close()
    ((day, stored, parts),) = base.run(
        "SELECT day::VARCHAR, epoch_us(moment), epoch_ns(nanos) FROM u"
    )
    assert day == "2020-01-01 12:00:00"
    assert stored == moment.timestamp() * 1_000_000
    assert parts == 1_577_880_000_000_000_001


def test_structures_and_lists_become_json(base: Base, sinks: Callable[..., DuckDbSink]) -> None:
    """JSON columns take structures, lists and JSON text, whose null is JSON's."""
    base.run("CREATE TABLE u (id INTEGER, j JSON)")
    sink = sinks("u")
    for at, value in enumerate(({"a": 1}, [1, 2], '{"b": null}', "null")):
        sink.commit(staged(sink, [{"id": at, "j": value}]), [share(0, at, at + 1)])
    sink.close()
    found = base.run("SELECT j::VARCHAR FROM u ORDER BY id")
    assert found == [('{"a":1}',), ("[1,2]",), ('{"b": null}',), ("null",)]


def test_names_are_quoted_wherever_they_are(base: Base, sinks: Callable[..., DuckDbSink]) -> None:
    """Words of SQL, quotes and capitals are names as any others."""
    base.run(
        'CREATE SCHEMA "or"', 'CREATE TABLE "or"."a""b" ("select" INTEGER PRIMARY KEY, "N" INT)'
    )
    sink = sinks(
        'or.a"b',
        mode=WriteMode.MERGE,
        key=["select"],
        merge={"n": Merging.SUM},
        offsets_table="or.offsets",
    )
    for at in (0, 1):
        sink.commit(staged(sink, [{"select": 1, "n": 5}]), [share(0, at, at + 1)])
    sink.close()
    assert base.run('SELECT * FROM "or"."a""b"') == [(1, 10)]
    assert base.run('SELECT target, next_offset FROM "or".offsets') == [('or.a"b', 2)]


def test_a_key_in_several_rows_is_refused_or_its_last_row_written(
    base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """The policy ``repeated`` decides; a null in a key is refused always."""
    rows = [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]
    by_key: dict[str, Any] = {"mode": WriteMode.UPSERT, "key": ["id"]}
    with pytest.raises(RowsRefusedError, match=r"2 rows and 1 keys.*set repeated: last"):
        staged(sinks(**by_key), rows)
    sink = sinks(**by_key, repeated=Repeated.LAST)
    with pytest.raises(RowsRefusedError, match="1 of them null in part"):
        staged(sink, [{"id": None, "name": "a"}, {"id": 2, "name": "b"}])
    sink.commit(staged(sink, rows), [share(0, 0, 1)])
    sink.close()
    assert base.rows() == [(1, "b")]


@pytest.mark.parametrize(
    ("merge", "problem"),
    [
        ({"name": Merging.SUM}, "sum takes a column of numbers, and name is VARCHAR"),
        ({"other": Merging.LAST}, "no column other, which merge names"),
    ],
)
def test_a_column_that_cannot_be_merged_is_refused_at_the_start(
    merge: dict[str, Merging], problem: str, base: Base
) -> None:
    """A sum of text, and a column that is not there."""
    with pytest.raises(StartError, match=problem):
        DuckDbSink(base.path, "t", mode=WriteMode.MERGE, key=["id"], merge=merge).open()


def test_a_sum_that_its_column_cannot_hold_is_the_rows_fault(
    base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """The stored row stays, and so does the offset."""
    base.run("CREATE TABLE u (id INTEGER PRIMARY KEY, n TINYINT)", "INSERT INTO u VALUES (1, 120)")
    sink = sinks("u", mode=WriteMode.MERGE, key=["id"], merge={"n": Merging.SUM})
    with pytest.raises(RowsRefusedError):
        sink.commit(staged(sink, [{"id": 1, "n": 100}]), [share(0, 0, 1)])
    assert sink.stored_offset("id/0") is None
    sink.close()
    assert base.rows("u") == [(1, 120)]


_ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(-5, 5), st.none() | st.sampled_from("xy")),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(commits=st.lists(st.lists(_ROWS, min_size=1, max_size=3), max_size=4))
def test_merged_micro_batches_are_one_aggregate_of_all_rows(
    commits: list[list[list[tuple[int, int | None, str | None]]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The table has the same whatever the micro-batches, and however many in a transaction."""
    base = Base(tmp_path_factory.mktemp("merged") / "base.duckdb")
    base.run("CREATE TABLE u (id INTEGER PRIMARY KEY, n BIGINT, least BIGINT, most BIGINT, l TEXT)")
    merge = {"n": Merging.SUM, "least": Merging.MIN, "most": Merging.MAX, "l": Merging.LAST}
    sink = DuckDbSink(base.path, "u", mode=WriteMode.MERGE, key=["id"], merge=merge)
    sink.open()
    kinds = pa.schema([("id", pa.int64()), *((n, pa.int64()) for n in ("n", "least", "most"))])
    kinds = kinds.append(pa.field("l", pa.string()))
    for at, batches in enumerate(commits):
        results = [staged(sink, pa.Table.from_pylist(_aggregated(rows), kinds)) for rows in batches]
        sink.commit_all(results, [share(0, at, at + 1)])
    sink.close()
    everything = [row for batches in commits for rows in batches for row in rows]
    assert base.rows("u") == [tuple(row.values()) for row in _aggregated(everything)]


def _aggregated(rows: Sequence[tuple[int, int | None, str | None]]) -> list[dict[str, Any]]:
    found = []
    for key in sorted({row[0] for row in rows}):
        numbers = [n for k, n, _ in rows if k == key and n is not None]
        found.append(
            {
                "id": key,
                "n": sum(numbers) if numbers else None,
                "least": min(numbers, default=None),
                "most": max(numbers, default=None),
                "l": [text for k, _, text in rows if k == key][-1],
            }
        )
    return found


def test_a_commit_whose_answer_is_lost_is_found_stored(
    base: Base, sinks: Callable[..., DuckDbSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that took effect and raised all the same is one that succeeded."""
    sink = sinks()
    rows = staged(sink, [{"id": 2, "name": "b"}])
    fail_commit(sink, monkeypatch, before=False)
    with capture_logs() as events:
        sink.commit(rows, [share(0, 0, 10)])
    assert [event["event"] for event in events] == ["duckdb_commit_found_stored"]
    sink.close()
    assert base.rows() == [(2, "b")]


def test_a_commit_that_did_not_happen_raises_and_can_be_repeated(
    base: Base, sinks: Callable[..., DuckDbSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With offsets unchanged nothing was stored, and the same range may follow."""
    sink = sinks()
    rows = staged(sink, [{"id": 2, "name": "b"}])
    fail_commit(sink, monkeypatch, before=True)
    with pytest.raises(duckdb.IOException, match="no room"):
        sink.commit(rows, [share(0, 0, 10)])
    sink.commit(rows, [share(0, 0, 10)])
    sink.close()
    assert base.rows() == [(2, "b")]


def fail_commit(sink: DuckDbSink, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    """Fail the next transaction at its end, before it took effect or after."""
    real = sink.file.transaction

    @contextmanager
    def transaction() -> Iterator[duckdb.DuckDBPyConnection]:
        monkeypatch.undo()
        with real() as cursor:
            yield cursor
            if before:
                raise duckdb.IOException("no room")
        raise duckdb.IOException("no answer")

    monkeypatch.setattr(sink.file, "transaction", transaction)


def test_of_two_that_move_one_offset_one_is_refused(
    base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """A transaction that gives way is made again, and finds the offset moved."""
    first, second = sinks(), sinks()
    first.commit(staged(first, [{"id": 1, "name": "a"}]), [share(0, 0, 10)])
    rows = staged(first, [{"id": 2, "name": "b"}])
    with ThreadPoolExecutor(1) as pool, capture_logs() as events:
        with second.file.transaction() as cursor:
            cursor.execute("UPDATE headrace_offsets SET next_offset = 20")
            commit = pool.submit(first.commit, rows, [share(0, 10, 15)])
            assert wait_for(
                lambda: any(each["event"] == "duckdb_commit_repeated" for each in events),
                Deadline.after(30),
            )
        with pytest.raises(CommitConflictError):
            commit.result(60)
    first.close()
    second.close()
    assert base.rows() == [(1, "a")]


def test_offsets_of_a_later_format_are_neither_read_nor_moved(
    base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """The message says what to do."""
    sink = sinks()
    sink.commit(staged(sink, [{"id": 1, "name": "a"}]), [share(0, 0, 10)])
    base.run("UPDATE headrace_offsets SET format = 2")
    rows = staged(sink, [{"id": 2, "name": "b"}])
    for ask in (
        partial(sink.stored_offset, "id/0"),
        partial(sink.commit, rows, [share(0, 10, 20)]),
    ):
        with pytest.raises(StartError, match="format version 2, this Headrace knows up to 1"):
            ask()


def test_tables_of_one_file_are_committed_together(
    base: Base, sinks: Callable[..., DuckDbSink]
) -> None:
    """A row that one of them refuses keeps the rows of the others out as well."""
    base.run("CREATE TABLE u (id INTEGER CHECK (id < 5))")
    one, other = sinks(), sinks("u")
    good, bad = staged(one, [{"id": 1, "name": "a"}]), staged(other, [{"id": 9}])
    with pytest.raises(RowsRefusedError):
        DuckDbSink.commit_together([(one, good), (other, bad)], [share(0, 0, 10)])
    assert (one.stored_offset("id/0"), other.stored_offset("id/0")) == (None, None)
    DuckDbSink.commit_together(
        [(one, good), (other, staged(other, [{"id": 1}]))], [share(0, 0, 10)]
    )
    assert (one.stored_offset("id/0"), other.stored_offset("id/0")) == (10, 10)
    one.close()
    other.close()
    assert (base.rows(), base.rows("u")) == ([(1, "a")], [(1,)])


def test_the_leader_epoch_moves_with_the_offset(sinks: Callable[..., DuckDbSink]) -> None:
    """A later share without one drops it, and a note leaves it as the move says."""
    sink = sinks()
    partition = TopicPartition("t", 0)
    for start, epoch in ((0, 7), (1, 8), (2, None)):
        sink.commit(
            staged(sink, [{"id": start, "name": "a"}]),
            [PartitionCommit("id/0", partition, start, start + 1, None, epoch)],
        )
        assert sink.stored_leader_epoch("id/0") == epoch
    sink.move_offsets([OffsetMove("id/0", partition, 3, 1, None, 7)], "again")
    assert (sink.stored_offset("id/0"), sink.stored_leader_epoch("id/0")) == (1, 7)


#: Commits a row each time, and merges it into a second table, until it is killed or done.
_WRITER = """
    import sys
    from pathlib import Path
    import pyarrow as pa
    from headrace.core.records import TopicPartition
    from headrace.extensions.duckdb.sink import DuckDbSink
    from headrace.sinks.by_key import Merging
    from headrace.sinks.by_key import WriteMode
    from headrace.sinks.contract import PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch

    path, end = Path(sys.argv[1]), int(sys.argv[2])
    rows = DuckDbSink(path, "t")
    sums = DuckDbSink(
        path, "sums", mode=WriteMode.MERGE, key=["id"], merge={"n": Merging.SUM}
    )
    for sink in (rows, sums):
        sink.open()
    start = rows.stored_offset("id/0") or 0
    assert (sums.stored_offset("id/0") or 0) == start
    for at in range(start, end):
        batch = MicroBatch(str(at), "main", ())
        staged = [
            (rows, rows.stage(batch, pa.table({"id": [at], "name": ["a"]}))),
            (sums, sums.stage(batch, pa.table({"id": [0], "n": [1]}))),
        ]
        share = PartitionCommit("id/0", TopicPartition("t", 0), at, at + 1)
        DuckDbSink.commit_together(staged, [share])
        print(at, flush=True)
"""


def test_a_process_killed_at_any_moment_loses_and_doubles_nothing(
    base: Base, tmp_path: Path
) -> None:
    """Both tables have the rows up to the offset, and each once, after every kill."""
    base.run("CREATE TABLE sums (id INTEGER PRIMARY KEY, n BIGINT)")
    program = tmp_path / "writer.py"
    program.write_text(textwrap.dedent(_WRITER), encoding="utf-8")
    random, ends = Random(7), [*range(100_000, 100_006), None]
    for end in ends:
        stored = _whole(base)
        command = [sys.executable, str(program), str(base.path), str(end or stored + 20)]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as writer:
            assert writer.stdout is not None
            if end is not None:
                for _ in range(random.randrange(1, 40)):
                    assert writer.stdout.readline()
                writer.send_signal(signal.SIGKILL)
            writer.stdout.read()
        assert writer.returncode == (0 if end is None else -signal.SIGKILL)
    assert _whole(base) == stored + 20


def _whole(base: Base) -> int:
    """Return the offset that is stored, of which both tables have to be."""
    known = base.run("SELECT 1 FROM duckdb_tables() WHERE table_name = 'headrace_offsets'")
    offsets = (
        {row[0] for row in base.run("SELECT next_offset FROM headrace_offsets")} if known else set()
    )
    offset = max(offsets, default=0)
    assert len(offsets) <= 1
    assert [row[0] for row in base.rows()] == list(range(offset))
    assert sum(row[1] for row in base.rows("sums")) == offset
    return int(offset)
