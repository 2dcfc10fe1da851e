"""Compare commits of the SQL sink with and without statements that the server has prepared.

    .venv/bin/python scripts/sql_rates.py postgresql://user@host/database

The database is asked directly, and has a table ``headrace_rates`` afterwards no more. Rounds
alternate; a figure is the median of the rounds' ratios, time without over time with.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa

from headrace.core.records import TopicPartition
from headrace.extensions.sql.database import Database
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

_COLUMNS = "id BIGINT, name TEXT, size DOUBLE PRECISION, at TIMESTAMPTZ"
_OFFSETS = "headrace_rates_offsets"
_ROUNDS = 30
_PARTITION = TopicPartition("rates", 0)


@contextmanager
def _tables(database: Database) -> Iterator[None]:
    drop = f"DROP TABLE IF EXISTS headrace_rates, {_OFFSETS}"
    with database.transaction() as connection:
        connection.exec_driver_sql(drop)
        connection.exec_driver_sql(f"CREATE TABLE headrace_rates ({_COLUMNS})")
    yield
    with database.transaction() as connection:
        connection.exec_driver_sql(drop)


def _sink(url: str, *, prepares: bool) -> SqlSink:
    sink = SqlSink(url, "headrace_rates", offsets_table=_OFFSETS)
    if not prepares:

        @sa.event.listens_for(sink._database.engine, "connect")  # noqa: SLF001 - to measure it
        def have_nothing_prepared(connection: object, _: object) -> None:
            connection.prepare_threshold = None  # type: ignore[attr-defined]

    sink.open()
    return sink


def _rows(count: int) -> pa.Table:
    at = pa.array([1_790_000_000_000_000] * count, pa.timestamp("us", tz="UTC"))
    names = [f"name {number}" for number in range(count)]
    return pa.table({"id": range(count), "name": names, "size": [0.5] * count, "at": at})


def _commit(sink: SqlSink, rows: pa.Table, start: int, name: str) -> float:
    staged = sink.stage(MicroBatch(name, "rates", ()), rows)
    began = perf_counter()
    sink.commit(staged, [PartitionCommit(f"rates/{name}", _PARTITION, start, start + 1)])
    return perf_counter() - began


def compare(url: str) -> dict[str, float]:
    """Return the ratios, by how many rows a commit has. Blocks for some seconds."""
    database, found = Database(url), {}
    with _tables(database):
        sides = {name: _sink(url, prepares=name == "with") for name in ("with", "without")}
        for count in (10, 100, 2000):
            rows, ratios = _rows(count), []
            for number in range(_ROUNDS + 5):
                took = {
                    name: _commit(sink, rows, number, f"{name}-{count}")
                    for name, sink in sides.items()
                }
                ratios.append(took["without"] / took["with"])
            found[f"unprepared_over_prepared_{count}"] = round(median(ratios[5:]), 2)
        for sink in sides.values():
            sink.close()
    database.close()
    return found


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1])))
