"""Processes that replace a range of a sink, each killed a line later than the one before.

    python -m tests.integration.extensions.spark.killed_replacing delta FOLDER
    python -m tests.integration.extensions.spark.killed_replacing sql URL

Each has a table of its own. It has three records of each of two partitions, a row for each; the
last two are to go, those of the Delta table from a file that has the first ones, too.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset  # else each process would import on its own what is imported when needed
import structlog
from deltalake import DeltaTable

import headrace.extensions.delta.data_files
import headrace.extensions.delta.replacement
import headrace.extensions.delta.sink
import headrace.extensions.delta.table
import headrace.extensions.sql.database
import headrace.extensions.sql.offsets
import headrace.extensions.sql.sink
import headrace.extensions.sql.target
import headrace.sinks.origin
from headrace.core.records import TopicPartition
from headrace.extensions.delta.maintenance import compact
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks import OffsetMove
from headrace.testing.kills import killed_at_every_line
from headrace.testing.sinks import identity, micro_batch, share
from tests.integration.extensions.spark.killed import SqlPlace

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from headrace.testing.sinks import Row

_ROOT = Path(__file__).resolve().parents[4]

PARTITIONS = range(2)
OFFSETS = range(3)
TARGET = 1


class Table:
    """A Delta table in a folder, or a table of a database."""

    def __init__(self, kind: str, where: str, number: int) -> None:
        self._folder = Path(where, str(number)) if kind == "delta" else None
        self._url, self._name = where, f"replaced_{number}"
        if self._folder is None:
            self._place = SqlPlace(where, self._name, "headrace_origin VARCHAR(64)")

    def sink(self) -> Any:
        """Return an open sink on it."""
        if self._folder is None:
            sink: Any = SqlSink(self._url, self._name, origin=True)
        else:
            sink = DeltaSink(self._folder, origin=True, partition_by=["partition"])
        sink.open()
        return sink

    def fill(self) -> Any:
        """Write a row for each record, and return the sink."""
        sink = self.sink()
        for offset in OFFSETS:
            shares = [share(number, offset, offset + 1) for number in PARTITIONS]
            rows = pa.table({"partition": [*PARTITIONS], "offset": [offset] * len(PARTITIONS)})
            sink.commit(sink.stage(micro_batch(f"at-{offset}", shares), rows), shares)
        if self._folder is not None:
            compact(self._folder, self._folder / "_scratch", {}, 0.0)
        return sink

    def rows(self) -> list[tuple[int, int]]:
        """Return the rows in order."""
        found: list[Row] = (
            self._place.rows()
            if self._folder is None
            else DeltaTable(self._folder).to_pyarrow_table().to_pylist()
        )
        return sorted((row["partition"], row["offset"]) for row in found)


def replaced(sink: Any) -> int:
    """Replace the last records, wherever the offsets stand."""
    moves = [
        OffsetMove(
            identity(n), TopicPartition("events", n), sink.stored_offset(identity(n)), TARGET
        )
        for n in PARTITIONS
    ]
    rows: int = sink.replace(moves, "killed")
    return rows


def require_whole(table: Table) -> None:
    """Require that all of it took place or nothing did, and that it can be done again."""
    sink = table.sink()
    stored = {sink.stored_offset(identity(number)) for number in PARTITIONS}
    is_done = stored == {TARGET}
    end = TARGET if is_done else len(OFFSETS)
    if stored != {end} or table.rows() != rows_up_to(end):
        raise AssertionError(f"stored {stored}, found {table.rows()}")
    gone = replaced(sink)
    if gone != (len(PARTITIONS) * (end - TARGET)) or table.rows() != rows_up_to(TARGET):
        raise AssertionError(f"{gone} removed after {stored}, found {table.rows()}")
    sink.close()
    sys.stdout.write(f"{int(is_done)}\n")
    sys.stdout.flush()


def rows_up_to(end: int) -> list[tuple[int, int]]:
    """Return a row for each record before an offset."""
    return [(number, offset) for number in PARTITIONS for offset in range(end)]


MODULES: dict[str, tuple[ModuleType, ...]] = {
    "delta": (
        headrace.extensions.delta.data_files,
        headrace.extensions.delta.table,
        headrace.extensions.delta.replacement,
        headrace.extensions.delta.sink,
        headrace.sinks.origin,
    ),
    "sql": (
        headrace.sinks.origin,
        headrace.extensions.sql.database,
        headrace.extensions.sql.offsets,
        headrace.extensions.sql.offsets,
        headrace.extensions.sql.sink,
        headrace.extensions.sql.target,
        headrace.extensions.sql.sink,
    ),
}


def assert_all_or_nothing(kind: str, where: str, lines: int) -> None:
    """Run it: at some of the lines nothing is done yet, at others all is, at none a part."""
    command = [sys.executable, "-m", __name__, kind, where]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=550, cwd=_ROOT
    )
    assert done.returncode == 0, done.stderr
    *stored, last = done.stdout.splitlines()
    assert {*stored} == {"0", "1"}
    assert int(last) > lines


def main(kind: str, where: str) -> None:
    """Run replacements that are killed at every line, and check what each left."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    def prepare(number: int) -> Callable[[], object]:
        if number:
            require_whole(Table(kind, where, number - 1))
        sink = Table(kind, where, number).fill()
        return lambda: replaced(sink)

    last = killed_at_every_line(prepare, MODULES[kind], passes=2)
    require_whole(Table(kind, where, last))
    sys.stdout.write(f"{last}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
