"""Processes that write through a sink, each killed a line later than the one before.

    python -m tests.integration.extensions.spark.killed delta-first|delta-later|delta-columns FOLDER
    python -m tests.integration.extensions.spark.killed delta-group|delta-divided FOLDER
    python -m tests.integration.extensions.spark.killed delta-origin|delta-frames|delta-merge FOLDER
    python -m tests.integration.extensions.spark.killed sql-first|sql-later|sql-group URL
    python -m tests.integration.extensions.spark.killed sql-upsert|sql-origin URL

Each has a table of its own, and the next one goes on there. A micro-batch has one record of each
of two partitions; each record becomes one row. A group is two micro-batches in one transaction; a
divided one fails in the end, and each is committed by itself then. With upsert, in groups, the
partition is the key, so that each record takes the place of the one before it; with merge as well,
and a column counts the records but the first; with origin, in groups, each row says which records
it is of. Frames are of one session that all processes use:
Spark's tasks write the first result of each, and the rows of its second one are fetched.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset  # else each process would import on its own what is imported when needed
import sqlalchemy as sa
import structlog
from deltalake import DeltaTable

import headrace.extensions.delta.data_files
import headrace.extensions.delta.merged_files
import headrace.extensions.delta.merging
import headrace.extensions.delta.sink
import headrace.extensions.delta.staging
import headrace.extensions.delta.table
import headrace.extensions.sql.database
import headrace.extensions.sql.offsets
import headrace.extensions.sql.sink
import headrace.extensions.sql.target
import headrace.sinks.origin
from headrace.core.records import TopicPartition
from headrace.extensions.delta.merging import MergeRule
from headrace.extensions.delta.schema import SchemaChanges
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.table import LogFiles
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.by_key import Merging, WriteMode
from headrace.sinks.contract import BatchCommitSink, OffsetMove, OutputReplacer
from headrace.testing.kills import killed_at_every_line
from headrace.testing.sinks import identity, micro_batch, share, started_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import ModuleType

    from headrace.sinks.contract import Result, Sink
    from headrace.testing.sinks import Row, SinkPlace

_ROOT = Path(__file__).resolve().parents[4]

PARTITIONS = range(2)


class DeltaPlace:
    """A table in a folder, of two files for each micro-batch."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder
        self._options = {"partition_by": ["partition"], **options}

    def sink(self) -> Sink[Any]:
        """Return a sink that adds columns where a result has more."""
        changes = SchemaChanges.ADD_COLUMNS
        return DeltaSink(self._folder, schema_changes=changes, **self._options)

    def rows(self) -> list[Row]:
        """Return the table's rows; none where there is no table."""
        if not LogFiles(self._folder).has_entries():
            return []
        rows: list[Row] = DeltaTable(self._folder).to_pyarrow_table().to_pylist()
        return rows


class SqlPlace:
    """A table of a database."""

    def __init__(self, url: str, table: str, *more: str, **options: Any) -> None:
        self._url = url
        self._table = table
        self._options = options
        columns = ", ".join(['"partition" INTEGER', '"offset" INTEGER', *more])
        self._run(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")

    def sink(self) -> Sink[Any]:
        """Return a sink on the table."""
        return SqlSink(self._url, self._table, **self._options)

    def rows(self) -> list[Row]:
        """Return the table's rows."""
        return self._run(f'SELECT "partition", "offset" FROM {self._table}')

    def _run(self, statement: str) -> list[Row]:
        engine = sa.create_engine(self._url)
        with engine.begin() as connection:
            found = connection.exec_driver_sql(statement)
            rows = [dict(row) for row in found.mappings()] if found.returns_rows else []
        engine.dispose()
        return rows


@dataclass(frozen=True, slots=True)
class Way:
    """The place that each process writes to, by its number, and the code it writes through.

    Each finds ``commits_before``, and makes ``commits`` more, of as many micro-batches as there are
    ``together`` in each. Micro-batches from the offset ``wider_from`` on have a column more. Of the
    offsets below a stored one those that ``kept`` returns have rows. Of records that are counted,
    the column that is there more is the sum of what each adds to it. A loop shows at its second
    pass what it does at any later one.
    """

    place: Callable[[int], SinkPlace]
    modules: tuple[ModuleType, ...]
    commits_before: int = 0
    commits: int = 1
    wider_from: int | None = None
    passes: int = 1
    together: int = 1
    is_divided: bool = False
    has_origins: bool = False
    is_spark: bool = False
    is_counted: bool = False
    kept: Callable[[int], range] = range


class Writers:
    """One process after the other; each looks at what the one before left, and goes on there."""

    def __init__(self, way: Way, result: Callable[[pa.Table], Result]) -> None:
        self._way = way
        self._result = result

    def take_over(self, number: int) -> Callable[[], object]:
        """Require that nothing was lost and nothing doubled, and return what is next."""
        if number:
            self._go_on(self._way.place(number - 1))
        place = self._way.place(number)
        sink = place.sink()
        sink.open()
        for _ in range(self._way.commits_before):
            self._write(sink, self._stored(sink))
        starts = self._stored(sink)
        if self._way.is_divided:
            return lambda: self._write_divided(sink, starts)
        return lambda: self._write_on(sink, starts)

    def _go_on(self, place: SinkPlace) -> None:
        sink = place.sink()
        sink.open()
        stored = self._require_whole(place, sink)
        self._write(sink, stored)
        after = self._require_whole(place, sink)
        if self._way.has_origins:
            self._require_origins(sink, after)
        sink.close()
        sys.stdout.write(f"{stored[0] - self._way.commits_before * self._way.together}\n")
        sys.stdout.flush()

    def _stored(self, sink: Sink[Any]) -> dict[int, int]:
        return {n: sink.stored_offset(identity(n)) or 0 for n in PARTITIONS}

    def _write_on(self, sink: Sink[Any], starts: dict[int, int]) -> None:
        for commit in range(self._way.commits):
            behind = commit * self._way.together
            self._write(sink, {n: start + behind for n, start in starts.items()})

    def _write(self, sink: Sink[Any], starts: dict[int, int]) -> None:
        together = self._way.together
        staged = [self._stage(sink, starts, behind) for behind in range(together)]
        shares = [share(n, start, start + together) for n, start in starts.items()]
        if together == 1:
            sink.commit(staged[0], shares)
        else:
            assert isinstance(sink, BatchCommitSink)
            sink.commit_all(staged, shares)

    def _write_divided(self, sink: Sink[Any], starts: dict[int, int]) -> None:
        staged = [self._stage(sink, starts, behind) for behind in range(2)]
        assert isinstance(sink, BatchCommitSink)
        with no_entry_of_the_log(), suppress(OSError):
            sink.commit_all(staged, [share(n, start, start + 2) for n, start in starts.items()])
        for behind, own in enumerate(staged):
            begin = {n: start + behind for n, start in starts.items()}
            sink.commit(own, [share(n, start, start + 1) for n, start in begin.items()])

    def _stage(self, sink: Sink[Any], starts: dict[int, int], behind: int) -> Any:
        """Stage the micro-batch that is so many behind the first one."""
        begin = {n: start + behind for n, start in starts.items()}
        columns = {"partition": [*begin], "offset": [*begin.values()]}
        if self._is_wider(starts[0]):
            is_counted = self._way.is_counted
            more = [min(1, each) if is_counted else each for each in begin.values()]
            columns["more"] = more
        shares = [share(n, start, start + 1) for n, start in begin.items()]
        return sink.stage(micro_batch(uuid4().hex, shares), self._result(pa.table(columns)))

    def _is_wider(self, offset: int) -> bool:
        return self._way.wider_from is not None and offset >= self._way.wider_from

    def _require_whole(self, place: SinkPlace, sink: Sink[Any]) -> dict[int, int]:
        """Require one row for every offset below a stored one that is kept, and no other."""
        stored = self._stored(sink)
        found = place.rows()
        rows = sorted((row["partition"], row["offset"]) for row in found)
        if rows != [(n, offset) for n in PARTITIONS for offset in self._way.kept(stored[n])]:
            raise AssertionError(f"stored {stored}, found {found}")
        if any(row.get("more") != row["offset"] for row in found if self._is_wider(row["offset"])):
            raise AssertionError(f"a column is not what it was: {found}")
        return stored

    def _require_origins(self, sink: Sink[Any], stored: dict[int, int]) -> None:
        """Require that rows say which records they are of: those of both partitions go together."""
        assert isinstance(sink, OutputReplacer)
        for offset in range(stored[0]):
            move = OffsetMove(identity(0), TopicPartition("events", 0), stored[0], offset)
            found = sink.plan_replace([move])
            rows = sum(end - offset for end in stored.values())
            if found.offsets != {identity(n): offset for n in PARTITIONS} or found.rows != rows:
                raise AssertionError(f"stored {stored}, from {offset} on {found}")


@contextmanager
def no_entry_of_the_log() -> Iterator[None]:
    """Fail every commit to a Delta table when all of its files are in place."""

    def add(*_: Any, **__: Any) -> bool:
        raise OSError("no space left")

    real, LogFiles.add = LogFiles.add, add  # type: ignore[method-assign]
    try:
        yield
    finally:
        LogFiles.add = real  # type: ignore[method-assign]


_LOG = (headrace.extensions.delta.sink, headrace.extensions.delta.table)
_MERGE = (
    *_LOG,
    headrace.extensions.delta.data_files,
    headrace.extensions.delta.merged_files,
    headrace.extensions.delta.merging,
)
_COUNTS = MergeRule(("partition",), {"offset": Merging.MAX, "more": Merging.SUM})
_SQL = (
    headrace.extensions.sql.database,
    headrace.extensions.sql.offsets,
    headrace.extensions.sql.sink,
    headrace.extensions.sql.target,
)


def way_of(name: str, where: str) -> Way:
    """Return a way by its name. How files are written and moved is the same in all of a table's."""
    kind, what = name.split("-", 1)
    return _delta_way(what, where) if kind == "delta" else _sql_way(what, where)


def _delta_way(what: str, folder: str) -> Way:
    def place(number: int) -> DeltaPlace:
        merge = {"merge": _COUNTS} if what == "merge" else {}
        return DeltaPlace(Path(folder, str(number)), origin=what == "origin", **merge)

    both, frames = (*_LOG, headrace.extensions.delta.staging), (headrace.extensions.delta.staging,)
    return {
        "first": Way(place, _LOG),
        "later": Way(place, both, 1, passes=2),
        "columns": Way(place, _LOG, 1, wider_from=1),
        "group": Way(place, both, 1, passes=2, together=2),
        "divided": Way(place, both, passes=2, is_divided=True),
        "origin": Way(place, (*_LOG, headrace.sinks.origin), together=2, has_origins=True),
        "merge": Way(
            place, _MERGE, 1, wider_from=0, passes=2, together=2, is_counted=True, kept=_last
        ),
        "frames": Way(place, frames, commits=2, passes=2, is_spark=True),
    }[what]


def _sql_way(what: str, url: str) -> Way:
    def place(number: int) -> SqlPlace:
        table = f"written_{number}"
        match what:
            case "upsert":
                key = 'PRIMARY KEY ("partition")'
                return SqlPlace(url, table, key, mode=WriteMode.UPSERT, key=["partition"])
            case "origin":
                return SqlPlace(url, table, "headrace_origin VARCHAR(64)", origin=True)
            case _:
                return SqlPlace(url, table)

    return {
        "first": Way(place, _SQL, passes=2),
        "later": Way(place, _SQL, 1, passes=2),
        "group": Way(place, _SQL, 1, passes=2, together=2),
        "upsert": Way(place, _SQL, 1, passes=2, together=2, kept=_last),
        "origin": Way(place, _SQL, passes=2, together=2, has_origins=True),
    }[what]


def _last(end: int) -> range:
    return range(max(0, end - 1), end)


@contextmanager
def results_for(way: Way) -> Iterator[Callable[[pa.Table], Result]]:
    """Yield a maker of results from rows: the rows themselves, or a DataFrame of one session."""
    if not way.is_spark:
        yield lambda rows: rows
        return
    # the session is built on another thread, so that none of this one's connections to the JVM goes
    # through a fork: each process makes its own
    with started_spark() as runtime:
        yield runtime.session.createDataFrame


def assert_nothing_lost_or_doubled(
    name: str, where: str, lines: int, found: Collection[int] = (0, 1)
) -> None:
    """Run it: a process finds that the one before stored so many micro-batches, no part of one.

    By default at some of the lines nothing is stored yet, at others all is.
    """
    command = [sys.executable, "-m", __name__, name, where]
    writers = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=550, cwd=_ROOT
    )

    assert writers.returncode == 0, writers.stderr
    *stored, last = writers.stdout.splitlines()
    assert {*map(int, stored)} == {*found}
    assert int(last) > lines


def main(arguments: list[str]) -> None:
    """Run writers that are killed at every line, and check what the last one left."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    way = way_of(*arguments)
    with results_for(way) as result:
        writers = Writers(way, result)
        last = killed_at_every_line(writers.take_over, way.modules, passes=way.passes)
        writers.take_over(last + 1)
    sys.stdout.write(f"{last}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
