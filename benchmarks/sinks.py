"""The SQL sink's rows by COPY, with the same rows bound to an INSERT, on one PostgreSQL.

Each commit has the offsets of its rows in the same transaction. The time is this process's
processor time from the result to the end of the commit; the server's is told beside.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import psutil
import psycopg
import pyarrow as pa

from benchmarks.postgres import postgres_server
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, alternate, require_long
from headrace.core.records import TopicPartition
from headrace.extensions.sql.loaders import copy
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks import PartitionCommit
from headrace.sinks.by_key import WriteMode
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.rounds import Measured, Rounds

#: Rows a second of this process's processor time, and how much more than bound rows that is.
TARGETS = {
    "append": {"rate": 400_000, "ratio": 15},
    "upsert": {"rate": 100_000, "ratio": 4},
}

_MODES: Mapping[str, Mapping[str, Any]] = {
    "append": {},
    "upsert": {"mode": WriteMode.UPSERT, "key": ["id"]},
}

_COLUMNS = (
    "id BIGINT, customer TEXT, product TEXT, quantity INT, price DOUBLE PRECISION, paid BOOLEAN, "
    "note TEXT, at TIMESTAMPTZ"
)

#: More than any result has: all rows are bound.
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Plan:
    """What is written: ``rows`` in each round, by commits of ``commit`` rows.

    A round of bound rows of less than ``shortest`` seconds is refused.
    """

    rounds: int = 3
    rows: int = 1_000_000
    commit: int = 100_000
    shortest: float = SHORTEST


def rows_of(start: int, count: int) -> pa.Table:
    """Return rows of eight columns, one of which is null in every other row."""
    numbers = range(start, start + count)
    moments = [1_790_000_000_000_000 + number for number in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "customer": [f"customer-{number % 5000:08d}" for number in numbers],
            "product": [f"product-{number % 300:06d}" for number in numbers],
            "quantity": pa.array([number % 90 for number in numbers], pa.int32()),
            "price": [number / 7 for number in numbers],
            "paid": [number % 3 == 0 for number in numbers],
            "note": [None if number % 2 else "leave at the door" for number in numbers],
            "at": pa.array(moments, pa.timestamp("us", tz="UTC")),
        }
    )


def run(plan: Plan | None = None) -> Report:
    """Compare, round by round, on a server of its own. Blocks for some minutes."""
    plan = plan or Plan()
    tables = [
        rows_of(start, min(plan.commit, plan.rows - start))
        for start in range(0, plan.rows, plan.commit)
    ]
    compared: dict[str, Rounds] = {}
    with postgres_server() as server:
        for mode in _MODES:
            url = server.new_database()
            sides = {name: _side(url, mode, name, tables) for name in ("copied", "bound")}
            compared[mode] = alternate(
                sides,
                plan.rounds,
                say=lambda line, mode=mode: say(f"{mode}: {line}"),  # type: ignore[misc]
                shortest=0.0,
            )
            for measured in compared[mode].results["bound"]:
                require_long(f"{mode}, bound", measured, plan.shortest)
    return _report(plan, compared)


def _side(url: str, mode: str, name: str, tables: list[pa.Table]) -> Callable[[], Measured]:
    """Return a round of one side: into a new table, or over rows that are there for an upsert."""

    def measure() -> Measured:
        key = ", PRIMARY KEY (id)" if mode == "upsert" else ""
        _execute(url, "DROP TABLE IF EXISTS rows, headrace_offsets")
        _execute(url, f"CREATE TABLE rows ({_COLUMNS}{key})")
        with closing(SqlSink(url, "rows", **_MODES[mode])) as sink:
            sink.open()
            if mode == "upsert":
                _commit(sink, tables[::2], "before")
            if name == "copied":
                measured = _timed(url, sink, tables)
            else:
                with (
                    patch.object(copy, "FEWEST", _NEVER),
                    patch.object(copy, "FEWEST_STAGED", _NEVER),
                ):
                    measured = _timed(url, sink, tables)
        (found,) = _execute(url, "SELECT count(*), sum(id), sum(quantity) FROM rows")
        wanted = tuple(sum(each) for each in zip(*(_sums(table) for table in tables), strict=True))
        if found != wanted:
            raise AssertionError(f"{mode}, {name}: the table has {found} in place of {wanted}")
        return measured

    return measure


def _timed(url: str, sink: SqlSink, tables: list[pa.Table]) -> Measured:
    server_before, began = _server_seconds(url), time.perf_counter()
    own_before = time.process_time()
    _commit(sink, tables, "rows")
    own = time.process_time() - own_before
    seconds, rows = time.perf_counter() - began, sum(table.num_rows for table in tables)
    return {
        "rows": rows,
        "seconds": round(seconds, 3),
        "own": round(own, 3),
        "server": round(_server_seconds(url) - server_before, 2),
        "rate": round(rows / own),
    }


def _commit(sink: SqlSink, tables: list[pa.Table], identity: str) -> None:
    for number, table in enumerate(tables):
        staged = sink.stage(MicroBatch(f"{identity}-{number}", "bench", ()), table)
        move = PartitionCommit(identity, TopicPartition("rows", 0), number, number + 1)
        sink.commit(staged, [move])


def _sums(table: pa.Table) -> tuple[int, int, int]:
    return (
        table.num_rows,
        sum(table.column("id").to_pylist()),
        sum(table.column("quantity").to_pylist()),
    )


def _server_seconds(url: str) -> float:
    """Return the processor time of the database's sessions, whose connections stay open."""
    pids = _execute(
        url,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()",
    )
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for (pid,) in pids)


def _execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _report(plan: Plan, compared: Mapping[str, Rounds]) -> Report:
    figures: dict[str, Any] = {}
    by_round = {}
    for mode, rounds in compared.items():
        ratios = rounds.ratios("copied", "bound", "rate")
        by_round[f"{mode}_ratio"] = ratios
        figures |= {
            f"{mode}_rows_per_cpu_second": round(rounds.median("copied", "rate")),
            f"{mode}_rows_per_cpu_second_target": TARGETS[mode]["rate"],
            f"{mode}_ratio": round(rounds.ratio("copied", "bound", "rate"), 2),
            f"{mode}_ratio_target": TARGETS[mode]["ratio"],
            f"{mode}_ratios": [round(each, 2) for each in ratios],
        }
        for side in ("copied", "bound"):
            for key in ("rate", "own", "server", "seconds"):
                figures[f"{mode}_{side}_{key}"] = rounds.values(side, key)
    return Report(
        "sinks",
        {**figures, "rounds": plan.rounds, "rows": plan.rows, "commit": plan.commit},
        by_round,
    )
