"""The JSON lines sink: results appended to one file, at least once, for a quick look."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark user knows

from headrace.errors import StartError
from headrace.spark.sinks.contract import Guarantee
from headrace.spark.sinks.json_rows import json_lines
from headrace.spark.sinks.result import columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.sinks.contract import PartitionCommit
    from headrace.spark.sinks.result import Result

#: Bytes read at a time when looking back for the last whole line.
_BLOCK = 64 << 10


class JsonLinesSink:
    """Appends each row as one JSON object and forces it to disk before the batch is answered.

    Several processes may append to the same file: each append holds the file's lock. A line that
    a crash cut short was never answered; the next append removes it. The rows pass through this
    process's memory.
    """

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()

    def open(self) -> None:
        """Make the file.

        Raises:
            StartError: it cannot be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise StartError(f"{self._path} cannot be written: {error}") from error

    def stored_offset(self, identity: str) -> int | None:  # noqa: ARG002 - keeps no offsets
        """Return None: the group's commit holds the offsets."""
        return None

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> bytes:  # noqa: ARG002
        """Collect the rows, as Spark spells them in JSON, with null fields present."""
        if result is None or not columns_of(result):
            return b""
        lines = json_lines(result) if isinstance(result, pa.Table) else _spelt_by_spark(result)
        return "".join(f"{text}\n" for text in lines).encode()

    def commit(self, staged: bytes, offsets: Sequence[PartitionCommit]) -> None:  # noqa: ARG002
        """Append the lines, all or none, and force them to disk.

        Raises:
            OSError: nothing was appended.
        """
        if not staged:
            return
        with self._locked() as descriptor:
            end = _end_of_last_line(descriptor)
            os.ftruncate(descriptor, end)
            try:
                _write_all(descriptor, staged)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise

    def discard(self, staged: bytes) -> None:
        """Hold nothing: the rows are in memory."""

    def close(self) -> None:
        """Hold nothing: the file is open during a commit only."""

    @contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _spelt_by_spark(result: DataFrame) -> list[str]:
    line = F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("line")
    lines: list[str] = result.select(line).toArrow().column("line").to_pylist()
    return lines


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _end_of_last_line(descriptor: int) -> int:
    """Return the offset behind the last line end, 0 where there is none."""
    position = os.fstat(descriptor).st_size
    while position > 0:
        begin = max(0, position - _BLOCK)
        found = os.pread(descriptor, position - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0
