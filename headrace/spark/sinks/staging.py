"""Files on their way into a table: written aside, moved into place, or removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake.transaction import AddAction

from headrace.errors import ConfigError, RetryableError, StartError
from headrace.processes import is_alive
from headrace.spark.sinks.arrow_files import (
    NULL_VALUE,
    plain,
    schema_json,
    with_origin,
    write_files,
)
from headrace.spark.sinks.fetching import Fetching
from headrace.spark.sinks.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.spark.sinks.result import Result

log = structlog.get_logger(__name__)

#: Inside the table's folder, so that a file moves into place by a rename. Readers and Delta's
#: vacuum leave names with an underscore alone.
STAGING = "_headrace_staging"

#: Seconds after which the staging folder of a process on another host counts as left behind.
_LEFT_BEHIND = 24 * 3600.0

#: What Spark's committer makes for a job. Made here it costs microseconds, there a fork of chmod
#: for each level: a staged write of 100 rows 85 -> 65 ms.
_JOB_FOLDERS = "_temporary/0/_temporary"

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def local_folder(path: str | Path) -> Path:
    """Return the absolute folder.

    Raises:
        ConfigError: the path is a URI.
    """
    if _URI.match(str(path)):
        raise ConfigError(
            [f"table path {str(path)!r} is a URI; give a folder of this host, as in /data/table"]
        )
    return Path(path).absolute()


class PlacingError(RetryableError):
    """Files of a result are not where they should be: moving them failed, or they are gone."""


class Placing(Enum):
    """How far a result's files got into the table's folder."""

    WAITS = "waits"
    """They are in the staging folder."""

    BEGUN = "begun"
    """Some may be in the table's folder: they are being moved, or that failed."""

    DONE = "done"
    """All are there."""


@dataclass(slots=True)
class StagedFiles:
    """One micro-batch's result on its way: where its files are and whether they may be removed.

    ``files`` are those in the staging folder, as they were written: what is not there any more when
    they are moved was removed by somebody. ``may_be_visible`` says that they are, or may be, part
    of the table, and must stay. ``schema`` is in JSON as Delta and Spark spell it, None where the
    reducer returned no result.
    """

    name: str
    folder: Path | None = None
    schema: str | None = None
    files: Sequence[Path] = ()
    placing: Placing = Placing.WAITS
    placed: list[AddAction] = field(default_factory=list)
    may_be_visible: bool = False


class Staging:
    """This process's corner of the table's staging folder.

    Its name has host and process id, so that another start can tell what a dead process left.
    """

    def __init__(self, table: Path, *, durable: bool) -> None:
        self._table = table
        self._durable = durable
        self._fetching = Fetching()
        owner = f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self.own = table / STAGING / owner

    def open(self) -> None:
        """Make the folder and remove those of dead processes.

        Raises:
            StartError: the folder cannot be made.
        """
        try:
            self.own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"{self.own} cannot be made: {error}") from error
        for other in self.own.parent.iterdir():
            if other != self.own and _is_left_behind(other):
                log.info("staging_removed", folder=str(other))
                shutil.rmtree(other, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder, and the one above it when no other process has one there."""
        shutil.rmtree(self.own, ignore_errors=True)
        with suppress(OSError):
            self.own.parent.rmdir()

    def write(
        self,
        name: str,
        result: Result,
        partition_by: Sequence[str],
        origin: str | None = None,
    ) -> StagedFiles:
        """Write the result. Blocks; a DataFrame's job writes one file a task, or gives its rows.

        ``origin`` is what each row says in the column of origins, None without one.

        Raises:
            UnstorableColumnError: a table's column has a type that Delta does not have.
        """
        folder = self.own / name
        try:
            if isinstance(result, pa.Table):
                rows = with_origin(plain(result), origin)
                staged = StagedFiles(name, folder, schema_json(rows))
                write_files(folder, rows, partition_by)
            else:
                frame = _with_origin(result, origin)
                staged = StagedFiles(name, folder, frame.schema.json())
                self._run(frame, folder, partition_by)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        staged.files = staged_files(folder)
        return staged

    def _run(self, frame: DataFrame, folder: Path, partition_by: Sequence[str]) -> None:
        """Have the rows of a DataFrame in files of the folder."""
        is_small = self._fetching.suits(frame.schema, partition_by)
        self._fetching.begins()
        if is_small:
            rows = frame.toArrow()
            write_files(folder, plain(rows), partition_by)
            self._fetching.fetched(rows)
        else:
            (folder / _JOB_FOLDERS).mkdir(parents=True)
            writer = frame.write.mode("append").partitionBy(*partition_by)
            writer.parquet(f"file:{folder}")
            self._fetching.written(list(folder.rglob("*.parquet")))

    def place(self, staged: Sequence[StagedFiles]) -> list[AddAction]:
        """Move the files into the table's folder, each once, and describe them for the log.

        They lie flat there: the log alone says which partition a file belongs to, and no value
        has to be spelt in a path.

        Those that are there already are made young: a clean-up of the table, by whichever writer,
        takes files of no version by age, and a process may be stopped for long at any line.

        Raises:
            PlacingError: moving some of them failed before, and which are where is not known; or
                some are gone.
        """
        waiting = [each for each in staged if each.placing is not Placing.DONE]
        for each in waiting:
            self._move(each)
        if self._durable and any(each.placed for each in waiting):
            sync(self._table)
        for each in staged:
            self._renew(each)
            each.placing = Placing.DONE
        return [action for each in staged for action in each.placed]

    def _move(self, staged: StagedFiles) -> None:
        if staged.folder is None:
            return
        if staged.placing is Placing.BEGUN:
            raise PlacingError(
                f"{self._table}: the files of micro-batch {staged.name} are partly in place since "
                "a commit failed; it is computed again"
            )
        if (gone := next((path for path in staged.files if not path.exists()), None)) is not None:
            raise PlacingError(_gone(gone, staged))
        staged.placing = Placing.BEGUN
        for number, source in enumerate(staged.files):
            rows = pq.read_metadata(source).num_rows
            if rows == 0:
                continue
            name = f"part-{staged.name}-{number:05}.parquet"
            os.utime(source)
            if self._durable:
                sync(source)
            source.rename(self._table / name)
            staged.placed.append(_add_action(self._table / name, source, staged.folder, rows))

    def _renew(self, staged: StagedFiles) -> None:
        for action in staged.placed:
            path = self._table / action.path
            try:
                os.utime(path)
            except FileNotFoundError:
                raise PlacingError(_gone(path, staged)) from None

    @staticmethod
    def keep(staged: Sequence[StagedFiles]) -> None:
        """Note that the files are, or may be, part of the table: they must stay."""
        for each in staged:
            each.may_be_visible = True

    def remove(self, staged: StagedFiles, *, placed: bool = False) -> None:
        """Remove the staged folder and, with ``placed``, the files that were moved out of it."""
        if staged.folder is not None:
            shutil.rmtree(staged.folder, ignore_errors=True)
        if placed and not staged.may_be_visible:
            for action in staged.placed:
                with suppress(OSError):
                    (self._table / action.path).unlink()


def staged_files(folder: Path) -> list[Path]:
    """Return the files of a result in its staging folder, in order."""
    return sorted(folder.rglob("*.parquet"))


def _gone(path: Path, staged: StagedFiles) -> str:
    return (
        f"{path} is gone before it was committed; was this process stopped for longer than the "
        f"table keeps files (file_retention)? Micro-batch {staged.name} is computed again"
    )


def sync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _with_origin(frame: DataFrame, origin: str | None) -> DataFrame:
    if origin is None:
        return frame
    from pyspark.sql.functions import lit  # noqa: PLC0415 - tables need no Spark

    return frame.withColumn(ORIGIN, lit(origin))


def _add_action(path: Path, source: Path, root: Path, rows: int) -> AddAction:
    status = path.stat()
    return AddAction(
        path=path.name,
        size=status.st_size,
        partition_values=_partition_values(source.relative_to(root).parent),
        modification_time=int(status.st_mtime * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": rows}),
    )


def _partition_values(folder: Path) -> dict[str, str | None]:
    """Read the values from the folders Spark's partitioned writer makes, as ``day=2013-01-01``."""
    pairs = (part.partition("=") for part in folder.parts)
    return {
        unquote(name): None if value == NULL_VALUE else unquote(value) for name, _, value in pairs
    }


def _is_left_behind(folder: Path) -> bool:
    """Whether the process that made the staging folder is gone, as far as can be told."""
    host, pid, _ = (*folder.name.rsplit(".", 2), "", "")[:3]
    if host == socket.gethostname() and pid.isdigit():
        return not is_alive(int(pid))
    try:
        return time.time() - folder.stat().st_mtime > _LEFT_BEHIND
    except OSError:
        return False
