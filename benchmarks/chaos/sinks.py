"""The processors of the members under attack, and the files that they write to."""

from __future__ import annotations

import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import SinkConflictError
from headrace.core.records import offset_of
from headrace.processors import BatchProcessor, BatchResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.core.clock import Deadline
    from headrace.core.records import Assignment, Batch, TopicPartition

#: Seconds to wait for another process that writes to the same file.
_LOCK_TIMEOUT = 1.0

_TABLES = (
    """CREATE TABLE IF NOT EXISTS stored
    (id INTEGER, at_offset INTEGER, member TEXT, epoch INTEGER, at REAL)""",
    "CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY, next_offset INTEGER)",
)


class SinkFile:
    """What is stored of one partition: a database, so that a killed writer leaves it whole.

    One file for each partition: SQLite locks whole files, and a member that is frozen while it
    writes must hold up no other partition.
    """

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(
            path, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        # only processes are killed, never the machine: what was written is in the page cache
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("PRAGMA journal_mode = WAL")
        for table in _TABLES:
            self._database.execute(table)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make what happens in the block one transaction."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def position(self) -> int | None:
        """Return the next offset, None where none was ever stored."""
        found = self._database.execute("SELECT next_offset FROM position").fetchone()
        return None if found is None else int(found[0])

    def move(self, next_offset: int) -> None:
        """Store the next offset."""
        self._database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", [next_offset])

    def append(self, batch: Batch, member: str) -> None:
        """Store a batch's records."""
        epoch, now = batch.assignment.epoch, SYSTEM_CLOCK.time()
        rows = [
            (int(record.value() or b"-1"), offset_of(record), member, epoch, now)
            for record in batch.records
        ]
        self._database.executemany("INSERT INTO stored VALUES (?, ?, ?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class FileSink(BatchProcessor):
    """Writes batches to files, one for each partition; ``work`` is how many seconds each takes."""

    def __init__(self, directory: str, member: str, work: float = 0.03) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._files: dict[TopicPartition, SinkFile] = {}
        self._lock = Lock()
        self.member = member
        self.work = work

    def file(self, partition: TopicPartition) -> SinkFile:
        """Return the open file of a partition."""
        with self._lock:
            if partition not in self._files:
                self._files[partition] = SinkFile(self._directory / f"{partition}.sqlite")
            return self._files[partition]

    def close(self, deadline: Deadline) -> None:
        """Close all files."""
        del deadline
        for file in self._files.values():
            file.close()


class PlainSink(FileSink):
    """Stores records alone: offsets are the channel's, after what is stored."""

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Work for a while, and store what came of it."""
        time.sleep(self.work)
        file = self.file(batch.partition)
        with file.transaction():
            file.append(batch, self.member)
        return BatchResponse.advance()


class TransactionalSink(FileSink):
    """Stores records and the next offset in one transaction, and refuses what does not follow."""

    def stored_offset(self, assignment: Assignment) -> int | None:
        """Return where the file goes on."""
        return self.file(assignment.partition).position()

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Work for a while, and store what came of it if nobody else did."""
        time.sleep(self.work)
        file = self.file(batch.partition)
        with file.transaction():
            self.check(batch, file.position())
            file.append(batch, self.member)
            file.move(batch.next_offset)
        return BatchResponse.advance()

    def check(self, batch: Batch, stored: int | None) -> None:
        """Refuse a batch that does not begin where the file goes on."""
        if stored is not None and stored != batch.start:
            raise SinkConflictError(batch.partition, batch.start, stored)
