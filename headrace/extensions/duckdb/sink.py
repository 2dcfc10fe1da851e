"""The DuckDB sink: rows and offsets in one transaction of a file, moved on a condition."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import sleep
from typing import TYPE_CHECKING

import duckdb
import structlog

from headrace.core.clock import Deadline
from headrace.core.columns import load_pandas
from headrace.core.errors import RowsRefusedError, SinkFailedError, StartError
from headrace.extensions.duckdb.file import DuckDbFile, brief, gave_way, is_of_values, quoted
from headrace.extensions.duckdb.table import DuckDbTable
from headrace.sinks.by_key import Repeated, WriteMode
from headrace.sinks.contract import (
    Guarantee,
    Sink,
    are_moved,
    columns_of,
    require_starts,
    rows_of,
    schema_of,
)
from headrace.sinks.pauses import pause_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from headrace.sinks.by_key import Merging
    from headrace.sinks.contract import OffsetMove, PartitionCommit, Result
    from headrace.sinks.micro_batch import MicroBatch

log = structlog.get_logger(__name__)

#: What a row of the offsets means. A row of a later format is neither read nor moved.
FORMAT_VERSION = 1

#: Seconds in which a transaction that gave way is made again.
_TIMEOUT = 60.0

_OFFSETS = (
    "CREATE TABLE IF NOT EXISTS {} (target VARCHAR, identity VARCHAR, next_offset BIGINT NOT NULL, "
    "leader_epoch INTEGER, format SMALLINT NOT NULL, member VARCHAR, micro_batch VARCHAR, "
    "stored_at TIMESTAMPTZ, note VARCHAR, noted_at TIMESTAMPTZ, PRIMARY KEY (target, identity))"
)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A result in this process's memory; ``rows`` is None where the reducer returned none."""

    name: str
    rows: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class _Write:
    """A sink's part of a transaction. ``said`` goes into the rows of the offsets it moves."""

    sink: DuckDbSink
    offsets: Sequence[OffsetMove]
    said: Mapping[str, str | None]
    staged: Sequence[StagedRows] = ()


class DuckDbSink(Sink[StagedRows]):
    """Writes to one table of a DuckDB file, exactly once.

    Each partition's next offset is a row of ``offsets_table``, updated in the transaction that
    writes the rows, on the condition that it is where the micro-batch begins. Of two such updates
    at a time DuckDB refuses one. ``table`` and ``offsets_table`` are ``name`` or ``schema.name``;
    ``merge`` says what mode merge does with a column, ``repeated`` what mode upsert does with a key
    in several rows of a result; ``member`` is written next to each offset.
    """

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(
        self,
        path: Path,
        table: str,
        *,
        mode: WriteMode = WriteMode.APPEND,
        key: Sequence[str] = (),
        merge: Mapping[str, Merging] | None = None,
        repeated: Repeated = Repeated.FAIL,
        offsets_table: str = "headrace_offsets",
        member: str | None = None,
    ) -> None:
        self._file = DuckDbFile(path)
        self._table = DuckDbTable(
            self._file, table, mode=mode, key=key, merge=merge or {}, repeated=repeated
        )
        self._offsets = ".".join(map(quoted, offsets_table.split(".")))
        self._member = member
        self._has_offsets = False

    def open(self) -> None:
        if self._table.has_key:
            load_pandas()
        with self._require_usable():
            self._table.load()
            self._create_offsets()

    def check(self) -> str:
        """Return a sentence on the table once it was looked at. Creates nothing. Blocks.

        Raises:
            StartError: the file cannot be opened, or the table cannot be written as configured.
        """
        try:
            with self._require_usable():
                self._table.load()
        finally:
            self._file.close()
        return f"{self._table.place}: the table is as the sink needs it"

    @contextmanager
    def _require_usable(self) -> Iterator[None]:
        """Turn an error of the database into one that stops a start."""
        try:
            yield
        except duckdb.Error as error:
            raise StartError(
                f"{self._table.place} cannot be used: {brief(error)}; correct the file or the table"
            ) from error

    def _create_offsets(self) -> None:
        if not self._has_offsets:
            with self._file.transaction() as cursor:
                cursor.execute(_OFFSETS.format(self._offsets))
            self._has_offsets = True

    def stored_offset(self, identity: str) -> int | None:
        found = self._stored(identity)
        return None if found is None else found[0]

    def stored_leader_epoch(self, identity: str) -> int | None:
        found = self._stored(identity)
        return None if found is None else found[1]

    def _stored(self, identity: str) -> tuple[int, int | None] | None:
        with self._file.cursor() as cursor:
            try:
                return self._row(cursor, identity)
            except duckdb.CatalogException:  # no table of offsets yet
                return None

    def _row(
        self, cursor: duckdb.DuckDBPyConnection, identity: str
    ) -> tuple[int, int | None] | None:
        """Return a partition's offset and leader epoch; raises StartError for a later format."""
        row = cursor.execute(
            f"SELECT next_offset, leader_epoch, format FROM {self._offsets} "  # noqa: S608 - quoted
            "WHERE target = ? AND identity = ?",
            [self._table.full_name, identity],
        ).fetchone()
        if row is None:
            return None
        if row[2] > FORMAT_VERSION:
            raise StartError(
                f"{self._offsets} in {self._file.name}: the offsets have format version {row[2]}, "
                f"this Headrace knows up to {FORMAT_VERSION}; upgrade this member, or give it an "
                "offsets_table of its own"
            )
        return row[0], row[1]

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> StagedRows:
        """Collect the result as an Arrow table. Spark's ``maxResultSize`` bounds its size."""
        columns = [] if result is None else columns_of(result)
        if result is None or not columns:
            return StagedRows(micro_batch.id)
        return StagedRows(micro_batch.id, self._asked(lambda: self._prepared(result, columns)))

    def _prepared(self, result: Result, columns: Sequence[str]) -> pa.Table:
        self._table.check(columns, schema_of(result))
        rows = rows_of(result)
        self._table.check(columns, rows.schema)
        return self._table.prepare(rows)

    def _asked(self, ask: Callable[[], pa.Table]) -> pa.Table:
        try:
            return ask()
        except duckdb.Error as error:
            raise SinkFailedError(f"{self._table.place} cannot be asked: {brief(error)}") from error

    def commit(self, staged: StagedRows, offsets: Sequence[PartitionCommit]) -> None:
        self.commit_all([staged], offsets)

    def commit_all(self, staged: Sequence[StagedRows], offsets: Sequence[PartitionCommit]) -> None:
        """Write the rows of several results in one transaction, in their order.

        The offsets' rows name the last of the micro-batches.
        """
        _carry_out([self._write(staged, offsets)])

    @staticmethod
    def commit_together(
        staged: Sequence[tuple[DuckDbSink, StagedRows]], offsets: Sequence[PartitionCommit]
    ) -> None:
        """Commit what sinks of one file have staged in one transaction, as :meth:`commit`."""
        _carry_out([sink._write([own], offsets) for sink, own in staged])  # noqa: SLF001 - of this class

    def move_offsets(self, moves: Sequence[OffsetMove], note: str) -> None:
        """Move the offsets in one transaction; their rows keep the latest note."""
        self._create_offsets()
        _carry_out([_Write(self, moves, {"note": note})])

    def _write(self, staged: Sequence[StagedRows], offsets: Sequence[OffsetMove]) -> _Write:
        return _Write(self, offsets, {"micro_batch": staged[-1].name}, staged)

    def carry_out(self, cursor: duckdb.DuckDBPyConnection, write: _Write) -> None:
        """Move offsets, then write rows, in a transaction.

        Raises:
            CommitConflictError: an offset is elsewhere; the caller rolls back.
            duckdb.Error: the database refused.
        """
        moves = sorted(write.offsets, key=lambda each: each.identity)
        require_starts([(each, self._move(cursor, each, write.said)) for each in moves])
        for each in write.staged:
            if each.rows is not None:
                self._table.write(cursor, each.rows)

    def _move(
        self, cursor: duckdb.DuckDBPyConnection, move: OffsetMove, said: Mapping[str, str | None]
    ) -> int | None:
        """Move one offset. Return the stored one where it is not the start."""
        found = self._row(cursor, move.identity)
        if found is not None and found[0] != move.start:
            return found[0]
        values = {
            "next_offset": move.next_offset,
            "leader_epoch": move.leader_epoch,
            "member": self._member,
            **said,
        }
        moment = "noted_at" if "note" in said else "stored_at"
        where = [self._table.full_name, move.identity]
        if found is None:
            names = ", ".join(("target", "identity", "format", *values, moment))
            marks = ", ".join("?" * (len(values) + 3))
            cursor.execute(
                f"INSERT INTO {self._offsets} ({names}) VALUES ({marks}, now())",  # noqa: S608 - quoted
                [*where, FORMAT_VERSION, *values.values()],
            )
        else:
            changes = ", ".join(f"{name} = ?" for name in values)
            cursor.execute(
                f"UPDATE {self._offsets} SET {changes}, {moment} = now() "  # noqa: S608 - quoted
                "WHERE target = ? AND identity = ?",
                [*values.values(), *where],
            )
        return None

    def find_offsets(self, moves: Sequence[OffsetMove]) -> Iterator[tuple[OffsetMove, int | None]]:
        """Yield each move with the offset that is stored now. Blocks; raises duckdb.Error."""
        for move in moves:
            yield move, self.stored_offset(move.identity)

    @property
    def file(self) -> DuckDbFile:
        """Return the file."""
        return self._file

    @property
    def place(self) -> str:
        """Return the table as messages name it."""
        return self._table.place

    def close(self) -> None:
        self._file.close()


def _carry_out(writes: Sequence[_Write]) -> None:
    """Execute all of the writes, which are to one file, or nothing. Blocks.

    A transaction that gave way to another one is made again.

    Raises:
        CommitConflictError: another writer moved some of the offsets.
        RowsRefusedError: a constraint, or a column's type, refuses some of the rows.
        duckdb.Error: the database refused, or nothing was stored as far as can be told.
    """
    place = ", ".join(each.sink.place for each in writes)
    deadline = Deadline.after(_TIMEOUT)
    for attempt in count(1):
        # before the commit nothing can have been stored
        is_commit_asked_for = False
        try:
            with writes[0].sink.file.transaction() as cursor:
                # the offsets of all tables first: who has lost a partition writes nothing
                for each in writes:
                    each.sink.carry_out(cursor, each)
                is_commit_asked_for = True
        except duckdb.Error as error:
            if is_commit_asked_for and _is_stored(writes, error, place):
                return
            if is_of_values(error):
                raise RowsRefusedError(f"{place}: {brief(error)}") from error
            if not gave_way(error) or not deadline.remaining:
                raise
            log.warning("duckdb_commit_repeated", table=place, attempt=attempt, error=brief(error))
            sleep(min(pause_after(attempt), deadline.remaining))
        else:
            return


def _is_stored(writes: Sequence[_Write], error: duckdb.Error, place: str) -> bool:
    """Return whether a commit that failed was made after all, by the offsets that are stored."""
    try:
        found = [pair for each in writes for pair in each.sink.find_offsets(each.offsets)]
    except (duckdb.Error, StartError):
        log.exception("duckdb_outcome_unknown", table=place)
        raise error from None
    if are_moved(found):
        log.warning("duckdb_commit_found_stored", table=place, error=brief(error))
        return True
    return False
